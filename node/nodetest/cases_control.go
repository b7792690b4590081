package nodetest

import (
	"os"
	"slices"
	"strings"
	"syscall"

	"cortexfs/node/control"
)

// agentNames are the names of an agent's directory: the registry without view/
// and exec.
var agentNames = func() []string {
	var names []string
	for _, e := range control.Agent.Entries() {
		if e.Kind != control.ViewDir && e.Kind != control.Exec {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return names
}()

// controlCases are the rules about what a control is and which texts it takes.
var controlCases = []testCase{
	{name: "control/listing equals the registry", run: func(k *kit) {
		names, err := k.c.ReadDir(k.dir)
		k.ok(err)
		if !slices.Equal(names, agentNames) {
			k.Errorf("listed %v\nwant   %v", names, agentNames)
		}
	}},
	{name: "control/modes and owners", run: func(k *kit) {
		for _, e := range control.Agent.Entries() {
			if e.Kind == control.ViewDir || e.Kind == control.Exec {
				continue
			}
			st, err := k.c.Lstat(k.p(e.Name))
			k.ok(err)
			if st.Mode != e.Mode || st.UID != k.e.UID {
				k.Errorf("%s: mode %o uid %d, want %o %d", e.Name, st.Mode, st.UID, e.Mode, k.e.UID)
			}
			if dir := e.Kind == control.Dir; dir != (st.Type == 'd') {
				k.Errorf("%s: type %c", e.Name, st.Type)
			}
		}
	}},
	{name: "control/every good text", run: func(k *kit) {
		k.eachText(func(e *control.Entry) {
			before := k.read(k.c, k.p(e.Name))
			for _, text := range e.Good {
				err := save(k.c, k.p(e.Name), text)
				if err == syscall.EPERM || err == syscall.EINVAL && e.Name == "parent" {
					continue // judged by who writes, and by who is there
				}
				if err != nil {
					k.Errorf("%s: %q: %v", e.Name, text, err)
					continue
				}
				want := string(control.Normalize([]byte(text)))
				if text == "" {
					k.becomes(e.Name, want) // truncated and not written: at release
				} else if got := k.read(k.c, k.p(e.Name)); got != want {
					k.Errorf("%s: wrote %q, reads %q", e.Name, text, got)
				}
			}
			_ = save(k.c, k.p(e.Name), before)
		})
	}},
	{name: "control/every bad text", run: func(k *kit) {
		k.eachText(func(e *control.Entry) {
			before := k.read(k.c, k.p(e.Name))
			for _, b := range e.Bad {
				want := b.Kind.Errno()
				if b.Text == "" {
					continue // nothing is written: `: > file`
				}
				if err := save(k.c, k.p(e.Name), b.Text); err != want {
					k.Errorf("%s: %.60q: %v, want %v", e.Name, b.Text, err, want)
				}
				if got := k.read(k.c, k.p(e.Name)); got != before {
					k.Fatalf("%s: after the refused %.60q it reads %q", e.Name, b.Text, got)
				}
			}
		})
	}},
	{name: "control/bad bytes of every kind", run: func(k *kit) {
		for _, text := range []string{"auto\r\n", "\ufeffauto\n", "au\x00to\n", "\xff\n", " auto\n", "auto \n", "auto\n\n", "\tauto\n", "AUTO\n", "auto\u0085\n"} {
			k.fails(save(k.c, k.p("approval"), text), syscall.EINVAL)
		}
		k.is("approval", "auto\n")
	}},
	{name: "control/over 64 KiB", run: func(k *kit) {
		line := "# " + strings.Repeat("x", 61) + "\n"
		k.fails(save(k.c, k.p("policy"), strings.Repeat(line, 1025)), syscall.EFBIG)
		k.is("policy", "")
		k.set("policy", strings.Repeat(line, 1024))
		k.fails(put(k.c, k.p("policy"), "#\n", os.O_APPEND), syscall.EFBIG)
	}},
	{name: "control/a misspelt name", run: func(k *kit) {
		for _, name := range []string{"aproval", "polices", "xyz", "4913", "tmp"} {
			_, err := k.c.Open(k.p(name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
			k.fails(err, syscall.EPERM)
			k.fails(k.c.Mkdir(k.p(name), 0o755), syscall.EPERM)
		}
		k.clean()
	}},
	{name: "control/live files", run: func(k *kit) {
		k.is("status", "dead\n")
		k.is("pid", "")
		for _, name := range []string{"status", "pid", "log"} {
			for _, flags := range []int{os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND} {
				_, err := k.c.Open(k.p(name), flags, 0)
				k.fails(err, syscall.EPERM, syscall.EACCES) // EACCES: the kernel, by the mode
			}
			k.fails(k.c.Truncate(k.p(name), 0), syscall.EPERM, syscall.EACCES)
			k.fails(k.c.Unlink(k.p(name)), syscall.EPERM)
			k.fails(k.c.Rename(k.p(name), k.p("mount~")), syscall.EPERM)
		}
	}},
	{name: "control/mode and owner are derived", run: func(k *kit) {
		st, err := k.c.Lstat(k.p("mount"))
		k.ok(err)
		k.ok(k.c.Chmod(k.p("mount"), 0o640))
		k.ok(k.c.Chown(k.p("mount"), int(st.UID), int(st.GID)))
		k.ok(k.c.Chown(k.p("mount"), -1, -1))
		k.ok(k.c.Touch(k.p("mount")))
		k.fails(k.c.Chown(k.p("mount"), int(st.UID)+1, -1), syscall.EPERM)
		fd := k.open(k.c, "mount", 0)
		k.ok(k.c.Fchmod(fd, 0o644))
		k.ok(k.c.Fchown(fd, int(st.UID), int(st.GID)))
		k.ok(k.c.Close(fd))
		if now, err := k.c.Lstat(k.p("mount")); err != nil || now.Mode != st.Mode {
			k.Errorf("mode %o, %v; want %o", now.Mode, err, st.Mode)
		}
	}},
	{name: "control/extended attributes", run: func(k *kit) {
		k.set("policy", ruleA)
		want := map[string]string{"kind": "agent.control", "origin": "durable", "token_estimate": "9"}
		for name, value := range want {
			got, err := k.c.Getxattr(k.p("policy"), "user.cortexfs."+name)
			if err != nil || got != value {
				k.Errorf("%s = %q, %v; want %q", name, got, err, value)
			}
		}
		if got, _ := k.c.Getxattr(k.p("tools"), "user.cortexfs.origin"); got != "default" {
			k.Errorf("origin of a default is %q", got)
		}
		_, err := k.c.Getxattr(k.p("policy"), "user.cortexfs.error")
		k.fails(err, syscall.ENODATA)
		k.fails(k.c.Setxattr(k.p("policy"), "user.cortexfs.kind", "x"), syscall.EPERM)
		k.fails(k.c.Setxattr(k.p("policy"), "user.other", "x"), syscall.ENOTSUP)
		k.fails(k.c.Setxattr(k.p("policy"), "system.posix_acl_access", "\x02\x00\x00\x00"), syscall.ENOTSUP, syscall.EINVAL)
		names, err := k.c.Listxattr(k.p("policy"))
		k.ok(err)
		for _, n := range []string{"user.cortexfs.kind", "user.cortexfs.generation"} {
			if !slices.Contains(names, n) {
				k.Errorf("listxattr lacks %s: %v", n, names)
			}
		}
	}},
	{name: "control/why a text was refused", run: func(k *kit) {
		k.fails(save(k.c, k.p("policy"), ruleA+"allow a b\n"), syscall.EINVAL)
		got, err := k.c.Getxattr(k.p("policy"), "user.cortexfs.error")
		k.ok(err)
		if !strings.HasPrefix(got, "2:") {
			k.Errorf("user.cortexfs.error = %q, want line 2", got)
		}
		if strings.Contains(got, "fs.read") {
			k.Errorf("%q repeats the text", got)
		}
		k.logs("control.rejected", `"policy"`, "2:")
		k.set("policy", ruleA)
		_, err = k.c.Getxattr(k.p("policy"), "user.cortexfs.error")
		k.fails(err, syscall.ENODATA)
		k.logs("control.changed", `"policy"`)
	}},
	{name: "control/generation moves with a commit", run: func(k *kit) {
		gen := func() string {
			g, err := k.c.Getxattr(k.p("policy"), "user.cortexfs.generation")
			k.ok(err)
			return g
		}
		before := gen()
		k.fails(save(k.c, k.p("policy"), "bad\n"), syscall.EINVAL)
		if gen() != before {
			k.Error("a refused text moved the generation")
		}
		k.set("policy", ruleA)
		if gen() == before {
			k.Error("a commit did not move the generation")
		}
	}},
	{name: "control/a lone LF in tools is empty", run: func(k *kit) {
		k.set("tools", "fs.read\n")
		k.set("tools", "\n")
		if got := k.read(k.c, k.p("tools")); strings.TrimSpace(got) != "" {
			k.Errorf("tools reads %q", got)
		}
	}},
	{name: "control/final LF is added", run: func(k *kit) {
		k.set("approval", "ask")
		k.is("approval", "ask\n")
		k.fails(save(k.c, k.p("tools"), "fs.read"), syscall.EINVAL)
		k.is("tools", "")
	}},
	{name: "control/comments and order stay", run: func(k *kit) {
		text := "# mine\n\n" + ruleB + "# last\n" + ruleA
		k.set("policy", text)
		k.is("policy", text)
	}},
}

// eachText visits the durable text controls.
func (k *kit) eachText(do func(e *control.Entry)) {
	for _, e := range control.Agent.Entries() {
		if e.Kind != control.Durable {
			continue
		}
		if e.Name == "owner" {
			continue // changes who may write; has cases of its own
		}
		do(e)
	}
}
