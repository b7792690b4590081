package ordinary

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// handle is an open file. It holds its node, whose lock table it uses.
type handle struct {
	node *dnode
	uid  uint32 // who opened it

	mu sync.RWMutex // write-held by Release alone, so that fd is never used closed
	fd int          // -1 after Release

	ownersMu sync.Mutex
	owners   map[lockOwner]bool // who locked through this handle
}

var (
	_ vnode.Reader  = (*handle)(nil)
	_ vnode.Writer  = (*handle)(nil)
	_ vnode.Flusher = (*handle)(nil)
	_ vnode.Syncer  = (*handle)(nil)
	_ vnode.Locker  = (*handle)(nil)
)

// newHandle takes fd over, also when it fails.
func newHandle(r *vnode.Req, n *dnode, fd int) (vnode.Handle, error) {
	h := &handle{node: n, fd: fd}
	if r != nil {
		h.uid = r.UID
	}
	err := n.hold()
	if err == nil {
		if err = n.fs.countHandle(h.uid); err != nil {
			n.release()
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fault.At("open", "", err)
	}
	return h, nil
}

// leasePatience bounds how long an open waits for the holder of a lease
// (fcntl(2) F_SETLEASE; the kernel itself takes leases away after 45 s).
const leasePatience = 60 * time.Second

// Open opens a regular file, page cached but not across opens, so that mmap works
// and a close elsewhere is seen by the next open here.
func (n *dnode) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	switch n.typ {
	case vnode.Regular:
	case vnode.Directory:
		return nil, vnode.Mode{}, fault.E("open", "", fault.IsDir, nil)
	case vnode.Symlink:
		return nil, vnode.Mode{}, fault.E("open", "", fault.Loop, nil)
	default:
		return nil, vnode.Mode{}, fault.E("open", "", fault.NoDevice, nil)
	}
	fd, err := n.reopen(r, flags)
	if fault.Is(err, fault.Again) {
		// Who takes the lease and who waits for it may be one user with ten thousand
		// threads; each waiting request holds memory.
		if !n.fs.mayWait(r) {
			return nil, vnode.Mode{}, err
		}
		defer n.fs.waited(r)
	}
	// O_NONBLOCK, so that somebody's lease costs time, not a thread.
	for deadline := time.Now().Add(leasePatience); fault.Is(err, fault.Again) && time.Now().Before(deadline); {
		if err := pause(r, 20*time.Millisecond); err != nil {
			return nil, vnode.Mode{}, err
		}
		fd, err = n.reopen(r, flags)
	}
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	h, err := newHandle(r, n, fd)
	return h, vnode.Mode{}, err
}

func (n *dnode) reopen(r *vnode.Req, flags vnode.OpenFlags) (fd int, err error) {
	how := int(flags)&keptFlags | unix.O_NONBLOCK
	onlyExec := false
	err = n.do(r, "open", "", func() (err error) {
		fd, err = beneath.Reopen(n.fd, how)
		if err == unix.EACCES && flags&vnode.FlagExec != 0 {
			onlyExec = unix.Faccessat2(unix.AT_FDCWD, beneath.FDPath(n.fd), unix.X_OK, unix.AT_EACCESS) == nil
		}
		return err
	})
	if onlyExec { // a program may be run by who may not read it
		err = n.do(nil, "open", "", func() (err error) {
			fd, err = beneath.Reopen(n.fd, unix.O_RDONLY|unix.O_NONBLOCK)
			return err
		})
	}
	return fd, err
}

func pause(r *vnode.Req, d time.Duration) error {
	if r == nil || r.Ctx == nil {
		time.Sleep(d)
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-r.Ctx.Done():
		return fault.E("wait", "", fault.Interrupted, r.Ctx.Err())
	case <-t.C:
		return nil
	}
}

func (h *handle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	total := 0
	for total < len(p) {
		n, err := unix.Pread(h.fd, p[total:], off+int64(total))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return total, fault.FromOS("read", "", err)
		}
		if n == 0 {
			break
		}
		total += n
	}
	return total, nil
}

// Write writes at off, or at the end when the file was opened with O_APPEND
// (pwrite(2) on such a descriptor appends whatever the offset): atomic also
// against processes that append to the file directly.
func (h *handle) Write(_ *vnode.Req, p []byte, off int64) (int, error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	total := 0
	err := h.node.fs.asUID(h.uid, func() error {
		for total < len(p) {
			n, err := unix.Pwrite(h.fd, p[total:], off+int64(total))
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return err
			}
			total += n
		}
		return nil
	})
	if total > 0 { // a short write; the next one will tell why
		return total, nil
	}
	return 0, fault.At("write", "", err)
}

// Flush ends the POSIX locks of the closing process (fcntl(2): any close of the
// file does).
func (h *handle) Flush(_ *vnode.Req, owner uint64) error {
	o := lockOwner{id: owner}
	h.node.locks.drop(o)
	h.ownersMu.Lock() // processes come and go, the handle may stay for ever
	delete(h.owners, o)
	h.ownersMu.Unlock()
	return nil
}

func (h *handle) Fsync(_ *vnode.Req, dataOnly bool) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return fault.FromOS("fsync", "", fsync(h.fd, dataOnly))
}

func fsync(fd int, dataOnly bool) error {
	return again(func() error {
		if dataOnly {
			return unix.Fdatasync(fd)
		}
		return unix.Fsync(fd)
	})
}

// Release closes the file and ends what was locked through it alone.
func (h *handle) Release(*vnode.Req) {
	h.mu.Lock()
	fd := h.fd
	h.fd = -1
	h.mu.Unlock()
	if fd < 0 {
		return
	}
	unix.Close(fd)
	h.ownersMu.Lock()
	owners := h.owners
	h.owners = nil
	h.ownersMu.Unlock()
	for o := range owners {
		h.node.locks.drop(o)
	}
	h.node.fs.dropHandle(h.uid)
	h.node.release()
}
