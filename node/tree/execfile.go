package tree

import (
	"io"
	"sync"
	"syscall"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

// slot is one name of a directory of executables: what is in force, and the draft
// of whoever writes. All writers of a name share one draft, as they would share a
// file; it is committed when the only one left closes.
type slot struct {
	x *execDir

	// mu serialises the draft and the store's files; it may be held over I/O.
	mu    sync.Mutex
	draft *store.Draft
	dirty bool
	claim claim // of a file that is not in force

	// x.mu protects the fields below.
	name    string
	attr    store.FileAttr
	cur     *execFile // in force; nil: nothing yet
	fresh   *newFile  // node of a file that never was in force
	size    int64     // of the draft
	drafted bool      // there is a draft
	writers int
	gone    bool
}

// execFile is an executable in force: its bytes never change. New bytes are
// another node.
type execFile struct {
	noACL
	s    *slot
	info store.FileInfo
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
	if f.s.cur != f {
		a.Size = uint64(f.info.Size) // replaced; who still holds it sees it as it was
	}
	return a, nil
}

// Attr of a file that is being made.
func (f *newFile) Attr(*vnode.Req) (vnode.Attr, error) {
	f.s.x.mu.Lock()
	defer f.s.x.mu.Unlock()
	size := int64(0)
	if f.s.cur != nil {
		size = f.s.cur.info.Size
	}
	a := f.s.attrLocked(f.ino, size, time.Now())
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
	h, err := openBytes(f.s.x.t.st, path, f.info.Gen, c)
	if fault.Is(err, fault.Stale) || fault.Is(err, fault.NotExist) {
		f.s.x.refresh(path[len(f.s.x.dir)+1:])
		err = fault.Newf(fault.Stale, "the file was replaced")
	}
	if err != nil {
		c.done()
		return nil, err
	}
	return h, nil
}

// openBytes pins the bytes with a generation.
func openBytes(st *store.Store, path string, gen uint64, c *counted) (*bytesHandle, error) {
	f, err := st.OpenFile(path)
	if err != nil {
		return nil, err
	}
	if f.Info().Gen != gen {
		f.Close()
		return nil, fault.Newf(fault.Stale, "the file was replaced")
	}
	return &bytesHandle{c: c, f: f}, nil
}

// bytesHandle reads one content for ever: a running program keeps its bytes
// whatever happens to the name or to the right to execute it.
type bytesHandle struct {
	c *counted
	f *store.File
}

func (h *bytesHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	n, err := h.f.ReadAt(p, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func (h *bytesHandle) Release(*vnode.Req) {
	h.f.Close()
	h.c.done()
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
	return &execHandle{s: f.s, c: c}, vnode.Mode{Direct: true}, nil
}

// open starts or joins the draft.
func (s *slot) open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, error) {
	if err := s.x.writer(r); err != nil {
		return nil, err
	}
	c, err := s.x.t.count(r)
	if err != nil {
		return nil, err
	}
	if flags&syscall.O_TRUNC != 0 {
		s.mu.Lock()
		err = s.truncateLocked(0)
		s.mu.Unlock()
		if err != nil {
			c.done()
			return nil, err
		}
	}
	s.x.mu.Lock()
	s.writers++
	s.x.mu.Unlock()
	return &execHandle{s: s, c: c, write: flags.Write(), append: flags&syscall.O_APPEND != 0}, nil
}

// beginLocked makes sure that there is a draft; load: with the bytes in force.
func (s *slot) beginLocked(load bool) error {
	if s.draft != nil {
		return nil
	}
	if err := s.x.t.st.MkdirAll(s.x.dir); err != nil {
		return err
	}
	d, err := s.x.t.st.NewFile(s.x.dir)
	if err != nil {
		return err
	}
	s.x.mu.Lock()
	cur := s.cur
	s.x.mu.Unlock()
	if load && cur != nil {
		if err := s.copyInto(d, cur); err != nil {
			d.Discard()
			return err
		}
	}
	s.draft = d
	s.sized()
	return nil
}

func (s *slot) copyInto(d *store.Draft, cur *execFile) error {
	h, err := openBytes(s.x.t.st, s.path(), cur.info.Gen, nil)
	if err != nil {
		return err
	}
	defer h.f.Close()
	buf := make([]byte, 256<<10)
	for off := int64(0); off < cur.info.Size; {
		n, err := h.Read(nil, buf, off)
		if err != nil {
			return err
		}
		if n == 0 {
			return fault.Newf(fault.IO, "the file is shorter than it was")
		}
		if _, err := d.WriteAt(buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// sized shows the draft's size.
func (s *slot) sized() {
	size := int64(0)
	if s.draft != nil {
		size = s.draft.Size()
	}
	s.x.mu.Lock()
	s.drafted, s.size = s.draft != nil, size
	s.x.mu.Unlock()
}

func (s *slot) truncateLocked(size uint64) error {
	if size > uint64(s.x.rules.max) {
		return fault.Newf(fault.TooBig, "an executable here is at most %d bytes", s.x.rules.max)
	}
	if err := s.beginLocked(size > 0); err != nil {
		return err
	}
	if err := s.draft.Truncate(int64(size)); err != nil {
		return err
	}
	s.dirty = true
	s.sized()
	return nil
}

// commitLocked puts the draft in force. A temporary name keeps it as a draft.
func (s *slot) commitLocked() error {
	s.x.mu.Lock()
	name, attr, gone := s.name, s.attr, s.gone
	s.x.mu.Unlock()
	if gone || !s.x.takes(name) {
		return nil
	}
	return s.commitAsLocked(name, attr)
}

func (s *slot) commitAsLocked(name string, attr store.FileAttr) error {
	if err := s.beginLocked(true); err != nil {
		return err
	}
	if s.x.rules.mode != 0 {
		attr.Mode = s.x.rules.mode
	}
	d := s.draft
	s.draft, s.dirty = nil, false
	f, err := d.Commit(s.x.dir+"/"+name, attr)
	if err != nil {
		s.sized()
		return err
	}
	info := f.Info()
	f.Close()
	if s.x.rules.tier {
		if _, err := s.x.t.st.Ensure(s.x.dir + "/" + name + ".d"); err != nil {
			return err
		}
	}
	s.x.mu.Lock()
	s.cur = &execFile{s: s, info: info}
	s.drafted = false
	if s.x.rules.tier {
		s.x.dirs[name+".d"] = true
	}
	s.x.mu.Unlock()
	s.claim.drop()
	return nil
}

// remove is unlink.
func (s *slot) remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.x.mu.Lock()
	name, cur, writers := s.name, s.cur, s.writers
	s.x.mu.Unlock()
	if cur != nil {
		if err := s.x.t.st.RemoveFile(s.x.dir + "/" + name); err != nil && !fault.Is(err, fault.NotExist) {
			return err
		}
	}
	s.x.mu.Lock()
	if s.x.slots[name] == s {
		delete(s.x.slots, name)
	}
	s.gone = true
	s.x.mu.Unlock()
	if writers == 0 {
		s.dropLocked()
	}
	return nil
}

func (s *slot) dropLocked() {
	if s.draft != nil {
		s.draft.Discard()
		s.draft = nil
	}
	s.claim.drop()
}

// move is rename within the directory. What becomes an object name is put in
// force; what gets a temporary name is in force no more.
func (s *slot) move(newName string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.x
	x.mu.Lock()
	oldName, attr, cur := s.name, s.attr, s.cur
	x.mu.Unlock()
	goal := x.takes(newName)
	switch {
	case goal && cur != nil && s.draft == nil:
		if err := x.t.st.RenameFile(x.dir+"/"+oldName, x.dir+"/"+newName); err != nil {
			return err
		}
		if _, err := x.t.st.Ensure(x.dir + "/" + newName + ".d"); x.rules.tier && err != nil {
			return err
		}
	case goal:
		if err := s.commitAsLocked(newName, attr); err != nil {
			return err
		}
		if cur != nil {
			if err := x.t.st.RemoveFile(x.dir + "/" + oldName); err != nil {
				return err
			}
		}
	default:
		if err := s.beginLocked(true); err != nil {
			return err
		}
		s.dirty = true
		if cur != nil {
			if err := x.t.st.RemoveFile(x.dir + "/" + oldName); err != nil {
				return err
			}
		}
	}
	x.mu.Lock()
	over := x.slots[newName]
	if over != nil {
		over.gone = true
	}
	if x.slots[oldName] == s {
		delete(x.slots, oldName)
	}
	x.slots[newName] = s
	s.name = newName
	if !goal {
		s.cur = nil
		s.fresh = &newFile{s: s, ino: inoOf("/"+x.dir+"/"+newName) ^ uint64(time.Now().UnixNano())}
	} else if x.rules.tier {
		x.dirs[newName+".d"] = true
	}
	x.mu.Unlock()
	return nil
}

// execHandle is an open for writing, or a reader of a file that is not in force.
type execHandle struct {
	s      *slot
	c      *counted
	write  bool
	append bool
}

func (h *execHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
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
	if err := h.s.beginLocked(true); err != nil {
		return 0, err
	}
	if h.append {
		off = h.s.draft.Size()
	}
	if off+int64(len(p)) > h.s.x.rules.max {
		return 0, fault.Newf(fault.TooBig, "an executable here is at most %d bytes", h.s.x.rules.max)
	}
	n, err := h.s.draft.WriteAt(p, off)
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
	last, name := h.s.writers <= n, h.s.name
	h.s.x.mu.Unlock()
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
	s.writers--
	last, never, gone, name := s.writers == 0, s.cur == nil, s.gone, s.name
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
	return f.Attr(r)
}

// Setattr of a file that is being made.
func (f *newFile) Setattr(r *vnode.Req, a vnode.SetAttr) (vnode.Attr, error) {
	if err := f.s.setattr(r, a); err != nil {
		return vnode.Attr{}, fault.At("setattr", "/"+f.s.path(), err)
	}
	return f.Attr(r)
}

func (s *slot) setattr(r *vnode.Req, a vnode.SetAttr) error {
	if err := s.x.writer(r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.x.mu.Lock()
	next, name, cur, writers := s.attr, s.name, s.cur, s.writers
	s.x.mu.Unlock()
	if a.UID != nil {
		next.UID = *a.UID
	}
	if a.GID != nil {
		next.GID = *a.GID
	}
	if (next.UID != s.attr.UID || next.GID != s.attr.GID) && !s.x.t.isRoot(r.UID) {
		return perm("only root changes the owner")
	}
	if a.Mode != nil {
		next.Mode = *a.Mode & 0o777
	}
	if a.Size != nil {
		if err := s.truncateLocked(*a.Size); err != nil {
			return err
		}
		if writers == 0 {
			if err := s.commitLocked(); err != nil {
				return err
			}
			defer s.x.told(name)
			s.x.mu.Lock()
			cur = s.cur
			s.x.mu.Unlock()
		}
	}
	if next == s.attr {
		return nil
	}
	if cur != nil && s.x.takes(name) && s.x.rules.mode == 0 {
		if err := s.x.t.st.SetAttr(s.x.dir+"/"+name, next); err != nil {
			return err
		}
	}
	s.x.mu.Lock()
	s.attr = next
	s.x.mu.Unlock()
	if cur != nil {
		s.x.t.nodeChanged(nil, cur)
		s.x.told(name)
	}
	return nil
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

// bytes reads a whole file in force.
func (x *execDir) bytes(name string, limit int64) ([]byte, error) {
	s := x.slot(name)
	if s == nil {
		return nil, notExist(name)
	}
	x.mu.Lock()
	cur := s.cur
	x.mu.Unlock()
	if cur == nil {
		return nil, notExist(name)
	}
	if cur.info.Size > limit {
		return nil, fault.Newf(fault.TooBig, "%s is over %d bytes", name, limit)
	}
	h, err := openBytes(x.t.st, s.path(), cur.info.Gen, nil)
	if err != nil {
		return nil, err
	}
	defer h.f.Close()
	text := make([]byte, cur.info.Size)
	n, err := h.Read(nil, text, 0)
	return text[:n], err
}

// replace puts bytes in force under a name, as a rename does.
func (x *execDir) replace(r *vnode.Req, name string, text []byte) error {
	if err := x.writer(r); err != nil {
		return err
	}
	s := x.slot(name)
	if s == nil {
		made, err := x.add(r, name, true, 0o755)
		if err != nil {
			return err
		}
		s = made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.truncateLocked(0); err != nil {
		return err
	}
	if _, err := s.draft.WriteAt(text, 0); err != nil {
		return err
	}
	if err := s.commitLocked(); err != nil {
		return err
	}
	x.told(name)
	return nil
}
