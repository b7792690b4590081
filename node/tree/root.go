package tree

import (
	"slices"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// rootDir is the root: its entries are fixed, for ever.
type rootDir struct {
	noACL
	fixed
	t *Tree
}

func (*rootDir) InMemory() {}

var rootNames = []string{"agent", "bin", "home", "model", "shared", "status", "tool"}

func (d *rootDir) entry(name string) vnode.Node {
	switch name {
	case "status":
		return statusFile{t: d.t}
	case "bin":
		return binDir{t: d.t}
	case "agent":
		return agentsDir{t: d.t}
	case "tool":
		return d.t.tier("tool", d.t.daemonIDs)
	case "model":
		return modelDir{t: d.t, dir: "model"}
	case "home":
		return homesDir{t: d.t}
	case "shared":
		return sharedDir{t: d.t}
	}
	return nil
}

func (d *rootDir) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := d.t.daemonIDs()
	a := dirAttr("/", 0o755, uid, gid, d.t.born)
	a.Ino = 1
	return a, nil
}

func (d *rootDir) Lookup(_ *vnode.Req, name string) (vnode.Entry, error) {
	n := d.entry(name)
	if n == nil {
		if err := checkLen(name); err != nil {
			return vnode.Entry{}, err
		}
		return vnode.Entry{}, notExist(name)
	}
	return vnode.Entry{Node: n, Valid: dirValid}, nil
}

func (d *rootDir) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	return listOf(r, rootNames, d.entry)
}

func (d *rootDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return d.xattrs().get(name) }
func (d *rootDir) Listxattr(*vnode.Req) ([]string, error)             { return d.xattrs().list(), nil }

func (d *rootDir) xattrs() xattrs {
	return xattrs{kind: "root", origin: "live", runtime: d.t.o.Runtime, version: d.t.o.Version}
}

// listOf lists names whose nodes are known.
func listOf(r *vnode.Req, names []string, entry func(string) vnode.Node) ([]vnode.Dirent, error) {
	out := make([]vnode.Dirent, 0, len(names))
	for _, name := range names {
		n := entry(name)
		if n == nil {
			continue
		}
		a, err := n.Attr(r)
		if err != nil {
			continue
		}
		out = append(out, vnode.Dirent{Name: name, Ino: a.Ino, Type: a.Type})
	}
	return out, nil
}

// fixed refuses every change of a directory's names (EPERM).
type fixed struct{}

var errFixed = fault.Newf(fault.Perm, "the entries of this directory are fixed")

func (fixed) Create(*vnode.Req, string, vnode.OpenFlags, uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	return vnode.Entry{}, nil, vnode.Mode{}, errFixed
}
func (fixed) Mkdir(*vnode.Req, string, uint32) (vnode.Entry, error) { return vnode.Entry{}, errFixed }
func (fixed) Mknod(*vnode.Req, string, vnode.Type, uint32) (vnode.Entry, error) {
	return vnode.Entry{}, errFixed
}
func (fixed) Symlink(*vnode.Req, string, string) (vnode.Entry, error) { return vnode.Entry{}, errFixed }
func (fixed) Link(*vnode.Req, vnode.Node, string) (vnode.Entry, error) {
	return vnode.Entry{}, errFixed
}
func (fixed) Unlink(*vnode.Req, string) error                     { return errFixed }
func (fixed) Rmdir(*vnode.Req, string) error                      { return errFixed }
func (fixed) FsyncDir(*vnode.Req) error                           { return nil }
func (fixed) Rename(*vnode.Req, string, vnode.Node, string) error { return errFixed }

// statusFile is /status.
type statusFile struct {
	noACL
	t *Tree
}

func (statusFile) InMemory() {}

func (f statusFile) text() []byte {
	if f.t.o.Status == nil {
		return []byte("ready\n")
	}
	return []byte(f.t.o.Status() + "\n")
}

func (f statusFile) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := f.t.daemonIDs()
	return vnode.Attr{
		Ino: inoOf("/status"), Size: uint64(len(f.text())), Mode: 0o444, UID: uid, GID: gid,
		Atime: f.t.born, Mtime: f.t.born, Ctime: f.t.born,
	}, nil
}

func (f statusFile) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		return nil, vnode.Mode{}, fault.At("open", "/status", perm("status is live and never written"))
	}
	c, err := f.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	return &liveHandle{c: c, now: f.text, text: f.text(), on: &f.t.status}, vnode.Mode{Direct: true, NoFlush: true}, nil
}

func (f statusFile) Setattr(*vnode.Req, vnode.SetAttr) (vnode.Attr, error) {
	return vnode.Attr{}, fault.At("setattr", "/status", perm("status is live and never written"))
}

func (f statusFile) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return f.xattrs().get(name) }
func (f statusFile) Listxattr(*vnode.Req) ([]string, error)             { return f.xattrs().list(), nil }

func (f statusFile) xattrs() xattrs {
	return xattrs{kind: "status", origin: "live", size: uint64(len(f.text())), hasSize: true}
}

// binDir is bin/: the daemon's own binaries and the state file of bootstrap.
type binDir struct {
	noACL
	fixed
	t *Tree
}

// bootstrapState is the state file of spec section 18; the daemon writes it.
const bootstrapState = "cortexfs.bootstrap.json"

func (d binDir) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := d.t.daemonIDs()
	return dirAttr("/bin", 0o755, uid, gid, d.t.born), nil
}

func (d binDir) entry(name string) vnode.Node {
	if _, ok := d.t.o.Bin[name]; ok {
		uid, gid := d.t.daemonIDs()
		return hostNode{t: d.t, path: "/bin/" + name, bin: name, kind: "bin.exec", uid: uid, gid: gid}
	}
	if name == bootstrapState {
		if obj, err := d.t.st.Object("bin"); err == nil {
			if _, ok := obj.Snapshot().Values[name]; ok {
				return stateFile{t: d.t}
			}
		}
	}
	return nil
}

func (d binDir) Lookup(_ *vnode.Req, name string) (vnode.Entry, error) {
	if n := d.entry(name); n != nil {
		return vnode.Entry{Node: n, Valid: dirValid}, nil
	}
	return vnode.Entry{}, notExist(name)
}

func (d binDir) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	names := []string{bootstrapState}
	for name := range d.t.o.Bin {
		names = append(names, name)
	}
	slices.Sort(names)
	return listOf(r, names, d.entry)
}

// stateFile is bin/cortexfs.bootstrap.json.
type stateFile struct{ t *Tree }

func (f stateFile) text() []byte {
	obj, err := f.t.st.Object("bin")
	if err != nil {
		return nil
	}
	return obj.Snapshot().Values[bootstrapState].Text
}

func (f stateFile) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := f.t.daemonIDs()
	return vnode.Attr{
		Ino: inoOf("/bin/" + bootstrapState), Size: uint64(len(f.text())), Mode: 0o444, UID: uid, GID: gid,
		Atime: f.t.born, Mtime: f.t.born, Ctime: f.t.born,
	}, nil
}

func (f stateFile) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		return nil, vnode.Mode{}, perm("%s is written by ctx bootstrap", bootstrapState)
	}
	return f.t.openText(r, f.text())
}
