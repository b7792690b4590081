package ordinary

import (
	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// keptFlags are the open(2) flags that act in the store. O_TRUNC is among them
// for servers that pass it on; what the kernel does itself (O_CREAT, O_NOFOLLOW,
// O_SYNC by FSYNC) is not.
const keptFlags = unix.O_ACCMODE | unix.O_APPEND | unix.O_TRUNC | unix.O_NOATIME

// Create makes and opens a regular file. A name that exists meanwhile is opened
// unless O_EXCL is given, if it is a regular file.
func (n *dnode) Create(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	if err := checkName("create", name); err != nil {
		return vnode.Entry{}, nil, vnode.Mode{}, err
	}
	fd, path := -1, -1
	err := n.do(r, "create", name, func() (err error) {
		fd, err = beneath.Open(n.fd, name, int(flags)&keptFlags|unix.O_CREAT|unix.O_EXCL, mode&0o7777)
		if err == nil {
			path, err = beneath.Reopen(fd, unix.O_PATH)
		}
		return err
	})
	if fault.Is(err, fault.Exist) && flags&unix.O_EXCL == 0 {
		return n.openExisting(r, name, flags)
	}
	var child *dnode
	if err == nil {
		child, err = n.fs.adopt(path)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return vnode.Entry{}, nil, vnode.Mode{}, fault.At("create", name, err)
	}
	h, err := newHandle(r, child, fd)
	if err != nil {
		child.Unref()
		return vnode.Entry{}, nil, vnode.Mode{}, fault.At("create", name, err)
	}
	return vnode.Entry{Node: child}, h, vnode.Mode{}, nil
}

func (n *dnode) openExisting(r *vnode.Req, name string, flags vnode.OpenFlags) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	child, err := n.fs.find(r, n, name)
	if err != nil {
		return vnode.Entry{}, nil, vnode.Mode{}, err
	}
	h, mode, err := child.Open(r, flags)
	if err != nil {
		child.Unref()
		return vnode.Entry{}, nil, vnode.Mode{}, err
	}
	return vnode.Entry{Node: child}, h, mode, nil
}

// Mkdir makes a directory; in a setgid directory it gets the group and the bit.
func (n *dnode) Mkdir(r *vnode.Req, name string, mode uint32) (vnode.Entry, error) {
	return n.make(r, "mkdir", name, func() error { return unix.Mkdirat(n.fd, name, mode&0o7777) })
}

// Mknod makes a regular file, a FIFO, or a socket (what bind(2) on a FUSE mount
// sends: notes-fuse 1a). No devices, for root either.
func (n *dnode) Mknod(r *vnode.Req, name string, typ vnode.Type, mode uint32) (vnode.Entry, error) {
	var format uint32
	switch typ {
	case vnode.Regular:
		format = unix.S_IFREG
	case vnode.FIFO:
		format = unix.S_IFIFO
	case vnode.Socket:
		format = unix.S_IFSOCK
	default:
		return vnode.Entry{}, fault.E("mknod", name, fault.Perm, nil)
	}
	return n.make(r, "mknod", name, func() error { return unix.Mknodat(n.fd, name, format|mode&0o7777, 0) })
}

// Symlink makes a symlink; its text is the user's and is never followed here.
func (n *dnode) Symlink(r *vnode.Req, name, target string) (vnode.Entry, error) {
	return n.make(r, "symlink", name, func() error { return unix.Symlinkat(target, n.fd, name) })
}

// Link makes name a hard link to old; CrossDevice unless old is of this FS.
func (n *dnode) Link(r *vnode.Req, old vnode.Node, name string) (vnode.Entry, error) {
	src, ok := old.(*dnode)
	if !ok || src.fs != n.fs {
		return vnode.Entry{}, fault.E("link", name, fault.CrossDevice, nil)
	}
	return n.make(r, "link", name, func() error {
		// AT_EMPTY_PATH would need a capability that the caller has not.
		return unix.Linkat(unix.AT_FDCWD, beneath.FDPath(src.fd), n.fd, name, unix.AT_SYMLINK_FOLLOW)
	}, src)
}

// make runs the system call that makes name and answers with what is there then.
func (n *dnode) make(r *vnode.Req, op, name string, call func() error, others ...*dnode) (vnode.Entry, error) {
	if err := checkName(op, name); err != nil {
		return vnode.Entry{}, err
	}
	fd := -1
	err := n.do(r, op, name, func() (err error) {
		if err = call(); err == nil {
			fd, err = beneath.Open(n.fd, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
		}
		return err
	}, others...)
	if err != nil {
		return vnode.Entry{}, err
	}
	child, err := n.fs.adopt(fd)
	if err != nil {
		return vnode.Entry{}, fault.At(op, name, err)
	}
	return vnode.Entry{Node: child}, nil
}

func (n *dnode) Unlink(r *vnode.Req, name string) error { return n.remove(r, "unlink", name, 0) }

func (n *dnode) Rmdir(r *vnode.Req, name string) error {
	return n.remove(r, "rmdir", name, unix.AT_REMOVEDIR)
}

func (n *dnode) remove(r *vnode.Req, op, name string, flags int) error {
	if err := checkName(op, name); err != nil {
		return err
	}
	return n.do(r, op, name, func() error { return unix.Unlinkat(n.fd, name, flags) })
}

// Rename moves; CrossDevice unless newDir is of this FS.
func (n *dnode) Rename(r *vnode.Req, oldName string, newDir vnode.Node, newName string) error {
	const op = "rename"
	if err := checkName(op, oldName); err != nil {
		return err
	}
	if err := checkName(op, newName); err != nil {
		return err
	}
	to, ok := newDir.(*dnode)
	if !ok || to.fs != n.fs {
		return fault.E(op, oldName, fault.CrossDevice, nil)
	}
	return n.do(r, op, oldName, func() error {
		return unix.Renameat(n.fd, oldName, to.fd, newName)
	}, to)
}
