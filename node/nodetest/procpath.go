package nodetest

import (
	"slices"
	"syscall"
	"time"

	"cortexfs/node/vnode"
)

func (p *Proc) setattr(n vnode.Node, s vnode.SetAttr) error {
	if p.uid != 0 {
		a, err := n.Attr(p.req())
		if err != nil {
			return errno(err)
		}
		owner := a.UID == p.uid
		if (s.Mode != nil && !owner) || (s.UID != nil && (!owner || *s.UID != a.UID)) || (s.GID != nil && !owner) {
			return syscall.EPERM
		}
	}
	c, ok := n.(vnode.Setattrer)
	if !ok {
		return syscall.EPERM
	}
	_, err := c.Setattr(p.req(), s)
	return errno(err)
}

func (p *Proc) setfd(fd FD, s vnode.SetAttr) error {
	o, err := p.get(fd)
	if err != nil {
		return err
	}
	s.Handle = o.h
	return p.setattr(o.node, s)
}

func (p *Proc) setpath(name string, s vnode.SetAttr) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	return p.setattr(n, s)
}

func (p *Proc) Ftruncate(fd FD, size int64) error {
	n := uint64(size)
	return p.setfd(fd, vnode.SetAttr{Size: &n})
}

func (p *Proc) Truncate(name string, size int64) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	if err := p.may(n, 2); err != nil {
		return err
	}
	to := uint64(size)
	return p.setattr(n, vnode.SetAttr{Size: &to})
}

func (p *Proc) Fchmod(fd FD, mode uint32) error { return p.setfd(fd, vnode.SetAttr{Mode: &mode}) }
func (p *Proc) Chmod(name string, mode uint32) error {
	return p.setpath(name, vnode.SetAttr{Mode: &mode})
}

func owners(uid, gid int) (s vnode.SetAttr) {
	if uid >= 0 {
		u := uint32(uid)
		s.UID = &u
	}
	if gid >= 0 {
		g := uint32(gid)
		s.GID = &g
	}
	return s
}

func (p *Proc) Fchown(fd FD, uid, gid int) error      { return p.setfd(fd, owners(uid, gid)) }
func (p *Proc) Chown(name string, uid, gid int) error { return p.setpath(name, owners(uid, gid)) }
func (p *Proc) Touch(name string) error {
	now := time.Now()
	return p.setpath(name, vnode.SetAttr{Atime: &now, Mtime: &now})
}

func statAttr(a vnode.Attr) Stat {
	types := map[vnode.Type]byte{vnode.Regular: 'f', vnode.Directory: 'd', vnode.Symlink: 'l', vnode.Socket: 's', vnode.FIFO: 'p'}
	return Stat{Type: types[a.Type], Mode: a.Mode, UID: a.UID, GID: a.GID, Size: int64(a.Size), Ino: a.Ino, Nlink: uint64(a.Nlink)}
}

func (p *Proc) Fstat(fd FD) (Stat, error) {
	o, err := p.get(fd)
	if err != nil {
		return Stat{}, err
	}
	a, err := o.node.Attr(p.req())
	return statAttr(a), errno(err)
}

func (p *Proc) Lstat(name string) (Stat, error) {
	n, err := p.walk(name)
	if err != nil {
		return Stat{}, err
	}
	defer unref(n)
	a, err := n.Attr(p.req())
	return statAttr(a), errno(err)
}

// absent answers EEXIST as the kernel does before it asks the file system.
func (p *Proc) absent(dir vnode.Node, base string) error {
	n, err := p.child(dir, base)
	if err == nil {
		unref(n)
		return syscall.EEXIST
	}
	if err == syscall.ENOENT {
		return nil
	}
	return err
}

func (p *Proc) Mkdir(name string, mode uint32) error {
	dir, base, err := p.parent(name)
	if err != nil {
		return err
	}
	if err := p.absent(dir, base); err != nil {
		return err
	}
	c, _, _, err := inDir[vnode.Mkdirer](p, name)
	if err != nil {
		return err
	}
	e, err := c.Mkdir(p.req(), base, mode)
	if err == nil {
		unref(e.Node)
	}
	return errno(err)
}

func (p *Proc) Rmdir(name string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	if a, err := n.Attr(p.req()); err == nil && a.Type != vnode.Directory {
		return syscall.ENOTDIR
	}
	c, _, base, err := inDir[vnode.Remover](p, name)
	if err != nil {
		return err
	}
	return errno(c.Rmdir(p.req(), base))
}

func (p *Proc) Unlink(name string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	if a, err := n.Attr(p.req()); err == nil && a.Type == vnode.Directory {
		return syscall.EISDIR
	}
	unref(n)
	c, _, base, err := inDir[vnode.Remover](p, name)
	if err != nil {
		return err
	}
	return errno(c.Unlink(p.req(), base))
}

func (p *Proc) Rename(oldPath, newPath string) error {
	if n, err := p.walk(oldPath); err != nil {
		return err
	} else {
		unref(n)
	}
	c, _, oldBase, err := inDir[vnode.Renamer](p, oldPath)
	if err != nil {
		return err
	}
	_, to, newBase, err := inDir[any](p, newPath)
	if err != nil {
		return err
	}
	return errno(c.Rename(p.req(), oldBase, to, newBase))
}

func (p *Proc) Link(oldPath, newPath string) error {
	old, err := p.walk(oldPath)
	if err != nil {
		return err
	}
	defer unref(old)
	c, dir, base, err := inDir[vnode.Linker](p, newPath)
	if err != nil {
		return err
	}
	if err := p.absent(dir, base); err != nil {
		return err
	}
	e, err := c.Link(p.req(), old, base)
	if err == nil {
		unref(e.Node)
	}
	return errno(err)
}

func (p *Proc) Symlink(target, name string) error {
	c, dir, base, err := inDir[vnode.Symlinker](p, name)
	if err != nil {
		return err
	}
	if err := p.absent(dir, base); err != nil {
		return err
	}
	e, err := c.Symlink(p.req(), base, target)
	if err == nil {
		unref(e.Node)
	}
	return errno(err)
}

func (p *Proc) Readlink(name string) (string, error) {
	n, err := p.walk(name)
	if err != nil {
		return "", err
	}
	defer unref(n)
	l, ok := n.(vnode.Readlinker)
	if !ok {
		return "", syscall.EINVAL
	}
	s, err := l.Readlink(p.req())
	return s, errno(err)
}

func (p *Proc) ReadDir(name string) ([]string, error) {
	n, err := p.walk(name)
	if err != nil {
		return nil, err
	}
	defer unref(n)
	if err := p.may(n, 4); err != nil {
		return nil, err
	}
	l, ok := n.(vnode.Lister)
	if !ok {
		return nil, syscall.ENOTDIR
	}
	entries, err := l.ReadDir(p.req())
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names, errno(err)
}

func (p *Proc) Getxattr(name, attr string) (string, error) {
	n, err := p.walk(name)
	if err != nil {
		return "", err
	}
	defer unref(n)
	x, ok := n.(vnode.Xattrer)
	if !ok {
		return "", syscall.ENOTSUP
	}
	v, err := x.Getxattr(p.req(), attr)
	return string(v), errno(err)
}

func (p *Proc) Listxattr(name string) ([]string, error) {
	n, err := p.walk(name)
	if err != nil {
		return nil, err
	}
	defer unref(n)
	x, ok := n.(vnode.Xattrer)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	names, err := x.Listxattr(p.req())
	slices.Sort(names)
	return names, errno(err)
}

func (p *Proc) Setxattr(name, attr, value string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	x, ok := n.(vnode.XattrSetter)
	if !ok {
		return syscall.ENOTSUP
	}
	return errno(x.Setxattr(p.req(), attr, []byte(value), 0))
}

func (p *Proc) SyncDir(name string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	if s, ok := n.(vnode.DirSyncer); ok {
		return errno(s.FsyncDir(p.req()))
	}
	return nil
}
