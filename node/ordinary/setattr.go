package ordinary

import (
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// Setattr changes mode, owner, size and times, in this order, by the kernel's
// rules for the caller. A zero time means "now", for which write permission is
// enough (utimensat(2), UTIME_NOW).
func (n *dnode) Setattr(r *vnode.Req, s vnode.SetAttr) (vnode.Attr, error) {
	drop := false
	err := n.do(r, "setattr", "", func() error {
		if s.Mode != nil {
			if err := unix.Chmod(beneath.FDPath(n.fd), *s.Mode&0o7777); err != nil {
				if drop = err == unix.EPERM && n.dropsPrivilege(*s.Mode); !drop {
					return err
				}
			}
		}
		if s.UID != nil || s.GID != nil {
			if err := unix.Fchownat(n.fd, "", id(s.UID), id(s.GID), unix.AT_EMPTY_PATH); err != nil {
				return err
			}
		}
		if s.Size != nil {
			if err := n.truncate(s.Handle, *s.Size); err != nil {
				return err
			}
		}
		if s.Atime != nil || s.Mtime != nil {
			return n.utimens(s.Atime, s.Mtime)
		}
		return nil
	})
	if err == nil && drop {
		err = n.dropPrivilege()
	}
	if err != nil {
		return vnode.Attr{}, err
	}
	return n.Attr(r)
}

// dropsPrivilege says whether mode only takes setuid or setgid away from a file
// that the caller may write. The kernel sends that before a write, also for who
// is not the owner; on a local file system the write itself would do it.
func (n *dnode) dropsPrivilege(mode uint32) bool {
	var st unix.Stat_t
	if n.typ != vnode.Regular || unix.Fstat(n.fd, &st) != nil {
		return false
	}
	now, next := st.Mode&0o7777, mode&0o7777
	if next == now || next&now != next || (now&^next)&^uint32(unix.S_ISUID|unix.S_ISGID) != 0 {
		return false
	}
	return unix.Faccessat2(unix.AT_FDCWD, beneath.FDPath(n.fd), unix.W_OK, unix.AT_EACCESS) == nil
}

// dropPrivilege takes setuid and setgid away, with the daemon's rights.
func (n *dnode) dropPrivilege() error {
	return n.do(nil, "setattr", "", func() error {
		var st unix.Stat_t
		if err := unix.Fstat(n.fd, &st); err != nil {
			return err
		}
		return unix.Chmod(beneath.FDPath(n.fd), st.Mode&0o1777)
	})
}

// nowish is how old a time may be that was meant as "now": the request carries the
// server's clock instead of the flag.
const nowish = 5 * time.Second

// utimens sets times; who may only write the file can set both to now, and that is
// what is done where the times given are about now.
func (n *dnode) utimens(atime, mtime *time.Time) error {
	err := n.setTimes(timespec(atime), timespec(mtime))
	if err == unix.EPERM && isNow(atime) && isNow(mtime) {
		now := unix.Timespec{Nsec: unix.UTIME_NOW}
		err = n.setTimes(now, now)
	}
	return err
}

// setTimes goes through /proc and not AT_EMPTY_PATH, which older kernels refuse
// here; a symlink's own times are reached by that alone.
func (n *dnode) setTimes(atime, mtime unix.Timespec) error {
	ts := []unix.Timespec{atime, mtime}
	if n.typ == vnode.Symlink {
		return unix.UtimesNanoAt(n.fd, "", ts, unix.AT_EMPTY_PATH)
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, beneath.FDPath(n.fd), ts, 0)
}

func isNow(t *time.Time) bool {
	return t != nil && (t.IsZero() || time.Since(*t).Abs() < nowish)
}

// truncate uses the open file where there is one: it may be writable though the
// file is no more.
func (n *dnode) truncate(h vnode.Handle, size uint64) error {
	if size > 1<<63-1 {
		return unix.EFBIG
	}
	if h == nil {
		return again(func() error { return unix.Truncate(beneath.FDPath(n.fd), int64(size)) })
	}
	open, ok := h.(*handle)
	if !ok || open.node != n {
		return fault.E("truncate", "", fault.BadHandle, nil)
	}
	open.mu.RLock()
	defer open.mu.RUnlock()
	return again(func() error { return unix.Ftruncate(open.fd, int64(size)) })
}

func id(p *uint32) int {
	if p == nil {
		return -1
	}
	return int(*p)
}

func timespec(t *time.Time) unix.Timespec {
	switch {
	case t == nil:
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	case t.IsZero():
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	}
	return unix.NsecToTimespec(t.UnixNano())
}

func again(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
