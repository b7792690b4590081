package nodetest

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// Proc is a Client on a file system in process.
type Proc struct {
	fs     vnode.FS
	uid    uint32
	gid    uint32
	groups []uint32
	tid    uint32

	mu   sync.Mutex
	fds  map[FD]*open
	next FD
}

// open is an open file description: shared by dup, with one position.
type open struct {
	node  vnode.Node
	h     vnode.Handle
	flags int
	mu    sync.Mutex
	pos   int64
	refs  int
}

// NewProc is a process with these ids on fs; each has a thread of its own to ask
// with, as far as there are enough.
func NewProc(fs vnode.FS, uid, gid uint32, groups ...uint32) *Proc {
	return &Proc{fs: fs, uid: uid, gid: gid, groups: groups, tid: threadID(), fds: map[FD]*open{}, next: 3}
}

func (p *Proc) req() *vnode.Req {
	return &vnode.Req{Ctx: context.Background(), UID: p.uid, GID: p.gid, TID: p.tid}
}

func errno(err error) error {
	if n := fault.Errno(err); n != 0 {
		return n
	}
	return nil
}

// may checks modes as the kernel does with default_permissions.
func (p *Proc) may(n vnode.Node, want uint32) error {
	a, err := n.Attr(p.req())
	if err != nil {
		return errno(err)
	}
	if p.uid == 0 {
		if want&1 != 0 && a.Type != vnode.Directory && a.Mode&0o111 == 0 {
			return syscall.EACCES
		}
		return nil
	}
	bits := a.Mode & 7
	switch {
	case a.UID == p.uid:
		bits = a.Mode >> 6 & 7
	case a.GID == p.gid || slices.Contains(p.groups, a.GID):
		bits = a.Mode >> 3 & 7
	}
	if bits&want != want {
		return syscall.EACCES
	}
	return nil
}

func unref(n vnode.Node) {
	if u, ok := n.(vnode.Refcounted); ok {
		u.Unref()
	}
}

// child looks one name up.
func (p *Proc) child(dir vnode.Node, name string) (vnode.Node, error) {
	if a, err := dir.Attr(p.req()); err != nil {
		return nil, errno(err)
	} else if a.Type != vnode.Directory {
		return nil, syscall.ENOTDIR
	}
	if err := p.may(dir, 1); err != nil {
		return nil, err
	}
	l, ok := dir.(vnode.Lookuper)
	if !ok {
		return nil, syscall.ENOTDIR
	}
	e, err := l.Lookup(p.req(), name)
	if err != nil {
		return nil, errno(err)
	}
	if e.Node == nil {
		return nil, syscall.ENOENT
	}
	return e.Node, nil
}

// walk finds a path. References are kept for the life of the test: a real kernel
// would forget them some time too.
func (p *Proc) walk(name string) (vnode.Node, error) {
	n := p.fs.Root()
	for part := range strings.SplitSeq(strings.Trim(path.Clean(name), "/"), "/") {
		if part == "" || part == "." {
			continue
		}
		next, err := p.child(n, part)
		unref(n)
		if err != nil {
			return nil, err
		}
		n = next
	}
	return n, nil
}

// parent finds the directory of a path.
func (p *Proc) parent(name string) (dir vnode.Node, base string, err error) {
	d, base := path.Split(path.Clean(name))
	n, err := p.walk(d)
	return n, base, err
}

// inDir finds the directory and its interface for a change.
func inDir[I any](p *Proc, name string) (op I, dir vnode.Node, base string, err error) {
	dir, base, err = p.parent(name)
	if err != nil {
		return op, nil, "", err
	}
	if err := p.may(dir, 3); err != nil {
		return op, nil, "", err
	}
	op, ok := dir.(I)
	if !ok {
		return op, nil, "", syscall.EPERM
	}
	return op, dir, base, nil
}

// Open is open(2) as the kernel sends it.
func (p *Proc) Open(name string, flags int, mode uint32) (FD, error) {
	n, err := p.walk(name)
	switch {
	case err == nil && flags&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return -1, syscall.EEXIST
	case err == syscall.ENOENT && flags&os.O_CREATE != 0:
		return p.create(name, flags, mode)
	case err != nil:
		return -1, err
	}
	fd, err := p.openNode(n, flags)
	if err == syscall.ESTALE { // the kernel looks the path up again, once
		if n, err = p.walk(name); err != nil {
			return -1, err
		}
		fd, err = p.openNode(n, flags)
	}
	return fd, err
}

func (p *Proc) openNode(n vnode.Node, flags int) (FD, error) {
	a, err := n.Attr(p.req())
	if err != nil {
		return -1, errno(err)
	}
	acc := vnode.OpenFlags(flags)
	switch {
	case a.Type == vnode.Symlink:
		return -1, syscall.ELOOP
	case a.Type == vnode.Socket:
		return -1, syscall.ENXIO
	case a.Type == vnode.Directory && acc.Write():
		return -1, syscall.EISDIR
	}
	want := uint32(0)
	if acc.Write() {
		want |= 2
	}
	if acc.Read() {
		want |= 4
	}
	if err := p.may(n, want); err != nil {
		return -1, err
	}
	if a.Type == vnode.Directory {
		return p.add(&open{node: n, flags: flags}), nil
	}
	o, ok := n.(vnode.Opener)
	if !ok {
		return -1, syscall.EACCES
	}
	h, _, err := o.Open(p.req(), acc&^vnode.OpenFlags(os.O_TRUNC|os.O_CREATE|os.O_EXCL))
	if err != nil {
		return -1, errno(err)
	}
	if flags&os.O_TRUNC != 0 {
		zero := uint64(0)
		if err := p.setattr(n, vnode.SetAttr{Size: &zero}); err != nil {
			h.Release(&vnode.Req{Ctx: context.Background()})
			return -1, err
		}
	}
	return p.add(&open{node: n, h: h, flags: flags}), nil
}

func (p *Proc) create(name string, flags int, mode uint32) (FD, error) {
	c, _, base, err := inDir[vnode.Creator](p, name)
	if err != nil {
		return -1, err
	}
	e, h, _, err := c.Create(p.req(), base, vnode.OpenFlags(flags), mode)
	if err != nil {
		return -1, errno(err)
	}
	return p.add(&open{node: e.Node, h: h, flags: flags}), nil
}

func (p *Proc) add(o *open) FD {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.refs = 1
	fd := p.next
	p.next++
	p.fds[fd] = o
	return fd
}

func (p *Proc) get(fd FD) (*open, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.fds[fd]; o != nil {
		return o, nil
	}
	return nil, syscall.EBADF
}

var _ Client = (*Proc)(nil)
