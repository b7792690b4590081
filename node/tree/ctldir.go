package tree

import (
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

// objectKind is the class of object behind a `.d`.
type objectKind uint8

const (
	agentObject objectKind = iota
	toolObject
	modelObject
)

func (k objectKind) String() string { return [...]string{"agent", "tool", "model"}[k] }

// ctlDir is a `.d` directory: controls, live files, directories of executables,
// and scratch. One canonical node per object; a removed and remade object is
// another node.
type ctlDir struct {
	noACL
	t     *Tree
	dir   string // in the store, and below the tree's root
	kind  objectKind
	name  string // of the object
	set   *control.Set
	obj   *store.Object
	sub   subject
	agent *agent.Object // nil unless kind is agentObject
	exec  *execDir      // holds exec; nil unless the set has it

	mu      sync.Mutex // protects the fields below
	files   map[string]*ctlFile
	scratch map[string]*scratch
	seq     uint64
	logNow  *logFile
	wake    pollers
}

func (*ctlDir) InMemory() {}

// PrivateListing: scratch is listed for who may write only.
func (*ctlDir) PrivateListing() {}

// newCtlDir makes the node; the caller keeps it canonical.
func newCtlDir(t *Tree, kind objectKind, dir, name string, set *control.Set, obj *store.Object) *ctlDir {
	d := &ctlDir{
		t: t, dir: dir, kind: kind, name: name, set: set, obj: obj,
		files: map[string]*ctlFile{}, scratch: map[string]*scratch{},
	}
	if e := set.Lookup("exec"); e != nil && e.Kind == control.Exec {
		d.exec = newExecDir(t, dir, execRules{only: "exec", max: maxExec, mode: e.Mode, kind: kind.String() + ".exec"},
			func() (uint32, uint32) { return d.sub.owner() })
		d.exec.node, d.exec.obj = d, obj
	}
	return d
}

// object finds or makes the canonical node of a store object.
func (t *Tree) object(dir string, make func(*store.Object) *ctlDir) (*ctlDir, error) {
	obj, err := t.st.Object(dir)
	if err != nil {
		return nil, fault.At("lookup", "/"+dir, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.dirs[dir]; d != nil && d.obj == obj {
		return d, nil
	}
	d := make(obj)
	t.dirs[dir] = d
	return d, nil
}

// agentDir is the `.d` of an agent.
func (t *Tree) agentDir(k agent.Key) (*ctlDir, error) {
	o, err := t.agents.Lookup(k)
	if err != nil {
		return nil, err
	}
	return t.object(k.StoreDir(), func(*store.Object) *ctlDir {
		d := newCtlDir(t, agentObject, k.StoreDir(), k.Name, control.Agent, o.Store())
		d.agent, d.sub = o, agentSubject{t, o}
		return d
	})
}

// forget drops scratch and timers of a directory that is gone.
func (d *ctlDir) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, s := range d.scratch {
		delete(d.scratch, name)
		s.unlinkedLocked()
	}
	for _, f := range d.files {
		f.unhideLocked()
	}
}

func (d *ctlDir) path(name string) string { return "/" + d.dir + "/" + name }

// ownerOrRoot is who sees scratch, refusals and files without read bits.
func (d *ctlDir) ownerOrRoot(r *vnode.Req) bool {
	uid, _ := d.sub.owner()
	return r.UID == uid || d.t.isRoot(r.UID)
}

// writer decides whether the caller may change things here, and as whom.
func (d *ctlDir) writer(r *vnode.Req) (agent.Writer, error) {
	if err := d.t.foreign(r); err != nil {
		return agent.Writer{}, err
	}
	w := d.t.writer(r)
	if err := d.sub.mayWrite(w); err != nil {
		return agent.Writer{}, err
	}
	if d.obj.Gone() {
		return agent.Writer{}, fault.E("", "/"+d.dir, fault.Stale, nil)
	}
	return w, nil
}

// modTime is when the control was last committed; a default is as old as the
// object.
func (d *ctlDir) modTime(name string) time.Time {
	values := d.obj.Snapshot().Values
	if v, ok := values[name]; ok {
		return v.Mod
	}
	if v, ok := values["owner"]; ok {
		return v.Mod
	}
	return d.t.born
}

// Attr of the directory.
func (d *ctlDir) Attr(*vnode.Req) (vnode.Attr, error) {
	if d.obj.Gone() {
		return vnode.Attr{}, fault.E("stat", "/"+d.dir, fault.Stale, nil)
	}
	uid, gid := d.sub.owner()
	var last time.Time
	for _, v := range d.obj.Snapshot().Values {
		if v.Mod.After(last) {
			last = v.Mod
		}
	}
	if last.IsZero() {
		last = d.t.born
	}
	return dirAttr("/"+d.dir, 0o755, uid, gid, last), nil
}

// entry is the registry's entry for a name of this object, or nil.
func (d *ctlDir) entry(name string) *control.Entry {
	e := d.set.Lookup(name)
	if e == nil || (e.Only != "" && e.Only != d.name) {
		return nil
	}
	return e
}

// file is the canonical node of a durable control.
func (d *ctlDir) file(e *control.Entry) *ctlFile {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[e.Name]
	if f == nil {
		path := d.path(e.Name)
		f = &ctlFile{d: d, e: e, path: path, ino: inoOf(path)}
		d.files[e.Name] = f
	}
	return f
}

func (d *ctlDir) visible(f *ctlFile) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f.visibleLocked()
}

// Lookup finds a control, a live file, a directory, view/, or scratch.
func (d *ctlDir) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	if d.obj.Gone() {
		return vnode.Entry{}, notExist(name)
	}
	if e := d.entry(name); e != nil {
		return d.lookupEntry(r, e)
	}
	if s := d.findScratch(r, name); s != nil {
		return vnode.Entry{Node: s}, nil
	}
	if err := checkLen(name); err != nil {
		return vnode.Entry{}, err
	}
	return vnode.Entry{}, notExist(name)
}

func (d *ctlDir) lookupEntry(r *vnode.Req, e *control.Entry) (vnode.Entry, error) {
	switch e.Kind {
	case control.Durable:
		f := d.file(e)
		if !d.visible(f) {
			return vnode.Entry{}, notExist(e.Name)
		}
		return vnode.Entry{Node: f}, nil
	case control.Live:
		return vnode.Entry{Node: d.live(e)}, nil
	case control.Dir:
		return vnode.Entry{Node: hooksDir{d, e}, Valid: dirValid}, nil
	case control.Exec:
		return d.exec.Lookup(r, e.Name)
	case control.ViewDir:
		if !d.ownerOrRoot(r) {
			return vnode.Entry{}, fault.E("lookup", d.path(e.Name), fault.Access, nil)
		}
		return vnode.Entry{Node: d.t.viewOf(d.agent, false).root(), Valid: dirValid}, nil
	}
	return vnode.Entry{}, notExist(e.Name)
}

// ReadDir lists what Lookup finds, without view/; scratch only for who may write.
func (d *ctlDir) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	if d.obj.Gone() {
		return nil, fault.E("readdir", "/"+d.dir, fault.Stale, nil)
	}
	var out []vnode.Dirent
	for _, e := range d.set.Entries() {
		if d.entry(e.Name) == nil || e.Kind == control.ViewDir {
			continue
		}
		typ, ino := vnode.Regular, inoOf(d.path(e.Name))
		switch e.Kind {
		case control.Dir:
			typ = vnode.Directory
		case control.Live:
			if e.Name == "log" {
				ino = 0 // another one in each generation
			}
		case control.Durable:
			if !d.visible(d.file(e)) {
				continue
			}
		case control.Exec:
			s := d.exec.slot(e.Name)
			if s == nil {
				continue
			}
			ino = s.ino()
		}
		out = append(out, vnode.Dirent{Name: e.Name, Ino: ino, Type: typ})
	}
	return append(out, d.listScratch(r)...), nil
}

// Create opens a control that was unlinked a moment ago, or makes scratch.
func (d *ctlDir) Create(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	ent, h, m, err := d.create(r, name, flags, mode)
	if err != nil {
		return vnode.Entry{}, nil, vnode.Mode{}, fault.At("create", d.path(name), err)
	}
	return ent, h, m, nil
}

func (d *ctlDir) create(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	fail := func(err error) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
		return vnode.Entry{}, nil, vnode.Mode{}, err
	}
	e := d.entry(name)
	switch {
	case e == nil:
		s, h, err := d.createScratch(r, name, flags, mode)
		if err != nil {
			return fail(err)
		}
		return vnode.Entry{Node: s}, h, vnode.Mode{Direct: true}, nil
	case e.Kind == control.Exec:
		return d.exec.Create(r, name, flags, mode)
	case e.Kind != control.Durable:
		return fail(fault.Newf(fault.Exist, "%s is made by the daemon", name))
	}
	f := d.file(e)
	there := d.visible(f)
	if there && flags&syscall.O_EXCL != 0 {
		return fail(fault.Newf(fault.Exist, "%s is there", name))
	}
	h, err := f.openDraft(r, flags, !there)
	if err != nil {
		return fail(err)
	}
	d.mu.Lock()
	f.unhideLocked()
	d.mu.Unlock()
	return vnode.Entry{Node: f}, h, vnode.Mode{Direct: true}, nil
}

// Mkdir is never possible in a `.d`.
func (d *ctlDir) Mkdir(_ *vnode.Req, name string, _ uint32) (vnode.Entry, error) {
	return vnode.Entry{}, fault.At("mkdir", d.path(name), perm("no directories are made here"))
}

// Mknod makes scratch of a regular file, as an exclusive create does.
func (d *ctlDir) Mknod(r *vnode.Req, name string, typ vnode.Type, mode uint32) (vnode.Entry, error) {
	if typ != vnode.Regular || d.entry(name) != nil {
		return vnode.Entry{}, fault.At("mknod", d.path(name), perm("only scratch files are made here"))
	}
	ent, h, _, err := d.Create(r, name, syscall.O_EXCL|syscall.O_RDWR, mode)
	if err != nil {
		return vnode.Entry{}, err
	}
	h.Release(r)
	return ent, nil
}

// Unlink hides a control for a moment, and removes scratch.
func (d *ctlDir) Unlink(r *vnode.Req, name string) error {
	return fault.At("unlink", d.path(name), d.unlink(r, name))
}

func (d *ctlDir) unlink(r *vnode.Req, name string) error {
	if _, err := d.writer(r); err != nil {
		return err
	}
	e := d.entry(name)
	switch {
	case e == nil:
		return d.unlinkScratch(name)
	case e.Kind == control.Exec:
		return d.exec.Unlink(r, name)
	case e.Kind != control.Durable:
		return perm("%s is made by the daemon", name)
	}
	f := d.file(e)
	if !d.visible(f) {
		return notExist(name)
	}
	f.hide()
	return nil
}

// Rmdir finds no directory that may go.
func (d *ctlDir) Rmdir(_ *vnode.Req, name string) error {
	if e := d.entry(name); e != nil && (e.Kind == control.Dir || e.Kind == control.ViewDir) {
		return fault.At("rmdir", d.path(name), perm("%s is part of the object", name))
	}
	return fault.At("rmdir", d.path(name), fault.Newf(fault.NotDir, "no directory"))
}

// Rename means: scratch onto a control is a commit, a control onto scratch is a
// copy, scratch onto scratch moves; everything else is refused.
func (d *ctlDir) Rename(r *vnode.Req, oldName string, newDir vnode.Node, newName string) error {
	if to, ok := newDir.(*ctlDir); !ok || to != d {
		return fault.At("rename", d.path(oldName), fault.Newf(fault.CrossDevice, "names do not leave their object"))
	}
	return fault.At("rename", d.path(oldName), d.rename(r, oldName, newName))
}

func (d *ctlDir) rename(r *vnode.Req, oldName, newName string) error {
	w, err := d.writer(r)
	if err != nil {
		return err
	}
	from, to := d.entry(oldName), d.entry(newName)
	switch {
	case from == nil && to == nil:
		return d.moveScratch(oldName, newName)
	case from == nil:
		return d.commitScratch(r, oldName, to, w)
	case from.Kind != control.Durable && from.Kind != control.Exec:
		return perm("%s is made by the daemon", oldName)
	case from.Kind == control.Durable && !d.visible(d.file(from)):
		return notExist(oldName)
	case from == to:
		return nil
	case to != nil:
		return perm("a control does not become another one")
	}
	text, mode, err := d.copyOut(from)
	if err != nil {
		return err
	}
	return d.putScratch(r, newName, text, mode, true)
}

// copyOut reads a control's or exec's bytes for a copy into scratch.
func (d *ctlDir) copyOut(e *control.Entry) (text []byte, mode uint32, err error) {
	if e.Kind == control.Exec {
		text, err = d.exec.bytes(e.Name, maxScratch)
	} else {
		text, _, err = d.sub.text(e)
	}
	return text, e.Mode, err
}

// Link copies a control into scratch, and gives scratch a second name.
func (d *ctlDir) Link(r *vnode.Req, old vnode.Node, name string) (vnode.Entry, error) {
	ent, err := d.link(r, old, name)
	return ent, fault.At("link", d.path(name), err)
}

func (d *ctlDir) link(r *vnode.Req, old vnode.Node, name string) (vnode.Entry, error) {
	f, isControl := old.(*ctlFile)
	s, isScratch := old.(*scratch)
	switch {
	case (isControl && f.d != d) || (isScratch && s.d != d) || (!isControl && !isScratch):
		return vnode.Entry{}, fault.Newf(fault.CrossDevice, "names do not leave their object")
	}
	if _, err := d.writer(r); err != nil {
		return vnode.Entry{}, err
	}
	if e := d.entry(name); e != nil {
		if e.Kind == control.Durable && !d.visible(d.file(e)) {
			return vnode.Entry{}, perm("a control is made by writing it")
		}
		return vnode.Entry{}, fault.Newf(fault.Exist, "%s is there", name)
	}
	if isScratch {
		return d.linkScratch(s, name)
	}
	text, mode, err := d.copyOut(f.e)
	if err != nil {
		return vnode.Entry{}, err
	}
	if err := d.putScratch(r, name, text, mode, false); err != nil {
		return vnode.Entry{}, err
	}
	return d.Lookup(r, name)
}

// FsyncDir has nothing to do: a commit is durable before it returns.
func (d *ctlDir) FsyncDir(*vnode.Req) error { return nil }

// Setattr accepts what changes nothing.
func (d *ctlDir) Setattr(r *vnode.Req, s vnode.SetAttr) (vnode.Attr, error) {
	if _, err := d.writer(r); err != nil {
		return vnode.Attr{}, fault.At("setattr", "/"+d.dir, err)
	}
	uid, gid := d.sub.owner()
	if (s.UID != nil && *s.UID != uid) || (s.GID != nil && *s.GID != gid) || (s.Mode != nil && *s.Mode&0o7777 != 0o755) {
		return vnode.Attr{}, fault.At("setattr", "/"+d.dir, perm("owner and mode are derived from the object"))
	}
	return d.Attr(r)
}

// Getxattr shows the kind and the generation of the object.
func (d *ctlDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return d.xattrs().get(name) }

// Listxattr names them.
func (d *ctlDir) Listxattr(*vnode.Req) ([]string, error) { return d.xattrs().list(), nil }

func (d *ctlDir) xattrs() xattrs {
	return xattrs{kind: d.kind.String() + ".dir", origin: "durable", gen: d.obj.Snapshot().Gen}
}

// containsControl says whether a scratch name is made from a control's name.
func (d *ctlDir) containsControl(name string) bool {
	for _, e := range d.set.Entries() {
		if (e.Kind == control.Durable || e.Kind == control.Exec) && d.entry(e.Name) != nil && strings.Contains(name, e.Name) {
			return true
		}
	}
	return false
}

// placeOf is the form of user.cortexfs.error.
func placeOf(err error) string {
	var e *fault.Error
	if errors.As(err, &e) {
		return e.Place()
	}
	return err.Error()
}
