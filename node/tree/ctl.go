package tree

import (
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// ctlFile is a control: one canonical node per object and name.
type ctlFile struct {
	noACL
	d    *ctlDir
	e    *control.Entry
	path string // in the tree
	ino  uint64

	// commit serialises the commits of this control, so that each knows which
	// value it replaced.
	commit sync.Mutex

	// d.mu protects the fields below.
	drafts  []*draft    // open for writing, newest last
	hidden  *time.Timer // unlinked a moment ago
	refusal string      // last refusal, for user.cortexfs.error
}

func (*ctlFile) InMemory() {}

func byUID(uid uint32) string { return "uid " + strconv.FormatUint(uint64(uid), 10) }

// alive answers Stale for a handle whose object is gone or changed hands.
func (f *ctlFile) alive(owner uint32) error {
	if f.d.obj.Gone() {
		return fault.E("", f.path, fault.Stale, nil)
	}
	if now, _ := f.d.sub.owner(); now != owner {
		return fault.E("", f.path, fault.Stale, errText("the object has another owner since the file was opened"))
	}
	return nil
}

type errText string

func (e errText) Error() string { return string(e) }

// Attr shows the committed value.
func (f *ctlFile) Attr(*vnode.Req) (vnode.Attr, error) {
	if f.d.obj.Gone() {
		return vnode.Attr{}, fault.E("stat", f.path, fault.Stale, nil)
	}
	text, _, err := f.d.sub.text(f.e)
	if err != nil {
		text = nil
	}
	uid, gid := f.d.sub.owner()
	mod := f.d.modTime(f.e.Name)
	return vnode.Attr{
		Ino: f.ino, Size: uint64(len(text)), Mode: f.e.Mode, UID: uid, GID: gid,
		Atime: mod, Mtime: mod, Ctime: mod,
	}, nil
}

// Open for reading pins the committed text; open for writing starts a draft.
func (f *ctlFile) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if !flags.Write() {
		if f.e.Mode&0o004 == 0 && !f.d.ownerOrRoot(r) {
			return nil, vnode.Mode{}, fault.E("open", f.path, fault.Access, nil)
		}
		text, _, err := f.d.sub.text(f.e)
		if err != nil {
			return nil, vnode.Mode{}, fault.At("open", f.path, err)
		}
		return f.d.t.openText(r, text)
	}
	h, err := f.openDraft(r, flags, false)
	if err != nil {
		return nil, vnode.Mode{}, fault.At("open", f.path, err)
	}
	return h, vnode.Mode{Direct: true}, nil
}

// openDraft decides who writes and starts the draft; created: as an empty text.
func (f *ctlFile) openDraft(r *vnode.Req, flags vnode.OpenFlags, created bool) (*draft, error) {
	w, err := f.d.writer(r)
	if err != nil {
		return nil, err
	}
	text, _, err := f.d.sub.text(f.e)
	if err != nil {
		text = nil // something unreadable lies in the store: it can only be replaced
	}
	c, err := f.d.t.count(r)
	if err != nil {
		return nil, err
	}
	cl, err := f.d.t.use.claim(r.UID)
	if err != nil {
		c.done()
		return nil, err
	}
	owner, _ := f.d.sub.owner()
	h := &draft{
		f: f, c: c, claim: cl, w: w, tid: r.TID, owner: owner, text: text,
		append: flags&syscall.O_APPEND != 0,
	}
	if created {
		// The name was made anew: it reads as empty to this handle. Nothing is
		// committed unless something is written or truncation is asked for: an
		// unlink never changes a value.
		h.text, h.own, h.touched = nil, true, true
	}
	if flags&syscall.O_TRUNC != 0 {
		h.text, h.own, h.touched, h.emptied = nil, true, true, true
	}
	f.d.mu.Lock()
	f.drafts = append(f.drafts, h)
	f.d.mu.Unlock()
	return h, nil
}

func (f *ctlFile) forget(h *draft) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if i := slices.Index(f.drafts, h); i >= 0 {
		f.drafts = slices.Delete(f.drafts, i, i+1)
	}
}

// store judges and commits a text: durable and in force when it returns. before
// is the value that it replaced.
func (f *ctlFile) store(text []byte, w agent.Writer, owner uint32) (gen uint64, before saved, err error) {
	gen, before, err = f.storeLocked(text, w, owner)
	if err != nil {
		if k := fault.KindOf(err); k == fault.Invalid || k == fault.Perm || k == fault.TooBig {
			f.refused(err)
		}
		return 0, before, err
	}
	f.published(w.UID)
	return gen, before, nil
}

func (f *ctlFile) storeLocked(text []byte, w agent.Writer, owner uint32) (gen uint64, before saved, err error) {
	f.commit.Lock()
	defer f.commit.Unlock()
	if err := f.alive(owner); err != nil {
		return 0, saved{}, err
	}
	before = f.value()
	gen, err = f.d.sub.commit(f.e, text, w)
	return gen, before, err
}

// value is what the store has now.
func (f *ctlFile) value() saved {
	v, ok := f.d.obj.Snapshot().Values[f.e.Name]
	return saved{present: ok && v.Err == nil, text: v.Text, gen: v.Gen}
}

// restore puts back what was there before the commit with generation gen, if that
// is still the value.
func (f *ctlFile) restore(old saved, gen uint64, by uint32) {
	f.commit.Lock()
	var err error
	if old.present {
		err = f.d.obj.PutIf(f.e.Name, old.text, gen)
	} else {
		err = f.d.obj.DeleteIf(f.e.Name, gen)
	}
	f.commit.Unlock()
	switch {
	case err == nil:
		f.d.sub.event("control.changed", f.e.Name, "ok", "undone: a later write of the same open was refused", by)
		f.published(by)
	case !fault.Is(err, fault.Again):
		f.d.t.log("undo " + f.path + ": " + err.Error())
	}
}

// published makes a commit visible: the name is there, the last refusal is past,
// whoever derives something is told.
func (f *ctlFile) published(by uint32) {
	f.d.mu.Lock()
	f.unhideLocked()
	f.refusal = ""
	f.d.mu.Unlock()
	f.d.sub.changed(f.e.Name, by)
}

// refused notes why a text was not taken (spec section 4.9).
func (f *ctlFile) refused(err error) {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.refusal = placeOf(err)
}

// unhideLocked ends an unlink's second.
func (f *ctlFile) unhideLocked() {
	if f.hidden != nil {
		f.hidden.Stop()
		f.hidden = nil
	}
}

// hide is unlink: the name vanishes for a moment, the value does not.
func (f *ctlFile) hide() {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.unhideLocked()
	var timer *time.Timer
	timer = time.AfterFunc(f.d.t.o.HideFor, func() {
		f.d.mu.Lock()
		defer f.d.mu.Unlock()
		if f.hidden == timer {
			f.hidden = nil
		}
	})
	f.hidden = timer
}

// visibleLocked says whether the name is there: not unlinked just now and, where
// the control is optional, written or being written.
func (f *ctlFile) visibleLocked() bool {
	if f.hidden != nil {
		return false
	}
	if !f.e.Optional || len(f.drafts) > 0 {
		return true
	}
	_, ok := f.d.obj.Snapshot().Values[f.e.Name]
	return ok
}

// Setattr accepts what editors do without effect, and truncates.
func (f *ctlFile) Setattr(r *vnode.Req, s vnode.SetAttr) (vnode.Attr, error) {
	if err := f.setattr(r, s); err != nil {
		return vnode.Attr{}, fault.At("setattr", f.path, err)
	}
	return f.Attr(r)
}

func (f *ctlFile) setattr(r *vnode.Req, s vnode.SetAttr) error {
	if s.Size != nil && s.Mode == nil && s.UID == nil && s.GID == nil {
		return f.truncate(r, *s.Size, s.Handle)
	}
	if _, err := f.d.writer(r); err != nil {
		return err
	}
	uid, gid := f.d.sub.owner()
	if (s.UID != nil && *s.UID != uid) || (s.GID != nil && *s.GID != gid) {
		return perm("owner and group of a control are derived from the object")
	}
	if s.Size != nil {
		return f.truncate(r, *s.Size, s.Handle)
	}
	return nil
}

// truncate is ftruncate, the truncation of an open(O_TRUNC), which the kernel
// sends without its handle, or truncate(2) by path, which commits at once.
func (f *ctlFile) truncate(r *vnode.Req, size uint64, handle vnode.Handle) error {
	if h, ok := handle.(*draft); ok && h.f == f {
		if err := h.host(r); err != nil {
			return err
		}
		return h.truncate(size)
	}
	if size == 0 {
		f.d.mu.Lock()
		drafts := slices.Clone(f.drafts)
		f.d.mu.Unlock()
		for _, h := range slices.Backward(drafts) {
			if h.takeTruncation(r) {
				return nil
			}
		}
	}
	w, err := f.d.writer(r)
	if err != nil {
		return err
	}
	if size != 0 {
		text, _, err := f.d.sub.text(f.e)
		if err == nil && size == uint64(len(text)) {
			return nil
		}
		return fault.Newf(fault.Invalid, "a control is truncated to 0 bytes only")
	}
	owner, _ := f.d.sub.owner()
	_, _, err = f.store(nil, w, owner)
	return err
}

// Getxattr shows kind, origin, size in tokens, generation, last refusal.
func (f *ctlFile) Getxattr(r *vnode.Req, name string) ([]byte, error) { return f.xattrs(r).get(name) }

// Listxattr names them.
func (f *ctlFile) Listxattr(r *vnode.Req) ([]string, error) { return f.xattrs(r).list(), nil }

func (f *ctlFile) xattrs(r *vnode.Req) xattrs {
	text, origin, _ := f.d.sub.text(f.e)
	x := xattrs{
		kind: f.d.kind.String() + ".control", origin: origin,
		size: uint64(len(text)), hasSize: true, gen: f.d.obj.Snapshot().Gen,
	}
	if f.d.ownerOrRoot(r) {
		f.d.mu.Lock()
		x.err = f.refusal
		f.d.mu.Unlock()
	}
	return x
}
