package tree

import (
	"sync"

	"cortexfs/node/fault"
)

// Limits per uid (spec section 4.8): what one uid may hold open or half-written
// in the daemon's memory.
const (
	maxHandles = 4096
	maxDrafts  = 1024     // drafts and scratch files together
	maxHeld    = 16 << 20 // bytes of drafts and scratch files together

	// maxOnDisk are the bytes of executables of one uid that lie in the store and are
	// not in force yet: four of the largest.
	maxOnDisk = 4 * maxExec
)

// usage counts what each uid holds. Its mutex is a leaf: nothing else is taken
// under it.
type usage struct {
	mu    sync.Mutex
	byUID map[uint32]*held // an entry lives as long as one of its counts does
}

type held struct {
	handles, drafts int
	bytes           int64
	disk            int64
}

func (u *usage) change(uid uint32, handles, drafts int, bytes, disk int64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	h := u.byUID[uid]
	if h == nil {
		h = &held{}
		if u.byUID == nil {
			u.byUID = map[uint32]*held{}
		}
		u.byUID[uid] = h
	}
	next := held{h.handles + handles, h.drafts + drafts, h.bytes + bytes, h.disk + disk}
	switch {
	case handles > 0 && next.handles > maxHandles:
		return fault.Newf(fault.TooMany, "uid %d holds %d open files here", uid, h.handles)
	case drafts > 0 && next.drafts > maxDrafts:
		return fault.Newf(fault.Again, "uid %d holds %d drafts and scratch files", uid, h.drafts)
	case bytes > 0 && next.bytes > maxHeld:
		return fault.Newf(fault.NoSpace, "uid %d holds %d bytes of drafts and scratch files", uid, h.bytes)
	case disk > 0 && next.disk > maxOnDisk:
		return fault.Newf(fault.NoSpace, "uid %d holds %d bytes of executables that are not in force yet", uid, h.disk)
	}
	*h = next
	if next == (held{}) {
		delete(u.byUID, uid)
	}
	return nil
}

// open counts one more handle; close gives it back.
func (u *usage) open(uid uint32) error { return u.change(uid, 1, 0, 0, 0) }
func (u *usage) close(uid uint32)      { _ = u.change(uid, -1, 0, 0, 0) }

// claim is a draft's or scratch file's share. The zero claim holds nothing.
type claim struct {
	u     *usage
	uid   uint32
	bytes int64
}

// claim counts one more draft or scratch file.
func (u *usage) claim(uid uint32) (claim, error) {
	if err := u.change(uid, 0, 1, 0, 0); err != nil {
		return claim{}, err
	}
	return claim{u: u, uid: uid}, nil
}

// resize sets the bytes of the claim.
func (c *claim) resize(bytes int64) error {
	if c.u == nil || bytes == c.bytes {
		return nil
	}
	if err := c.u.change(c.uid, 0, 0, bytes-c.bytes, 0); err != nil {
		return err
	}
	c.bytes = bytes
	return nil
}

// drop gives everything back; dropping twice is dropping once.
func (c *claim) drop() {
	if c.u != nil {
		_ = c.u.change(c.uid, 0, -1, -c.bytes, 0)
		*c = claim{}
	}
}

// onDisk is what the draft of an executable takes of the store, on the account of
// whose directory it lies in. The zero value holds nothing.
type onDisk struct {
	u     *usage
	uid   uint32
	bytes int64
}

// resize sets the bytes; a refusal changes nothing.
func (c *onDisk) resize(bytes int64) error {
	if bytes == c.bytes {
		return nil
	}
	if err := c.u.change(c.uid, 0, 0, 0, bytes-c.bytes); err != nil {
		return err
	}
	c.bytes = bytes
	return nil
}

// drop gives everything back.
func (c *onDisk) drop() {
	if c.u != nil {
		_ = c.resize(0)
		*c = onDisk{}
	}
}
