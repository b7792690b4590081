package tree

import (
	"slices"
	"strings"
	"syscall"
	"time"

	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// Limits of scratch (spec section 4.6).
const (
	maxScratch    = 1 << 20 // bytes of one file
	maxScratchDir = 64      // names of one directory
	maxLinkText   = 1024    // bytes of a symlink's text
)

// scratch is a file or symlink of an editor beside the controls: in memory, never
// a control, gone with the daemon. The directory's mutex protects its fields.
type scratch struct {
	noACL
	d   *ctlDir
	ino uint64
	seq uint64 // order of making

	target   string // of a symlink
	symlink  bool
	text     []byte
	mode     uint32
	uid, gid uint32
	mtime    time.Time
	names    int // directory entries
	opens    int
	claim    claim
}

func (*scratch) InMemory() {}

// findScratch is for who may write only: nobody else sees scratch.
func (d *ctlDir) findScratch(r *vnode.Req, name string) *scratch {
	if !d.ownerOrRoot(r) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.scratch[name]
}

func (d *ctlDir) listScratch(r *vnode.Req) []vnode.Dirent {
	if !d.ownerOrRoot(r) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []vnode.Dirent
	for name, s := range d.scratch {
		typ := vnode.Regular
		if s.symlink {
			typ = vnode.Symlink
		}
		out = append(out, vnode.Dirent{Name: name, Ino: s.ino, Type: typ})
	}
	slices.SortFunc(out, func(a, b vnode.Dirent) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// scratchName is the rule for names that are no control: made exclusively, or
// containing a control's name. A misspelt control is neither.
func (d *ctlDir) scratchName(name string, exclusive bool) error {
	if err := checkLen(name); err != nil {
		return err
	}
	if !exclusive && !d.containsControl(name) {
		return perm("there is no such control")
	}
	return nil
}

func (d *ctlDir) createScratch(r *vnode.Req, name string, flags vnode.OpenFlags, mode uint32) (*scratch, vnode.Handle, error) {
	if _, err := d.writer(r); err != nil {
		return nil, nil, err
	}
	excl := flags&syscall.O_EXCL != 0
	s := d.findScratch(r, name)
	if s != nil && excl {
		return nil, nil, fault.Newf(fault.Exist, "%s is there", errName(name))
	}
	if s == nil {
		if err := d.scratchName(name, excl); err != nil {
			return nil, nil, err
		}
		made, err := d.addScratch(r, name, &scratch{mode: mode & 0o777})
		if err != nil {
			return nil, nil, err
		}
		s = made
	}
	h, _, err := s.Open(r, flags)
	return s, h, err
}

// addScratch puts a new entry in, dropping the oldest closed one when full.
func (d *ctlDir) addScratch(r *vnode.Req, name string, s *scratch) (*scratch, error) {
	cl, err := d.t.use.claim(r.UID)
	if err != nil {
		return nil, err
	}
	if err := cl.resize(int64(len(s.text) + len(s.target))); err != nil {
		cl.drop()
		return nil, err
	}
	d.mu.Lock()
	err = d.roomLocked()
	if _, there := d.scratch[name]; err == nil && there {
		err = fault.Newf(fault.Exist, "%s is there", errName(name))
	}
	if err != nil {
		d.mu.Unlock()
		cl.drop()
		return nil, err
	}
	d.seq++
	s.d, s.seq, s.claim, s.names = d, d.seq, cl, 1
	s.ino = inoOf(d.path(name)) ^ d.seq<<32
	s.uid, s.gid, s.mtime = r.UID, r.GID, time.Now()
	d.scratch[name] = s
	d.mu.Unlock()
	d.sub.event("control.scratch", name, "ok", "", r.UID)
	return s, nil
}

// roomLocked makes room for one more name.
func (d *ctlDir) roomLocked() error {
	if len(d.scratch) < maxScratchDir {
		return nil
	}
	oldest := ""
	for name, s := range d.scratch {
		if s.opens == 0 && (oldest == "" || s.seq < d.scratch[oldest].seq) {
			oldest = name
		}
	}
	if oldest == "" {
		return fault.Newf(fault.NoSpace, "%d scratch files are open here", maxScratchDir)
	}
	d.dropNameLocked(oldest)
	return nil
}

func (d *ctlDir) dropNameLocked(name string) {
	if s := d.scratch[name]; s != nil {
		delete(d.scratch, name)
		s.names--
		s.unlinkedLocked()
	}
}

// unlinkedLocked gives the memory back when the last name and handle are gone.
func (s *scratch) unlinkedLocked() {
	if s.names <= 0 && s.opens == 0 {
		s.text = nil
		s.claim.drop()
	}
}

func (d *ctlDir) unlinkScratch(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.scratch[name] == nil {
		return notExist(name)
	}
	d.dropNameLocked(name)
	return nil
}

func (d *ctlDir) moveScratch(oldName, newName string) error {
	if err := d.scratchName(newName, false); err != nil {
		d.mu.Lock()
		there := d.scratch[newName] != nil
		d.mu.Unlock()
		if !there {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.scratch[oldName]
	switch {
	case s == nil:
		return notExist(oldName)
	case d.scratch[newName] == s:
		return nil
	}
	d.dropNameLocked(newName)
	delete(d.scratch, oldName)
	d.scratch[newName] = s
	return nil
}

func (d *ctlDir) linkScratch(s *scratch, name string) (vnode.Entry, error) {
	if err := checkLen(name); err != nil {
		return vnode.Entry{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case s.names <= 0:
		return vnode.Entry{}, notExist(name)
	case d.scratch[name] != nil:
		return vnode.Entry{}, fault.Newf(fault.Exist, "%s is there", errName(name))
	}
	if err := d.roomLocked(); err != nil {
		return vnode.Entry{}, err
	}
	s.names++
	d.scratch[name] = s
	return vnode.Entry{Node: s}, nil
}

// putScratch makes a copy of a control under a scratch name.
func (d *ctlDir) putScratch(r *vnode.Req, name string, text []byte, mode uint32, replace bool) error {
	d.mu.Lock()
	there := d.scratch[name] != nil
	d.mu.Unlock()
	if there && !replace {
		return fault.Newf(fault.Exist, "%s is there", errName(name))
	}
	if !there {
		if err := d.scratchName(name, !replace); err != nil {
			return err
		}
	}
	if there {
		if err := d.unlinkScratch(name); err != nil && !fault.Is(err, fault.NotExist) {
			return err
		}
	}
	_, err := d.addScratch(r, name, &scratch{mode: mode, text: slices.Clone(text)})
	return err
}

// commitScratch is rename(scratch, control): the whole text is judged and
// committed, or nothing changes.
func (d *ctlDir) commitScratch(r *vnode.Req, name string, e *control.Entry, w agent.Writer) error {
	d.mu.Lock()
	s := d.scratch[name]
	var text []byte
	if s != nil {
		text = slices.Clone(s.text)
	}
	d.mu.Unlock()
	switch {
	case s == nil:
		return notExist(name)
	case e.Kind != control.Durable && e.Kind != control.Exec:
		return perm("%s is made by the daemon", e.Name)
	case s.symlink:
		return fault.Newf(fault.Invalid, "a symlink is no text")
	}
	if e.Kind == control.Exec {
		if err := d.exec.replace(r, e.Name, text); err != nil {
			return err
		}
	} else {
		owner, _ := d.sub.owner()
		if _, _, err := d.file(e).store(text, w, owner); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.scratch[name] == s {
		d.dropNameLocked(name)
	}
	return nil
}

// Symlink makes a scratch symlink: an editor's lock. Its text names nothing.
func (d *ctlDir) Symlink(r *vnode.Req, name, target string) (vnode.Entry, error) {
	ent, err := d.symlink(r, name, target)
	return ent, fault.At("symlink", d.path(name), err)
}

func (d *ctlDir) symlink(r *vnode.Req, name, target string) (vnode.Entry, error) {
	if _, err := d.writer(r); err != nil {
		return vnode.Entry{}, err
	}
	switch {
	case d.entry(name) != nil:
		return vnode.Entry{}, perm("a control is never a symlink")
	case target == "" || target == "." || target == ".." || strings.ContainsRune(target, '/') || len(target) > maxLinkText:
		return vnode.Entry{}, perm("a scratch symlink leads nowhere")
	}
	if err := checkLen(name); err != nil {
		return vnode.Entry{}, err
	}
	if d.entry(target) != nil || d.findScratch(r, target) != nil {
		return vnode.Entry{}, perm("a scratch symlink leads nowhere")
	}
	s, err := d.addScratch(r, name, &scratch{symlink: true, target: target, mode: 0o777})
	if err != nil {
		return vnode.Entry{}, err
	}
	return vnode.Entry{Node: s}, nil
}

// Readlink gives the text of a scratch symlink.
func (s *scratch) Readlink(*vnode.Req) (string, error) {
	if !s.symlink {
		return "", fault.Newf(fault.Invalid, "no symlink")
	}
	return s.target, nil
}

// Attr of a scratch file.
func (s *scratch) Attr(*vnode.Req) (vnode.Attr, error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	a := vnode.Attr{
		Ino: s.ino, Size: uint64(len(s.text)), Mode: s.mode, UID: s.uid, GID: s.gid,
		Nlink: uint32(max(s.names, 1)), Atime: s.mtime, Mtime: s.mtime, Ctime: s.mtime,
	}
	if s.symlink {
		a.Type, a.Size = vnode.Symlink, uint64(len(s.target))
	}
	return a, nil
}

// Open opens a scratch file; the ids of this open judge its writes.
func (s *scratch) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		if _, err := s.d.writer(r); err != nil {
			return nil, vnode.Mode{}, err
		}
	} else if !s.d.ownerOrRoot(r) {
		return nil, vnode.Mode{}, fault.Newf(fault.Access, "scratch is its writer's")
	}
	c, err := s.d.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.names <= 0 && s.opens == 0 {
		c.done()
		return nil, vnode.Mode{}, fault.Newf(fault.Stale, "scratch is gone")
	}
	s.opens++
	if flags&syscall.O_TRUNC != 0 && flags.Write() {
		s.text = nil
		_ = s.claim.resize(0)
	}
	return &scratchHandle{s: s, c: c, append: flags&syscall.O_APPEND != 0, write: flags.Write()}, vnode.Mode{Direct: true}, nil
}

// Setattr changes size, mode, times; the owner only by root.
func (s *scratch) Setattr(r *vnode.Req, a vnode.SetAttr) (vnode.Attr, error) {
	if _, err := s.d.writer(r); err != nil {
		return vnode.Attr{}, fault.At("setattr", "", err)
	}
	if err := s.setattr(r, a); err != nil {
		return vnode.Attr{}, fault.At("setattr", "", err)
	}
	return s.Attr(r)
}

func (s *scratch) setattr(r *vnode.Req, a vnode.SetAttr) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	other := (a.UID != nil && *a.UID != s.uid) || (a.GID != nil && *a.GID != s.gid)
	if other && !s.d.t.isRoot(r.UID) {
		return perm("scratch stays its writer's")
	}
	if a.Size != nil {
		if err := s.resizeLocked(*a.Size); err != nil {
			return err
		}
	}
	if a.UID != nil {
		s.uid = *a.UID
	}
	if a.GID != nil {
		s.gid = *a.GID
	}
	if a.Mode != nil {
		s.mode = *a.Mode & 0o777
	}
	if a.Mtime != nil {
		s.mtime = *a.Mtime
	}
	return nil
}

func (s *scratch) resizeLocked(size uint64) error {
	if size > maxScratch {
		return fault.Newf(fault.TooBig, "scratch is over %d bytes", maxScratch)
	}
	if err := s.claim.resize(int64(size)); err != nil {
		return err
	}
	if n := int(size); n <= len(s.text) {
		s.text = s.text[:n:n]
	} else {
		s.text = append(s.text, make([]byte, n-len(s.text))...)
	}
	return nil
}

// scratchHandle is an open scratch file.
type scratchHandle struct {
	s      *scratch
	c      *counted
	append bool
	write  bool
}

func (*scratchHandle) InMemory() {}

func (h *scratchHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	h.s.d.mu.Lock()
	defer h.s.d.mu.Unlock()
	return readAt(h.s.text, p, off), nil
}

func (h *scratchHandle) Write(r *vnode.Req, p []byte, off int64) (int, error) {
	if !h.write {
		return 0, fault.Newf(fault.BadHandle, "not open for writing")
	}
	if err := h.s.d.t.foreign(r); err != nil {
		return 0, err
	}
	h.s.d.mu.Lock()
	defer h.s.d.mu.Unlock()
	if h.append {
		off = int64(len(h.s.text))
	}
	end := off + int64(len(p))
	if off < 0 || end < off || end > maxScratch {
		return 0, fault.Newf(fault.TooBig, "scratch is over %d bytes", maxScratch)
	}
	if end > int64(len(h.s.text)) {
		if err := h.s.resizeLocked(uint64(end)); err != nil {
			return 0, err
		}
	}
	copy(h.s.text[off:], p)
	h.s.mtime = time.Now()
	return len(p), nil
}

func (h *scratchHandle) Flush(*vnode.Req, uint64) error { return nil }

func (h *scratchHandle) Fsync(*vnode.Req, bool) error { return nil }

func (h *scratchHandle) Release(*vnode.Req) {
	h.s.d.mu.Lock()
	h.s.opens--
	h.s.unlinkedLocked()
	h.s.d.mu.Unlock()
	h.c.done()
}

// Getxattr shows that this is scratch.
func (s *scratch) Getxattr(*vnode.Req, string) ([]byte, error) { return nil, errNoData }

// Listxattr has nothing: an editor copies attributes from here to there.
func (s *scratch) Listxattr(*vnode.Req) ([]string, error) { return nil, nil }

var errNoData = fault.Newf(fault.NoData, "no such attribute")
