package fs

import (
	"sync"

	"bazil.org/fuse"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// unknownIno is what ".." shows: a node may be reached by several ways, and no
// program that matters reads it.
const unknownIno = 0xffffffff

// Limits of the directories that one uid has open (spec section 4.8). Each holds
// its listing, and whoever fills the directory decides how long that is. Root is
// not bounded.
const (
	maxDirs   = 4096
	maxListed = 64 << 20 // bytes of listings; a single one may be longer
)

// dirUse counts them. Its mutex is a leaf.
type dirUse struct {
	mu    sync.Mutex
	byUID map[uint32]*dirHeld
}

type dirHeld struct {
	open  int
	bytes int
}

// open counts a directory in.
func (u *dirUse) open(uid uint32) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	d := u.byUID[uid]
	if d == nil {
		d = &dirHeld{}
		if u.byUID == nil {
			u.byUID = map[uint32]*dirHeld{}
		}
		u.byUID[uid] = d
	}
	if uid != 0 && d.open >= maxDirs {
		return fault.Newf(fault.TooMany, "uid %d has %d directories open here", uid, d.open)
	}
	d.open++
	return nil
}

// list makes n bytes the listing of h.
func (u *dirUse) list(h *handle, n int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	d := u.byUID[h.uid]
	if d == nil {
		return fault.E("", "", fault.BadHandle, nil) // closed meanwhile
	}
	others := d.bytes - h.listed
	if h.uid != 0 && others > 0 && others+n > maxListed {
		return fault.Newf(fault.NoSpace, "uid %d holds %d bytes of listings", h.uid, others)
	}
	d.bytes, h.listed = others+n, n
	return nil
}

// close counts a directory out.
func (u *dirUse) close(h *handle) {
	u.mu.Lock()
	defer u.mu.Unlock()
	d := u.byUID[h.uid]
	if d == nil {
		return
	}
	d.open--
	d.bytes, h.listed = d.bytes-h.listed, 0
	if d.open <= 0 {
		delete(u.byUID, h.uid)
	}
}

// openDir answers OPENDIR. The listing is made at the first READDIR, so that an
// open that finds it in the kernel's cache, or that only wants to fsync or fstat,
// does not pay for it.
func (q *request) openDir(n *inode, r *fuse.OpenRequest) {
	if _, ok := n.node.(vnode.Lister); !ok {
		q.fail(fault.E("", "", fault.NotDir, nil))
		return
	}
	h := &handle{ino: n, uid: q.v.UID, keep: keepsListing(n)}
	if err := q.s.dirs.open(h.uid); err != nil {
		q.fail(err)
		return
	}
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
		if err := q.s.dirs.list(h, cap(data)); err != nil {
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
