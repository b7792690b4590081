package store

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// MaxFile is the largest executable, in bytes (spec section 5, exec).
const MaxFile = 64 << 20

// FileAttr is what the tree shows of an executable.
type FileAttr struct {
	UID, GID uint32
	Mode     uint32 // permission bits, 0777
}

// FileInfo describes an executable.
type FileInfo struct {
	Size int64
	Mod  time.Time
	Ino  uint64
	Gen  uint64 // another one as soon as the bytes are others
	Attr FileAttr
}

// fileGen is the generation that the bytes at a path have, as long as the stamp
// is this one.
type fileGen struct {
	stamp stamp
	gen   uint64
}

// File is an open executable: the bytes of one inode, which the store never
// changes (a new content is a new inode). ReadAt may be called at the same time.
type File struct {
	f    *os.File
	info FileInfo
}

// ReadAt is io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.f.ReadAt(p, off)
	if err == nil || err == io.EOF {
		return n, err
	}
	return n, fault.FromOS("read", f.f.Name(), err)
}

// Info is the state when the file was opened.
func (f *File) Info() FileInfo { return f.info }

// Close gives the descriptor back.
func (f *File) Close() error { return f.f.Close() }

// StatFile is the Info of OpenFile without opening. NotExist; Loop, IsDir or
// Invalid where it is no regular file.
func (s *Store) StatFile(p string) (FileInfo, error) {
	dirfd, base, err := s.split(p)
	if err != nil {
		return FileInfo{}, fault.FromOS("stat", p, err)
	}
	defer unix.Close(dirfd)
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return FileInfo{}, fault.FromOS("stat", p, err)
	}
	if err := notRegular(&st); err != nil {
		return FileInfo{}, fault.At("stat", p, err)
	}
	return s.info(p, &st)
}

// OpenFile opens an executable below object/, e.g. "tool/fs.read",
// "agent/coder.d/exec", "agent/coder.d/hooks/pre.d/10-check". Errors as StatFile.
func (s *Store) OpenFile(p string) (*File, error) {
	dirfd, base, err := s.split(p)
	if err != nil {
		return nil, fault.FromOS("open", p, err)
	}
	defer unix.Close(dirfd)
	fd, st, err := regular(dirfd, base)
	if err != nil {
		return nil, fault.At("open", p, err)
	}
	f := os.NewFile(uintptr(fd), p)
	info, err := s.info(p, &st)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &File{f: f, info: info}, nil
}

func (s *Store) info(p string, st *unix.Stat_t) (FileInfo, error) {
	a, err := s.attr(p, st)
	if err != nil {
		return FileInfo{}, err
	}
	now := stampOf(st)
	s.mu.Lock()
	g, known := s.files[p]
	if !known || g.stamp != now {
		g = fileGen{now, s.gen.Add(1)}
		s.files[p] = g
	}
	s.mu.Unlock()
	return FileInfo{Size: st.Size, Mod: modTime(st), Ino: st.Ino, Gen: g.gen, Attr: a}, nil
}

// RemoveFile removes an executable and its attributes, not its .d; NotExist.
func (s *Store) RemoveFile(p string) error {
	const op = "remove"
	if err := s.writable(op, p); err != nil {
		return err
	}
	s.exec.Lock()
	defer s.exec.Unlock()
	dirfd, base, err := s.split(p)
	if err != nil {
		return fault.FromOS(op, p, err)
	}
	defer unix.Close(dirfd)
	if err := unix.Fstatat(dirfd, base, new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fault.FromOS(op, p, err)
	}
	if err := s.unlink(dirfd, base, p); err != nil {
		return fault.FromOS(op, p, err)
	}
	s.mu.Lock()
	delete(s.files, p)
	s.mu.Unlock()
	s.dropSide(p)
	return nil
}

// RenameFile moves an executable with its attributes, replacing what is at
// newPath. The .d directories stay where they are.
func (s *Store) RenameFile(oldPath, newPath string) error {
	const op = "rename"
	if err := s.writable(op, oldPath); err != nil {
		return err
	}
	if oldPath == newPath {
		_, err := s.StatFile(oldPath)
		return err
	}
	s.exec.Lock()
	defer s.exec.Unlock()
	info, err := s.StatFile(oldPath)
	if err != nil {
		return err
	}
	from, oldBase, err := s.split(oldPath)
	if err != nil {
		return fault.FromOS(op, oldPath, err)
	}
	defer unix.Close(from)
	to, newBase, err := s.split(newPath)
	if err != nil {
		return fault.FromOS(op, newPath, err)
	}
	defer unix.Close(to)
	if err := s.setSide(newPath, info.Attr); err != nil {
		return fault.FromOS(op, newPath, err)
	}
	s.names.Lock()
	err = unix.Renameat(from, oldBase, to, newBase)
	if err == nil {
		s.own(from, oldPath, oldBase)
		s.own(to, newPath, newBase)
		s.moveGen(to, oldPath, newPath, newBase, info.Gen)
	}
	s.names.Unlock()
	if err != nil {
		return fault.FromOS(op, oldPath, err)
	}
	s.dropSide(oldPath)
	if err := fsync(to); err != nil {
		return fault.FromOS(op, newPath, err)
	}
	return fault.FromOS(op, oldPath, fsync(from))
}

func (s *Store) moveGen(dirfd int, oldPath, newPath, base string, gen uint64) {
	var st unix.Stat_t
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, oldPath)
	if unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		s.files[newPath] = fileGen{stampOf(&st), gen}
	}
}
