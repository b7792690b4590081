package store

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// Create makes the directory with these texts in one step; Exist. Missing
// parents are made. After a crash the object is there whole or not at all.
func (s *Store) Create(dir string, texts map[string][]byte) (*Object, error) {
	const op = "create object"
	if err := s.writable(op, dir); err != nil {
		return nil, err
	}
	if parent := path.Dir(dir); parent != "." {
		if err := s.MkdirAll(parent); err != nil {
			return nil, err
		}
	}
	parent, base, err := s.split(dir)
	if err != nil {
		return nil, fault.FromOS(op, dir, err)
	}
	defer unix.Close(parent)
	name := s.tempName()
	if err := s.buildDir(name, texts); err != nil {
		s.dropTemp(name)
		return nil, fault.FromOS(op, dir, err)
	}
	s.names.Lock()
	err = unix.Renameat2(s.tmpFD(), name, parent, base, unix.RENAME_NOREPLACE)
	if err == nil {
		s.own(parent, dir, base)
	}
	s.names.Unlock()
	if err != nil {
		s.dropTemp(name)
		return nil, fault.FromOS(op, dir, err)
	}
	if err := fsync(parent); err != nil {
		return nil, fault.FromOS(op, dir, err)
	}
	return s.Object(dir)
}

// buildDir writes a directory in tmp/ and makes it durable.
func (s *Store) buildDir(name string, texts map[string][]byte) error {
	if err := unix.Mkdirat(s.tmpFD(), name, 0o700); err != nil {
		return err
	}
	fd, err := beneath.Open(s.tmpFD(), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for file, text := range texts {
		if !beneath.Name(file) {
			return unix.EINVAL
		}
		if err := writeNew(fd, file, text); err != nil {
			return err
		}
	}
	return fsync(fd)
}

// writeNew makes a durable file that must not exist yet.
func writeNew(dirfd int, name string, text []byte) error {
	fd, err := beneath.Open(dirfd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := writeAll(fd, text); err != nil {
		return err
	}
	return fsync(fd)
}

// MkdirAll makes a directory below object/ (a tier such as "home/1000/agent")
// and its parents.
func (s *Store) MkdirAll(dir string) error {
	const op = "mkdir"
	if !beneath.Clean(dir) {
		return fault.E(op, dir, fault.Invalid, nil)
	}
	if fd, err := s.openDir(dir); err == nil {
		unix.Close(fd)
		return nil
	}
	if err := s.writable(op, dir); err != nil {
		return err
	}
	at := ""
	for part := range strings.SplitSeq(dir, "/") {
		at = path.Join(at, part)
		parent, base, err := s.split(at)
		if err != nil {
			return fault.FromOS(op, at, err)
		}
		s.names.Lock()
		err = unix.Mkdirat(parent, base, 0o700)
		if err == nil {
			s.own(parent, at, base)
		}
		s.names.Unlock()
		if err == nil {
			err = fsync(parent)
		} else if err == unix.EEXIST {
			err = nil
		}
		unix.Close(parent)
		if err != nil {
			return fault.FromOS(op, at, err)
		}
	}
	return nil
}

// Remove removes a directory below object/ with all that is in it, in one step;
// NotExist. Objects below it are Gone.
func (s *Store) Remove(dir string) error {
	const op = "remove object"
	if err := s.writable(op, dir); err != nil {
		return err
	}
	parent, base, err := s.split(dir)
	if err != nil {
		return fault.FromOS(op, dir, err)
	}
	defer unix.Close(parent)
	name := s.tempName()
	s.names.Lock()
	err = unix.Fstatat(parent, base, new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		err = unix.Renameat2(parent, base, s.tmpFD(), name, unix.RENAME_NOREPLACE)
	}
	var gone []*Object
	if err == nil {
		s.own(parent, dir, base)
		gone = s.forget(dir)
	}
	s.names.Unlock()
	if err != nil {
		return fault.FromOS(op, dir, err)
	}
	for _, o := range gone {
		o.setGone()
	}
	err = fsync(parent)
	s.dropTemp(name)
	return fault.FromOS(op, dir, err)
}

// forget takes the objects and files at and below dir out of the tables.
func (s *Store) forget(dir string) []*Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone []*Object
	for name, o := range s.objects {
		if name == dir || strings.HasPrefix(name, dir+"/") {
			delete(s.objects, name)
			gone = append(gone, o)
		}
	}
	for name := range s.files {
		if strings.HasPrefix(name, dir+"/") {
			delete(s.files, name)
		}
	}
	return gone
}

// Symlink makes or replaces a symlink (the alias of a model) below object/. The
// store itself never follows one.
func (s *Store) Symlink(p, target string) error {
	const op = "symlink"
	if err := s.writable(op, p); err != nil {
		return err
	}
	dirfd, base, err := s.split(p)
	if err != nil {
		return fault.FromOS(op, p, err)
	}
	defer unix.Close(dirfd)
	name := s.tempName()
	if err := unix.Symlinkat(target, s.tmpFD(), name); err != nil {
		return fault.FromOS(op, p, err)
	}
	if err := s.install(name, dirfd, base, p); err != nil {
		s.dropTemp(name)
		return fault.FromOS(op, p, err)
	}
	return fault.FromOS(op, p, fsync(dirfd))
}

// Readlink reads a symlink below object/. Invalid where there is something else.
func (s *Store) Readlink(p string) (string, error) {
	dirfd, base, err := s.split(p)
	if err != nil {
		return "", fault.FromOS("readlink", p, err)
	}
	defer unix.Close(dirfd)
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dirfd, base, buf)
	if err != nil {
		return "", fault.FromOS("readlink", p, err)
	}
	return string(buf[:n]), nil
}
