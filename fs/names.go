package fs

import (
	"os"
	"syscall"

	"bazil.org/fuse"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// maxName is NAME_MAX; the kernel lets longer names through.
const maxName = 255

func checkName(name string) error {
	if len(name) > maxName {
		return fault.Newf(fault.NameTooLong, "name of %d bytes", len(name))
	}
	return nil
}

// lookup answers LOOKUP: the most frequent request of a mount whose names are
// not cached.
func (q *request) lookup(r *fuse.LookupRequest) {
	n := q.node()
	if n == nil {
		return
	}
	d, ok := n.node.(vnode.Lookuper)
	if !ok {
		q.fail(fault.E("", "", fault.NotDir, nil))
		return
	}
	if err := checkName(r.Name); err != nil {
		q.fail(err)
		return
	}
	q.waitUnless(n.mem)
	e, err := d.Lookup(&q.v, r.Name)
	if e.Node == nil && (err == nil || fault.Is(err, fault.NotExist)) {
		q.missing(r, e)
		return
	}
	if err != nil {
		q.fail(err)
		return
	}
	resp, err := q.entry(e)
	if err != nil {
		q.fail(err)
		return
	}
	q.answer()
	r.Respond(&resp)
}

// missing answers that a name does not exist; number 0 with a validity lets the
// kernel remember it.
func (q *request) missing(r *fuse.LookupRequest, e vnode.Entry) {
	if e.Valid <= 0 {
		q.failNo(syscall.ENOENT)
		return
	}
	q.answer()
	r.Respond(&fuse.LookupResponse{EntryValid: e.Valid})
}

// entry makes the answer that hands a node to the kernel: attributes first, then
// the number. Where the attributes fail, the entry's reference goes back.
func (q *request) entry(e vnode.Entry) (fuse.LookupResponse, error) {
	if e.Node == nil {
		return fuse.LookupResponse{}, fault.Newf(fault.IO, "the tree answered without a node")
	}
	q.waitUnless(inMemory(e.Node))
	seq := q.s.push.changes.Load()
	a, err := e.Node.Attr(&q.v)
	if err != nil {
		unref(e.Node, 1)
		return fuse.LookupResponse{}, err
	}
	n := q.s.nodes.ref(e.Node)
	return fuse.LookupResponse{
		Node:       fuse.NodeID(n.id),
		Generation: generation,
		EntryValid: e.Valid,
		Attr:       q.s.export(n.id, a, seq),
	}, nil
}

// forget answers FORGET and BATCH_FORGET: with nothing, as the kernel wants it.
func (q *request) forget(respond func(), items ...fuse.BatchForgetItem) {
	q.answer()
	for _, f := range items {
		node, count := q.s.nodes.forget(uint64(f.NodeID), f.N)
		if _, ok := node.(vnode.Refcounted); ok && count > 0 {
			q.wait() // giving back a descriptor may be the end of a deleted file
			unref(node, count)
		}
	}
	respond()
}

// readlink answers READLINK.
func (q *request) readlink(r *fuse.ReadlinkRequest) {
	n := q.node()
	if n == nil {
		return
	}
	l, ok := n.node.(vnode.Readlinker)
	if !ok {
		q.fail(fault.E("", "", fault.Invalid, nil))
		return
	}
	q.waitUnless(n.mem)
	target, err := l.Readlink(&q.v)
	if err != nil {
		q.fail(err)
		return
	}
	q.answer()
	r.Respond(target)
}

// dir is the directory of a changing request as the interface C, or the request
// has been answered: ESTALE, EPERM where the directory cannot do that, or
// ENAMETOOLONG.
func dir[C any](q *request, names ...string) (c C, ok bool) {
	n := q.node()
	if n == nil {
		return c, false
	}
	c, can := n.node.(C)
	if !can {
		q.fail(fault.E("", "", fault.Perm, nil))
		return c, false
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			q.fail(err)
			return c, false
		}
	}
	q.wait()
	return c, true
}

// made answers a request that made a name.
func (q *request) made(e vnode.Entry, err error, respond func(*fuse.LookupResponse)) {
	if err != nil {
		q.fail(err)
		return
	}
	resp, err := q.entry(e)
	if err != nil {
		q.fail(err)
		return
	}
	q.answer()
	respond(&resp)
}

func (q *request) mkdir(r *fuse.MkdirRequest) {
	d, ok := dir[vnode.Mkdirer](q, r.Name)
	if !ok {
		return
	}
	e, err := d.Mkdir(&q.v, r.Name, modeBits(r.Mode))
	q.made(e, err, func(l *fuse.LookupResponse) { r.Respond(&fuse.MkdirResponse{LookupResponse: *l}) })
}

func (q *request) symlink(r *fuse.SymlinkRequest) {
	d, ok := dir[vnode.Symlinker](q, r.NewName)
	if !ok {
		return
	}
	e, err := d.Symlink(&q.v, r.NewName, r.Target)
	q.made(e, err, func(l *fuse.LookupResponse) { r.Respond(&fuse.SymlinkResponse{LookupResponse: *l}) })
}

// mknod makes regular files, sockets and FIFOs; device nodes are nobody's here.
func (q *request) mknod(r *fuse.MknodRequest) {
	d, ok := dir[vnode.Mknoder](q, r.Name)
	if !ok {
		return
	}
	var typ vnode.Type
	switch r.Mode & os.ModeType &^ os.ModeIrregular {
	case 0:
		typ = vnode.Regular
	case os.ModeSocket:
		typ = vnode.Socket
	case os.ModeNamedPipe:
		typ = vnode.FIFO
	default:
		q.fail(fault.E("", "", fault.Perm, nil))
		return
	}
	e, err := d.Mknod(&q.v, r.Name, typ, modeBits(r.Mode))
	q.made(e, err, r.Respond)
}

func (q *request) link(r *fuse.LinkRequest) {
	d, ok := dir[vnode.Linker](q, r.NewName)
	if !ok {
		return
	}
	old := q.s.nodes.get(uint64(r.OldNode))
	if old == nil {
		q.fail(fault.E("", "", fault.Stale, nil))
		return
	}
	e, err := d.Link(&q.v, old.node, r.NewName)
	q.made(e, err, r.Respond)
}

// done answers a request that has no result but its error.
func (q *request) done(err error, respond func()) {
	if err != nil {
		q.fail(err)
		return
	}
	q.answer()
	respond()
}

func (q *request) remove(r *fuse.RemoveRequest) {
	d, ok := dir[vnode.Remover](q, r.Name)
	if !ok {
		return
	}
	if r.Dir {
		q.done(d.Rmdir(&q.v, r.Name), r.Respond)
		return
	}
	q.done(d.Unlink(&q.v, r.Name), r.Respond)
}

func (q *request) rename(r *fuse.RenameRequest) {
	d, ok := dir[vnode.Renamer](q, r.OldName, r.NewName)
	if !ok {
		return
	}
	to := q.s.nodes.get(uint64(r.NewDir))
	if to == nil {
		q.fail(fault.E("", "", fault.Stale, nil))
		return
	}
	q.done(d.Rename(&q.v, r.OldName, to.node, r.NewName), r.Respond)
}

// create answers CREATE: a new name and an open handle in one.
func (q *request) create(r *fuse.CreateRequest) {
	d, ok := dir[vnode.Creator](q, r.Name)
	if !ok {
		return
	}
	e, file, mode, err := d.Create(&q.v, r.Name, vnode.OpenFlags(r.Flags), modeBits(r.Mode))
	if err != nil {
		q.fail(err)
		return
	}
	resp, err := q.entry(e)
	if err != nil {
		file.Release(&q.v)
		q.fail(err)
		return
	}
	h := q.s.handles.add(&handle{ino: q.s.nodes.get(uint64(resp.Node)), file: file, mem: inMemory(file)})
	q.answer()
	r.Respond(&fuse.CreateResponse{
		LookupResponse: resp,
		OpenResponse:   fuse.OpenResponse{Handle: fuse.HandleID(h.id), Flags: openFlags(mode)},
	})
}
