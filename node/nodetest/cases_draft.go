package nodetest

import (
	"os"
	"strings"
	"syscall"
)

// draftCases are the rules 4.1–4.5: private drafts, judged at each write,
// committed at close, fsync and release.
var draftCases = []testCase{
	{name: "draft/echo", run: func(k *kit) {
		k.set("approval", "ask\n")
		k.is("approval", "ask\n")
	}},
	{name: "draft/bash flushes before it writes", run: func(k *kit) {
		k.set("approval", "ask\n")
		for text, want := range map[string]error{"ask\n": nil, "maybe\n": syscall.EINVAL} {
			fd, err := k.c.Open(k.p("approval"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
			k.ok(err)
			out, err := k.c.Dup(fd)
			k.ok(err)
			k.ok(k.c.Close(fd)) // the FLUSH with nothing written
			_, err = k.c.Write(out, []byte(text))
			if err != want {
				k.Errorf("write of %q: %v, want %v", text, err, want)
			}
			if err := k.c.Close(out); err != want {
				k.Errorf("close after %q: %v, want %v", text, err, want)
			}
			k.is("approval", "ask\n")
		}
	}},
	{name: "draft/the old value is read meanwhile", run: func(k *kit) {
		k.set("policy", ruleA)
		fd := k.open(k.c, "policy", os.O_TRUNC)
		k.is("policy", ruleA)
		k.write(k.c, fd, ruleB)
		k.is("policy", ruleA)
		other := k.e.Other()
		if got := k.read(other, k.p("policy")); got != ruleA {
			k.Errorf("another process reads %q", got)
		}
		k.ok(k.c.Close(fd))
		k.is("policy", ruleB)
	}},
	{name: "draft/an open reader keeps what it opened", run: func(k *kit) {
		k.set("policy", ruleA)
		r, err := k.c.Open(k.p("policy"), os.O_RDONLY, 0)
		k.ok(err)
		k.set("policy", ruleB)
		buf := make([]byte, 100)
		n, err := k.c.Pread(r, buf, 0)
		k.ok(err)
		if string(buf[:n]) != ruleA {
			k.Errorf("reads %q", buf[:n])
		}
		k.ok(k.c.Close(r))
	}},
	{name: "draft/append", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(put(k.c, k.p("policy"), ruleB, os.O_APPEND))
		k.is("policy", ruleA+ruleB)
		k.fails(put(k.c, k.p("policy"), "nonsense\n", os.O_APPEND), syscall.EINVAL)
		k.is("policy", ruleA+ruleB)
		k.fails(put(k.c, k.p("approval"), "ask\n", os.O_APPEND), syscall.EINVAL)
	}},
	{name: "draft/append in several writes", run: func(k *kit) {
		k.set("policy", ruleA)
		fd := k.open(k.c, "policy", os.O_APPEND)
		k.write(k.c, fd, ruleB[:10])
		k.write(k.c, fd, ruleB[10:])
		k.write(k.c, fd, "# end\n")
		k.ok(k.c.Close(fd))
		k.is("policy", ruleA+ruleB+"# end\n")
	}},
	{name: "draft/a shorter text over a longer one without truncation", run: func(k *kit) {
		k.set("approval", "auto\n")
		k.fails(put(k.c, k.p("approval"), "ask\n", 0), syscall.EINVAL)
		k.is("approval", "auto\n")
	}},
	{name: "draft/pwrite in place", run: func(k *kit) {
		k.set("policy", ruleA)
		fd := k.open(k.c, "policy", 0)
		at := int64(strings.Index(ruleA, "read"))
		_, err := k.c.Pwrite(fd, []byte("stat"), at)
		k.ok(err)
		k.ok(k.c.Close(fd))
		k.is("policy", "allow coder_t tool:fs.stat execute\n")
		fd = k.open(k.c, "policy", 0)
		_, err = k.c.Pwrite(fd, []byte("x"), 1000)
		k.fails(err, syscall.EINVAL)
		k.fails(k.c.Close(fd), syscall.EINVAL)
	}},
	{name: "draft/byte by byte", run: func(k *kit) {
		fd := k.open(k.c, "policy", os.O_TRUNC)
		for _, b := range []byte(ruleA + ruleB) {
			k.write(k.c, fd, string(b))
		}
		k.ok(k.c.Close(fd))
		k.is("policy", ruleA+ruleB)
	}},
	{name: "draft/impossible as early as can be", run: func(k *kit) {
		for name, texts := range map[string][2]string{
			"approval":  {"a", "x"},
			"uid":       {"12", "x"},
			"policy":    {"allow coder_t tool:", "fs.read write"},
			"meta.json": {`{"a":`, "]"},
			"tools":     {"fs.", "/"},
		} {
			fd := k.open(k.c, name, os.O_TRUNC)
			k.write(k.c, fd, texts[0])
			_, err := k.c.Write(fd, []byte(texts[1]))
			k.fails(err, syscall.EINVAL)
			k.fails(k.c.Close(fd), syscall.EINVAL)
		}
		k.is("approval", "auto\n")
		k.is("policy", "")
	}},
	{name: "draft/what only the end can tell", run: func(k *kit) {
		for name, text := range map[string]string{"tools": "fs.read", "meta.json": `{"a":1`, "approval": "au", "policy": "allow x"} {
			before := k.read(k.c, k.p(name))
			fd := k.open(k.c, name, os.O_TRUNC)
			k.write(k.c, fd, text)
			k.fails(k.c.Fsync(fd), syscall.EINVAL)
			k.fails(k.c.Close(fd), syscall.EINVAL)
			k.is(name, before)
		}
	}},
	{name: "draft/an unfinished text can be finished after a close of a copy", run: func(k *kit) {
		fd := k.open(k.c, "tools", os.O_TRUNC)
		k.write(k.c, fd, "fs.read")
		child, err := k.c.Dup(fd)
		k.ok(err)
		k.fails(k.c.Close(child), syscall.EINVAL)
		k.write(k.c, fd, "\n")
		k.ok(k.c.Close(fd))
		k.is("tools", "fs.read\n")
	}},
	{name: "draft/fsync commits", run: func(k *kit) {
		fd := k.open(k.c, "policy", os.O_TRUNC)
		k.write(k.c, fd, ruleA)
		k.ok(k.c.Fsync(fd))
		k.is("policy", ruleA)
		k.ok(k.c.SyncDir(k.dir))
		k.write(k.c, fd, ruleB)
		k.ok(k.c.Close(fd))
		k.is("policy", ruleA+ruleB)
	}},
	{name: "draft/fsync of a truncated draft commits the empty text", run: func(k *kit) {
		k.set("policy", ruleA)
		fd := k.open(k.c, "policy", 0)
		k.ok(k.c.Ftruncate(fd, 0))
		k.is("policy", ruleA)
		k.ok(k.c.Fsync(fd))
		k.is("policy", "")
		k.ok(k.c.Close(fd))
		fd = k.open(k.c, "approval", os.O_TRUNC)
		k.fails(k.c.Fsync(fd), syscall.EINVAL)
		k.ok(k.c.Close(fd))
		k.is("approval", "auto\n")
	}},
	{name: "draft/fsync with nothing done", run: func(k *kit) {
		k.set("policy", ruleA)
		fd := k.open(k.c, "policy", 0)
		k.ok(k.c.Fsync(fd))
		k.ok(k.c.Close(fd))
		k.is("policy", ruleA)
	}},
	{name: "draft/truncated and never written", run: func(k *kit) {
		k.set("policy", ruleA)
		fd := k.open(k.c, "policy", os.O_TRUNC)
		k.is("policy", ruleA)
		k.ok(k.c.Close(fd))
		k.becomes("policy", "")
		fd = k.open(k.c, "abi", os.O_TRUNC)
		k.ok(k.c.Close(fd))
		k.logs("control.rejected", `"abi"`)
		k.is("abi", "sdk-envelope-v1\n")
	}},
	{name: "draft/truncate by path", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Truncate(k.p("policy"), 0))
		k.is("policy", "")
		k.fails(k.c.Truncate(k.p("approval"), 0), syscall.EINVAL)
		k.fails(k.c.Truncate(k.p("approval"), 2), syscall.EINVAL)
		k.ok(k.c.Truncate(k.p("approval"), 5))
		k.fails(k.c.Truncate(k.p("approval"), 9), syscall.EINVAL)
		k.is("approval", "auto\n")
	}},
	{name: "draft/ftruncate", run: func(k *kit) {
		fd := k.open(k.c, "approval", 0)
		k.ok(k.c.Ftruncate(fd, 5))
		k.fails(k.c.Ftruncate(fd, 2), syscall.EINVAL)
		k.fails(k.c.Ftruncate(fd, 100), syscall.EINVAL)
		k.ok(k.c.Ftruncate(fd, 0))
		k.write(k.c, fd, "ask\n")
		k.ok(k.c.Close(fd))
		k.is("approval", "ask\n")
	}},
	{name: "draft/a truncating open does not take another's handle", run: func(k *kit) {
		k.set("policy", ruleA)
		mine := k.open(k.c, "policy", 0) // untouched, of this thread
		k.write(k.c, mine, ruleA[:len(ruleA)-1]+"\n")
		other := k.e.Other()
		fd, err := other.Open(k.p("policy"), os.O_WRONLY|os.O_TRUNC, 0)
		k.ok(err)
		k.write(other, fd, ruleB)
		k.ok(other.Close(fd))
		k.is("policy", ruleB)
		k.ok(k.c.Close(mine))
		k.is("policy", ruleA)
	}},
	{name: "draft/the last commit wins whole", run: func(k *kit) {
		a, b := k.open(k.c, "policy", os.O_TRUNC), FD(0)
		k.write(k.c, a, ruleA)
		other := k.e.Other()
		b, err := other.Open(k.p("policy"), os.O_WRONLY|os.O_TRUNC, 0)
		k.ok(err)
		k.write(other, b, ruleB)
		k.ok(other.Close(b))
		k.is("policy", ruleB)
		k.ok(k.c.Close(a))
		k.is("policy", ruleA)
	}},
	{name: "draft/a later refusal undoes what the open committed", run: func(k *kit) {
		k.set("policy", "# before\n")
		fd := k.open(k.c, "policy", os.O_TRUNC)
		k.write(k.c, fd, ruleA)
		k.ok(k.c.Fsync(fd))
		k.write(k.c, fd, ruleB)
		k.ok(k.c.Fsync(fd))
		k.is("policy", ruleA+ruleB)
		_, err := k.c.Write(fd, []byte("bad line\n"))
		k.fails(err, syscall.EINVAL)
		k.is("policy", "# before\n")
		_, err = k.c.Write(fd, []byte(ruleA))
		k.fails(err, syscall.EINVAL)
		k.fails(k.c.Fsync(fd), syscall.EINVAL)
		k.fails(k.c.Close(fd), syscall.EINVAL)
		k.is("policy", "# before\n")
	}},
	{name: "draft/undo goes back to the default", run: func(k *kit) {
		fd := k.open(k.c, "policy", os.O_TRUNC)
		k.write(k.c, fd, ruleA)
		k.ok(k.c.Fsync(fd))
		_, err := k.c.Write(fd, []byte("bad\n"))
		k.fails(err, syscall.EINVAL)
		k.fails(k.c.Close(fd), syscall.EINVAL)
		k.is("policy", "")
		if got, _ := k.c.Getxattr(k.p("policy"), "user.cortexfs.origin"); got != "default" {
			k.Errorf("origin %q", got)
		}
	}},
	{name: "draft/no undo after another commit", run: func(k *kit) {
		k.set("policy", "# before\n")
		fd := k.open(k.c, "policy", os.O_TRUNC)
		k.write(k.c, fd, ruleA)
		k.ok(k.c.Fsync(fd))
		k.ok(save(k.e.Other(), k.p("policy"), ruleB))
		_, err := k.c.Write(fd, []byte("bad\n"))
		k.fails(err, syscall.EINVAL)
		k.fails(k.c.Close(fd), syscall.EINVAL)
		k.is("policy", ruleB)
	}},
	{name: "draft/reading a writer's own draft", run: func(k *kit) {
		fd, err := k.c.Open(k.p("policy"), os.O_RDWR|os.O_TRUNC, 0)
		k.ok(err)
		k.write(k.c, fd, ruleA)
		buf := make([]byte, 100)
		n, err := k.c.Pread(fd, buf, 0)
		k.ok(err)
		if string(buf[:n]) != ruleA {
			k.Errorf("reads %q", buf[:n])
		}
		k.is("policy", "")
		k.ok(k.c.Close(fd))
	}},
	{name: "draft/the object goes away", run: func(k *kit) {
		fd := k.open(k.c, "policy", os.O_TRUNC)
		k.write(k.c, fd, ruleA)
		k.ok(k.c.Rmdir(k.dir))
		_, err := k.c.Write(fd, []byte(ruleB))
		k.fails(err, syscall.ESTALE)
		k.fails(k.c.Close(fd), syscall.ESTALE)
		k.ok(k.c.Mkdir(k.dir, 0o755))
		k.is("policy", "")
	}},
}
