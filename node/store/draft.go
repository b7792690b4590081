package store

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// Draft is a new executable that is not in force yet: a file in tmp/. Reads and
// writes may be concurrent; Commit and Discard come last, once.
type Draft struct {
	store *Store
	f     *os.File // nil when used up
	name  string   // in tmp/
}

// NewFile starts a draft of a file for dir, which must exist. The caller must end
// it with Commit or Discard.
func (s *Store) NewFile(dir string) (*Draft, error) {
	const op = "new file"
	if err := s.writable(op, dir); err != nil {
		return nil, err
	}
	dirfd, err := s.openDir(dir)
	if err != nil {
		return nil, fault.FromOS(op, dir, err)
	}
	unix.Close(dirfd)
	fd, name, err := s.createTemp(false)
	if err != nil {
		return nil, fault.FromOS(op, dir, err)
	}
	return &Draft{store: s, f: os.NewFile(uintptr(fd), name), name: name}, nil
}

// WriteAt is io.WriterAt; TooBig beyond MaxFile.
func (d *Draft) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 || off > MaxFile || off+int64(len(p)) > MaxFile {
		return 0, fault.E("write", "", fault.TooBig, nil)
	}
	n, err := d.f.WriteAt(p, off)
	return n, fault.FromOS("write", "", err)
}

// ReadAt is io.ReaderAt.
func (d *Draft) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.f.ReadAt(p, off)
	if err == io.EOF {
		return n, err
	}
	return n, fault.FromOS("read", "", err)
}

// Truncate sets the size; TooBig beyond MaxFile.
func (d *Draft) Truncate(size int64) error {
	if size > MaxFile {
		return fault.E("truncate", "", fault.TooBig, nil)
	}
	return fault.FromOS("truncate", "", d.f.Truncate(size))
}

// Size in bytes.
func (d *Draft) Size() int64 {
	st, err := d.f.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}

// Commit makes the draft durable and puts it in force at p, replacing what is
// there, and returns the new file, opened. The draft is used up, also on error:
// then what was at p stays.
func (d *Draft) Commit(p string, a FileAttr) (*File, error) {
	const op = "commit"
	if d.f == nil {
		return nil, fault.E(op, p, fault.BadHandle, nil)
	}
	defer d.Discard()
	s, fd := d.store, int(d.f.Fd())
	a.Mode &= 0o777
	if err := unix.Fchmod(fd, storeMode(a.Mode)); err != nil {
		return nil, fault.FromOS(op, p, err)
	}
	if err := fsync(fd); err != nil {
		return nil, fault.FromOS(op, p, err)
	}
	s.exec.Lock()
	defer s.exec.Unlock()
	dirfd, base, err := s.split(p)
	if err != nil {
		return nil, fault.FromOS(op, p, err)
	}
	defer unix.Close(dirfd)
	if err := s.setSide(p, a); err != nil {
		return nil, fault.FromOS(op, p, err)
	}
	// Opened before the rename, so that nothing can fail after it.
	ro, err := beneath.Reopen(fd, unix.O_RDONLY)
	if err != nil {
		return nil, fault.FromOS(op, p, err)
	}
	f := os.NewFile(uintptr(ro), p)
	if err := s.install(d.name, dirfd, base, p); err != nil {
		f.Close()
		return nil, fault.FromOS(op, p, err)
	}
	d.name = ""
	var st unix.Stat_t
	err = unix.Fstat(ro, &st)
	if err == nil {
		err = fsync(dirfd)
	}
	info, infoErr := s.info(p, &st)
	if err == nil {
		err = infoErr
	}
	if err != nil {
		f.Close()
		return nil, fault.FromOS(op, p, err)
	}
	return &File{f: f, info: info}, nil
}

// Discard throws the draft away; after Commit it does nothing.
func (d *Draft) Discard() {
	if d.f == nil {
		return
	}
	d.f.Close()
	d.f = nil
	if d.name != "" {
		d.store.dropTemp(d.name)
	}
}
