package fs

import (
	"os"
	"time"

	"bazil.org/fuse"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// attr asks a node for its attributes and puts them in the library's terms.
func (q *request) attr(n *inode) (fuse.Attr, error) {
	q.waitUnless(n.mem)
	seq := q.s.push.changes.Load()
	a, err := n.node.Attr(&q.v)
	if err != nil {
		return fuse.Attr{}, err
	}
	return q.s.export(n.id, a, seq), nil
}

// export puts attributes in the library's terms. seq is the count of changes
// from before they were asked for: where one came in between, they may be of
// yesterday while their invalidation is already on its way, so the kernel is not
// to keep them.
func (s *Server) export(id uint64, a vnode.Attr, seq uint64) fuse.Attr {
	out := fuse.Attr{
		Valid:     a.Valid,
		Inode:     a.Ino,
		Size:      a.Size,
		Blocks:    a.Blocks,
		Atime:     stamp(a.Atime),
		Mtime:     stamp(a.Mtime),
		Ctime:     stamp(a.Ctime),
		Mode:      fileMode(a.Type, a.Mode),
		Nlink:     a.Nlink,
		Uid:       a.UID,
		Gid:       a.GID,
		BlockSize: a.Blksize,
	}
	if out.Inode == 0 {
		out.Inode = id
	}
	if out.Blocks == 0 {
		out.Blocks = (a.Size + 511) / 512
	}
	if out.Nlink == 0 {
		out.Nlink = 1
		if a.Type == vnode.Directory {
			out.Nlink = 2
		}
	}
	if out.BlockSize == 0 {
		out.BlockSize = 4096
	}
	if s.push.changes.Load() != seq {
		out.Valid = 0
	}
	return out
}

// stamp makes the zero time 1970: its nanoseconds are out of the range that the
// library computes in.
func stamp(t time.Time) time.Time {
	if t.IsZero() {
		return time.Unix(0, 0)
	}
	return t
}

// fileMode puts type and mode bits in Go's terms, as the library wants them. It
// drops the sticky bit on the way out.
func fileMode(t vnode.Type, mode uint32) os.FileMode {
	m := os.FileMode(mode & 0o777)
	if mode&0o4000 != 0 {
		m |= os.ModeSetuid
	}
	if mode&0o2000 != 0 {
		m |= os.ModeSetgid
	}
	if mode&0o1000 != 0 {
		m |= os.ModeSticky
	}
	switch t {
	case vnode.Directory:
		m |= os.ModeDir
	case vnode.Symlink:
		m |= os.ModeSymlink
	case vnode.Socket:
		m |= os.ModeSocket
	case vnode.FIFO:
		m |= os.ModeNamedPipe
	}
	return m
}

// modeBits is the way back: 07777.
func modeBits(m os.FileMode) uint32 {
	bits := uint32(m.Perm())
	if m&os.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&os.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if m&os.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// node is the inode that a request is about, or nil after it has been answered
// with ESTALE: a number that the kernel should no longer have.
func (q *request) node() *inode {
	n := q.s.nodes.get(uint64(q.hdr.Node))
	if n == nil {
		q.fail(fault.E("", "", fault.Stale, nil))
	}
	return n
}

// getattr answers GETATTR.
func (q *request) getattr(r *fuse.GetattrRequest) {
	n := q.node()
	if n == nil {
		return
	}
	a, err := q.attr(n)
	if err != nil {
		q.fail(err)
		return
	}
	q.answer()
	r.Respond(&fuse.GetattrResponse{Attr: a})
}

// setattr answers SETATTR. A size of 0 without a handle is what an open with
// O_TRUNC and a truncate(2) by path both look like: the tree tells them apart by
// the thread (vnode.Req.TID).
func (q *request) setattr(r *fuse.SetattrRequest) {
	n := q.node()
	if n == nil {
		return
	}
	set, empty := q.changes(r)
	if empty {
		q.getattrAs(n, r)
		return
	}
	c, ok := n.node.(vnode.Setattrer)
	if !ok {
		q.fail(fault.E("", "", fault.Perm, nil))
		return
	}
	q.wait()
	seq := q.s.push.changes.Load()
	a, err := c.Setattr(&q.v, set)
	if err != nil {
		q.fail(err)
		return
	}
	q.answer()
	r.Respond(&fuse.SetattrResponse{Attr: q.s.export(n.id, a, seq)})
}

func (q *request) getattrAs(n *inode, r *fuse.SetattrRequest) {
	a, err := q.attr(n)
	if err != nil {
		q.fail(err)
		return
	}
	q.answer()
	r.Respond(&fuse.SetattrResponse{Attr: a})
}

// changes picks the fields that a SETATTR sets.
func (q *request) changes(r *fuse.SetattrRequest) (set vnode.SetAttr, empty bool) {
	empty = true
	if r.Valid.Size() {
		set.Size, empty = &r.Size, false
	}
	if r.Valid.Mode() {
		bits := modeBits(r.Mode)
		set.Mode, empty = &bits, false
	}
	if r.Valid.Uid() {
		set.UID, empty = &r.Uid, false
	}
	if r.Valid.Gid() {
		set.GID, empty = &r.Gid, false
	}
	now := time.Now()
	if r.Valid.AtimeNow() {
		set.Atime, empty = &now, false
	} else if r.Valid.Atime() {
		set.Atime, empty = &r.Atime, false
	}
	if r.Valid.MtimeNow() {
		set.Mtime, empty = &now, false
	} else if r.Valid.Mtime() {
		set.Mtime, empty = &r.Mtime, false
	}
	if r.Valid.Handle() {
		if h := q.s.handles.get(uint64(r.Handle)); h != nil {
			set.Handle = h.file
		}
	}
	return set, empty
}

// access answers ACCESS, which comes only where the kernel does not check modes
// itself: a mount without default_permissions. Supplementary groups are not in a
// request, so the group's bits count for the caller's own group only.
func (q *request) access(r *fuse.AccessRequest) {
	n := q.node()
	if n == nil {
		return
	}
	q.waitUnless(n.mem)
	a, err := n.node.Attr(&q.v)
	if err != nil {
		q.fail(err)
		return
	}
	if !allowed(a, q.v.UID, q.v.GID, r.Mask) {
		q.fail(fault.E("", "", fault.Access, nil))
		return
	}
	q.answer()
	r.Respond()
}

func allowed(a vnode.Attr, uid, gid, mask uint32) bool {
	mask &= 7
	bits := a.Mode & 7
	switch {
	case uid == 0:
		return mask&1 == 0 || a.Type == vnode.Directory || a.Mode&0o111 != 0
	case uid == a.UID:
		bits = a.Mode >> 6 & 7
	case gid == a.GID:
		bits = a.Mode >> 3 & 7
	}
	return bits&mask == mask
}

// statfs answers STATFS.
func (q *request) statfs(r *fuse.StatfsRequest) {
	q.wait()
	st, err := q.s.opt.FS.Statfs(&q.v)
	if err != nil {
		q.fail(err)
		return
	}
	if st.Bsize == 0 {
		st.Bsize = 4096
	}
	if st.Frsize == 0 {
		st.Frsize = st.Bsize
	}
	if st.Namelen == 0 {
		st.Namelen = maxName
	}
	q.answer()
	r.Respond(&fuse.StatfsResponse{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail,
		Files: st.Files, Ffree: st.Ffree,
		Bsize: st.Bsize, Frsize: st.Frsize, Namelen: st.Namelen,
	})
}
