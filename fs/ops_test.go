package fs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"cortexfs/fs"
	"cortexfs/fs/fstest"
	"cortexfs/fs/fstest/toy"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// steps runs steps in order and names the first that fails.
type steps struct{ err error }

func (s *steps) do(name string, f func() error) {
	if s.err == nil {
		if err := f(); err != nil {
			s.err = fmt.Errorf("%s: %w", name, err)
		}
	}
}

// want checks that a step fails with a number.
func (s *steps) want(name string, num syscall.Errno, f func() error) {
	s.do(name, func() error {
		if err := f(); !errors.Is(err, num) {
			return fmt.Errorf("got %v, want %v", err, num)
		}
		return nil
	})
}

func same[T comparable](got, want T) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

var everyOp = fstest.Client("every op", func(dir string, _ struct{}) (struct{}, error) {
	var s steps
	at := func(name string) string { return filepath.Join(dir, name) }
	fileSteps(&s, at)
	nameSteps(&s, dir, at)
	xattrSteps(&s, at)
	return struct{}{}, s.err
})

func fileSteps(s *steps, at func(string) string) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB: several requests
	s.do("create, write", func() error { return os.WriteFile(at("big"), big, 0o640) })
	s.do("read", func() error {
		b, err := os.ReadFile(at("big"))
		if err == nil && !bytes.Equal(b, big) {
			err = errors.New("other bytes")
		}
		return err
	})
	s.do("stat", func() error {
		st, err := os.Stat(at("big"))
		if err != nil {
			return err
		}
		return errors.Join(same(st.Size(), 1<<20), same(st.Mode(), 0o640), same(st.Sys().(*syscall.Stat_t).Blocks, 2048))
	})
	s.do("truncating open", func() error {
		f, err := os.OpenFile(at("big"), os.O_WRONLY|os.O_TRUNC, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.WriteString("new"); err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Truncate(2))
	})
	s.do("append", func() error {
		f, err := os.OpenFile(at("big"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString("xt")
		return err
	})
	s.do("text", func() error {
		b, err := os.ReadFile(at("big"))
		return errors.Join(err, same(string(b), "next"))
	})
	s.do("chmod, chown, utimes", func() error {
		old := time.Unix(1e9, 123456789)
		uid, gid := uint32(5), uint32(6)
		if os.Geteuid() != 0 { // who gives nothing away may still name themselves
			uid, gid = uint32(os.Geteuid()), uint32(os.Getegid())
		}
		if err := errors.Join(os.Chmod(at("big"), 0o4711), os.Chown(at("big"), int(uid), int(gid)), os.Chtimes(at("big"), old, old)); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(at("big"), &st); err != nil {
			return err
		}
		return errors.Join(same(st.Mode, unix.S_IFREG|0o711|st.Mode&0o4000), same(st.Uid, uid), same(st.Gid, gid), same(st.Mtim.Nsec, 123456789))
	})
	s.want("long name", unix.ENAMETOOLONG, func() error { return os.WriteFile(at(strings.Repeat("n", 256)), nil, 0o600) })
	s.want("lookup below a file", unix.ENOTDIR, func() error { _, err := os.Stat(at("big/x")); return err })
	s.want("fallocate", unix.EOPNOTSUPP, func() error {
		f, err := os.OpenFile(at("big"), os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fallocate(int(f.Fd()), 0, 0, 10)
	})
	s.want("tmpfile", unix.EOPNOTSUPP, func() error { _, err := unix.Open(at(""), unix.O_TMPFILE|unix.O_RDWR, 0o600); return err })
	s.want("ioctl", unix.ENOTTY, func() error {
		f, err := os.Open(at("big"))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		return err
	})
	s.do("lseek", func() error {
		f, err := os.Open(at("big"))
		if err != nil {
			return err
		}
		defer f.Close()
		end, err := f.Seek(0, 2)
		if err != nil {
			return err
		}
		data, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
		return errors.Join(err, same(end, 4), same(data, 0))
	})
	s.do("statx", func() error {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, at("big"), 0, unix.STATX_BASIC_STATS, &st)
		return errors.Join(err, same(st.Size, 4))
	})
	s.want("file handles are refused", unix.EOPNOTSUPP, func() error {
		_, _, err := unix.NameToHandleAt(unix.AT_FDCWD, at("big"), 0)
		return err
	})
}

func nameSteps(s *steps, dir string, at func(string) string) {
	s.do("mkdir", func() error { return os.Mkdir(at("d"), 0o750) })
	s.want("mkdir again", unix.EEXIST, func() error { return os.Mkdir(at("d"), 0o750) })
	s.do("symlink", func() error { return os.Symlink("../big", at("d/link")) })
	s.do("readlink", func() error { l, err := os.Readlink(at("d/link")); return errors.Join(err, same(l, "../big")) })
	s.do("through the link", func() error { b, err := os.ReadFile(at("d/link")); return errors.Join(err, same(string(b), "next")) })
	s.do("hard link", func() error {
		if err := os.Link(at("big"), at("d/hard")); err != nil {
			return err
		}
		a, err1 := os.Stat(at("big"))
		b, err2 := os.Stat(at("d/hard"))
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		return errors.Join(same(os.SameFile(a, b), true), same(a.Sys().(*syscall.Stat_t).Nlink, 2))
	})
	s.do("fifo", func() error { return unix.Mkfifo(at("fifo"), 0o600) })
	s.do("socket", func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: at("sock")}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 1); err != nil {
			return err
		}
		// The socket moves with its node, and is the same through a second name.
		if err := errors.Join(os.Rename(at("sock"), at("sock2")), os.Link(at("sock2"), at("sock3"))); err != nil {
			return err
		}
		peer, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(peer)
		return unix.Connect(peer, &unix.SockaddrUnix{Name: at("sock3")})
	})
	s.want("device", unix.EPERM, func() error { return unix.Mknod(at("dev"), unix.S_IFCHR|0o600, 0) })
	s.do("list", func() error {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name()+":"+e.Type().String()[:1])
		}
		return same(strings.Join(names, " "), "big:- d:d fifo:p sock2:S sock3:S")
	})
	s.want("rmdir of a full one", unix.ENOTEMPTY, func() error { return unix.Rmdir(at("d")) })
	s.want("unlink of a directory", unix.EISDIR, func() error { return unix.Unlink(at("d")) })
	s.do("rename over", func() error { return os.Rename(at("d/hard"), at("fifo")) })
	s.want("rename with flags", unix.EINVAL, func() error {
		return unix.Renameat2(unix.AT_FDCWD, at("fifo"), unix.AT_FDCWD, at("new"), unix.RENAME_NOREPLACE)
	})
	s.do("remove", func() error {
		return errors.Join(os.Remove(at("d/link")), os.Remove(at("d")), os.Remove(at("fifo")), os.Remove(at("sock2")), os.Remove(at("sock3")))
	})
	s.want("gone", unix.ENOENT, func() error { _, err := os.Stat(at("d")); return err })
	s.do("fsync of a directory", func() error {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
	s.do("statfs", func() error {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		return errors.Join(err, same(st.Blocks, 1000), same(st.Bavail, 400), same(st.Bsize, 4096), same(st.Namelen, 255))
	})
}

func xattrSteps(s *steps, at func(string) string) {
	s.want("no xattr", unix.ENODATA, func() error { _, err := unix.Getxattr(at("big"), "user.a", nil); return err })
	s.do("setxattr", func() error {
		return errors.Join(unix.Setxattr(at("big"), "user.a", []byte("value"), unix.XATTR_CREATE), unix.Setxattr(at("big"), "user.b", nil, 0))
	})
	s.want("setxattr again", unix.EEXIST, func() error { return unix.Setxattr(at("big"), "user.a", nil, unix.XATTR_CREATE) })
	s.do("getxattr", func() error {
		buf := make([]byte, 100)
		n, err := unix.Getxattr(at("big"), "user.a", buf)
		return errors.Join(err, same(string(buf[:max(n, 0)]), "value"))
	})
	s.want("small buffer", unix.ERANGE, func() error { _, err := unix.Getxattr(at("big"), "user.a", make([]byte, 2)); return err })
	s.do("listxattr", func() error {
		buf := make([]byte, 100)
		n, err := unix.Listxattr(at("big"), buf)
		return errors.Join(err, same(string(buf[:max(n, 0)]), "user.a\x00user.b\x00"))
	})
	s.do("removexattr", func() error { return unix.Removexattr(at("big"), "user.a") })
}

// Every operation through a real mount, for nodes in memory and for nodes that
// may wait, page cached and direct; afterwards nothing is held.
func TestEveryOperation(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, waits := range []bool{false, true} {
		for _, direct := range []bool{false, true} {
			t.Run(fmt.Sprintf("waits=%v,direct=%v", waits, direct), func(t *testing.T) {
				tree := toy.New()
				tree.Dir().Waits = waits
				tree.Dir().Mode = vnode.Mode{Direct: direct}
				t.Run("mounted", func(t *testing.T) {
					m := fstest.Mount(t, tree, fs.Options{})
					everyOp.Must(t, m.Dir, struct{}{})
				})
				if n := tree.Open.Load(); n != 0 {
					t.Errorf("%d handles not released", n)
				}
				if n := tree.Refs.Load(); n != 0 {
					t.Errorf("%d references not given back", n)
				}
			})
		}
	}
}

// A node that is found but has no attributes any more is given back.
func TestLookupOfVanished(t *testing.T) {
	tree := toy.New()
	tree.Dir().Waits = true
	f := tree.Dir().AddFile("f", "", 0o644)
	f.OnAttr = func(*vnode.Req) error { return fault.E("stat", "f", fault.Stale, nil) }
	t.Run("mounted", func(t *testing.T) {
		m := fstest.Mount(t, tree, fs.Options{})
		if _, err := readFile.Run(t, m.Dir, "f"); !errors.Is(err, syscall.ESTALE) {
			t.Errorf("got %v", err)
		}
	})
	if n := tree.Refs.Load(); n != 0 {
		t.Errorf("%d references not given back", n)
	}
}

// O_TRUNC comes as a SETATTR of size 0 without a handle, of the same thread as
// the OPEN; ftruncate comes with the handle. The tree tells them apart by that.
func TestTruncateShowsThread(t *testing.T) {
	tree := toy.New()
	f := tree.Dir().AddFile("f", "text", 0o666)
	var opened uint32
	var log []string
	f.OnOpen = func(r *vnode.Req, flags vnode.OpenFlags) error {
		opened = r.TID
		return nil
	}
	f.OnSetattr = func(r *vnode.Req, s vnode.SetAttr) error {
		log = append(log, fmt.Sprintf("size=%d handle=%v same=%v", *s.Size, s.Handle != nil, r.TID == opened && r.TID != 0))
		return nil
	}
	m := fstest.Mount(t, tree, fs.Options{})
	truncate.Must(t, m.Dir, struct{}{})
	want := []string{"size=0 handle=false same=true", "size=3 handle=true same=true"}
	if !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

var truncate = fstest.Client("truncate", func(dir string, _ struct{}) (struct{}, error) {
	fd, err := unix.Open(dir+"/f", unix.O_WRONLY|unix.O_TRUNC, 0)
	if err != nil {
		return struct{}{}, err
	}
	defer unix.Close(fd)
	return struct{}{}, unix.Ftruncate(fd, 3)
})

// The flags of an OPEN tell an execve from a read (notes-security X14).
func TestExecFlag(t *testing.T) {
	tree := toy.New()
	f := tree.Dir().AddFile("f", "#!/bin/sh\nexit 0\n", 0o755)
	var flags []bool
	f.OnOpen = func(_ *vnode.Req, fl vnode.OpenFlags) error {
		flags = append(flags, fl&vnode.FlagExec != 0)
		return nil
	}
	m := fstest.Mount(t, tree, fs.Options{})
	execFile.Must(t, m.Dir, "f")
	if !slices.Equal(flags, []bool{true, false}) { // the kernel, then sh reading it
		t.Errorf("exec flag of opens: %v", flags)
	}
}

// A view's connection has no extended attributes and is asked only once.
func TestViewHasNoXattr(t *testing.T) {
	tree := toy.New()
	tree.Counting = true
	tree.Dir().AddFile("f", "", 0o644)
	m := fstest.Mount(t, tree, fs.Options{View: true, ReadOnly: true})
	_, err := getxattr.Run(t, m.Dir, "f")
	if !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("getxattr: %v", err)
	}
	if n := tree.Count("getxattr"); n != 0 {
		t.Errorf("the tree was asked %d times", n)
	}
	if _, err := writeFile.Run(t, m.Dir, "new"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write to a read-only mount: %v", err)
	}
}

var getxattr = fstest.Client("getxattr", func(dir, name string) (struct{}, error) {
	for range 2 {
		if _, err := unix.Getxattr(filepath.Join(dir, name), "user.a", nil); err != unix.EOPNOTSUPP {
			return struct{}{}, err
		}
	}
	return struct{}{}, unix.EOPNOTSUPP
})

var writeFile = fstest.Client("write file", func(dir, name string) (struct{}, error) {
	return struct{}{}, os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o666)
})

var readFile = fstest.Client("read file", func(dir, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, name))
	return string(b), err
})
