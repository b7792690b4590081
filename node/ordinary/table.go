package ordinary

import (
	"container/list"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// The table of known inodes. The kernel knows as many as it likes and a user can
// make it know a million, but descriptors are few and all users' together. So a
// root daemon closes the one unused longest, remembers the file handle (which has
// the inode's generation in it, so that no other file can take its place), and
// opens it again by that. Without that privilege a lookup too many fails.
const (
	// maxOpen bounds the descriptors held for nodes; less where the process may
	// have less than twice as many.
	maxOpen = 32 << 10
	// maxSkip bounds the search for a node that no operation is using.
	maxSkip = 64
	// maxHandles is the number of open files of one uid (spec section 4.8), and of
	// descriptors that its locks hold.
	maxHandles = 4096
	// maxLeaseWaits is how many opens of one uid may wait for somebody's lease.
	maxLeaseWaits = 64
)

// inode names a file as long as somebody holds it.
type inode struct{ dev, ino uint64 }

// setLimits finds out how many descriptors nodes may hold, and whether they can
// be given up.
func (f *FS) setLimits(want int) error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return fault.FromOS("getrlimit", "", err)
	}
	f.maxOpen = int(min(maxOpen, lim.Cur/2))
	if want > 0 {
		f.maxOpen = want
	}
	h, _, err := unix.NameToHandleAt(f.mount, "", unix.AT_EMPTY_PATH)
	if err == nil {
		var fd int
		if fd, err = unix.OpenByHandleAt(f.mount, h, unix.O_PATH); err == nil {
			unix.Close(fd)
			f.byHandle = true
		}
	}
	return nil
}

// adopt makes the node of an O_PATH descriptor, or finds the one there is; either
// way it takes fd over and the result carries one reference.
func (f *FS) adopt(fd int) (*dnode, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, fault.FromOS("stat", "", err)
	}
	typ, ok := nodeType(st.Mode)
	if !ok {
		unix.Close(fd)
		return nil, fault.Newf(fault.Perm, "devices are not served")
	}
	id := inode{st.Dev, st.Ino}
	for {
		n, dormant := f.known(id)
		switch {
		case n == nil:
			n, err := f.insert(&dnode{fs: f, fd: fd, id: id, typ: typ})
			if n != nil || err != nil {
				return n, err
			}
			continue
		case !dormant:
			unix.Close(fd)
			return n, nil
		}
		// Its number may belong to another file by now, this one.
		err := n.hold()
		if err == nil {
			n.release()
			unix.Close(fd)
			return n, nil
		}
		f.disown(n)
		n.Unref()
		if !fault.Is(err, fault.Stale) {
			unix.Close(fd)
			return nil, err
		}
	}
}

// known is the node of id with one more reference, and whether it holds no
// descriptor at present.
func (f *FS) known(id inode) (n *dnode, dormant bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n = f.nodes[id]; n == nil {
		return nil, false
	}
	n.refs++
	return n, n.fd < 0
}

// disown takes a node whose file is gone out of the table; who holds it gets
// Stale.
func (f *FS) disown(n *dnode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes[n.id] == n {
		delete(f.nodes, n.id)
	}
}

// insert adds a new node with one reference; nil when another was faster.
func (f *FS) insert(n *dnode) (*dnode, error) {
	f.mu.Lock()
	if f.nodes[n.id] != nil {
		f.mu.Unlock()
		return nil, nil
	}
	if !f.byHandle && f.recent.Len() >= f.maxOpen {
		f.mu.Unlock()
		unix.Close(n.fd)
		return nil, fault.Newf(fault.TooMany, "%d files are known already", f.maxOpen)
	}
	n.refs = 1
	f.nodes[n.id] = n
	n.place = f.recent.PushFront(n)
	f.evict()
	f.mu.Unlock()
	return n, nil
}

// evict closes descriptors that nobody needs now until few enough are open. With
// mu held.
func (f *FS) evict() {
	skip := 0
	for e := f.recent.Back(); e != nil && f.byHandle && f.recent.Len() > f.maxOpen && skip < maxSkip; {
		n, prev := e.Value.(*dnode), e.Prev()
		if n.pins > 0 || !n.sleep() {
			skip++
			f.recent.MoveToFront(e)
		}
		e = prev
	}
}

// sleep gives the descriptor up. Not that of a file without names, which would
// end with it, nor where the file system has no handles. With fs.mu held.
func (n *dnode) sleep() bool {
	var st unix.Stat_t
	if unix.Fstat(n.fd, &st) != nil || st.Nlink == 0 {
		return false
	}
	if n.handle == nil {
		h, _, err := unix.NameToHandleAt(n.fd, "", unix.AT_EMPTY_PATH)
		if err != nil {
			return false
		}
		n.handle = &h
	}
	unix.Close(n.fd)
	n.fd = -1
	n.fs.recent.Remove(n.place)
	n.place = nil
	return true
}

// hold keeps the descriptor open over an operation; Stale when the node was given
// back by everybody, or its file is gone. End it with release.
func (n *dnode) hold() error {
	f := n.fs
	f.mu.Lock()
	if n.refs <= 0 {
		f.mu.Unlock()
		return fault.E("", "", fault.Stale, nil)
	}
	n.refs++
	n.pins++
	if n.fd >= 0 {
		f.recent.MoveToFront(n.place)
		f.mu.Unlock()
		return nil
	}
	handle := *n.handle
	f.mu.Unlock()
	fd, err := unix.OpenByHandleAt(f.mount, handle, unix.O_PATH|unix.O_CLOEXEC)
	f.mu.Lock()
	switch {
	case n.fd >= 0: // another operation was faster
		if err == nil {
			unix.Close(fd)
		}
		err = nil
	case err == nil:
		n.fd = fd
		n.place = f.recent.PushFront(n)
		f.evict()
	}
	f.mu.Unlock()
	if err != nil {
		n.release()
		return fault.FromOS("open", "", err)
	}
	return nil
}

func (n *dnode) release() {
	n.fs.mu.Lock()
	n.pins--
	n.fs.mu.Unlock()
	n.Unref()
}

func (n *dnode) ref() {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	n.refs++
}

// Unref gives back the reference that an Entry carried.
func (n *dnode) Unref() {
	f := n.fs
	f.mu.Lock()
	n.refs--
	fd := -1
	if n.refs == 0 {
		if f.nodes[n.id] == n {
			delete(f.nodes, n.id)
		}
		if n.place != nil {
			f.recent.Remove(n.place)
			n.place = nil
		}
		fd, n.fd = n.fd, -1
	}
	f.mu.Unlock()
	if fd >= 0 {
		unix.Close(fd)
	}
}

// countHandle accounts for an open file of uid; TooMany above the limit.
func (f *FS) countHandle(uid uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handles[uid] >= maxHandles && uid != 0 {
		return fault.Newf(fault.TooMany, "uid %d has %d files open", uid, maxHandles)
	}
	f.handles[uid]++
	return nil
}

func (f *FS) dropHandle(uid uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handles[uid]--; f.handles[uid] == 0 {
		delete(f.handles, uid)
	}
}

// countLock accounts for a lock's descriptor; TooMany above the limit.
func (f *FS) countLock(uid uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lockFDs[uid] >= maxHandles && uid != 0 {
		return fault.Newf(fault.TooMany, "uid %d holds locks through %d descriptors", uid, maxHandles)
	}
	if f.lockFDs == nil {
		f.lockFDs = map[uint32]int{}
	}
	f.lockFDs[uid]++
	return nil
}

func (f *FS) dropLock(uid uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lockFDs[uid]--; f.lockFDs[uid] == 0 {
		delete(f.lockFDs, uid)
	}
}

// mayWait accounts for an open that waits; end it with waited.
func (f *FS) mayWait(r *vnode.Req) bool {
	if r == nil || r.UID == 0 {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaseWaits[r.UID] >= maxLeaseWaits {
		return false
	}
	if f.leaseWaits == nil {
		f.leaseWaits = map[uint32]int{}
	}
	f.leaseWaits[r.UID]++
	return true
}

func (f *FS) waited(r *vnode.Req) {
	if r == nil || r.UID == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leaseWaits[r.UID]--; f.leaseWaits[r.UID] == 0 {
		delete(f.leaseWaits, r.UID)
	}
}

// openMount is a descriptor that says which file system handles are of; O_PATH
// does not do.
func (f *FS) openMount(root int) (err error) {
	f.mount, err = beneath.Reopen(root, unix.O_RDONLY|unix.O_DIRECTORY)
	return fault.FromOS("open", "", err)
}

// lookupTable is the state of the table, guarded by FS.mu.
type lookupTable struct {
	nodes   map[inode]*dnode
	recent  list.List // of the nodes with a descriptor, the last used first
	handles map[uint32]int
	lockFDs map[uint32]int

	leaseWaits map[uint32]int // opens of a uid that wait
}
