package store

import (
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
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

// side is the file that holds what a file of the daemon's cannot show itself: its
// owner in the tree. Inside a .d it lies beside the file, for a tool or model in
// its .d.
func side(p string) string {
	dir, base := path.Split(p)
	for part := range strings.SplitSeq(dir, "/") {
		if strings.HasSuffix(part, ".d") {
			return dir + ".attr." + base
		}
	}
	return p + ".d/.attr"
}

func defaultAttr(mode uint32) FileAttr {
	return FileAttr{uint32(os.Geteuid()), uint32(os.Getegid()), mode & 0o777}
}

// attr reads the side file, "UID GID" or "UID GID MODE" (octal, where the daemon
// itself could not read a file of that mode). None: the daemon's own.
func (s *Store) attr(p string, st *unix.Stat_t) (FileAttr, error) {
	a := defaultAttr(st.Mode)
	dirfd, base, err := s.split(side(p))
	if err == unix.ENOENT {
		return a, nil
	}
	if err != nil {
		return a, fault.FromOS("read attributes", p, err)
	}
	defer unix.Close(dirfd)
	text, _, err := readText(dirfd, base)
	if fault.Is(err, fault.NotExist) {
		return a, nil
	}
	if err != nil {
		return a, fault.At("read attributes", p, err)
	}
	f := strings.Fields(string(text))
	bad := len(f) != 2 && len(f) != 3
	for i, to := range []*uint32{&a.UID, &a.GID, new(uint32)} {
		if i >= len(f) || bad {
			break
		}
		base := 10
		if i == 2 {
			base = 8
		}
		n, err := strconv.ParseUint(f[i], base, 32)
		bad = bad || err != nil
		*to = uint32(n)
		if i == 2 && storeMode(uint32(n)) == st.Mode&0o777 { // not chmod'ed since
			a.Mode = uint32(n) & 0o777
		}
	}
	if bad {
		return a, fault.E("read attributes", p, fault.IO, fmt.Errorf("%s does not read UID GID", side(p)))
	}
	return a, nil
}

// storeMode is the mode of the store's file for a mode in the tree: a daemon that
// is no root must be able to read it.
func storeMode(mode uint32) uint32 { return mode&0o777 | 0o400 }

// setSide writes or removes the side file. With s.exec held.
func (s *Store) setSide(p string, a FileAttr) error {
	sp := side(p)
	plain := a == defaultAttr(a.Mode) && storeMode(a.Mode) == a.Mode
	if !plain {
		if err := s.MkdirAll(path.Dir(sp)); err != nil {
			return err
		}
	}
	dirfd, base, err := s.split(sp)
	if err == unix.ENOENT && plain {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dirfd)
	if plain {
		return s.unlink(dirfd, base, sp)
	}
	text := fmt.Sprintf("%d %d\n", a.UID, a.GID)
	if storeMode(a.Mode) != a.Mode {
		text = fmt.Sprintf("%d %d %o\n", a.UID, a.GID, a.Mode)
	}
	fd, temp, err := s.createTemp(false)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err = writeAll(fd, []byte(text)); err == nil {
		if err = fsync(fd); err == nil {
			err = s.install(temp, dirfd, base, sp)
		}
	}
	if err != nil {
		s.dropTemp(temp)
		return err
	}
	return fsync(dirfd)
}

// unlink removes base, the last part of p; none there is no error.
func (s *Store) unlink(dirfd int, base, p string) error {
	s.names.Lock()
	err := unix.Unlinkat(dirfd, base, 0)
	if err == nil {
		s.own(dirfd, p, base)
	}
	s.names.Unlock()
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return err
	}
	return fsync(dirfd)
}

// SetAttr changes what the tree shows of p; the bytes and Gen stay.
func (s *Store) SetAttr(p string, a FileAttr) error {
	const op = "set attributes"
	if err := s.writable(op, p); err != nil {
		return err
	}
	a.Mode &= 0o777
	s.exec.Lock()
	defer s.exec.Unlock()
	dirfd, base, err := s.split(p)
	if err != nil {
		return fault.FromOS(op, p, err)
	}
	defer unix.Close(dirfd)
	fd, st, err := regular(dirfd, base)
	if err != nil {
		return fault.At(op, p, err)
	}
	defer unix.Close(fd)
	if _, err := s.info(p, &st); err != nil {
		s.say("%v; written anew", err)
	}
	if err := s.setSide(p, a); err != nil {
		return fault.At(op, p, err)
	}
	if err := unix.Fchmod(fd, storeMode(a.Mode)); err != nil {
		return fault.FromOS(op, p, err)
	}
	s.keepGen(fd, p, stampOf(&st))
	s.names.Lock()
	s.own(dirfd, p, base)
	s.names.Unlock()
	return fault.FromOS(op, p, fsync(fd))
}

// keepGen carries the generation of p's bytes over a change of its stamp that was
// ours. With s.exec held.
func (s *Store) keepGen(fd int, p string, was stamp) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, known := s.files[p]; known && g.stamp == was {
		s.files[p] = fileGen{stampOf(&st), g.gen}
	}
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

// dropSide removes the attributes of a file that is no more. With s.exec held.
func (s *Store) dropSide(p string) {
	dirfd, base, err := s.split(side(p))
	if err == nil {
		err = s.unlink(dirfd, base, side(p))
		unix.Close(dirfd)
	}
	if err != nil && err != unix.ENOENT {
		s.say("store: attributes of %s are left: %v", p, err)
	}
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
