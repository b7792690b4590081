package tree

import (
	"hash/fnv"
	"io"
	"os"
	"sync"
	"time"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// inoOf makes an inode number from a path: the same file has the same number as
// long as the daemon and the store live. Number 0 and 1 are not used.
func inoOf(path string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, path)
	if n := h.Sum64(); n > 1 {
		return n
	}
	return 2
}

func dirAttr(path string, mode, uid, gid uint32, at time.Time) vnode.Attr {
	return vnode.Attr{
		Type: vnode.Directory, Ino: inoOf(path), Mode: mode, UID: uid, GID: gid,
		Atime: at, Mtime: at, Ctime: at, Valid: dirValid,
	}
}

func notExist(name string) error {
	return fault.E("lookup", "", fault.NotExist, errName(name))
}

type errName string

func (e errName) Error() string { return node.Escape(string(e)) + ": no such name" }

func perm(format string, args ...any) error { return fault.Newf(fault.Perm, format, args...) }

// checkLen is the one rule for every name of the tree.
func checkLen(name string) error {
	if len(name) > 255 {
		return fault.Newf(fault.NameTooLong, "name of %d bytes", len(name))
	}
	return nil
}

// readAt copies from a text at an offset, as read(2) does.
func readAt(text []byte, p []byte, off int64) int {
	if off < 0 || off >= int64(len(text)) {
		return 0
	}
	return copy(p, text[off:])
}

// counted is the share of an open handle in its uid's limit, given back once.
type counted struct {
	u    *usage
	uid  uint32
	once sync.Once
}

func (c *counted) done() {
	c.once.Do(func() {
		if c.u != nil {
			c.u.close(c.uid)
		}
	})
}

// count takes one handle for the caller.
func (t *Tree) count(r *vnode.Req) (*counted, error) {
	if err := t.use.open(r.UID); err != nil {
		return nil, err
	}
	return &counted{u: &t.use, uid: r.UID}, nil
}

// textHandle is a text as it was at open.
type textHandle struct {
	c    *counted
	text []byte
}

func (*textHandle) InMemory() {}

func (h *textHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	return readAt(h.text, p, off), nil
}

func (h *textHandle) Release(*vnode.Req) { h.c.done() }

// openText makes a handle over a text; reading only.
func (t *Tree) openText(r *vnode.Req, text []byte) (vnode.Handle, vnode.Mode, error) {
	c, err := t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	return &textHandle{c, text}, vnode.Mode{Direct: true, NoFlush: true}, nil
}

// hostFile is an open file of the host, or bytes.
type hostFile struct {
	c    *counted
	f    *os.File
	data []byte
}

func (h *hostFile) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	if h.f == nil {
		return readAt(h.data, p, off), nil
	}
	n, err := h.f.ReadAt(p, off)
	if err != nil && err != io.EOF {
		return n, fault.FromOS("read", "", err)
	}
	return n, nil
}

func (h *hostFile) Release(*vnode.Req) {
	if h.f != nil {
		h.f.Close()
	}
	if h.c != nil {
		h.c.done()
	}
}

// hostNode shows a File: bin/ctx, agent/coder. Comparable by its path.
type hostNode struct {
	t    *Tree
	path string // in the tree
	bin  string // name in Options.Bin; "": AgentExec
	kind string // of user.cortexfs.kind
	uid  uint32
	gid  uint32
}

func (n hostNode) file() File {
	switch n.bin {
	case "":
		return n.t.o.AgentExec
	case modelExec:
		return n.t.o.ModelExec
	}
	return n.t.o.Bin[n.bin]
}

func (n hostNode) Attr(*vnode.Req) (vnode.Attr, error) {
	size, mod, err := n.file().stat()
	if err != nil {
		return vnode.Attr{}, err
	}
	if mod.IsZero() {
		mod = n.t.born
	}
	return vnode.Attr{
		Ino: inoOf(n.path), Size: uint64(size), Mode: 0o755, UID: n.uid, GID: n.gid,
		Atime: mod, Mtime: mod, Ctime: mod, Valid: dirValid,
	}, nil
}

func (n hostNode) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		return nil, vnode.Mode{}, perm("%s is made by the daemon", n.path)
	}
	c, err := n.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	h, err := n.file().open()
	if err != nil {
		c.done()
		return nil, vnode.Mode{}, err
	}
	h.c = c
	// Not KeepCache: a package upgrade changes the bytes under the same name.
	return h, vnode.Mode{NoFlush: true}, nil
}

func (n hostNode) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	size, _, err := n.file().stat()
	if err != nil {
		return nil, err
	}
	return xattrs{kind: n.kind, origin: "live", size: uint64(size)}.get(name)
}

func (n hostNode) Listxattr(*vnode.Req) ([]string, error) {
	return xattrs{kind: n.kind, origin: "live"}.list(), nil
}

// noACL is how every node of ours answers attempts to set extended attributes:
// ACLs do not exist here, our own attributes are made by us, and there are no
// others.
type noACL struct{}

func (noACL) Setxattr(_ *vnode.Req, name string, _ []byte, _ uint32) error { return refuseXattr(name) }
func (noACL) Removexattr(_ *vnode.Req, name string) error                  { return refuseXattr(name) }

// pollers wakes those who wait for a change: at most one waiter per handle. Its
// mutex is a leaf.
type pollers struct {
	mu   sync.Mutex
	wait map[vnode.Handle]func()
}

func (p *pollers) add(h vnode.Handle, wake func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wait == nil {
		p.wait = map[vnode.Handle]func(){}
	}
	p.wait[h] = wake
}

func (p *pollers) drop(h vnode.Handle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.wait, h)
}

func (p *pollers) wake() {
	p.mu.Lock()
	all := p.wait
	p.wait = nil
	p.mu.Unlock()
	for _, w := range all {
		w()
	}
}
