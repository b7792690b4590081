package fs

import (
	"sync"
	"sync/atomic"

	"cortexfs/node/vnode"
)

// An inode is a node as the kernel knows it: a number and a count of lookups.
// All fields but those under nodes.mu are immutable.
type inode struct {
	id   uint64
	node vnode.Node
	mem  bool // node is InMemory
	// lookups is how many entries carried this number to the kernel and have not
	// been forgotten. Under nodes.mu.
	lookups uint64
}

// generation goes with every number. Numbers are not used twice, so one does.
const generation = 1

const rootID = 1

// nodes is the table of nodes known to the kernel. One node value has one
// number for as long as it is known: the kernel tells files apart by number
// (two numbers for one socket would be two sockets).
type nodes struct {
	mu     sync.Mutex
	byID   map[uint64]*inode
	byNode map[vnode.Node]*inode
	last   uint64
}

func (t *nodes) init(root vnode.Node) {
	n := &inode{id: rootID, node: root, mem: inMemory(root), lookups: 1}
	t.byID = map[uint64]*inode{rootID: n}
	t.byNode = map[vnode.Node]*inode{root: n}
	t.last = rootID
}

func inMemory(v any) bool {
	_, ok := v.(vnode.InMemory)
	return ok
}

// get is the node of a number, or nil for one that the kernel should not have.
func (t *nodes) get(id uint64) *inode {
	t.mu.Lock()
	n := t.byID[id]
	t.mu.Unlock()
	return n
}

// ref counts one lookup of node, giving it a number if it has none. The
// reference that came with the node's Entry goes over to the table.
func (t *nodes) ref(node vnode.Node) *inode {
	t.mu.Lock()
	defer t.mu.Unlock() // hashing a node that is not comparable panics
	n := t.byNode[node]
	if n == nil {
		t.last++
		n = &inode{id: t.last, node: node, mem: inMemory(node)}
		t.byID[n.id] = n
		t.byNode[node] = n
	}
	n.lookups++
	return n
}

// forget takes lookups back, as the kernel's FORGET says, and returns the node
// and how many references it is to be given back (unref). The root stays.
func (t *nodes) forget(id, count uint64) (vnode.Node, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil {
		return nil, 0
	}
	kept := uint64(0)
	if n.id == rootID {
		kept = 1
	}
	if count > n.lookups-kept {
		count = n.lookups - kept
	}
	n.lookups -= count
	if n.lookups == 0 {
		delete(t.byID, id)
		delete(t.byNode, n.node)
	}
	return n.node, count
}

// id is the number of a node that the kernel knows, else 0.
func (t *nodes) id(node vnode.Node) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.byNode[node]; n != nil {
		return n.id
	}
	return 0
}

// known says whether the kernel still holds the number.
func (t *nodes) known(id uint64) bool { return t.get(id) != nil }

// drain forgets everything, at the end of the connection.
func (t *nodes) drain() {
	t.mu.Lock()
	all := t.byID
	t.byID, t.byNode = map[uint64]*inode{}, map[vnode.Node]*inode{}
	t.mu.Unlock()
	for _, n := range all {
		count := n.lookups
		if n.id == rootID {
			count-- // the root's own reference did not come out of an Entry
		}
		unref(n.node, count)
	}
}

func unref(node vnode.Node, count uint64) {
	if r, ok := node.(vnode.Refcounted); ok {
		for ; count > 0; count-- {
			r.Unref()
		}
	}
}

// A handle is an open file or directory.
type handle struct {
	id   uint64
	ino  *inode
	file vnode.Handle // nil for a directory
	mem  bool         // reads and release never wait
	// keep says that the kernel may keep the listing (directories).
	keep bool

	dir    atomic.Pointer[[]byte] // the encoded listing, as of the last read at 0
	uid    uint32                 // who opened it (directories)
	listed int                    // bytes of dir; dirUse.mu protects it
}

// handles is the table of open files. Handles are in it from the answer to OPEN
// to RELEASE.
type handles struct {
	mu   sync.Mutex
	byID map[uint64]*handle
	last uint64
}

func (t *handles) add(h *handle) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[uint64]*handle{}
	}
	t.last++
	h.id = t.last
	t.byID[h.id] = h
	return h
}

func (t *handles) get(id uint64) *handle {
	t.mu.Lock()
	h := t.byID[id]
	t.mu.Unlock()
	return h
}

func (t *handles) remove(id uint64) *handle {
	t.mu.Lock()
	h := t.byID[id]
	delete(t.byID, id)
	t.mu.Unlock()
	return h
}

func (t *handles) drain() []*handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*handle, 0, len(t.byID))
	for _, h := range t.byID {
		all = append(all, h)
	}
	t.byID = nil
	return all
}
