package store

import (
	"sync"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// The reserve: space taken from the disk beforehand, so that a revocation (a text
// of at most 64 KiB) commits when others have filled it (spec section 4.4). It is
// given up in slices and taken back as soon as the disk has room.
const (
	reserveSize  = 16 << 20
	reserveSlice = 256 << 10
)

type reserve struct {
	mu   sync.Mutex
	fd   int   // -1: none
	size int64 // now held
	want int64
}

// open takes the space: 16 MiB, but not more than a quarter of what is free, so
// that a small disk is not filled by its own reserve.
func (r *reserve) open(root int, say func(string, ...any)) {
	fd, err := beneath.Open(root, "reserve", unix.O_RDWR|unix.O_CREAT|unix.O_NONBLOCK, 0o600)
	var st unix.Stat_t
	var fsys unix.Statfs_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil {
		err = unix.Fstatfs(fd, &fsys)
	}
	if err != nil || notRegular(&st) != nil {
		say("store: no reserve for a full disk: %v", err)
		if fd >= 0 {
			unix.Close(fd)
		}
		return
	}
	held := st.Blocks * 512
	free := int64(fsys.Bavail)*fsys.Bsize + held
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fd = fd
	r.size = min(st.Size, held) / reserveSlice * reserveSlice
	r.want = min(reserveSize, free/4/reserveSlice*reserveSlice)
	if r.size > r.want || r.size != st.Size {
		r.size = min(r.size, r.want)
		_ = unix.Ftruncate(fd, r.size)
	}
	r.grow()
	if r.size < reserveSize {
		say("store: the reserve for a full disk has %d KiB of %d", r.size>>10, reserveSize>>10)
	}
}

// grow takes back what is missing, slice by slice. With mu held.
func (r *reserve) grow() {
	if r.fd < 0 || r.size >= r.want {
		return
	}
	if unix.Fallocate(r.fd, 0, r.size, r.want-r.size) == nil {
		r.size = r.want
		return
	}
	for r.size < r.want && unix.Fallocate(r.fd, 0, r.size, reserveSlice) == nil {
		r.size += reserveSlice
	}
	_ = unix.Ftruncate(r.fd, r.size) // a slice that failed half-way
}

// shrink gives one slice back to the disk; false when nothing is left.
func (r *reserve) shrink() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd < 0 || r.size == 0 {
		return false
	}
	r.size -= reserveSlice
	if unix.Ftruncate(r.fd, r.size) != nil {
		return false
	}
	// A journalling file system hands the blocks out after its next commit only.
	return fsync(r.fd) == nil
}

func (r *reserve) refill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.grow()
}

func (r *reserve) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fd >= 0 {
		unix.Close(r.fd)
		r.fd = -1
	}
}

// run tries fn, and while the disk is full again with one slice less in reserve.
func (r *reserve) run(fn func() error) error {
	err := fn()
	for isFull(err) && r.shrink() {
		err = fn()
	}
	if err == nil {
		r.refill()
	}
	return err
}

func isFull(err error) bool {
	return err == unix.ENOSPC || err == unix.EDQUOT || fault.Is(err, fault.NoSpace)
}
