package nodetest

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Syscalls is a Client that makes the system calls below a mounted tree. It is to
// be used in a process that does not serve that tree. With other ids than the
// process's each call runs on a thread with those file-system ids (root only).
func Syscalls(root string) Client { return &sys{root: root} }

// SyscallsAs is Syscalls with other file-system ids.
func SyscallsAs(root string, uid, gid uint32, groups ...uint32) Client {
	return &sys{root: root, thread: true, other: true, uid: uid, gid: gid, groups: groups}
}

type sys struct {
	root     string
	thread   bool // each call on a thread of its own
	other    bool // with these ids
	uid, gid uint32
	groups   []uint32
}

// as runs a call with the client's ids. The thread that took them ends with its
// goroutine, because it stays locked. Capabilities that override modes go with
// the fsuid.
func (s *sys) as(call func() error) error {
	if !s.thread {
		return errnoOf(retry(call))
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		var list []int
		for _, g := range s.groups {
			list = append(list, int(g))
		}
		done <- func() error {
			if !s.other {
				return retry(call)
			}
			if err := threadGroups(list); err != nil {
				return err
			}
			if err := unix.Setfsgid(int(s.gid)); err != nil {
				return err
			}
			if err := unix.Setfsuid(int(s.uid)); err != nil {
				return err
			}
			return retry(call)
		}()
	}()
	return errnoOf(<-done)
}

// threadGroups sets the groups of this thread alone.
func threadGroups(gids []int) error {
	list := make([]uint32, len(gids)+1)
	for i, g := range gids {
		list[i] = uint32(g)
	}
	return setgroups(len(gids), &list[0])
}

func retry(call func() error) error {
	for {
		if err := call(); err != syscall.EINTR {
			return err
		}
	}
}

func errnoOf(err error) error {
	var n syscall.Errno
	if err == nil || errors.As(err, &n) {
		if n != 0 {
			return n
		}
		return nil
	}
	return err
}

func (s *sys) path(p string) string { return s.root + p }

func (s *sys) Open(path string, flags int, mode uint32) (fd FD, err error) {
	err = s.as(func() error {
		n, err := unix.Open(s.path(path), flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
		fd = FD(n)
		return err
	})
	return fd, err
}

func (s *sys) Dup(fd FD) (FD, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return FD(n), errnoOf(err)
}

func (s *sys) Close(fd FD) error {
	return errnoOf(unix.Close(int(fd))) // never repeated: the descriptor is gone
}

func (s *sys) count(call func() (int, error)) (n int, err error) {
	err = s.as(func() (err error) { n, err = call(); return err })
	return max(n, 0), err
}

func (s *sys) Read(fd FD, p []byte) (int, error) {
	return s.count(func() (int, error) { return unix.Read(int(fd), p) })
}

func (s *sys) Pread(fd FD, p []byte, off int64) (int, error) {
	return s.count(func() (int, error) { return unix.Pread(int(fd), p, off) })
}

func (s *sys) Write(fd FD, p []byte) (int, error) {
	return s.count(func() (int, error) { return unix.Write(int(fd), p) })
}

func (s *sys) Pwrite(fd FD, p []byte, off int64) (int, error) {
	return s.count(func() (int, error) { return unix.Pwrite(int(fd), p, off) })
}

func (s *sys) Ftruncate(fd FD, size int64) error {
	return s.as(func() error { return unix.Ftruncate(int(fd), size) })
}
func (s *sys) Fsync(fd FD) error { return s.as(func() error { return unix.Fsync(int(fd)) }) }
func (s *sys) Fchmod(fd FD, mode uint32) error {
	return s.as(func() error { return unix.Fchmod(int(fd), mode) })
}
func (s *sys) Fchown(fd FD, uid, gid int) error {
	return s.as(func() error { return unix.Fchown(int(fd), uid, gid) })
}

func (s *sys) Fstat(fd FD) (st Stat, err error) {
	err = s.as(func() error {
		var raw unix.Stat_t
		err := unix.Fstat(int(fd), &raw)
		st = statOf(&raw)
		return err
	})
	return st, err
}

func (s *sys) Lstat(path string) (st Stat, err error) {
	err = s.as(func() error {
		var raw unix.Stat_t
		err := unix.Lstat(s.path(path), &raw)
		st = statOf(&raw)
		return err
	})
	return st, err
}

func statOf(raw *unix.Stat_t) Stat {
	st := Stat{Type: '?', Mode: raw.Mode & 0o7777, UID: raw.Uid, GID: raw.Gid, Size: raw.Size, Ino: raw.Ino, Nlink: uint64(raw.Nlink)}
	switch raw.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		st.Type = 'f'
	case unix.S_IFDIR:
		st.Type = 'd'
	case unix.S_IFLNK:
		st.Type = 'l'
	case unix.S_IFSOCK:
		st.Type = 's'
	case unix.S_IFIFO:
		st.Type = 'p'
	}
	return st
}

func (s *sys) Truncate(path string, size int64) error {
	return s.as(func() error { return unix.Truncate(s.path(path), size) })
}
func (s *sys) Chmod(path string, mode uint32) error {
	return s.as(func() error { return unix.Chmod(s.path(path), mode) })
}
func (s *sys) Chown(path string, uid, gid int) error {
	return s.as(func() error { return unix.Lchown(s.path(path), uid, gid) })
}
func (s *sys) Touch(path string) error {
	return s.as(func() error {
		now := unix.Timespec{Nsec: unix.UTIME_NOW}
		return unix.UtimesNanoAt(unix.AT_FDCWD, s.path(path), []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW)
	})
}
func (s *sys) Mkdir(path string, mode uint32) error {
	return s.as(func() error { return unix.Mkdir(s.path(path), mode) })
}
func (s *sys) Rmdir(path string) error { return s.as(func() error { return unix.Rmdir(s.path(path)) }) }
func (s *sys) Unlink(path string) error {
	return s.as(func() error { return unix.Unlink(s.path(path)) })
}
func (s *sys) Rename(oldPath, newPath string) error {
	return s.as(func() error { return unix.Rename(s.path(oldPath), s.path(newPath)) })
}
func (s *sys) Link(oldPath, newPath string) error {
	return s.as(func() error { return unix.Link(s.path(oldPath), s.path(newPath)) })
}
func (s *sys) Symlink(target, path string) error {
	return s.as(func() error { return unix.Symlink(target, s.path(path)) })
}

func (s *sys) Readlink(path string) (target string, err error) {
	buf := make([]byte, 4096)
	n, err := s.count(func() (int, error) { return unix.Readlink(s.path(path), buf) })
	return string(buf[:n]), err
}

func (s *sys) ReadDir(path string) (names []string, err error) {
	err = s.as(func() error {
		f, err := os.Open(s.path(path))
		if err != nil {
			return err
		}
		defer f.Close()
		names, err = f.Readdirnames(-1)
		return err
	})
	slices.Sort(names)
	return names, err
}

func (s *sys) Getxattr(path, name string) (string, error) {
	buf := make([]byte, 64<<10)
	n, err := s.count(func() (int, error) { return unix.Lgetxattr(s.path(path), name, buf) })
	return string(buf[:n]), err
}

func (s *sys) Listxattr(path string) ([]string, error) {
	buf := make([]byte, 64<<10)
	n, err := s.count(func() (int, error) { return unix.Llistxattr(s.path(path), buf) })
	names := strings.FieldsFunc(string(buf[:n]), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	return names, err
}

func (s *sys) Setxattr(path, name, value string) error {
	return s.as(func() error { return unix.Lsetxattr(s.path(path), name, []byte(value), 0) })
}

func (s *sys) SyncDir(path string) error {
	return s.as(func() error {
		fd, err := unix.Open(s.path(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Fsync(fd)
	})
}

// MountedEnv is a mounted tree for RunTree, with this process's ids and, for
// root, others.
func MountedEnv(root string) Env {
	e := Env{
		Root: Syscalls(root), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Mounted: true,
		// A thread of its own: a truncation belongs to the thread that opened.
		Other: func() Client { return &sys{root: root, thread: true} },
	}
	if e.UID == 0 {
		e.As = func(uid, gid uint32, groups ...uint32) Client { return SyscallsAs(root, uid, gid, groups...) }
	}
	return e
}
