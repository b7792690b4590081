// Package toy is a small in-memory vnode.FS for tests and measurements of what
// serves one: every operation, with knobs for caching and hooks where a test
// wants something to wait, fail or panic. It checks no permissions (the kernel
// does, with default_permissions) and has no limits.
package toy

import (
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// FS is a tree.
type FS struct {
	root    *Node
	lastIno atomic.Uint64
	// Stat is what Statfs answers.
	Stat vnode.Statfs
	// Calls counts requests by name, e.g. "read"; see Count.
	calls sync.Map
	// Refs is how many references to waiting nodes are out.
	Refs atomic.Int64
	// Open is how many handles are open.
	Open atomic.Int64
	// mu guards the names and contents of all nodes: one lock, as this is a toy.
	mu sync.RWMutex
	// Counting switches Count on.
	Counting bool
}

// Node is a file of any type. The fields are set before it is shown.
type Node struct {
	fs   *FS
	ino  uint64
	typ  vnode.Type
	attr vnode.Attr // Mode, UID, GID, times, Nlink

	data   []byte
	kids   map[string]*Node
	target string
	xattrs map[string][]byte

	// Waits makes the node and its handles not InMemory.
	Waits bool
	// Private marks a directory whose listing depends on who asks.
	Private bool
	// Mode is how opens of it are treated.
	Mode vnode.Mode
	// AttrValid and EntryValid are how long the kernel may keep its attributes
	// and its name, MissValid (directories) how long a missing name.
	AttrValid, EntryValid, MissValid time.Duration
	// OnAttr, OnLookup, OnOpen, OnRead, OnWrite, OnFlush, OnSetattr run in place of the
	// ordinary work if they say so (handled), with no lock held.
	OnAttr    func(r *vnode.Req) error // before the attributes are read
	OnLookup  func(r *vnode.Req, name string) (handled bool, err error)
	OnOpen    func(r *vnode.Req, flags vnode.OpenFlags) error
	OnRead    func(r *vnode.Req, p []byte, off int64) (handled bool, n int, err error)
	OnWrite   func(r *vnode.Req, p []byte, off int64) error
	OnFlush   func(r *vnode.Req, owner uint64) error
	OnSetattr func(r *vnode.Req, s vnode.SetAttr) error
	// OnPoll makes handles pollable.
	OnPoll func(r *vnode.Req, wake func()) (bool, error)
}

// New makes a tree with an empty root directory of mode 0777.
func New() *FS {
	t := &FS{Stat: vnode.Statfs{Blocks: 1000, Bfree: 500, Bavail: 400, Files: 100, Ffree: 50, Bsize: 4096, Frsize: 4096, Namelen: 255}}
	t.root = t.node(vnode.Directory, 0o777)
	return t
}

func (t *FS) node(typ vnode.Type, mode uint32) *Node {
	now := time.Now()
	n := &Node{fs: t, ino: t.lastIno.Add(1), typ: typ}
	n.attr = vnode.Attr{Mode: mode, Nlink: 1, Atime: now, Mtime: now, Ctime: now}
	if typ == vnode.Directory {
		n.kids = map[string]*Node{}
		n.attr.Nlink = 2
	}
	return n
}

// Dir is the root directory, for building.
func (t *FS) Dir() *Node { return t.root }

// Root implements vnode.FS.
func (t *FS) Root() vnode.Node { return t.root.Value() }

// Statfs implements vnode.FS.
func (t *FS) Statfs(*vnode.Req) (vnode.Statfs, error) { return t.Stat, nil }

func (t *FS) count(what string) {
	if t.Counting {
		c, _ := t.calls.LoadOrStore(what, new(atomic.Int64))
		c.(*atomic.Int64).Add(1)
	}
}

// Count is how often an operation was called, if Counting.
func (t *FS) Count(what string) int64 {
	if c, ok := t.calls.Load(what); ok {
		return c.(*atomic.Int64).Load()
	}
	return 0
}

// AddDir makes a directory.
func (n *Node) AddDir(name string, mode uint32) *Node {
	return n.add(name, n.fs.node(vnode.Directory, mode))
}

// AddFile makes a regular file with a text.
func (n *Node) AddFile(name, text string, mode uint32) *Node {
	f := n.fs.node(vnode.Regular, mode)
	f.data = []byte(text)
	return n.add(name, f)
}

// AddLink makes a symlink.
func (n *Node) AddLink(name, target string) *Node {
	l := n.fs.node(vnode.Symlink, 0o777)
	l.target = target
	return n.add(name, l)
}

func (n *Node) add(name string, kid *Node) *Node {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	kid.Waits = n.Waits
	n.put(name, kid)
	return kid
}

// put sets a name. Under mu.
func (n *Node) put(name string, kid *Node) {
	n.kids[name] = kid
	n.attr.Mtime = time.Now()
}

// Drop takes a name away.
func (n *Node) Drop(name string) {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	delete(n.kids, name)
	n.attr.Mtime = time.Now()
}

// SetText replaces the content of a file.
func (n *Node) SetText(text string) {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	n.data = []byte(text)
	n.attr.Mtime = time.Now()
}

// Text is the content of a file.
func (n *Node) Text() string {
	n.fs.mu.RLock()
	defer n.fs.mu.RUnlock()
	return string(n.data)
}

// Own sets owner and group.
func (n *Node) Own(uid, gid uint32) *Node {
	n.attr.UID, n.attr.GID = uid, gid
	return n
}

// The two faces of a node: of one that is computed in memory and of one that may
// wait, which is refcounted too.
type (
	fast    struct{ *Node }
	slow    struct{ *Node }
	private struct{ *Node }
)

func (fast) InMemory()          {}
func (private) InMemory()       {}
func (private) PrivateListing() {}

func (s slow) Unref() { s.fs.Refs.Add(-1) }

// Value is the node as the server sees it.
func (n *Node) Value() vnode.Node {
	switch {
	case n.Waits:
		return slow{n}
	case n.Private:
		return private{n}
	}
	return fast{n}
}

// of is the node behind a value.
func of(v vnode.Node) *Node {
	switch v := v.(type) {
	case fast:
		return v.Node
	case slow:
		return v.Node
	case private:
		return v.Node
	}
	return nil
}

// entry hands a node out.
func (n *Node) entry() vnode.Entry {
	if n.Waits {
		n.fs.Refs.Add(1)
	}
	return vnode.Entry{Node: n.Value(), Valid: n.EntryValid}
}

// Attr implements vnode.Node.
func (n *Node) Attr(r *vnode.Req) (vnode.Attr, error) {
	n.fs.count("attr")
	if n.OnAttr != nil {
		if err := n.OnAttr(r); err != nil {
			return vnode.Attr{}, err
		}
	}
	n.fs.mu.RLock()
	defer n.fs.mu.RUnlock()
	return n.attrNow(), nil
}

func (n *Node) attrNow() vnode.Attr {
	a := n.attr
	a.Type, a.Ino, a.Valid = n.typ, n.ino, n.AttrValid
	a.Size = uint64(len(n.data))
	if n.typ == vnode.Symlink {
		a.Size = uint64(len(n.target))
	}
	return a
}

// Lookup implements vnode.Lookuper.
func (n *Node) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	n.fs.count("lookup")
	if n.OnLookup != nil {
		if handled, err := n.OnLookup(r, name); handled {
			return vnode.Entry{}, err
		}
	}
	n.fs.mu.RLock()
	defer n.fs.mu.RUnlock()
	if n.kids == nil {
		return vnode.Entry{}, fault.E("lookup", name, fault.NotDir, nil)
	}
	kid := n.kids[name]
	if kid == nil {
		return vnode.Entry{Valid: n.MissValid}, nil
	}
	return kid.entry(), nil
}

// ReadDir implements vnode.Lister, in byte order.
func (n *Node) ReadDir(*vnode.Req) ([]vnode.Dirent, error) {
	n.fs.count("readdir")
	n.fs.mu.RLock()
	defer n.fs.mu.RUnlock()
	all := make([]vnode.Dirent, 0, len(n.kids))
	for name, kid := range n.kids {
		all = append(all, vnode.Dirent{Name: name, Ino: kid.ino, Type: kid.typ})
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, nil
}

// Readlink implements vnode.Readlinker.
func (n *Node) Readlink(*vnode.Req) (string, error) {
	if n.typ != vnode.Symlink {
		return "", fault.E("readlink", "", fault.Invalid, nil)
	}
	return n.target, nil
}
