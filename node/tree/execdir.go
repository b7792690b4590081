package tree

import (
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

// Sizes of executables (spec section 5): exec and tools as the store takes them,
// hooks 1 MiB.
const (
	maxExec = store.MaxFile
	maxHook = 1 << 20

	maxHooks = 32 // of one phase (spec section 6)

	maxTools = 1024 // files in one directory of a user who is not root
)

// execRules say what a directory of executables is.
type execRules struct {
	only string // the one name that it holds (exec of an agent); "": any
	tier bool   // a tool tier: NAME.d beside NAME, the catalog is told
	max  int64
	most int    // files that may be in force; 0: no limit but that of tools
	mode uint32 // fixed mode of the files; 0: chmod works
	kind string // of user.cortexfs.kind
	dir  uint32 // mode of the directory
}

// execDir is a directory of executables: tool/, hooks/pre.d, or the one name exec
// of a `.d`. Its files are ordinary to who may write the directory: create,
// write, chmod, rename, unlink. What is written is a draft in the store until the
// last writer is done (slot); names that are no object names are the temporary
// names of editors and installers and are never in force.
type execDir struct {
	noACL
	t     *Tree
	dir   string // in the store
	rules execRules
	owner func() (uid, gid uint32)
	node  vnode.Node // the directory node that shows the entries
	count *store.Counter
	obj   *store.Object // whose part it is; nil: a tier

	mu     sync.Mutex // protects the fields below and what slot says
	loaded bool
	seen   uint64 // counter when the directory was last read whole
	slots  map[string]*slot
	dirs   map[string]bool // NAME.d, of a tier
	mod    time.Time
}

func (*execDir) InMemory() {}

func newExecDir(t *Tree, dir string, rules execRules, owner func() (uint32, uint32)) *execDir {
	x := &execDir{
		t: t, dir: dir, rules: rules, owner: owner, count: t.st.Changes(dir),
		slots: map[string]*slot{}, dirs: map[string]bool{}, mod: t.born,
	}
	x.node = x
	return x
}

// tier finds or makes the canonical directory of a tool tier.
func (t *Tree) tier(dir string, owner func() (uint32, uint32)) *execDir {
	return t.execDir(dir, execRules{tier: true, max: maxExec, kind: "tool.exec", dir: 0o755}, owner, nil)
}

func (t *Tree) execDir(dir string, rules execRules, owner func() (uint32, uint32), obj *store.Object) *execDir {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.execs[dir]
	if x == nil || x.obj != obj {
		x = newExecDir(t, dir, rules, owner)
		x.obj = obj
		t.execs[dir] = x
	}
	return x
}

// removed says whether the object that the directory is part of is gone: another
// one may have its name, and its files, by now.
func (x *execDir) removed() bool { return x.obj != nil && x.obj.Gone() }

// drop takes out a slot that never was in force.
func (x *execDir) drop(s *slot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.slots[s.name] == s {
		delete(x.slots, s.name)
	}
	s.gone = true
}

// load reads the directory once; afterwards our own changes keep it, and those of
// others are seen by the store's counter: a listing reads the directory again, a
// missing name is looked for, and an open finds out that the bytes are others.
func (x *execDir) load() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.loaded {
		return
	}
	x.loaded = true
	x.seen = x.count.Load()
	names, err := x.t.st.List(x.dir)
	if err != nil {
		if !fault.Is(err, fault.NotExist) {
			x.loaded = false
			x.t.log("read " + x.dir + ": " + err.Error())
		}
		return
	}
	for _, e := range names {
		switch {
		case e.Type.IsDir() && x.rules.tier && strings.HasSuffix(e.Name, ".d"):
			x.dirs[e.Name] = true
		case e.Type.IsRegular() && x.takes(e.Name):
			if info, err := x.t.st.StatFile(x.dir + "/" + e.Name); err == nil {
				x.slots[e.Name] = x.committed(e.Name, info)
			}
		}
	}
}

// takes says whether a name may be in force here.
func (x *execDir) takes(name string) bool {
	if x.rules.only != "" {
		return name == x.rules.only
	}
	return node.IsName(name)
}

// committed makes the slot of a file in force.
func (x *execDir) committed(name string, info store.FileInfo) *slot {
	s := &slot{x: x, name: name, attr: info.Attr}
	s.cur = &execFile{s: s, info: info}
	return s
}

// slot is the slot of a name, or nil.
func (x *execDir) slot(name string) *slot {
	x.load()
	x.mu.Lock()
	s, current := x.slots[name], x.seen == x.count.Load()
	x.mu.Unlock()
	if s != nil || current || !x.takes(name) {
		return s
	}
	if info, err := x.t.st.StatFile(x.dir + "/" + name); err == nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.slots[name] == nil {
			x.slots[name] = x.committed(name, info)
		}
		return x.slots[name]
	}
	return nil
}

// refresh reads one name again from the store; for what changed behind us.
func (x *execDir) refresh(name string) {
	x.load()
	if strings.HasSuffix(name, ".d") {
		_, err := x.t.st.Object(x.dir + "/" + name)
		x.mu.Lock()
		if x.rules.tier {
			if err == nil {
				x.dirs[name] = true
			} else {
				delete(x.dirs, name)
			}
		}
		x.mu.Unlock()
		x.told(name)
		return
	}
	info, err := x.t.st.StatFile(x.dir + "/" + name)
	x.mu.Lock()
	s := x.slots[name]
	switch {
	case err != nil && s != nil && s.cur != nil:
		delete(x.slots, name)
		s.gone = true
	case err == nil && s == nil:
		x.slots[name] = x.committed(name, info)
	case err == nil && (s.cur == nil || s.cur.info.Gen != info.Gen):
		s.cur = &execFile{s: s, info: info}
		s.attr = info.Attr
	case err == nil:
		s.attr = info.Attr
	}
	x.mu.Unlock()
	x.told(name)
}

// listed tells the kernel that its listing is old. exec is listed by its `.d`,
// which the kernel does not keep.
func (x *execDir) listed() {
	x.mu.Lock()
	x.mod = time.Now()
	x.mu.Unlock()
	if x.node == vnode.Node(x) {
		x.t.push(nil, func(n vnode.Notifier) { n.NodeChanged(x) })
	}
}

// told tells servers and the catalog that a name and its .d are others now, or
// none.
func (x *execDir) told(name string) {
	x.t.open.forget(x.dir + "/" + name)
	x.listed()
	if x.rules.tier && node.IsName(name) {
		x.t.tools.Changed(x.dir, name)
		x.t.toolChanged(x.dir, name)
	}
}

// writer decides whether the caller may change files here.
func (x *execDir) writer(r *vnode.Req) error {
	if err := x.t.foreign(r); err != nil {
		return err
	}
	uid, _ := x.owner()
	if r.UID != uid && !x.t.isRoot(r.UID) {
		return fault.Newf(fault.Access, "only uid %d and root write here", uid)
	}
	if x.removed() {
		return fault.E("", "/"+x.dir, fault.Stale, nil)
	}
	return nil
}

// Attr of the directory.
func (x *execDir) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := x.owner()
	x.mu.Lock()
	defer x.mu.Unlock()
	return dirAttr("/"+x.dir, x.rules.dir, uid, gid, x.mod), nil
}

// Lookup finds an executable, or NAME.d in a tier.
func (x *execDir) Lookup(_ *vnode.Req, name string) (vnode.Entry, error) {
	if s := x.slot(name); s != nil {
		return s.entry(), nil
	}
	if x.rules.tier && strings.HasSuffix(name, ".d") {
		return x.lookupObject(name)
	}
	if err := checkLen(name); err != nil {
		return vnode.Entry{}, err
	}
	return vnode.Entry{}, notExist(name)
}

func (x *execDir) lookupObject(name string) (vnode.Entry, error) {
	base := strings.TrimSuffix(name, ".d")
	if !node.IsName(base) {
		return vnode.Entry{}, notExist(name)
	}
	d, err := x.t.toolObject(x, base)
	if err != nil {
		return vnode.Entry{}, err
	}
	x.mu.Lock()
	x.dirs[name] = true
	x.mu.Unlock()
	return vnode.Entry{Node: d, Valid: dirValid}, nil
}

// toolObject is the `.d` of a tool in a tier.
func (t *Tree) toolObject(x *execDir, name string) (*ctlDir, error) {
	dir := x.dir + "/" + name + ".d"
	return t.object(dir, func(obj *store.Object) *ctlDir {
		d := newCtlDir(t, toolObject, dir, name, control.Tool, obj)
		d.sub = &plainSubject{t: t, dir: dir, name: name, set: control.Tool, ids: x.owner, obj: obj,
			onChg: func() {
				t.tools.Changed(x.dir, name)
				t.toolChanged(x.dir, name)
			}}
		return d
	})
}

// ReadDir lists everything, temporary names included: these are ordinary files.
func (x *execDir) ReadDir(*vnode.Req) ([]vnode.Dirent, error) {
	x.load()
	x.mu.Lock()
	current := x.seen == x.count.Load()
	x.mu.Unlock()
	if !current {
		x.reread()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]vnode.Dirent, 0, len(x.slots)+len(x.dirs))
	for name, s := range x.slots {
		out = append(out, vnode.Dirent{Name: name, Ino: s.inoLocked(), Type: vnode.Regular})
	}
	for name := range x.dirs {
		out = append(out, vnode.Dirent{Name: name, Ino: inoOf("/" + x.dir + "/" + name), Type: vnode.Directory})
	}
	slices.SortFunc(out, func(a, b vnode.Dirent) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// temporary is the rule for names that cannot be in force: those of editors and
// installers, made exclusively or from the name of a file that is here.
func (x *execDir) temporary(name string, exclusive bool) error {
	if x.rules.only != "" || strings.HasSuffix(name, ".d") || strings.HasSuffix(name, ".sock") || len(name) > 255 {
		return node.CheckName(name + "/")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for n := range x.slots {
		exclusive = exclusive || (node.IsName(n) && strings.Contains(name, n))
	}
	if !exclusive {
		return node.CheckName(name)
	}
	return nil
}

// Create makes a file and opens it. It is not in force before its last writer is
// done.
func (x *execDir) Create(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	s, h, err := x.create(r, name, flags, mode)
	if err != nil {
		return vnode.Entry{}, nil, vnode.Mode{}, fault.At("create", "/"+x.dir+"/"+name, err)
	}
	return s.entry(), h, vnode.Mode{Direct: true}, nil
}

func (x *execDir) create(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (*slot, vnode.Handle, error) {
	if err := x.writer(r); err != nil {
		return nil, nil, err
	}
	s := x.slot(name)
	switch {
	case s != nil && flags&syscall.O_EXCL != 0:
		return nil, nil, fault.Newf(fault.Exist, "%s is there", errName(name))
	case s == nil:
		made, err := x.add(r, name, flags&syscall.O_EXCL != 0, mode)
		if err != nil {
			return nil, nil, err
		}
		s = made
	}
	h, err := s.open(r, flags)
	return s, h, err
}

// add makes an empty slot.
func (x *execDir) add(r *vnode.Req, name string, exclusive bool, mode uint32) (*slot, error) {
	if !x.takes(name) {
		if err := x.temporary(name, exclusive); err != nil {
			return nil, err
		}
	}
	if x.takes(name) {
		if err := x.full(name); err != nil {
			return nil, err
		}
	}
	if err := x.room(r); err != nil {
		return nil, err
	}
	cl, err := x.t.use.claim(r.UID)
	if err != nil {
		return nil, err
	}
	s := &slot{x: x, name: name, attr: store.FileAttr{UID: r.UID, GID: r.GID, Mode: mode & 0o777}, claim: cl, mtime: time.Now()}
	s.fresh = &newFile{s: s, ino: inoOf("/"+x.dir+"/"+name) ^ uint64(time.Now().UnixNano())}
	defer x.listed()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.slots[name] != nil {
		cl.drop()
		return nil, fault.Newf(fault.Exist, "%s is there", errName(name))
	}
	x.slots[name] = s
	return s, nil
}

// full refuses another file that would be in force; name is no other when it is
// there already.
func (x *execDir) full(name string) error {
	if x.rules.most == 0 || x.slot(name) != nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for name := range x.slots {
		if x.takes(name) {
			n++
		}
	}
	if n >= x.rules.most {
		return fault.Newf(fault.Again, "%d files are here already, the most that are run", n)
	}
	return nil
}

// room bounds the files of a user's own directory (spec section 13: 1,024 tools).
func (x *execDir) room(r *vnode.Req) error {
	if x.t.isRoot(r.UID) {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.slots) >= maxTools {
		return fault.Newf(fault.Again, "%d files are here already", len(x.slots))
	}
	return nil
}

// Mknod makes a regular file only.
func (x *execDir) Mknod(r *vnode.Req, name string, typ vnode.Type, mode uint32) (vnode.Entry, error) {
	if typ != vnode.Regular {
		return vnode.Entry{}, fault.At("mknod", "/"+x.dir+"/"+name, perm("only regular files are executables"))
	}
	ent, h, _, err := x.Create(r, name, syscall.O_EXCL|syscall.O_RDWR, mode)
	if err != nil {
		return vnode.Entry{}, err
	}
	h.Release(r)
	return ent, nil
}

// Mkdir is refused: NAME.d appears by itself.
func (x *execDir) Mkdir(_ *vnode.Req, name string, _ uint32) (vnode.Entry, error) {
	return vnode.Entry{}, fault.At("mkdir", "/"+x.dir+"/"+name, perm("NAME.d appears with its executable"))
}

// Symlink is refused: a symlink is never a hit.
func (x *execDir) Symlink(_ *vnode.Req, name, _ string) (vnode.Entry, error) {
	return vnode.Entry{}, fault.At("symlink", "/"+x.dir+"/"+name, perm("an executable is no symlink"))
}

// Link is refused; across directories as another device.
func (x *execDir) Link(_ *vnode.Req, old vnode.Node, name string) (vnode.Entry, error) {
	k := fault.CrossDevice
	if f, ok := old.(*execFile); ok && f.s.x == x {
		k = fault.Perm
	}
	return vnode.Entry{}, fault.At("link", "/"+x.dir+"/"+name, fault.Newf(k, "an executable has one name"))
}

// FsyncDir has nothing to do: what is in force is durable.
func (x *execDir) FsyncDir(*vnode.Req) error { return nil }

// Setattr accepts what changes nothing.
func (x *execDir) Setattr(r *vnode.Req, s vnode.SetAttr) (vnode.Attr, error) {
	if err := x.writer(r); err != nil {
		return vnode.Attr{}, fault.At("setattr", "/"+x.dir, err)
	}
	uid, gid := x.owner()
	if (s.UID != nil && *s.UID != uid) || (s.GID != nil && *s.GID != gid) || (s.Mode != nil && *s.Mode&0o777 != x.rules.dir) {
		return vnode.Attr{}, fault.At("setattr", "/"+x.dir, perm("owner and mode of this directory are fixed"))
	}
	return x.Attr(r)
}

// Getxattr shows the kind.
func (x *execDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return x.xattrs().get(name) }

// Listxattr names them.
func (x *execDir) Listxattr(*vnode.Req) ([]string, error) { return x.xattrs().list(), nil }

func (x *execDir) xattrs() xattrs {
	return xattrs{kind: strings.TrimSuffix(x.rules.kind, ".exec") + ".dir", origin: "durable"}
}
