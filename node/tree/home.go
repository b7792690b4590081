package tree

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// homesDir is home/.
type homesDir struct {
	noACL
	fixed
	t *Tree
}

// homes are the uids whose home is known to exist.
type homes struct{ known sync.Map }

func (d homesDir) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := d.t.daemonIDs()
	return dirAttr("/home", 0o755, uid, gid, d.t.born), nil
}

// Lookup makes a uid's home at that uid's first request for it. A thread of
// another namespace makes nothing.
func (d homesDir) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	n, err := strconv.ParseUint(name, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != name || n == 1<<32-1 {
		return vnode.Entry{}, notExist(name)
	}
	uid := uint32(n)
	if !d.t.hasHome(uid) {
		if r.UID != uid || (!d.t.o.Root && uid != d.t.o.DaemonUID) || d.t.foreign(r) != nil {
			return vnode.Entry{}, notExist(name)
		}
		if err := d.t.makeHome(uid); err != nil {
			return vnode.Entry{}, fault.At("lookup", "/home/"+name, err)
		}
	}
	return vnode.Entry{Node: homeDir{t: d.t, uid: uid}, Valid: dirValid}, nil
}

func (d homesDir) ReadDir(*vnode.Req) ([]vnode.Dirent, error) {
	var out []vnode.Dirent
	for _, uid := range d.t.agents.Homes() {
		name := strconv.FormatUint(uint64(uid), 10)
		if d.t.hasHome(uid) {
			out = append(out, vnode.Dirent{Name: name, Ino: inoOf("/home/" + name), Type: vnode.Directory})
		}
	}
	return out, nil
}

func homePath(uid uint32) string { return "home/" + strconv.FormatUint(uint64(uid), 10) }

// hasHome says whether the uid's home was made.
func (t *Tree) hasHome(uid uint32) bool {
	if _, ok := t.homes.known.Load(uid); ok {
		return true
	}
	if _, ok := t.ordAttr(homePath(uid)); !ok {
		return false
	}
	t.homes.known.Store(uid, true)
	return true
}

// makeHome makes both sides of a home: the user's files and the objects.
func (t *Tree) makeHome(uid uint32) error {
	if err := t.ord.MakeHome(uid, t.primaryGID(uid)); err != nil {
		return err
	}
	for _, tier := range []string{"/agent", "/tool", "/model"} {
		if err := t.st.MkdirAll(homePath(uid) + tier); err != nil {
			return err
		}
	}
	t.homes.known.Store(uid, true)
	return nil
}

// own is a request of the daemon itself.
func (t *Tree) own() *vnode.Req {
	uid, gid := t.daemonIDs()
	return &vnode.Req{Ctx: background, UID: uid, GID: gid}
}

// ordAttr looks at an ordinary file with the daemon's own rights.
func (t *Tree) ordAttr(path string) (vnode.Attr, bool) {
	n, err := t.ord.Node(nil, path)
	if err != nil || n == nil {
		return vnode.Attr{}, false
	}
	defer unref(n)
	a, err := n.Attr(t.own())
	return a, err == nil
}

// ordList lists an ordinary directory with the daemon's own rights.
func (t *Tree) ordList(path string) []vnode.Dirent {
	n, err := t.ord.Node(nil, path)
	if err != nil || n == nil {
		return nil
	}
	defer unref(n)
	l, ok := n.(vnode.Lister)
	if !ok {
		return nil
	}
	names, err := l.ReadDir(t.own())
	if err != nil {
		return nil
	}
	return names
}

func unref(n vnode.Node) {
	if u, ok := n.(vnode.Refcounted); ok {
		u.Unref()
	}
}

var background = context.Background()

// homeDir is home/<uid>/: agent/ tool/ model/ and the user's .tshrc, with the
// temporary names that editors give it.
type homeDir struct {
	noACL
	t   *Tree
	uid uint32
}

const tshrc = ".tshrc"

var homeNames = []string{"agent", "model", "tool"}

func (d homeDir) path() string { return homePath(d.uid) }

func (d homeDir) ids() (uid, gid uint32) { return d.uid, d.t.primaryGID(d.uid) }

func (d homeDir) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := d.ids()
	a := dirAttr("/"+d.path(), 0o700, uid, gid, d.t.born)
	a.Valid = 0 // .tshrc comes and goes
	return a, nil
}

func (d homeDir) enter(r *vnode.Req) error {
	if r.UID != d.uid && !d.t.isRoot(r.UID) {
		return fault.E("", "/"+d.path(), fault.Access, nil)
	}
	return nil
}

func (d homeDir) entry(name string) vnode.Node {
	switch name {
	case "agent":
		return agentsDir{t: d.t, home: true, uid: d.uid}
	case "tool":
		return d.t.tier(d.path()+"/tool", d.ids)
	case "model":
		return modelDir{t: d.t, dir: d.path() + "/model", uid: d.uid, home: true}
	}
	return nil
}

func (d homeDir) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	if err := d.enter(r); err != nil {
		return vnode.Entry{}, err
	}
	if n := d.entry(name); n != nil {
		return vnode.Entry{Node: n, Valid: dirValid}, nil
	}
	n, err := d.t.ord.Node(r, d.path()+"/"+name)
	if err != nil {
		return vnode.Entry{}, err
	}
	return vnode.Entry{Node: n}, nil
}

func (d homeDir) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	if err := d.enter(r); err != nil {
		return nil, err
	}
	out, err := listOf(r, homeNames, d.entry)
	for _, e := range d.t.ordList(d.path()) {
		if d.entry(e.Name) == nil {
			out = append(out, e)
		}
	}
	return out, err
}

// files is the ordinary directory behind, for a change of name; exclusive: the
// name is made anew.
func (d homeDir) files(r *vnode.Req, name string, exclusive bool) (vnode.Node, error) {
	if err := d.enter(r); err != nil {
		return nil, err
	}
	if d.entry(name) != nil || (!exclusive && !strings.Contains(name, tshrc)) {
		return nil, fault.At("", "/"+d.path()+"/"+name, perm("a home holds agent, tool, model and .tshrc"))
	}
	return d.t.ord.Node(r, d.path())
}

// inFiles runs an operation of the ordinary directory behind.
func inFiles[I any](d homeDir, r *vnode.Req, name string, exclusive bool, do func(I) error) error {
	n, err := d.files(r, name, exclusive)
	if err != nil {
		return err
	}
	defer unref(n)
	dir, ok := n.(I)
	if !ok {
		return perm("not possible here")
	}
	return do(dir)
}

func (d homeDir) Create(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (ent vnode.Entry, h vnode.Handle, m vnode.Mode, err error) {
	err = inFiles(d, r, name, flags&syscall.O_EXCL != 0, func(c vnode.Creator) (err error) {
		ent, h, m, err = c.Create(r, name, flags, mode)
		return err
	})
	return ent, h, m, err
}

func (d homeDir) Symlink(r *vnode.Req, name, target string) (ent vnode.Entry, err error) {
	err = inFiles(d, r, name, false, func(c vnode.Symlinker) (err error) {
		ent, err = c.Symlink(r, name, target)
		return err
	})
	return ent, err
}

func (d homeDir) Link(r *vnode.Req, old vnode.Node, name string) (ent vnode.Entry, err error) {
	if !d.t.ord.Is(old) {
		return ent, fault.At("link", "/"+d.path()+"/"+name, fault.Newf(fault.CrossDevice, "not an ordinary file"))
	}
	err = inFiles(d, r, name, false, func(c vnode.Linker) (err error) {
		ent, err = c.Link(r, old, name)
		return err
	})
	return ent, err
}

func (d homeDir) Unlink(r *vnode.Req, name string) error {
	return inFiles(d, r, name, true, func(c vnode.Remover) error { return c.Unlink(r, name) })
}

func (d homeDir) Rmdir(r *vnode.Req, name string) error {
	return inFiles(d, r, name, true, func(c vnode.Remover) error { return c.Rmdir(r, name) })
}

func (d homeDir) Mkdir(*vnode.Req, string, uint32) (vnode.Entry, error) {
	return vnode.Entry{}, perm("a home holds agent, tool, model and .tshrc")
}

func (d homeDir) Rename(r *vnode.Req, oldName string, newDir vnode.Node, newName string) error {
	to, same := newDir.(homeDir)
	switch {
	case d.entry(oldName) != nil:
		return fault.At("rename", "/"+d.path()+"/"+oldName, perm("%s is part of every home", oldName))
	case !same || to != d:
		return fault.At("rename", "/"+d.path()+"/"+oldName, fault.Newf(fault.CrossDevice, "files do not leave the home by name"))
	}
	return inFiles(d, r, oldName, true, func(vnode.Renamer) error {
		return inFiles(d, r, newName, false, func(c vnode.Renamer) error {
			return c.Rename(r, oldName, c.(vnode.Node), newName)
		})
	})
}

func (d homeDir) FsyncDir(r *vnode.Req) error {
	n, err := d.t.ord.Node(r, d.path())
	if err != nil {
		return err
	}
	defer unref(n)
	if s, ok := n.(vnode.DirSyncer); ok {
		return s.FsyncDir(r)
	}
	return nil
}
