package ordinary

import (
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// lockOwner is who holds a lock, as the kernel names it: for flock an open file,
// for POSIX locks a process (for its OFD locks an open file again).
type lockOwner struct {
	id    uint64
	flock bool
}

// lockTable has the open file description through which each owner locks this
// inode: OFD locks and flock belong to that, so the kernel keeps the owners apart
// and merges each one's ranges. Closing it ends all that the owner holds.
type lockTable struct {
	mu    sync.Mutex
	files map[lockOwner]*lockFile
	freed chan struct{} // closed when something was unlocked; made by who waits
}

// lockFile is used by one request at a time only (mu), but dropped at any.
type lockFile struct {
	fs     *FS
	uid    uint32 // who pays for the descriptor
	mu     sync.Mutex
	fd     int
	closed bool
	// The kernel tells neither who holds an OFD lock nor of deadlocks, so what was
	// taken is kept here too, for GetLock and for that. POSIX locks only.
	held []span
	pid  uint32
}

const (
	minRetry = time.Millisecond
	// maxRetry is the pace of looking again when the holder is not known to us.
	maxRetry = 50 * time.Millisecond
)

// get is the owner's description, opened with the daemon's own rights: the right
// to lock lies in the handle that the kernel checked. Each costs a descriptor, and
// processes that share a handle are owners each: a uid has so many, then TooMany.
func (t *lockTable) get(n *dnode, o lockOwner, uid uint32) (*lockFile, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.files[o]; f != nil {
		return f, nil
	}
	if err := n.fs.countLock(uid); err != nil {
		return nil, err
	}
	// Writable where possible, since an owner may take a write lock later and two
	// descriptions of one owner would conflict. Not so a running program's file.
	fd, err := beneath.Reopen(n.fd, unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		fd, err = beneath.Reopen(n.fd, unix.O_RDONLY|unix.O_NONBLOCK)
	}
	if err != nil {
		n.fs.dropLock(uid)
		return nil, fault.FromOS("lock", "", err)
	}
	f := &lockFile{fs: n.fs, uid: uid, fd: fd}
	if t.files == nil {
		t.files = map[lockOwner]*lockFile{}
	}
	t.files[o] = f
	return f, nil
}

func (t *lockTable) find(o lockOwner) *lockFile {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.files[o]
}

// drop ends all locks of an owner and wakes who waits.
func (t *lockTable) drop(o lockOwner) {
	t.mu.Lock()
	f := t.files[o]
	delete(t.files, o)
	t.mu.Unlock()
	if f == nil {
		return
	}
	f.mu.Lock()
	if !f.closed {
		f.closed = true
		unix.Close(f.fd)
		f.fs.dropLock(f.uid)
	}
	f.mu.Unlock()
	t.wake()
}

func (t *lockTable) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed != nil {
		close(t.freed)
		t.freed = nil
	}
}

// nextFree is closed at the next unlock.
func (t *lockTable) nextFree() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed == nil {
		t.freed = make(chan struct{})
	}
	return t.freed
}

// SetLock takes or gives back a lock. A wait occupies no thread and ends with the
// request: it tries again at each unlock through us, and every 50 ms for the sake
// of holders that are not ours.
func (h *handle) SetLock(r *vnode.Req, l vnode.Lock) error {
	o := lockOwner{l.Owner, l.Flock}
	table := &h.node.locks
	if l.Type == unix.F_UNLCK {
		return h.unlock(o, l)
	}
	if err := h.remember(o); err != nil {
		return err
	}
	for retry := minRetry; ; retry = min(2*retry, maxRetry) {
		free := table.nextFree() // before the try, so that no unlock is missed
		err := h.tryLock(o, l, r)
		if !fault.Is(err, fault.Again) || !l.Wait {
			return err
		}
		if err := h.await(r, o, l, free, retry); err != nil {
			return err
		}
	}
}

// await waits a little for the holder, if we know it without closing a circle of
// owners that wait for each other.
func (h *handle) await(r *vnode.Req, o lockOwner, l vnode.Lock, free <-chan struct{}, d time.Duration) error {
	if holder, _, known := h.node.locks.holder(o, l); known && !o.flock {
		if !h.node.fs.waiting.enter(o, holder) {
			return fault.E("lock", "", fault.Deadlock, nil)
		}
		defer h.node.fs.waiting.leave(o)
	}
	return waitFor(r, free, d)
}

// holder is the owner among ours, and its process, whose POSIX lock is in l's way.
func (t *lockTable) holder(o lockOwner, l vnode.Lock) (lockOwner, uint32, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for other, f := range t.files {
		if other == o || other.flock || l.Flock {
			continue
		}
		f.mu.Lock()
		hit, pid := f.conflicts(l), f.pid
		f.mu.Unlock()
		if hit {
			return other, pid, true
		}
	}
	return lockOwner{}, 0, false
}

func waitFor(r *vnode.Req, free <-chan struct{}, d time.Duration) error {
	var done <-chan struct{}
	if r != nil && r.Ctx != nil {
		done = r.Ctx.Done()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return fault.E("lock", "", fault.Interrupted, r.Ctx.Err())
	case <-free:
	case <-t.C:
	}
	return nil
}

// remember notes the owner, for Release.
func (h *handle) remember(o lockOwner) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if h.fd < 0 {
		return fault.E("lock", "", fault.BadHandle, nil)
	}
	h.ownersMu.Lock()
	defer h.ownersMu.Unlock()
	if h.owners == nil {
		h.owners = map[lockOwner]bool{}
	}
	h.owners[o] = true
	return nil
}

func (h *handle) tryLock(o lockOwner, l vnode.Lock, r *vnode.Req) error {
	uid := h.uid
	if r != nil {
		uid = r.UID
	}
	for {
		f, err := h.node.locks.get(h.node, o, uid)
		if err != nil {
			return err
		}
		f.mu.Lock()
		if f.closed { // dropped between the two
			f.mu.Unlock()
			continue
		}
		err = f.set(l)
		f.mu.Unlock()
		return fault.FromOS("lock", "", err)
	}
}

func (h *handle) unlock(o lockOwner, l vnode.Lock) error {
	f := h.node.locks.find(o)
	if f == nil {
		return nil
	}
	if l.Flock || l.Start == 0 && l.End >= 1<<63-1 {
		h.node.locks.drop(o)
		return nil
	}
	f.mu.Lock()
	var err error
	if !f.closed {
		err = f.set(l)
	}
	f.mu.Unlock()
	h.node.locks.wake()
	return fault.FromOS("unlock", "", err)
}

func (f *lockFile) set(l vnode.Lock) error {
	return again(func() error {
		if l.Flock {
			how := unix.LOCK_SH
			if l.Type == unix.F_WRLCK {
				how = unix.LOCK_EX
			}
			return unix.Flock(f.fd, how|unix.LOCK_NB)
		}
		raw := flockT(l)
		err := unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_SETLK, &raw)
		if err == nil {
			f.note(l)
		}
		return err
	})
}

func flockT(l vnode.Lock) unix.Flock_t {
	raw := unix.Flock_t{Type: l.Type, Whence: io.SeekStart, Start: int64(l.Start)}
	if l.End < 1<<63-1 {
		raw.Len = int64(l.End-l.Start) + 1
	}
	return raw
}

// GetLock returns the first lock that conflicts, as fcntl(2) F_OFD_GETLK finds it.
// PID is 0 for an OFD lock that was taken on the file directly.
func (h *handle) GetLock(_ *vnode.Req, l vnode.Lock) (vnode.Lock, error) {
	o := lockOwner{l.Owner, false}
	f := h.node.locks.find(o)
	if f == nil {
		// A description without locks asks for somebody who has none.
		fd, err := beneath.Reopen(h.node.fd, unix.O_RDONLY|unix.O_NONBLOCK)
		if err != nil {
			return l, fault.FromOS("getlk", "", err)
		}
		f = &lockFile{fd: fd}
		defer unix.Close(fd)
	}
	raw := flockT(l)
	f.mu.Lock()
	err := unix.EBADF
	if !f.closed {
		err, _ = unix.FcntlFlock(uintptr(f.fd), unix.F_OFD_GETLK, &raw).(unix.Errno)
	}
	f.mu.Unlock()
	if err != 0 {
		return l, fault.FromOS("getlk", "", err)
	}
	if raw.Type == unix.F_UNLCK {
		l.Type = unix.F_UNLCK
		return l, nil
	}
	got := vnode.Lock{Type: raw.Type, Start: uint64(raw.Start), End: 1<<63 - 1}
	if raw.Len > 0 {
		got.End = got.Start + uint64(raw.Len) - 1
	}
	if raw.Pid > 0 {
		got.PID = uint32(raw.Pid)
	} else if _, pid, known := h.node.locks.holder(o, l); known {
		got.PID = pid
	}
	return got, nil
}
