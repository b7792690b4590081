package nodetest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
)

// make makes a scratch file with a text.
func (k *kit) make(name, text string) {
	k.Helper()
	fd := k.open(k.c, name, os.O_CREATE|os.O_EXCL)
	k.write(k.c, fd, text)
	k.ok(k.c.Close(fd))
}

// scratchCases are the rules of 4.6: scratch, rename, link, unlink.
var scratchCases = []testCase{
	{name: "scratch/which names", run: func(k *kit) {
		for _, name := range []string{"4913", "sedAbC123", "XyZ12345", "anything at all"} {
			fd, err := k.c.Open(k.p(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
			k.ok(err)
			k.ok(k.c.Close(fd))
			k.ok(k.c.Unlink(k.p(name)))
		}
		for _, name := range []string{".mount.swp", "mount~", "#mount#", "mount.lock", ".policy.swx", "approval.tmp"} {
			fd, err := k.c.Open(k.p(name), os.O_RDWR|os.O_CREATE, 0o600)
			k.ok(err)
			k.ok(k.c.Close(fd))
			k.ok(k.c.Unlink(k.p(name)))
		}
		_, err := k.c.Open(k.p(strings.Repeat("n", 256)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		k.fails(err, syscall.ENAMETOOLONG)
		k.clean()
	}},
	{name: "scratch/is a file", run: func(k *kit) {
		k.make("mount~", "any bytes\x00\xff")
		st, err := k.c.Lstat(k.p("mount~"))
		k.ok(err)
		if st.Type != 'f' || st.Mode != 0o600 || st.Size != 11 {
			k.Errorf("%+v", st)
		}
		k.ok(k.c.Chmod(k.p("mount~"), 0o644))
		k.ok(k.c.Truncate(k.p("mount~"), 3))
		k.ok(k.c.Truncate(k.p("mount~"), 5))
		if got := k.read(k.c, k.p("mount~")); got != "any\x00\x00" {
			k.Errorf("reads %q", got)
		}
		fd := k.open(k.c, "mount~", os.O_APPEND)
		k.write(k.c, fd, "!")
		k.ok(k.c.Close(fd))
		if got := k.read(k.c, k.p("mount~")); got != "any\x00\x00!" {
			k.Errorf("reads %q", got)
		}
		_, err = k.c.Open(k.p("mount~"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		k.fails(err, syscall.EEXIST)
		k.ok(k.c.Unlink(k.p("mount~")))
		k.fails(k.c.Unlink(k.p("mount~")), syscall.ENOENT)
	}},
	{name: "scratch/an unlinked one lives while it is open", run: func(k *kit) {
		fd, err := k.c.Open(k.p(".mount.swp"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		k.ok(err)
		k.write(k.c, fd, "kept")
		k.ok(k.c.Unlink(k.p(".mount.swp")))
		buf := make([]byte, 10)
		n, err := k.c.Pread(fd, buf, 0)
		k.ok(err)
		if string(buf[:n]) != "kept" {
			k.Errorf("reads %q", buf[:n])
		}
		k.ok(k.c.Close(fd))
	}},
	{name: "scratch/1 MiB each", run: func(k *kit) {
		fd := k.open(k.c, "mount~", os.O_CREATE|os.O_EXCL)
		_, err := k.c.Pwrite(fd, []byte("x"), 1<<20-1)
		k.ok(err)
		_, err = k.c.Pwrite(fd, []byte("x"), 1<<20)
		k.fails(err, syscall.EFBIG)
		k.ok(k.c.Close(fd))
		k.ok(k.c.Unlink(k.p("mount~")))
	}},
	{name: "scratch/64 names, the oldest closed one goes", run: func(k *kit) {
		held := k.open(k.c, "mount.000", os.O_CREATE|os.O_EXCL)
		for i := 1; i <= 64; i++ {
			k.make(fmt.Sprintf("mount.%03d", i), "x")
		}
		names, err := k.c.ReadDir(k.dir)
		k.ok(err)
		if slices.Contains(names, "mount.001") || !slices.Contains(names, "mount.000") || !slices.Contains(names, "mount.064") {
			k.Errorf("listing %v", names)
		}
		k.ok(k.c.Close(held))
		for _, n := range names {
			if strings.HasPrefix(n, "mount.0") {
				k.ok(k.c.Unlink(k.p(n)))
			}
		}
		k.clean()
	}},
	{name: "scratch/never acts as a control", run: func(k *kit) {
		k.make("policy~", ruleA)
		k.is("policy", "")
		k.logs("control.scratch", "policy~")
		k.ok(k.c.Unlink(k.p("policy~")))
	}},
	{name: "scratch/rename onto a control commits", run: func(k *kit) {
		before, err := k.c.Lstat(k.p("policy"))
		k.ok(err)
		k.make("sedAbCdEf", ruleA)
		k.ok(k.c.Rename(k.p("sedAbCdEf"), k.p("policy")))
		k.is("policy", ruleA)
		after, err := k.c.Lstat(k.p("policy"))
		k.ok(err)
		if after.Mode != before.Mode || after.UID != before.UID || after.Ino != before.Ino {
			k.Errorf("%+v became %+v", before, after)
		}
		k.clean()
	}},
	{name: "scratch/rename of a bad text changes nothing", run: func(k *kit) {
		k.set("policy", ruleA)
		k.make("sedAbCdEf", ruleA+"oops\n")
		k.fails(k.c.Rename(k.p("sedAbCdEf"), k.p("policy")), syscall.EINVAL)
		k.is("policy", ruleA)
		if got := k.read(k.c, k.p("sedAbCdEf")); got != ruleA+"oops\n" {
			k.Errorf("scratch reads %q", got)
		}
		got, err := k.c.Getxattr(k.p("policy"), "user.cortexfs.error")
		if err != nil || !strings.HasPrefix(got, "2:") {
			k.Errorf("error attribute %q, %v", got, err)
		}
		k.make("big", strings.Repeat("#\n", 40<<10))
		k.fails(k.c.Rename(k.p("big"), k.p("policy")), syscall.EFBIG)
		k.ok(k.c.Unlink(k.p("sedAbCdEf")))
		k.ok(k.c.Unlink(k.p("big")))
		k.make("empty", "")
		k.fails(k.c.Rename(k.p("empty"), k.p("abi")), syscall.EINVAL)
		k.ok(k.c.Rename(k.p("empty"), k.p("policy")))
		k.is("policy", "")
	}},
	{name: "scratch/rename of a control copies", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Rename(k.p("policy"), k.p("policy~")))
		k.is("policy", ruleA)
		if got := k.read(k.c, k.p("policy~")); got != ruleA {
			k.Errorf("the copy reads %q", got)
		}
		k.set("policy", ruleB)
		if got := k.read(k.c, k.p("policy~")); got != ruleA {
			k.Errorf("the copy reads %q", got)
		}
		k.ok(k.c.Rename(k.p("policy~"), k.p("policy")))
		k.is("policy", ruleA)
		k.fails(k.c.Rename(k.p("policy"), k.p("polici")), syscall.EPERM)
		k.clean()
	}},
	{name: "scratch/link of a control copies", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Link(k.p("policy"), k.p("policy~")))
		k.set("policy", ruleB)
		if got := k.read(k.c, k.p("policy~")); got != ruleA {
			k.Errorf("the copy reads %q", got)
		}
		k.fails(k.c.Link(k.p("policy"), k.p("policy~")), syscall.EEXIST)
		k.fails(k.c.Link(k.p("policy"), k.p("label")), syscall.EEXIST)
		k.fails(k.c.Link(k.p("policy~"), k.p("label")), syscall.EEXIST)
		k.ok(k.c.Unlink(k.p("policy~")))
	}},
	{name: "scratch/two names", run: func(k *kit) {
		k.make("mount.a", "x")
		k.ok(k.c.Link(k.p("mount.a"), k.p("mount.b")))
		st, err := k.c.Lstat(k.p("mount.b"))
		k.ok(err)
		if st.Nlink != 2 {
			k.Errorf("nlink %d", st.Nlink)
		}
		k.ok(k.c.Unlink(k.p("mount.a")))
		if got := k.read(k.c, k.p("mount.b")); got != "x" {
			k.Errorf("reads %q", got)
		}
		k.ok(k.c.Rename(k.p("mount.b"), k.p("mount.c")))
		k.fails(k.c.Rename(k.p("mount.c"), k.p("elsewhere")), syscall.EPERM)
		k.ok(k.c.Unlink(k.p("mount.c")))
		k.clean()
	}},
	{name: "scratch/control onto control", run: func(k *kit) {
		k.fails(k.c.Rename(k.p("tools"), k.p("policy")), syscall.EPERM)
		k.ok(k.c.Rename(k.p("tools"), k.p("tools")))
		k.make("mount~", "x")
		k.fails(k.c.Rename(k.p("mount~"), k.p("status")), syscall.EPERM)
		k.fails(k.c.Rename(k.p("mount~"), k.p("hooks")), syscall.EPERM, syscall.EISDIR)
		k.fails(k.c.Rename(k.p("hooks"), k.p("mount~")), syscall.EPERM, syscall.ENOTDIR)
		k.ok(k.c.Unlink(k.p("mount~")))
	}},
	{name: "scratch/symlinks", run: func(k *kit) {
		k.ok(k.c.Symlink("root@host.1234:5678", k.p(".#mount")))
		got, err := k.c.Readlink(k.p(".#mount"))
		k.ok(err)
		if got != "root@host.1234:5678" {
			k.Errorf("link reads %q", got)
		}
		k.fails(k.c.Rename(k.p(".#mount"), k.p("mount")), syscall.EINVAL)
		for _, target := range []string{"/etc/passwd", "../x", "policy", "a/b", "status"} {
			k.fails(k.c.Symlink(target, k.p(".#tools")), syscall.EPERM)
		}
		k.fails(k.c.Symlink("x", k.p("policy")), syscall.EEXIST)
		k.ok(k.c.Unlink(k.p(".#mount")))
		k.clean()
	}},
	{name: "unlink/hides for a moment", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Unlink(k.p("policy")))
		k.becomes("policy", ruleA)
		k.is("policy", ruleA)
	}},
	{name: "unlink/and create again", run: func(k *kit) {
		k.set("policy", ruleA)
		st, err := k.c.Lstat(k.p("policy"))
		k.ok(err)
		k.ok(k.c.Unlink(k.p("policy")))
		fd := k.open(k.c, "policy", os.O_CREATE|os.O_EXCL)
		k.is("policy", ruleA) // the old value until the new one commits
		k.write(k.c, fd, ruleB)
		k.ok(k.c.Close(fd))
		k.is("policy", ruleB)
		if now, err := k.c.Lstat(k.p("policy")); err != nil || now.Ino != st.Ino {
			k.Errorf("another file: %d, %v; was %d", now.Ino, err, st.Ino)
		}
	}},
	{name: "unlink/create again with a bad text", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Unlink(k.p("policy")))
		fd := k.open(k.c, "policy", os.O_CREATE|os.O_EXCL)
		_, err := k.c.Write(fd, []byte("bad\n"))
		k.fails(err, syscall.EINVAL)
		k.fails(k.c.Close(fd), syscall.EINVAL)
		k.ok(k.c.Unlink(k.p("policy")))
		k.becomes("policy", ruleA)
	}},
	{name: "unlink/create and write nothing", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Unlink(k.p("policy")))
		fd := k.open(k.c, "policy", os.O_CREATE)
		k.ok(k.c.Close(fd))
		k.becomes("policy", ruleA)
	}},
	{name: "unlink/a rename ends it", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Rename(k.p("policy"), k.p("policy~")))
		k.set("policy", ruleB)
		k.ok(k.c.Unlink(k.p("policy")))
		k.ok(k.c.Rename(k.p("policy~"), k.p("policy")))
		k.is("policy", ruleA)
	}},
	{name: "unlink/no symlink in its place", run: func(k *kit) {
		k.ok(k.c.Unlink(k.p("policy")))
		err := k.c.Symlink("x", k.p("policy"))
		k.fails(err, syscall.EPERM, syscall.EEXIST) // EEXIST: the name is back
		k.becomes("policy", "")
	}},
	{name: "unlink/required ones too, the value stays", run: func(k *kit) {
		k.ok(k.c.Unlink(k.p("abi")))
		k.becomes("abi", "sdk-envelope-v1\n")
	}},
}
