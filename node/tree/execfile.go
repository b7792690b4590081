package tree

import (
	"io"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

// execFile is an executable in force: its bytes never change. New bytes are
// another node.
type execFile struct {
	noACL
	s       *slot
	info    store.FileInfo
	readers int // open for reading; x.mu protects it
}

func (*execFile) InMemory() {}

// newFile is a file that was made and is not in force yet.
type newFile struct {
	noACL
	s   *slot
	ino uint64
}

func (*newFile) InMemory() {}

func (s *slot) inoLocked() uint64 {
	if s.cur != nil {
		return inoOf("/"+s.x.dir+"/"+s.name) ^ s.cur.info.Gen<<40
	}
	return s.fresh.ino
}

func (s *slot) ino() uint64 {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	return s.inoLocked()
}

func (s *slot) entry() vnode.Entry {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	if s.cur != nil {
		return vnode.Entry{Node: s.cur, Valid: dirValid}
	}
	return vnode.Entry{Node: s.fresh}
}

func (s *slot) path() string {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	return s.x.dir + "/" + s.name
}

func (s *slot) mode() uint32 {
	if s.x.rules.mode != 0 {
		return s.x.rules.mode
	}
	return s.attr.Mode
}

// attrLocked is what stat shows; size is that of the draft while one is written.
func (s *slot) attrLocked(ino uint64, size int64, at time.Time) vnode.Attr {
	a := vnode.Attr{Ino: ino, Size: uint64(size), Mode: s.mode(), UID: s.attr.UID, GID: s.attr.GID, Atime: at, Mtime: at, Ctime: at}
	if s.x.rules.mode != 0 {
		a.UID, a.GID = s.x.owner()
	}
	if s.drafted {
		a.Size = uint64(s.size)
	} else {
		a.Valid = dirValid
	}
	return a
}

// Attr of a file in force.
func (f *execFile) Attr(*vnode.Req) (vnode.Attr, error) {
	f.s.x.mu.Lock()
	defer f.s.x.mu.Unlock()
	ino := inoOf("/"+f.s.x.dir+"/"+f.s.name) ^ f.info.Gen<<40
	a := f.s.attrLocked(ino, f.info.Size, f.info.Mod)
	switch {
	case f.s.cur == f && !f.s.gone:
	case f.readers > 0 || f.s.writersLocked() > 0:
		a.Size, a.Valid = uint64(f.info.Size), 0 // who still has it open sees it as it was
	default:
		// The kernel looks the name up again, which it may have kept for a moment.
		return vnode.Attr{}, fault.E("stat", "/"+f.s.x.dir+"/"+f.s.name, fault.Stale, nil)
	}
	return a, nil
}

// Attr of a file that is being made.
func (f *newFile) Attr(*vnode.Req) (vnode.Attr, error) {
	f.s.x.mu.Lock()
	defer f.s.x.mu.Unlock()
	size, at := int64(0), f.s.mtime
	if f.s.cur != nil {
		size, at = f.s.cur.info.Size, f.s.cur.info.Mod
	}
	a := f.s.attrLocked(f.ino, size, at)
	a.Valid = 0
	return a, nil
}

// Open of a file in force: reading pins its bytes, writing starts or joins the
// draft.
func (f *execFile) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	path := f.s.path()
	if flags.Write() {
		h, err := f.s.open(r, flags)
		if err != nil {
			return nil, vnode.Mode{}, fault.At("open", "/"+path, err)
		}
		return h, vnode.Mode{Direct: true}, nil
	}
	h, err := f.openRead(r, path)
	if err != nil {
		return nil, vnode.Mode{}, fault.At("open", "/"+path, err)
	}
	return h, vnode.Mode{KeepCache: true, NoFlush: true}, nil
}

func (f *execFile) openRead(r *vnode.Req, path string) (vnode.Handle, error) {
	c, err := f.s.x.t.count(r)
	if err != nil {
		return nil, err
	}
	x := f.s.x
	x.mu.Lock()
	current := f.s.cur == f && !f.s.gone
	if current {
		f.readers++
	}
	x.mu.Unlock()
	if !current {
		c.done()
		return nil, fault.Newf(fault.Stale, "the file was replaced")
	}
	h, err := x.t.openBytes(path, f.info.Gen, c)
	if fault.Is(err, fault.Stale) || fault.Is(err, fault.NotExist) {
		f.s.x.refresh(path[len(f.s.x.dir)+1:])
		err = fault.Newf(fault.Stale, "the file was replaced")
	}
	if err != nil {
		f.closed()
		c.done()
		return nil, err
	}
	h.of = f
	return h, nil
}

func (f *execFile) closed() {
	f.s.x.mu.Lock()
	defer f.s.x.mu.Unlock()
	f.readers--
}

// Open of a file that is being made.
func (f *newFile) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		h, err := f.s.open(r, flags)
		return h, vnode.Mode{Direct: true}, err
	}
	f.s.x.mu.Lock()
	cur := f.s.cur
	f.s.x.mu.Unlock()
	if cur != nil {
		return cur.Open(r, flags)
	}
	if err := f.s.x.writer(r); err != nil {
		return nil, vnode.Mode{}, fault.At("open", "/"+f.s.path(), err)
	}
	c, err := f.s.x.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return &execHandle{s: f.s, c: c, era: f.s.eraLocked()}, vnode.Mode{Direct: true}, nil
}

// execHandle is an open for writing, or a reader of a file that is not in force.
type execHandle struct {
	s      *slot
	c      *counted
	era    *era // in which it was opened
	write  bool
	append bool
	wrote  bool // s.mu protects it
}

// alive answers Stale for a handle whose object is gone or changed hands.
func (h *execHandle) alive() error {
	x := h.s.x
	owner, _ := x.owner()
	x.mu.Lock()
	same, path := h.s.era == h.era && h.era.owner == owner, "/"+x.dir+"/"+h.s.name
	x.mu.Unlock()
	if !same || x.removed() {
		return fault.E("", path, fault.Stale, errText("the object has another owner since the file was opened, or is gone"))
	}
	return nil
}

func (h *execHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if err := h.alive(); err != nil {
		return 0, err
	}
	if err := h.s.beginLocked(true); err != nil {
		return 0, err
	}
	n, err := h.s.draft.ReadAt(p, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func (h *execHandle) Write(r *vnode.Req, p []byte, off int64) (int, error) {
	if !h.write {
		return 0, fault.Newf(fault.BadHandle, "not open for writing")
	}
	if err := h.s.x.t.foreign(r); err != nil {
		return 0, err
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if err := h.alive(); err != nil {
		return 0, err
	}
	if err := h.s.beginLocked(true); err != nil {
		return 0, err
	}
	h.wrote = true
	if h.append {
		off = h.s.draft.Size()
	}
	if off+int64(len(p)) > h.s.x.rules.max {
		return 0, fault.Newf(fault.TooBig, "an executable here is at most %d bytes", h.s.x.rules.max)
	}
	n, err := h.s.writeLocked(p, off)
	if n > 0 {
		h.s.dirty = true
		h.s.sized()
	}
	return n, err
}

// Flush puts what was written in force if nobody else writes: so the exec after a
// copy finds the new file, and close hears of a full disk.
func (h *execHandle) Flush(*vnode.Req, uint64) error {
	if !h.write {
		return nil
	}
	return h.settle(1)
}

func (h *execHandle) Fsync(*vnode.Req, bool) error { return h.Flush(nil, 0) }

// settle commits when at most n writers are there.
func (h *execHandle) settle(n int) error {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.x.mu.Lock()
	last, name := h.era.writers <= n, h.s.name
	h.s.x.mu.Unlock()
	if err := h.alive(); err != nil {
		if !h.wrote {
			return nil // it has nothing to lose
		}
		return err
	}
	if !last || !h.s.dirty {
		return nil
	}
	err := h.s.commitLocked()
	if err != nil {
		return fault.At("close", "/"+h.s.x.dir+"/"+name, err)
	}
	h.s.x.told(name)
	return nil
}

func (h *execHandle) Release(*vnode.Req) {
	defer h.c.done()
	if !h.write {
		return
	}
	s := h.s
	s.x.mu.Lock()
	h.era.writers--
	last, never, gone, name := h.era == s.era && h.era.writers == 0, s.cur == nil, s.gone, s.name
	s.x.mu.Unlock()
	if !last {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	switch {
	case gone:
		s.dropLocked()
	case h.alive() != nil:
		s.dropLocked()
		s.dirty = false
		s.sized()
		if never {
			s.x.drop(s)
		}
		return
	case s.dirty || (never && s.x.takes(name)): // `touch` makes an empty file
		err = s.commitLocked()
	case s.draft != nil && s.x.takes(name): // only read
		s.dropLocked()
		s.sized()
	}
	if err != nil {
		s.x.t.log("close " + s.x.dir + "/" + name + ": " + err.Error())
	}
	if s.draft == nil && !gone {
		s.x.told(name)
	}
}

// Setattr of a file in force.
func (f *execFile) Setattr(r *vnode.Req, a vnode.SetAttr) (vnode.Attr, error) {
	if err := f.s.setattr(r, a); err != nil {
		return vnode.Attr{}, fault.At("setattr", "/"+f.s.path(), err)
	}
	f.s.x.mu.Lock()
	now := f.s.cur // a truncation by path has made another file
	f.s.x.mu.Unlock()
	if now == nil {
		now = f
	}
	return now.Attr(r)
}

// Setattr of a file that is being made.
func (f *newFile) Setattr(r *vnode.Req, a vnode.SetAttr) (vnode.Attr, error) {
	if err := f.s.setattr(r, a); err != nil {
		return vnode.Attr{}, fault.At("setattr", "/"+f.s.path(), err)
	}
	return f.Attr(r)
}

// Getxattr shows kind, origin, size in tokens, generation.
func (f *execFile) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return f.xattrs().get(name) }

// Listxattr names them.
func (f *execFile) Listxattr(*vnode.Req) ([]string, error) { return f.xattrs().list(), nil }

func (f *execFile) xattrs() xattrs {
	return xattrs{kind: f.s.x.rules.kind, origin: "durable", size: uint64(f.info.Size), hasSize: true, gen: f.info.Gen}
}

// Getxattr of a file that is not in force: none, as for scratch.
func (*newFile) Getxattr(*vnode.Req, string) ([]byte, error) { return nil, errNoData }

// Listxattr has nothing.
func (*newFile) Listxattr(*vnode.Req) ([]string, error) { return nil, nil }
