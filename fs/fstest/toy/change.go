package toy

import (
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// free says that a name may be made. Under mu.
func (n *Node) free(name string) error {
	if n.kids == nil {
		return fault.E("", name, fault.NotDir, nil)
	}
	if n.kids[name] != nil {
		return fault.E("", name, fault.Exist, nil)
	}
	return nil
}

func (n *Node) make(r *vnode.Req, name string, typ vnode.Type, mode uint32) (*Node, error) {
	if err := n.free(name); err != nil {
		return nil, err
	}
	kid := n.fs.node(typ, mode)
	kid.attr.UID, kid.attr.GID = r.UID, r.GID
	kid.Waits, kid.Mode = n.Waits, n.Mode
	n.put(name, kid)
	return kid, nil
}

// Mkdir implements vnode.Mkdirer.
func (n *Node) Mkdir(r *vnode.Req, name string, mode uint32) (vnode.Entry, error) {
	return n.made(r, name, vnode.Directory, mode)
}

// Mknod implements vnode.Mknoder.
func (n *Node) Mknod(r *vnode.Req, name string, typ vnode.Type, mode uint32) (vnode.Entry, error) {
	return n.made(r, name, typ, mode)
}

func (n *Node) made(r *vnode.Req, name string, typ vnode.Type, mode uint32) (vnode.Entry, error) {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	kid, err := n.make(r, name, typ, mode)
	if err != nil {
		return vnode.Entry{}, err
	}
	return kid.entry(), nil
}

// Symlink implements vnode.Symlinker.
func (n *Node) Symlink(r *vnode.Req, name, target string) (vnode.Entry, error) {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	kid, err := n.make(r, name, vnode.Symlink, 0o777)
	if err != nil {
		return vnode.Entry{}, err
	}
	kid.target = target
	return kid.entry(), nil
}

// Link implements vnode.Linker.
func (n *Node) Link(_ *vnode.Req, old vnode.Node, name string) (vnode.Entry, error) {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	kid := of(old)
	if kid == nil {
		return vnode.Entry{}, fault.E("link", name, fault.CrossDevice, nil)
	}
	if err := n.free(name); err != nil {
		return vnode.Entry{}, err
	}
	kid.attr.Nlink++
	n.put(name, kid)
	return kid.entry(), nil
}

// Create implements vnode.Creator.
func (n *Node) Create(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	n.fs.count("create")
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	kid := n.kids[name]
	if kid == nil || int(flags)&unix.O_EXCL != 0 {
		var err error
		if kid, err = n.make(r, name, vnode.Regular, mode); err != nil {
			return vnode.Entry{}, nil, vnode.Mode{}, err
		}
	}
	return kid.entry(), kid.handle(), kid.Mode, nil
}

// Unlink implements vnode.Remover.
func (n *Node) Unlink(_ *vnode.Req, name string) error {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	kid := n.kids[name]
	switch {
	case kid == nil:
		return fault.E("unlink", name, fault.NotExist, nil)
	case kid.kids != nil:
		return fault.E("unlink", name, fault.IsDir, nil)
	}
	kid.attr.Nlink--
	delete(n.kids, name)
	n.attr.Mtime = time.Now()
	return nil
}

// Rmdir implements vnode.Remover.
func (n *Node) Rmdir(_ *vnode.Req, name string) error {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	kid := n.kids[name]
	switch {
	case kid == nil:
		return fault.E("rmdir", name, fault.NotExist, nil)
	case kid.kids == nil:
		return fault.E("rmdir", name, fault.NotDir, nil)
	case len(kid.kids) > 0:
		return fault.E("rmdir", name, fault.NotEmpty, nil)
	}
	delete(n.kids, name)
	n.attr.Mtime = time.Now()
	return nil
}

// Rename implements vnode.Renamer.
func (n *Node) Rename(_ *vnode.Req, oldName string, newDir vnode.Node, newName string) error {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	to := of(newDir)
	if to == nil {
		return fault.E("rename", oldName, fault.CrossDevice, nil)
	}
	kid := n.kids[oldName]
	if kid == nil {
		return fault.E("rename", oldName, fault.NotExist, nil)
	}
	if there := to.kids[newName]; there != nil && len(there.kids) > 0 {
		return fault.E("rename", newName, fault.NotEmpty, nil)
	}
	delete(n.kids, oldName)
	n.attr.Mtime = time.Now()
	to.put(newName, kid)
	return nil
}

// Setattr implements vnode.Setattrer.
func (n *Node) Setattr(r *vnode.Req, s vnode.SetAttr) (vnode.Attr, error) {
	if n.OnSetattr != nil {
		if err := n.OnSetattr(r, s); err != nil {
			return vnode.Attr{}, err
		}
	}
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	if s.Size != nil {
		n.resize(int(*s.Size))
	}
	if s.Mode != nil {
		n.attr.Mode = *s.Mode
	}
	if s.UID != nil {
		n.attr.UID = *s.UID
	}
	if s.GID != nil {
		n.attr.GID = *s.GID
	}
	if s.Atime != nil {
		n.attr.Atime = *s.Atime
	}
	if s.Mtime != nil {
		n.attr.Mtime = *s.Mtime
	}
	n.attr.Ctime = time.Now()
	return n.attrNow(), nil
}

// resize cuts or pads the content. The old bytes stay as they are for who reads
// them.
func (n *Node) resize(size int) {
	data := make([]byte, size)
	copy(data, n.data)
	n.data = data
	n.attr.Mtime = time.Now()
}

// Getxattr implements vnode.Xattrer.
func (n *Node) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	n.fs.count("getxattr")
	n.fs.mu.RLock()
	defer n.fs.mu.RUnlock()
	v, ok := n.xattrs[name]
	if !ok {
		return nil, fault.E("getxattr", name, fault.NoData, nil)
	}
	return v, nil
}

// Listxattr implements vnode.Xattrer.
func (n *Node) Listxattr(*vnode.Req) ([]string, error) {
	n.fs.mu.RLock()
	defer n.fs.mu.RUnlock()
	var names []string
	for name := range n.xattrs {
		names = append(names, name)
	}
	sort.Strings(names)
	return names, nil
}

// Setxattr implements vnode.XattrSetter.
func (n *Node) Setxattr(_ *vnode.Req, name string, value []byte, flags uint32) error {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	_, there := n.xattrs[name]
	if there && flags&unix.XATTR_CREATE != 0 {
		return fault.E("setxattr", name, fault.Exist, nil)
	}
	if !there && flags&unix.XATTR_REPLACE != 0 {
		return fault.E("setxattr", name, fault.NoData, nil)
	}
	if n.xattrs == nil {
		n.xattrs = map[string][]byte{}
	}
	n.xattrs[name] = append([]byte(nil), value...)
	return nil
}

// Removexattr implements vnode.XattrSetter.
func (n *Node) Removexattr(_ *vnode.Req, name string) error {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	if _, there := n.xattrs[name]; !there {
		return fault.E("removexattr", name, fault.NoData, nil)
	}
	delete(n.xattrs, name)
	return nil
}

// FsyncDir implements vnode.DirSyncer.
func (n *Node) FsyncDir(*vnode.Req) error {
	n.fs.count("fsyncdir")
	return nil
}
