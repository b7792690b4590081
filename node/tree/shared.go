package tree

import (
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// sharedDir is shared/.
type sharedDir struct {
	noACL
	fixedNames
	t *Tree
}

func (d sharedDir) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := d.t.daemonIDs()
	a := dirAttr("/shared", 0o755, uid, gid, d.t.born)
	a.Valid = 0
	return a, nil
}

func (d sharedDir) Lookup(_ *vnode.Req, name string) (vnode.Entry, error) {
	if node.IsName(name) {
		if _, ok := d.t.ordAttr("shared/" + name); ok {
			return vnode.Entry{Node: spaceDir{t: d.t, space: name}, Valid: dirValid}, nil
		}
	}
	return vnode.Entry{}, notExist(name)
}

func (d sharedDir) ReadDir(*vnode.Req) ([]vnode.Dirent, error) {
	var out []vnode.Dirent
	for _, e := range d.t.ordList("shared") {
		if node.IsName(e.Name) && e.Type == vnode.Directory {
			out = append(out, vnode.Dirent{Name: e.Name, Ino: inoOf("/shared/" + e.Name), Type: vnode.Directory})
		}
	}
	slices.SortFunc(out, func(a, b vnode.Dirent) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Mkdir makes a shared space; root only.
func (d sharedDir) Mkdir(r *vnode.Req, name string, mode uint32) (vnode.Entry, error) {
	err := d.t.foreign(r)
	if err == nil && !d.t.isRoot(r.UID) {
		err = fault.Newf(fault.Access, "only root makes shared spaces")
	}
	if err == nil {
		err = node.CheckName(name)
	}
	if _, there := d.t.ordAttr("shared/" + name); err == nil && there {
		err = fault.Newf(fault.Exist, "%s is there", name)
	}
	if err == nil {
		err = d.t.ord.MakeShared(name, r.UID, r.GID, mode&0o7777)
	}
	if err == nil {
		err = d.t.st.MkdirAll("shared/" + name + "/tool")
	}
	if err != nil {
		return vnode.Entry{}, fault.At("mkdir", "/shared/"+name, err)
	}
	return vnode.Entry{Node: spaceDir{t: d.t, space: name}, Valid: dirValid}, nil
}

// fixedNames is fixed for directories that make their own by mkdir.
type fixedNames struct{}

func (fixedNames) Create(*vnode.Req, string, vnode.OpenFlags, uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	return vnode.Entry{}, nil, vnode.Mode{}, errFixed
}
func (fixedNames) Symlink(*vnode.Req, string, string) (vnode.Entry, error) {
	return vnode.Entry{}, errFixed
}
func (fixedNames) Link(*vnode.Req, vnode.Node, string) (vnode.Entry, error) {
	return vnode.Entry{}, fault.Newf(fault.CrossDevice, "no files here")
}
func (fixedNames) Unlink(*vnode.Req, string) error { return errFixed }
func (fixedNames) Rmdir(*vnode.Req, string) error  { return errFixed }
func (fixedNames) FsyncDir(*vnode.Req) error       { return nil }
func (fixedNames) Rename(*vnode.Req, string, vnode.Node, string) error {
	return errFixed
}

// spaceDir is shared/<space>/: tool/ is synthetic, data/ and agent/ are ordinary.
type spaceDir struct {
	noACL
	fixed
	t     *Tree
	space string
}

var spaceNames = []string{"agent", "data", "tool"}

func (d spaceDir) path() string { return "shared/" + d.space }

// ids are whose the space is: its data's owner.
func (d spaceDir) ids() (uid, gid uint32) {
	if a, ok := d.t.ordAttr(d.path() + "/data"); ok {
		return a.UID, a.GID
	}
	return d.t.daemonIDs()
}

func (d spaceDir) Attr(*vnode.Req) (vnode.Attr, error) {
	if _, ok := d.t.ordAttr(d.path()); !ok {
		return vnode.Attr{}, fault.E("stat", "/"+d.path(), fault.Stale, nil)
	}
	uid, gid := d.ids()
	return dirAttr("/"+d.path(), 0o755, uid, gid, d.t.born), nil
}

func (d spaceDir) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	switch name {
	case "tool":
		return vnode.Entry{Node: d.t.tier(d.path()+"/tool", d.ids), Valid: dirValid}, nil
	case "data", "agent":
		n, err := d.t.ord.Node(r, d.path()+"/"+name)
		if err != nil {
			return vnode.Entry{}, err
		}
		return vnode.Entry{Node: n}, nil
	}
	return vnode.Entry{}, notExist(name)
}

func (d spaceDir) ReadDir(*vnode.Req) ([]vnode.Dirent, error) {
	var out []vnode.Dirent
	for _, name := range spaceNames {
		ent := vnode.Dirent{Name: name, Type: vnode.Directory}
		if name == "tool" {
			ent.Ino = inoOf("/" + d.path() + "/tool") // the others are the store's inodes
		}
		out = append(out, ent)
	}
	return out, nil
}
