package tree

import (
	"io"
	"strconv"
	"sync"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// live is the node of a live entry: made at every read, true size, never written.
func (d *ctlDir) live(e *control.Entry) vnode.Node {
	if e.Name == "log" && d.agent != nil {
		return d.logFile(e)
	}
	return liveFile{d: d, e: e}
}

// liveFile is status or pid.
type liveFile struct {
	noACL
	d *ctlDir
	e *control.Entry
}

func (liveFile) InMemory() {}

// liveText is the text of a live entry now. One map would hold the same: the set
// of live entries is small and a test checks that each has its text.
func (d *ctlDir) liveText(name string) []byte {
	state, pid := node.Dead, 0
	if d.agent != nil {
		state, pid = d.agent.Live()
	}
	switch {
	case d.agent == nil && name == "status":
		return []byte("ready\n")
	case name == "status":
		return []byte(string(state) + "\n")
	case name == "pid" && pid > 0:
		return []byte(strconv.Itoa(pid) + "\n")
	}
	return nil
}

func (f liveFile) Attr(*vnode.Req) (vnode.Attr, error) {
	if f.d.obj.Gone() {
		return vnode.Attr{}, fault.E("stat", f.d.path(f.e.Name), fault.Stale, nil)
	}
	uid, gid := f.d.sub.owner()
	at := f.d.modTime(f.e.Name)
	return vnode.Attr{
		Ino: inoOf(f.d.path(f.e.Name)), Size: uint64(len(f.d.liveText(f.e.Name))), Mode: f.e.Mode, UID: uid, GID: gid,
		Atime: at, Mtime: at, Ctime: at,
	}, nil
}

func (f liveFile) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		return nil, vnode.Mode{}, fault.At("open", f.d.path(f.e.Name), perm("%s is live and never written", f.e.Name))
	}
	if f.e.Mode&0o004 == 0 && !f.d.ownerOrRoot(r) {
		return nil, vnode.Mode{}, fault.E("open", f.d.path(f.e.Name), fault.Access, nil)
	}
	c, err := f.d.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	h := &liveHandle{c: c, text: f.d.liveText(f.e.Name), now: func() []byte { return f.d.liveText(f.e.Name) }, on: &f.d.wake}
	return h, vnode.Mode{Direct: true, NoFlush: true}, nil
}

// Setattr lets root's touch and chmod fail the way writing does.
func (f liveFile) Setattr(*vnode.Req, vnode.SetAttr) (vnode.Attr, error) {
	return vnode.Attr{}, fault.At("setattr", f.d.path(f.e.Name), perm("%s is live and never written", f.e.Name))
}

func (f liveFile) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return f.xattrs().get(name) }
func (f liveFile) Listxattr(*vnode.Req) ([]string, error)             { return f.xattrs().list(), nil }

func (f liveFile) xattrs() xattrs {
	return xattrs{
		kind: f.d.kind.String() + ".control", origin: "live", hasSize: true,
		size: uint64(len(f.d.liveText(f.e.Name))), gen: f.d.obj.Snapshot().Gen,
	}
}

// liveHandle is a snapshot; a read at offset 0 takes a new one, so that a poller
// can read again without opening again.
type liveHandle struct {
	c    *counted
	now  func() []byte
	on   *pollers
	text []byte // as of open or the last read at 0
	seen []byte // what the reader has last seen, for poll
	mu   sync.Mutex
}

func (*liveHandle) InMemory() {}

func (h *liveHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if off == 0 {
		h.text = h.now()
		h.seen = h.text
	}
	return readAt(h.text, p, off), nil
}

// Poll is readable once the text differs from what was last read here.
func (h *liveHandle) Poll(_ *vnode.Req, wake func()) (bool, error) {
	if wake != nil {
		h.on.add(h, wake)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seen == nil || string(h.seen) != string(h.now()), nil
}

func (h *liveHandle) Release(*vnode.Req) {
	h.on.drop(h)
	h.c.done()
}

// StateChanged tells the tree that an agent's state or pid is another one: who
// polls its status wakes.
func (t *Tree) StateChanged(k agent.Key) {
	t.mu.Lock()
	d := t.dirs[k.StoreDir()]
	t.mu.Unlock()
	if d != nil {
		d.wake.wake()
	}
}

// StatusChanged is the same for the root's status.
func (t *Tree) StatusChanged() { t.status.wake() }

// logFile is one generation of an agent's log: after a rotation the name is
// another file, as tail -F expects.
type logFile struct {
	noACL
	d   *ctlDir
	e   *control.Entry
	gen uint64

	size int64 // last known; d.mu protects it
}

func (d *ctlDir) logFile(e *control.Entry) vnode.Node {
	gen, size := d.logState()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.logNow == nil || d.logNow.gen != gen {
		d.logNow = &logFile{d: d, e: e, gen: gen}
	}
	d.logNow.size = size
	return d.logNow
}

// logState is generation and size of the log now.
func (d *ctlDir) logState() (gen uint64, size int64) {
	r, err := d.agent.Log().Open()
	if err != nil {
		return 0, 0
	}
	defer r.Close()
	return r.Gen(), r.Size()
}

func (f *logFile) Attr(*vnode.Req) (vnode.Attr, error) {
	if f.d.obj.Gone() {
		return vnode.Attr{}, fault.E("stat", f.d.path(f.e.Name), fault.Stale, nil)
	}
	gen, size := f.d.logState()
	f.d.mu.Lock()
	if gen == f.gen {
		f.size = size
	}
	size = f.size
	f.d.mu.Unlock()
	uid, gid := f.d.sub.owner()
	at := f.d.t.born
	return vnode.Attr{
		Ino: inoOf(f.d.path(f.e.Name)) ^ f.gen, Size: uint64(size), Mode: f.e.Mode, UID: uid, GID: gid,
		Atime: at, Mtime: at, Ctime: at,
	}, nil
}

func (f *logFile) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	path := f.d.path(f.e.Name)
	if flags.Write() {
		return nil, vnode.Mode{}, fault.At("open", path, perm("%s is live and never written", f.e.Name))
	}
	if f.e.Mode&0o004 == 0 && !f.d.ownerOrRoot(r) {
		return nil, vnode.Mode{}, fault.E("open", path, fault.Access, nil)
	}
	c, err := f.d.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	log, err := f.d.agent.Log().Open()
	if err != nil {
		if !fault.Is(err, fault.NotExist) {
			c.done()
			return nil, vnode.Mode{}, fault.At("open", path, err)
		}
		log = nil
	}
	return &logHandle{c: c, log: log}, vnode.Mode{Direct: true, NoFlush: true}, nil
}

func (f *logFile) Setattr(*vnode.Req, vnode.SetAttr) (vnode.Attr, error) {
	return vnode.Attr{}, fault.At("setattr", f.d.path(f.e.Name), perm("%s is live and never written", f.e.Name))
}

func (f *logFile) Getxattr(r *vnode.Req, name string) ([]byte, error) { return f.xattrs(r).get(name) }
func (f *logFile) Listxattr(r *vnode.Req) ([]string, error)           { return f.xattrs(r).list(), nil }

func (f *logFile) xattrs(r *vnode.Req) xattrs {
	a, _ := f.Attr(r)
	return xattrs{kind: f.d.kind.String() + ".control", origin: "live", hasSize: true, size: a.Size, gen: f.d.obj.Snapshot().Gen}
}

// logHandle reads the log as it grows.
type logHandle struct {
	c   *counted
	log *agent.LogReader
}

func (h *logHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	if h.log == nil {
		return 0, nil
	}
	n, err := h.log.ReadAt(p, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func (h *logHandle) Release(*vnode.Req) {
	if h.log != nil {
		h.log.Close()
	}
	h.c.done()
}
