package nodetest

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

const script = "#!/bin/sh\necho one\n"

// tool makes a tool under a fresh name and removes it with the case.
func (k *kit) tool(text string) string {
	k.Helper()
	serial++
	path := "/tool/case.t" + itoa(serial)
	fd, err := k.c.Open(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	k.ok(err)
	k.write(k.c, fd, text)
	k.ok(k.c.Close(fd))
	k.Cleanup(func() {
		_ = k.c.Unlink(path)
		k.until(func() bool {
			err := k.c.Rmdir(path + ".d")
			return err == nil || err == syscall.ENOENT
		}, "%s.d to go", path)
	})
	return path
}

// toolCases are the rules of section 6 for tool/ and for the directories of hooks.
var toolCases = []testCase{
	{name: "tool/made, with its controls", run: func(k *kit) {
		path := k.tool(script)
		if got := k.read(k.c, path); got != script {
			k.Errorf("reads %q", got)
		}
		st, err := k.c.Lstat(path)
		k.ok(err)
		if st.Mode != 0o755 || st.Size != int64(len(script)) || st.UID != k.e.UID {
			k.Errorf("%+v", st)
		}
		for name, want := range map[string]string{"policy": "", "schema": `{"type":"object"}` + "\n", "name": path[len("/tool/"):] + "\n"} {
			if got := k.read(k.c, path+".d/"+name); got != want {
				k.Errorf("%s reads %q", name, got)
			}
		}
		names, err := k.c.ReadDir("/tool")
		k.ok(err)
		for _, n := range []string{path[len("/tool/"):], path[len("/tool/"):] + ".d"} {
			if !slices.Contains(names, n) {
				k.Errorf("%s is not listed", n)
			}
		}
		k.ok(save(k.c, path+".d/policy", ruleA))
		k.fails(save(k.c, path+".d/policy", "x\n"), syscall.EINVAL)
		k.fails(save(k.c, path+".d/schema", `{"policy":1}`), syscall.EINVAL)
		if got, _ := k.c.Getxattr(path, "user.cortexfs.kind"); got != "tool.exec" {
			k.Errorf("kind %q", got)
		}
	}},
	{name: "tool/names", run: func(k *kit) {
		for _, name := range []string{"a b", "x.sock", "x.d", "-v", strings.Repeat("n", 65)} {
			_, err := k.c.Open("/tool/"+name, os.O_WRONLY|os.O_CREATE, 0o755)
			k.fails(err, syscall.EINVAL)
		}
		k.fails(k.c.Mkdir("/tool/dir", 0o755), syscall.EPERM)
		k.fails(k.c.Symlink("x", "/tool/link"), syscall.EPERM)
	}},
	{name: "tool/a running one keeps its bytes", run: func(k *kit) {
		path := k.tool(script)
		old, err := k.c.Open(path, os.O_RDONLY, 0)
		k.ok(err)
		before, err := k.c.Lstat(path)
		k.ok(err)
		other := strings.Replace(script, "one", "two", 1)
		k.ok(save(k.c, path, other))
		if got := k.read(k.c, path); got != other {
			k.Errorf("reads %q", got)
		}
		k.until(func() bool { // a kernel keeps the name of an open file for up to 1 s
			after, err := k.c.Lstat(path)
			return err == nil && before.Ino != after.Ino
		}, "%s to be another file", path)
		if !k.e.Mounted { // the kernel's pages of the old inode may be the new ones
			buf := make([]byte, 100)
			n, err := k.c.Pread(old, buf, 0)
			k.ok(err)
			if string(buf[:n]) != script {
				k.Errorf("the old handle reads %q", buf[:n])
			}
		}
		k.ok(k.c.Close(old))
	}},
	{name: "tool/replaced by rename", run: func(k *kit) {
		path := k.tool(script)
		old, err := k.c.Open(path, os.O_RDONLY, 0)
		k.ok(err)
		k.ok(save(k.c, path+".d/policy", ruleA))
		temp := "/tool/." + path[len("/tool/"):] + ".Ab12Cd"
		other := strings.Replace(script, "one", "three", 1)
		fd, err := k.c.Open(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		k.ok(err)
		k.write(k.c, fd, other)
		k.ok(k.c.Fchmod(fd, 0o755))
		k.ok(k.c.Close(fd))
		k.ok(k.c.Rename(temp, path))
		if got := k.read(k.c, path); got != other {
			k.Errorf("reads %q", got)
		}
		if st, err := k.c.Lstat(path); err != nil || st.Mode != 0o755 {
			k.Errorf("mode %o, %v", st.Mode, err)
		}
		if got := k.read(k.c, path+".d/policy"); got != ruleA {
			k.Errorf("policy reads %q", got)
		}
		_, err = k.c.Lstat(temp)
		k.fails(err, syscall.ENOENT)
		buf := make([]byte, 100)
		n, err := k.c.Pread(old, buf, 0)
		k.ok(err)
		if string(buf[:n]) != script {
			k.Errorf("the old handle reads %q", buf[:n])
		}
		k.ok(k.c.Close(old))
	}},
	{name: "tool/replaced by unlink and create", run: func(k *kit) {
		path := k.tool(script)
		k.ok(save(k.c, path+".d/policy", ruleA))
		k.ok(k.c.Unlink(path))
		_, err := k.c.Lstat(path)
		k.fails(err, syscall.ENOENT)
		k.ok(put(k.c, path, "new", os.O_EXCL))
		k.ok(k.c.Chmod(path, 0o755))
		if got := k.read(k.c, path+".d/policy"); got != ruleA {
			k.Errorf("policy reads %q", got)
		}
	}},
	{name: "tool/changed in place", run: func(k *kit) {
		path := k.tool(script)
		k.ok(put(k.c, path, "echo more\n", os.O_APPEND))
		if got := k.read(k.c, path); got != script+"echo more\n" {
			k.Errorf("reads %q", got)
		}
		fd, err := k.c.Open(path, os.O_RDWR, 0)
		k.ok(err)
		_, err = k.c.Pwrite(fd, []byte("ksh"), 7)
		k.ok(err)
		k.ok(k.c.Close(fd))
		if got := k.read(k.c, path); !strings.HasPrefix(got, "#!/bin/ksh") {
			k.Errorf("reads %q", got)
		}
		k.ok(k.c.Truncate(path, 4))
		if got := k.read(k.c, path); got != "#!/b" {
			k.Errorf("reads %q", got)
		}
	}},
	{name: "tool/chmod and rename", run: func(k *kit) {
		path := k.tool(script)
		k.ok(k.c.Chmod(path, 0o700))
		if st, err := k.c.Lstat(path); err != nil || st.Mode != 0o700 {
			k.Errorf("mode %o, %v", st.Mode, err)
		}
		k.ok(k.c.Rename(path, path+"x"))
		if got := k.read(k.c, path+"x"); got != script {
			k.Errorf("reads %q", got)
		}
		_, err := k.c.Lstat(path)
		k.fails(err, syscall.ENOENT)
		if _, err := k.c.Lstat(path + "x.d/policy"); err != nil {
			k.Error(err)
		}
		k.vanishes(path + ".d") // nothing was written there
		k.ok(k.c.Rename(path+"x", path))
		k.vanishes(path + "x.d")
		k.fails(k.c.Rmdir(path+".d"), syscall.EBUSY)
		k.fails(k.c.Rename(path+".d", "/tool/other.d"), syscall.EPERM)
	}},
	{name: "tool/two writers share the file", run: func(k *kit) {
		path := k.tool(script)
		a, err := k.c.Open(path, os.O_WRONLY|os.O_TRUNC, 0)
		k.ok(err)
		b, err := k.c.Open(path, os.O_WRONLY, 0)
		k.ok(err)
		k.write(k.c, a, "AAAA")
		_, err = k.c.Pwrite(b, []byte("BB"), 4)
		k.ok(err)
		k.ok(k.c.Close(a))
		k.ok(k.c.Close(b))
		k.until(func() bool { got, err := readAll(k.c, path); return err == nil && got == "AAAABB" }, "both writers' bytes")
	}},
	{name: "tool/only who may write the directory", users: true, run: func(k *kit) {
		path := k.tool(script)
		alice := k.e.As(Alice, Alice)
		_, err := alice.Open("/tool/hers", os.O_WRONLY|os.O_CREATE, 0o755)
		k.fails(err, syscall.EACCES)
		_, err = alice.Open(path, os.O_WRONLY, 0)
		k.fails(err, syscall.EACCES)
		k.fails(alice.Unlink(path), syscall.EACCES)
		k.fails(alice.Chmod(path, 0o777), syscall.EPERM)
		_, err = alice.Open(path+".d/policy", os.O_WRONLY, 0)
		k.fails(err, syscall.EACCES)
		mine := "/home/2001/tool/mine"
		k.ok(put(alice, mine, script, os.O_EXCL))
		k.ok(alice.Chmod(mine, 0o755))
		k.ok(save(alice, mine+".d/policy", ruleA))
		k.fails(alice.Chown(mine, Bob, -1), syscall.EPERM)
		k.ok(k.c.Chown(mine, Bob, Bob))
		if st, err := alice.Lstat(mine); err != nil || st.UID != Bob {
			k.Errorf("uid %d, %v", st.UID, err)
		}
		k.ok(alice.Unlink(mine))
		if got := k.read(alice, mine+".d/policy"); got != ruleA {
			k.Errorf("policy reads %q", got)
		}
		k.ok(alice.Rmdir(mine + ".d"))
	}},
	{name: "exec/of an agent", run: func(k *kit) {
		_, err := k.c.Lstat(k.p("exec"))
		k.fails(err, syscall.ENOENT)
		fd := k.open(k.c, "exec", os.O_CREATE|os.O_EXCL)
		k.write(k.c, fd, script)
		k.ok(k.c.Fchmod(fd, 0o755))
		k.ok(k.c.Close(fd))
		k.is("exec", script)
		if st, err := k.c.Lstat(k.p("exec")); err != nil || st.Mode != 0o700 {
			k.Errorf("mode %o, %v", st.Mode, err)
		}
		k.make("sedAAAAAA", strings.Replace(script, "one", "two", 1))
		k.ok(k.c.Rename(k.p("sedAAAAAA"), k.p("exec")))
		k.is("exec", strings.Replace(script, "one", "two", 1))
		k.ok(k.c.Unlink(k.p("exec")))
		_, err = k.c.Lstat(k.p("exec"))
		k.fails(err, syscall.ENOENT)
	}},
	{name: "hooks/executables", run: func(k *kit) {
		names, err := k.c.ReadDir(k.p("hooks"))
		k.ok(err)
		if !slices.Equal(names, []string{"post.d", "pre.d"}) {
			k.Errorf("hooks holds %v", names)
		}
		hook := k.p("hooks/pre.d/10-check")
		k.ok(put(k.c, hook, script, os.O_EXCL))
		k.ok(k.c.Chmod(hook, 0o700))
		if st, err := k.c.Lstat(hook); err != nil || st.Mode != 0o700 || st.Size != int64(len(script)) {
			k.Errorf("%+v, %v", st, err)
		}
		fd, err := k.c.Open(hook, os.O_WRONLY, 0)
		k.ok(err)
		_, err = k.c.Pwrite(fd, []byte("x"), 1<<20)
		k.fails(err, syscall.EFBIG)
		k.ok(k.c.Close(fd))
		k.fails(k.c.Mkdir(k.p("hooks/other.d"), 0o755), syscall.EPERM)
		_, err = k.c.Open(k.p("hooks/pre.d/bad name"), os.O_WRONLY|os.O_CREATE, 0o700)
		k.fails(err, syscall.EINVAL)
		k.ok(k.c.Unlink(hook))
	}},
}
