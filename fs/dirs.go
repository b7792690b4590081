package fs

import (
	"bazil.org/fuse"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// unknownIno is what ".." shows: a node may be reached by several ways, and no
// program that matters reads it.
const unknownIno = 0xffffffff

// openDir answers OPENDIR. The listing is made at the first READDIR, so that an
// open that finds it in the kernel's cache, or that only wants to fsync or fstat,
// does not pay for it.
func (q *request) openDir(n *inode, r *fuse.OpenRequest) {
	if _, ok := n.node.(vnode.Lister); !ok {
		q.fail(fault.E("", "", fault.NotDir, nil))
		return
	}
	h := &handle{ino: n, keep: keepsListing(n)}
	q.s.handles.add(h)
	var flags fuse.OpenResponseFlags
	if h.keep {
		// Without KeepCache the kernel keeps the pages only until the next open.
		flags = fuse.OpenCacheDir | fuse.OpenKeepCache
	}
	q.answer()
	r.Respond(&fuse.OpenResponse{Handle: fuse.HandleID(h.id), Flags: flags})
}

// keepsListing says whether the kernel may keep the listing until NodeChanged:
// where the tree owns it (InMemory) and shows the same to everybody.
func keepsListing(n *inode) bool {
	_, private := n.node.(vnode.PrivateListing)
	return n.mem && !private
}

// readDir answers READDIR from the snapshot that the read at offset 0 took.
// Offsets are positions in the encoded listing.
func (q *request) readDir(h *handle, r *fuse.ReadRequest) {
	list := h.dir.Load()
	if list == nil || r.Offset == 0 {
		data, err := q.listing(h.ino)
		if err != nil {
			q.fail(err)
			return
		}
		list = &data
		h.dir.Store(list)
	}
	var part []byte
	if r.Offset >= 0 && r.Offset < int64(len(*list)) {
		part = (*list)[r.Offset:]
		part = part[:min(r.Size, len(part))]
	}
	q.answer()
	r.Respond(&fuse.ReadResponse{Data: part})
}

// listing encodes a directory, with "." and ".." in front.
func (q *request) listing(n *inode) ([]byte, error) {
	l, ok := n.node.(vnode.Lister)
	if !ok {
		return nil, fault.E("", "", fault.NotDir, nil)
	}
	q.waitUnless(n.mem)
	a, err := n.node.Attr(&q.v)
	if err != nil {
		return nil, err
	}
	names, err := l.ReadDir(&q.v)
	if err != nil {
		return nil, err
	}
	self := a.Ino
	if self == 0 {
		self = n.id
	}
	size := 64
	for _, d := range names {
		size += 24 + (len(d.Name)+7)&^7
	}
	data := make([]byte, 0, size)
	data = fuse.AppendDirent(data, fuse.Dirent{Inode: self, Type: fuse.DT_Dir, Name: "."})
	data = fuse.AppendDirent(data, fuse.Dirent{Inode: unknownIno, Type: fuse.DT_Dir, Name: ".."})
	for _, d := range names {
		ino := d.Ino
		if ino == 0 {
			ino = unknownIno // readdir(3) skips entries of number 0
		}
		data = fuse.AppendDirent(data, fuse.Dirent{Inode: ino, Type: direntType(d.Type), Name: d.Name})
	}
	return data, nil
}

func direntType(t vnode.Type) fuse.DirentType {
	switch t {
	case vnode.Regular:
		return fuse.DT_File
	case vnode.Directory:
		return fuse.DT_Dir
	case vnode.Symlink:
		return fuse.DT_Link
	case vnode.Socket:
		return fuse.DT_Socket
	case vnode.FIFO:
		return fuse.DT_FIFO
	}
	return fuse.DT_Unknown
}
