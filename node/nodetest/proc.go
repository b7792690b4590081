package nodetest

import (
	"context"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

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

// Dup is dup(2).
func (p *Proc) Dup(fd FD) (FD, error) {
	o, err := p.get(fd)
	if err != nil {
		return -1, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o.refs++
	made := p.next
	p.next++
	p.fds[made] = o
	return made, nil
}

// Close sends a FLUSH, and a RELEASE after the last one. The release is answered
// before Close returns, which a kernel does not promise.
func (p *Proc) Close(fd FD) error {
	o, err := p.get(fd)
	if err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.fds, fd)
	o.refs--
	last := o.refs == 0
	p.mu.Unlock()
	if f, ok := o.h.(vnode.Flusher); ok {
		err = errno(f.Flush(p.req(), uint64(p.tid)))
	}
	if last {
		if o.h != nil {
			o.h.Release(&vnode.Req{Ctx: context.Background()})
		}
		unref(o.node)
	}
	return err
}

// CloseAll closes what is left, as the end of a process does.
func (p *Proc) CloseAll() {
	p.mu.Lock()
	var all []FD
	for fd := range p.fds {
		all = append(all, fd)
	}
	p.mu.Unlock()
	for _, fd := range all {
		_ = p.Close(fd)
	}
}

func (p *Proc) Read(fd FD, b []byte) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := p.Pread(fd, b, o.pos)
	o.pos += int64(n)
	return n, err
}

func (p *Proc) Pread(fd FD, b []byte, off int64) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	r, ok := o.h.(vnode.Reader)
	if !ok || !vnode.OpenFlags(o.flags).Read() {
		return 0, syscall.EBADF
	}
	n, err := r.Read(p.req(), b, off)
	return n, errno(err)
}

// Write writes at the position: with O_APPEND at the size that stat shows, as the
// kernel believes it.
func (p *Proc) Write(fd FD, b []byte) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.flags&os.O_APPEND != 0 {
		a, err := o.node.Attr(p.req())
		if err != nil {
			return 0, errno(err)
		}
		o.pos = int64(a.Size)
	}
	n, err := p.Pwrite(fd, b, o.pos)
	o.pos += int64(n)
	return n, err
}

func (p *Proc) Pwrite(fd FD, b []byte, off int64) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	w, ok := o.h.(vnode.Writer)
	if !ok || !vnode.OpenFlags(o.flags).Write() {
		return 0, syscall.EBADF
	}
	done := 0
	for done < len(b) { // requests are at most 128 KiB
		part := b[done:min(len(b), done+128<<10)]
		n, err := w.Write(p.req(), part, off+int64(done))
		done += n
		if err != nil {
			if done > 0 {
				return done, nil
			}
			return 0, errno(err)
		}
	}
	return done, nil
}

func (p *Proc) Fsync(fd FD) error {
	o, err := p.get(fd)
	if err != nil {
		return err
	}
	if s, ok := o.h.(vnode.Syncer); ok {
		return errno(s.Fsync(p.req(), false))
	}
	return nil
}

func (p *Proc) setattr(n vnode.Node, s vnode.SetAttr) error {
	if p.uid != 0 {
		a, err := n.Attr(p.req())
		if err != nil {
			return errno(err)
		}
		owner := a.UID == p.uid
		if (s.Mode != nil && !owner) || (s.UID != nil && (!owner || *s.UID != a.UID)) || (s.GID != nil && !owner) {
			return syscall.EPERM
		}
	}
	c, ok := n.(vnode.Setattrer)
	if !ok {
		return syscall.EPERM
	}
	_, err := c.Setattr(p.req(), s)
	return errno(err)
}

func (p *Proc) setfd(fd FD, s vnode.SetAttr) error {
	o, err := p.get(fd)
	if err != nil {
		return err
	}
	s.Handle = o.h
	return p.setattr(o.node, s)
}

func (p *Proc) setpath(name string, s vnode.SetAttr) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	return p.setattr(n, s)
}

func (p *Proc) Ftruncate(fd FD, size int64) error {
	n := uint64(size)
	return p.setfd(fd, vnode.SetAttr{Size: &n})
}

func (p *Proc) Truncate(name string, size int64) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	if err := p.may(n, 2); err != nil {
		return err
	}
	to := uint64(size)
	return p.setattr(n, vnode.SetAttr{Size: &to})
}

func (p *Proc) Fchmod(fd FD, mode uint32) error { return p.setfd(fd, vnode.SetAttr{Mode: &mode}) }
func (p *Proc) Chmod(name string, mode uint32) error {
	return p.setpath(name, vnode.SetAttr{Mode: &mode})
}

func owners(uid, gid int) (s vnode.SetAttr) {
	if uid >= 0 {
		u := uint32(uid)
		s.UID = &u
	}
	if gid >= 0 {
		g := uint32(gid)
		s.GID = &g
	}
	return s
}

func (p *Proc) Fchown(fd FD, uid, gid int) error      { return p.setfd(fd, owners(uid, gid)) }
func (p *Proc) Chown(name string, uid, gid int) error { return p.setpath(name, owners(uid, gid)) }
func (p *Proc) Touch(name string) error {
	now := time.Now()
	return p.setpath(name, vnode.SetAttr{Atime: &now, Mtime: &now})
}

func statAttr(a vnode.Attr) Stat {
	types := map[vnode.Type]byte{vnode.Regular: 'f', vnode.Directory: 'd', vnode.Symlink: 'l', vnode.Socket: 's', vnode.FIFO: 'p'}
	return Stat{Type: types[a.Type], Mode: a.Mode, UID: a.UID, GID: a.GID, Size: int64(a.Size), Ino: a.Ino, Nlink: uint64(a.Nlink)}
}

func (p *Proc) Fstat(fd FD) (Stat, error) {
	o, err := p.get(fd)
	if err != nil {
		return Stat{}, err
	}
	a, err := o.node.Attr(p.req())
	return statAttr(a), errno(err)
}

func (p *Proc) Lstat(name string) (Stat, error) {
	n, err := p.walk(name)
	if err != nil {
		return Stat{}, err
	}
	defer unref(n)
	a, err := n.Attr(p.req())
	return statAttr(a), errno(err)
}

// absent answers EEXIST as the kernel does before it asks the file system.
func (p *Proc) absent(dir vnode.Node, base string) error {
	n, err := p.child(dir, base)
	if err == nil {
		unref(n)
		return syscall.EEXIST
	}
	if err == syscall.ENOENT {
		return nil
	}
	return err
}

func (p *Proc) Mkdir(name string, mode uint32) error {
	dir, base, err := p.parent(name)
	if err != nil {
		return err
	}
	if err := p.absent(dir, base); err != nil {
		return err
	}
	c, _, _, err := inDir[vnode.Mkdirer](p, name)
	if err != nil {
		return err
	}
	e, err := c.Mkdir(p.req(), base, mode)
	if err == nil {
		unref(e.Node)
	}
	return errno(err)
}

func (p *Proc) Rmdir(name string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	if a, err := n.Attr(p.req()); err == nil && a.Type != vnode.Directory {
		return syscall.ENOTDIR
	}
	c, _, base, err := inDir[vnode.Remover](p, name)
	if err != nil {
		return err
	}
	return errno(c.Rmdir(p.req(), base))
}

func (p *Proc) Unlink(name string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	if a, err := n.Attr(p.req()); err == nil && a.Type == vnode.Directory {
		return syscall.EISDIR
	}
	unref(n)
	c, _, base, err := inDir[vnode.Remover](p, name)
	if err != nil {
		return err
	}
	return errno(c.Unlink(p.req(), base))
}

func (p *Proc) Rename(oldPath, newPath string) error {
	if n, err := p.walk(oldPath); err != nil {
		return err
	} else {
		unref(n)
	}
	c, _, oldBase, err := inDir[vnode.Renamer](p, oldPath)
	if err != nil {
		return err
	}
	_, to, newBase, err := inDir[any](p, newPath)
	if err != nil {
		return err
	}
	return errno(c.Rename(p.req(), oldBase, to, newBase))
}

func (p *Proc) Link(oldPath, newPath string) error {
	old, err := p.walk(oldPath)
	if err != nil {
		return err
	}
	defer unref(old)
	c, dir, base, err := inDir[vnode.Linker](p, newPath)
	if err != nil {
		return err
	}
	if err := p.absent(dir, base); err != nil {
		return err
	}
	e, err := c.Link(p.req(), old, base)
	if err == nil {
		unref(e.Node)
	}
	return errno(err)
}

func (p *Proc) Symlink(target, name string) error {
	c, dir, base, err := inDir[vnode.Symlinker](p, name)
	if err != nil {
		return err
	}
	if err := p.absent(dir, base); err != nil {
		return err
	}
	e, err := c.Symlink(p.req(), base, target)
	if err == nil {
		unref(e.Node)
	}
	return errno(err)
}

func (p *Proc) Readlink(name string) (string, error) {
	n, err := p.walk(name)
	if err != nil {
		return "", err
	}
	defer unref(n)
	l, ok := n.(vnode.Readlinker)
	if !ok {
		return "", syscall.EINVAL
	}
	s, err := l.Readlink(p.req())
	return s, errno(err)
}

func (p *Proc) ReadDir(name string) ([]string, error) {
	n, err := p.walk(name)
	if err != nil {
		return nil, err
	}
	defer unref(n)
	if err := p.may(n, 4); err != nil {
		return nil, err
	}
	l, ok := n.(vnode.Lister)
	if !ok {
		return nil, syscall.ENOTDIR
	}
	entries, err := l.ReadDir(p.req())
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names, errno(err)
}

func (p *Proc) Getxattr(name, attr string) (string, error) {
	n, err := p.walk(name)
	if err != nil {
		return "", err
	}
	defer unref(n)
	x, ok := n.(vnode.Xattrer)
	if !ok {
		return "", syscall.ENOTSUP
	}
	v, err := x.Getxattr(p.req(), attr)
	return string(v), errno(err)
}

func (p *Proc) Listxattr(name string) ([]string, error) {
	n, err := p.walk(name)
	if err != nil {
		return nil, err
	}
	defer unref(n)
	x, ok := n.(vnode.Xattrer)
	if !ok {
		return nil, syscall.ENOTSUP
	}
	names, err := x.Listxattr(p.req())
	slices.Sort(names)
	return names, errno(err)
}

func (p *Proc) Setxattr(name, attr, value string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	x, ok := n.(vnode.XattrSetter)
	if !ok {
		return syscall.ENOTSUP
	}
	return errno(x.Setxattr(p.req(), attr, []byte(value), 0))
}

func (p *Proc) SyncDir(name string) error {
	n, err := p.walk(name)
	if err != nil {
		return err
	}
	defer unref(n)
	if s, ok := n.(vnode.DirSyncer); ok {
		return errno(s.FsyncDir(p.req()))
	}
	return nil
}

var _ Client = (*Proc)(nil)

// Take gives p a descriptor of another process, as a Unix socket or exec would.
func (p *Proc) Take(from *Proc, fd FD) FD {
	o, err := from.get(fd)
	if err != nil {
		return -1
	}
	from.mu.Lock()
	o.refs++
	from.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	made := p.next
	p.next++
	p.fds[made] = o
	return made
}

// SetThread makes another thread of the host the one that asks.
func (p *Proc) SetThread(tid uint32) { p.tid = tid }
