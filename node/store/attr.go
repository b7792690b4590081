package store

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

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
