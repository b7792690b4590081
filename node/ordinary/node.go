package ordinary

import (
	"container/list"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// dnode is one inode. It implements everything of vnode; what does not fit its
// type the kernel refuses.
type dnode struct {
	fs  *FS
	id  inode
	typ vnode.Type

	// Guarded by fs.mu, but fd may be used without it between hold and release.
	fd     int              // O_PATH; -1: given up, handle finds the file again
	refs   int              // at 0 the node is forgotten
	pins   int              // operations and open files that need fd
	handle *unix.FileHandle // nil until fd is first given up
	place  *list.Element    // in fs.recent, while fd is open

	locks lockTable
}

var (
	_ vnode.Refcounted  = (*dnode)(nil)
	_ vnode.Lookuper    = (*dnode)(nil)
	_ vnode.Lister      = (*dnode)(nil)
	_ vnode.DirSyncer   = (*dnode)(nil)
	_ vnode.Readlinker  = (*dnode)(nil)
	_ vnode.Opener      = (*dnode)(nil)
	_ vnode.Creator     = (*dnode)(nil)
	_ vnode.Mkdirer     = (*dnode)(nil)
	_ vnode.Mknoder     = (*dnode)(nil)
	_ vnode.Symlinker   = (*dnode)(nil)
	_ vnode.Linker      = (*dnode)(nil)
	_ vnode.Remover     = (*dnode)(nil)
	_ vnode.Renamer     = (*dnode)(nil)
	_ vnode.Setattrer   = (*dnode)(nil)
	_ vnode.Xattrer     = (*dnode)(nil)
	_ vnode.XattrSetter = (*dnode)(nil)
)

func nodeType(mode uint32) (vnode.Type, bool) {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return vnode.Regular, true
	case unix.S_IFDIR:
		return vnode.Directory, true
	case unix.S_IFLNK:
		return vnode.Symlink, true
	case unix.S_IFSOCK:
		return vnode.Socket, true
	case unix.S_IFIFO:
		return vnode.FIFO, true
	}
	return 0, false
}

// do runs fn as r's caller, with the descriptors of the nodes held open.
func (n *dnode) do(r *vnode.Req, op, name string, fn func() error, others ...*dnode) error {
	for _, used := range append(others, n) {
		if err := used.hold(); err != nil {
			return fault.At(op, name, err)
		}
		defer used.release()
	}
	return fault.At(op, name, n.fs.as(r, fn))
}

// checkName refuses what is not one name of a directory.
func checkName(op, name string) error {
	switch {
	case len(name) > unix.NAME_MAX:
		return fault.E(op, name[:32]+"…", fault.NameTooLong, nil)
	case !beneath.Name(name):
		return fault.E(op, name, fault.Invalid, nil)
	}
	return nil
}

// find opens path below dir as r's caller.
func (f *FS) find(r *vnode.Req, dir *dnode, path string) (*dnode, error) {
	fd := -1
	err := dir.do(r, "lookup", path, func() (err error) {
		fd, err = beneath.Open(dir.fd, path, unix.O_PATH|unix.O_NOFOLLOW, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	n, err := f.adopt(fd)
	return n, fault.At("lookup", path, err)
}

// Lookup finds one name. Neither name nor attributes may be cached: others change
// the directory directly.
func (n *dnode) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	if err := checkName("lookup", name); err != nil {
		return vnode.Entry{}, err
	}
	child, err := n.fs.find(r, n, name)
	if err != nil {
		return vnode.Entry{}, err
	}
	return vnode.Entry{Node: child}, nil
}

// Attr needs no rights on the file itself, like stat(2).
func (n *dnode) Attr(*vnode.Req) (vnode.Attr, error) {
	if err := n.hold(); err != nil {
		return vnode.Attr{}, fault.At("stat", "", err)
	}
	defer n.release()
	return n.attr()
}

func (n *dnode) attr() (vnode.Attr, error) {
	var st unix.Stat_t
	if err := unix.Fstat(n.fd, &st); err != nil {
		return vnode.Attr{}, fault.FromOS("stat", "", err)
	}
	return vnode.Attr{
		Type: n.typ, Ino: st.Ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks), Mode: st.Mode & 0o7777,
		Nlink: uint32(st.Nlink), UID: st.Uid, GID: st.Gid, Blksize: uint32(st.Blksize),
		Atime: time.Unix(st.Atim.Unix()), Mtime: time.Unix(st.Mtim.Unix()), Ctime: time.Unix(st.Ctim.Unix()),
	}, nil
}

// ReadDir lists the directory as it is now. Devices are left out.
func (n *dnode) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	var list []beneath.Dirent
	err := n.do(r, "readdir", "", func() error {
		fd, err := beneath.Reopen(n.fd, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		list, err = beneath.ReadDir(fd)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]vnode.Dirent, 0, len(list))
	for _, d := range list {
		if typ, ok := nodeType(uint32(d.Type) << 12); ok {
			out = append(out, vnode.Dirent{Name: d.Name, Ino: d.Ino, Type: typ})
		}
	}
	return out, nil
}

// FsyncDir is for a caller who has the directory open: no rights are asked again.
func (n *dnode) FsyncDir(*vnode.Req) error {
	return n.do(nil, "fsyncdir", "", func() error {
		fd, err := beneath.Reopen(n.fd, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return fsync(fd, false)
	})
}

func (n *dnode) Readlink(*vnode.Req) (string, error) {
	buf := make([]byte, unix.PathMax)
	var size int
	err := n.do(nil, "readlink", "", func() (err error) {
		size, err = unix.Readlinkat(n.fd, "", buf)
		return err
	})
	if err != nil {
		return "", err
	}
	return string(buf[:size]), nil
}
