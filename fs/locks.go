package fs

import (
	"context"
	"sync"
	"syscall"

	"bazil.org/fuse"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// locks holds the POSIX and BSD locks of files whose handles are no
// vnode.Locker: controls, live files, tools. It follows fcntl(2) and flock(2):
// POSIX locks belong to a process (the kernel's lock owner) and go with the first
// close of any of its descriptors of the file (FLUSH); BSD and OFD locks belong
// to the open file and go with it (RELEASE).
type locks struct {
	mu      sync.Mutex
	byInode map[*inode]*fileLocks
	// blocked is who waits for whom, for POSIX owners: a cycle is a deadlock.
	blocked map[uint64]uint64
	// waiters counts the lock requests of a uid that wait, for every kind of handle.
	waiters map[uint32]int
}

type fileLocks struct {
	held    []heldLock
	waiting int           // requests that wait on changed
	changed chan struct{} // closed when a lock goes
}

type heldLock struct {
	vnode.Lock
	handle uint64 // the handle it was taken through
}

// maxLockWaits bounds how many lock requests of one uid may wait: each pins the
// library's buffer of 132 KiB. Root is not bounded.
const maxLockWaits = 256

// enter counts a request that may wait, or refuses it.
func (t *locks) enter(uid uint32) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if uid != 0 && t.waiters[uid] >= maxLockWaits {
		return fault.Newf(fault.Again, "%d lock requests of uid %d wait already", maxLockWaits, uid)
	}
	if t.waiters == nil {
		t.waiters = map[uint32]int{}
	}
	t.waiters[uid]++
	return nil
}

func (t *locks) exit(uid uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiters[uid]--; t.waiters[uid] == 0 {
		delete(t.waiters, uid)
	}
}

// maxLocks bounds the ranges of one file: each costs memory that nobody else
// accounts for.
const maxLocks = 4096

func conflict(a heldLock, l *vnode.Lock) bool {
	return a.Flock == l.Flock && a.Owner != l.Owner && a.Start <= l.End && l.Start <= a.End &&
		(a.Type == syscall.F_WRLCK || l.Type == syscall.F_WRLCK)
}

func (f *fileLocks) conflict(l *vnode.Lock) *heldLock {
	for i := range f.held {
		if conflict(f.held[i], l) {
			return &f.held[i]
		}
	}
	return nil
}

// cut takes l's range away from what its owner holds.
func (f *fileLocks) cut(l *vnode.Lock) {
	var kept []heldLock
	for _, h := range f.held {
		if h.Flock != l.Flock || h.Owner != l.Owner || h.Start > l.End || l.Start > h.End {
			kept = append(kept, h)
			continue
		}
		if h.Start < l.Start {
			left := h
			left.End = l.Start - 1
			kept = append(kept, left)
		}
		if h.End > l.End {
			right := h
			right.Start = l.End + 1
			kept = append(kept, right)
		}
	}
	f.held = kept
}

// wake tells those that wait that a lock has gone.
func (f *fileLocks) wake() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// of is the record of an inode, made if need be. Under mu.
func (t *locks) of(n *inode) *fileLocks {
	if t.byInode == nil {
		t.byInode = map[*inode]*fileLocks{}
		t.blocked = map[uint64]uint64{}
	}
	f := t.byInode[n]
	if f == nil {
		f = &fileLocks{changed: make(chan struct{})}
		t.byInode[n] = f
	}
	return f
}

// tidy drops a record that holds nothing. Under mu.
func (t *locks) tidy(n *inode, f *fileLocks) {
	if len(f.held) == 0 && f.waiting == 0 {
		delete(t.byInode, n)
	}
}

// set takes, changes or gives back a lock; with Wait it waits for it until ctx
// ends.
func (t *locks) set(ctx context.Context, h *handle, l *vnode.Lock) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.of(h.ino)
	defer t.tidy(h.ino, f)
	if l.Type == syscall.F_UNLCK {
		f.cut(l)
		f.wake()
		return nil
	}
	if l.Flock {
		// flock(2): a conversion gives the old lock back first.
		f.cut(l)
		f.wake()
	}
	for {
		c := f.conflict(l)
		if c == nil {
			break
		}
		if !l.Wait {
			return fault.E("lock", "", fault.Again, nil)
		}
		if !l.Flock && t.deadlock(l.Owner, c.Owner) {
			return fault.E("lock", "", fault.Deadlock, nil)
		}
		if err := t.await(ctx, f, l, c.Owner); err != nil {
			return err
		}
	}
	if len(f.held) >= maxLocks {
		return fault.E("lock", "", fault.NoSpace, nil)
	}
	f.cut(l)
	f.held = append(f.held, heldLock{Lock: *l, handle: h.id})
	f.wake() // a downgrade may let others in
	return nil
}

// await waits for a change, with mu given up meanwhile.
func (t *locks) await(ctx context.Context, f *fileLocks, l *vnode.Lock, holder uint64) error {
	if !l.Flock {
		t.blocked[l.Owner] = holder
		defer delete(t.blocked, l.Owner)
	}
	changed := f.changed
	f.waiting++
	t.mu.Unlock()
	defer func() { t.mu.Lock(); f.waiting-- }()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return fault.E("lock", "", fault.Interrupted, ctx.Err())
	}
}

// deadlock says whether holder already waits, over others, for owner.
func (t *locks) deadlock(owner, holder uint64) bool {
	for range t.blocked {
		if holder == owner {
			return true
		}
		next, waits := t.blocked[holder]
		if !waits {
			return false
		}
		holder = next
	}
	return holder == owner
}

// get is the first lock in the way of l, or one of type F_UNLCK.
func (t *locks) get(n *inode, l vnode.Lock) vnode.Lock {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.byInode[n]; f != nil {
		if c := f.conflict(&l); c != nil {
			return c.Lock
		}
	}
	l.Type = syscall.F_UNLCK
	return l
}

// dropOwner gives back the POSIX locks of a process on a file.
func (t *locks) dropOwner(n *inode, owner uint64) {
	t.dropIf(n, func(l heldLock) bool { return !l.Flock && l.Owner == owner })
}

// drop gives back every lock that was taken through a handle.
func (t *locks) drop(h *handle) {
	t.dropIf(h.ino, func(l heldLock) bool { return l.handle == h.id })
}

func (t *locks) dropIf(n *inode, gone func(heldLock) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.byInode[n]
	if f == nil {
		return
	}
	before := len(f.held)
	kept := f.held[:0]
	for _, l := range f.held {
		if !gone(l) {
			kept = append(kept, l)
		}
	}
	f.held = kept
	if len(kept) < before {
		f.wake()
	}
	t.tidy(n, f)
}

func lockOf(r *fuse.LockRequest, wait bool) vnode.Lock {
	return vnode.Lock{
		Owner: uint64(r.LockOwner),
		Flock: r.LockFlags&fuse.LockFlock != 0,
		Type:  int16(r.Lock.Type),
		Start: r.Lock.Start,
		End:   r.Lock.End,
		PID:   uint32(r.Lock.PID),
		Wait:  wait,
	}
}

// lock answers SETLK and SETLKW.
func (q *request) lock(r *fuse.LockRequest, wait bool) {
	h := q.file(r.Handle)
	if h == nil {
		return
	}
	l := lockOf(r, wait)
	if wait {
		if err := q.s.locks.enter(q.v.UID); err != nil {
			q.fail(err)
			return
		}
		defer q.s.locks.exit(q.v.UID)
	}
	if f, ok := h.file.(vnode.Locker); ok {
		q.wait()
		q.done(f.SetLock(&q.v, l), r.Respond)
		return
	}
	q.waitUnless(!wait)
	q.done(q.s.locks.set(q.v.Ctx, h, &l), r.Respond)
}

// queryLock answers GETLK.
func (q *request) queryLock(r *fuse.QueryLockRequest) {
	h := q.file(r.Handle)
	if h == nil {
		return
	}
	asked := fuse.LockRequest{LockOwner: r.LockOwner, Lock: r.Lock, LockFlags: r.LockFlags}
	l := lockOf(&asked, false)
	if f, ok := h.file.(vnode.Locker); ok {
		q.wait()
		found, err := f.GetLock(&q.v, l)
		if err != nil {
			q.fail(err)
			return
		}
		l = found
	} else {
		l = q.s.locks.get(h.ino, l)
	}
	q.answer()
	r.Respond(&fuse.QueryLockResponse{Lock: fuse.FileLock{
		Start: l.Start, End: l.End, Type: fuse.LockType(l.Type), PID: int32(l.PID),
	}})
}
