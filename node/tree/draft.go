package tree

import (
	"sync"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// draft is one open for writing of a control (spec sections 4.1–4.5). It is a
// private text: it starts as the committed one, or empty when the file was
// truncated or created, and nobody but this handle reads it.
//
// States: clean (nothing to commit) → dirty (written, every write so far can
// become valid) → clean again by a commit; emptied (truncated, nothing written
// since) commits the empty text at fsync or release only, because a shell
// truncates and flushes before its first write; failed is for good: it answers
// the same error for ever and commits nothing.
type draft struct {
	f      *ctlFile
	c      *counted
	w      agent.Writer // who opened; judges everything that comes through
	tid    uint32       // thread that opened, for SETATTR without a handle
	owner  uint32       // owner of the object at open
	append bool

	mu      sync.Mutex // protects the fields below
	claim   claim
	text    []byte // never shared when own is set, never changed when it is not
	own     bool
	touched bool  // truncated, written or failed: no open(O_TRUNC) is pending
	emptied bool  // truncated and neither written nor committed since
	dirty   bool  // written and not committed since
	fail    error // first refusal
	last    uint64
	undo    saved // what was there before the first commit of this open
}

// saved is a value to go back to.
type saved struct {
	present bool
	text    []byte
	gen     uint64
}

// Read gives the draft: who opened for reading and writing sees what they wrote.
func (h *draft) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return readAt(h.text, p, off), nil
}

// Write changes the draft and judges the whole of it. After a refusal the handle
// is failed.
func (h *draft) Write(r *vnode.Req, p []byte, off int64) (int, error) {
	if err := h.host(r); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fail != nil {
		return 0, h.fail
	}
	if err := h.f.alive(h.owner); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if h.append {
		// The kernel's offset is the committed size, which is not the draft's.
		off = int64(len(h.text))
	}
	h.touched = true
	if err := h.putLocked(p, off); err != nil {
		return 0, err
	}
	if err := h.f.d.sub.prefix(h.f.e, h.text, h.w); err != nil {
		return 0, h.refuseLocked(err)
	}
	h.dirty, h.emptied = true, false
	return len(p), nil
}

// host refuses what comes from another namespace than the host's. The thread that
// opened was looked at then: asking again for each of its writes would cost more
// than the writes.
func (h *draft) host(r *vnode.Req) error {
	if r.TID == h.tid && r.UID == h.w.UID {
		return nil
	}
	return h.f.d.t.foreign(r)
}

// putLocked copies p into the draft.
func (h *draft) putLocked(p []byte, off int64) error {
	end := off + int64(len(p))
	switch {
	case off < 0 || end < off || end > node.MaxText:
		return h.refuseLocked(fault.Newf(fault.TooBig, "text is over %d bytes", node.MaxText))
	case off > int64(len(h.text)):
		return h.refuseLocked(fault.Newf(fault.Invalid, "a hole before byte %d", off+1))
	}
	size := max(end, int64(len(h.text)))
	if err := h.claim.resize(size); err != nil {
		return err
	}
	if !h.own {
		h.text, h.own = append(make([]byte, 0, size), h.text...), true
	}
	if grow := end - int64(len(h.text)); grow > 0 {
		h.text = append(h.text, p[int64(len(p))-grow:]...)
		p = p[:int64(len(p))-grow]
	}
	copy(h.text[off:], p)
	return nil
}

// refuseLocked fails the handle: the draft is dropped, and what this open
// committed before is undone unless another commit came between.
func (h *draft) refuseLocked(err error) error {
	h.fail = fault.At("write", h.f.path, err)
	h.text, h.own, h.dirty, h.emptied, h.touched = nil, true, false, false, true
	h.claim.drop()
	h.f.refused(err)
	h.f.d.sub.rejected(h.f.e.Name, h.w, err)
	if h.last != 0 {
		h.f.restore(h.undo, h.last, h.w.UID)
		h.last = 0
	}
	return h.fail
}

// Flush commits what was written since the last commit. A flush with nothing
// written is a no-op: bash sends one before its first write.
func (h *draft) Flush(*vnode.Req, uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.fail != nil:
		return h.fail
	case h.dirty:
		return h.commitLocked("close")
	}
	return nil
}

// Fsync is Flush, and commits the empty text of a truncated draft too (vim).
func (h *draft) Fsync(*vnode.Req, bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.fail != nil:
		return h.fail
	case h.dirty || h.emptied:
		return h.commitLocked("fsync")
	}
	return nil
}

// commitLocked makes the draft the value. A text that is not valid as a whole
// leaves the draft as it is: more may be written.
func (h *draft) commitLocked(op string) error {
	gen, before, err := h.f.store(h.text, h.w, h.owner)
	if err != nil {
		return fault.At(op, h.f.path, err)
	}
	if h.last == 0 || before.gen != h.last {
		h.undo = before
	}
	h.last, h.dirty, h.emptied = gen, false, false
	return nil
}

// truncate is ftruncate, or the truncation of an open(O_TRUNC).
func (h *draft) truncate(size uint64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.fail != nil:
		return h.fail
	case size == 0:
		h.text, h.own, h.touched, h.emptied, h.dirty = nil, true, true, true, false
		return h.claim.resize(0)
	case size == uint64(len(h.text)):
		return nil
	}
	return fault.Newf(fault.Invalid, "a control is truncated to 0 bytes only")
}

// takeTruncation truncates the draft if it is the one that an open(O_TRUNC) of
// the same thread has just made.
func (h *draft) takeTruncation(r *vnode.Req) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.touched || h.tid != r.TID || h.w.UID != r.UID {
		return false
	}
	h.text, h.own, h.touched, h.emptied = nil, true, true, true
	return true
}

// Release commits the empty text of a file that was truncated and never written,
// where that is valid. Nobody hears the answer but the log.
func (h *draft) Release(*vnode.Req) {
	h.f.forget(h)
	h.mu.Lock()
	if h.fail == nil && h.emptied {
		_ = h.commitLocked("release")
	}
	h.claim.drop()
	h.text = nil
	h.mu.Unlock()
	h.c.done()
}
