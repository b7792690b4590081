package store

import (
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// stamp tells whether a file may have changed since it was read. The change time
// is in it, so that a new text of the same length within one mtime tick counts.
// Of a directory only the inode counts: its times move with its entries.
type stamp struct {
	ino          uint64
	size         int64
	mtime, ctime int64
}

func stampOf(st *unix.Stat_t) stamp {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return stamp{ino: st.Ino}
	}
	return stamp{st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
}

// settled is the stamp to remember with a text that was just read or written. A
// clock tick may hide a change that follows at once, so the stamp of a file this
// young never matches and it is read once more.
func settled(st *unix.Stat_t) stamp {
	now := stampOf(st)
	if d := time.Now().UnixNano() - now.ctime; d < int64(20*time.Millisecond) {
		now.ctime = -1
	}
	return now
}

// stamps are few and kept by the thousand, so no map.
type stamps []namedStamp

type namedStamp struct {
	name string
	stamp
}

func (s stamps) at(name string) int {
	return slices.IndexFunc(s, func(n namedStamp) bool { return n.name == name })
}

// equal says whether name is there with this stamp.
func (s stamps) equal(name string, want stamp) bool {
	i := s.at(name)
	return i >= 0 && s[i].stamp == want
}

func (s *stamps) set(name string, to stamp) {
	if i := s.at(name); i >= 0 {
		(*s)[i].stamp = to
	} else {
		*s = append(*s, namedStamp{name, to})
	}
}

func (s *stamps) drop(name string) {
	if i := s.at(name); i >= 0 {
		*s = slices.Delete(*s, i, i+1)
	}
}

func modTime(st *unix.Stat_t) time.Time { return time.Unix(st.Mtim.Unix()) }

func fsync(fd int) error {
	for {
		if err := unix.Fsync(fd); err != unix.EINTR {
			return err
		}
	}
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := unix.Write(fd, p)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func pread(fd int, p []byte, off int64) (int, error) {
	total := 0
	for total < len(p) {
		n, err := unix.Pread(fd, p[total:], off+int64(total))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return total, err
		}
		if n == 0 {
			break
		}
		total += n
	}
	return total, nil
}

// regular opens name for reading if it is a regular file and never waits: what it
// is, is asked before the open (opening a device acts) and after it (it may have
// been exchanged; O_NONBLOCK keeps a FIFO from blocking).
func regular(dirfd int, name string) (int, unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, st, fault.FromOS("read", name, err)
	}
	if err := notRegular(&st); err != nil {
		return -1, st, fault.At("read", name, err)
	}
	fd, err := beneath.Open(dirfd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, st, fault.FromOS("read", name, err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, fault.FromOS("read", name, err)
	}
	if err := notRegular(&st); err != nil {
		unix.Close(fd)
		return -1, st, fault.At("read", name, err)
	}
	return fd, st, nil
}

func notRegular(st *unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFLNK:
		return fault.Newf(fault.Loop, "is a symlink in the store")
	case unix.S_IFDIR:
		return fault.Newf(fault.IsDir, "is a directory in the store")
	}
	return fault.Newf(fault.Invalid, "is no regular file in the store")
}

// readText reads a control text: a regular file of at most node.MaxText bytes.
func readText(dirfd int, name string) ([]byte, unix.Stat_t, error) {
	fd, st, err := regular(dirfd, name)
	if err != nil {
		return nil, st, err
	}
	defer unix.Close(fd)
	if st.Size > node.MaxText {
		return nil, st, fault.E("read", name, fault.TooBig, nil)
	}
	buf := make([]byte, st.Size+1)
	n, err := pread(fd, buf, 0)
	for err == nil && n == len(buf) && n <= node.MaxText { // it grew meanwhile
		more := make([]byte, node.MaxText+1)
		copy(more, buf)
		var m int
		m, err = pread(fd, more[n:], int64(n))
		buf, n = more, n+m
	}
	switch {
	case err != nil:
		return nil, st, fault.FromOS("read", name, err)
	case n > node.MaxText:
		return nil, st, fault.E("read", name, fault.TooBig, nil)
	}
	return buf[:n:n], st, nil
}

func (s *Store) tmpFD() int { return int(s.tmp.Fd()) }

// tempName is a name for tmp/ that nobody else uses while the lock is held.
func (s *Store) tempName() string {
	return strconv.FormatUint(s.serial.Add(1), 36)
}

// dropTemp removes what is under name in tmp/, a file or a whole directory. It
// does so from descriptors: what lies there was once a user's to name.
func (s *Store) dropTemp(name string) {
	if err := removeAll(s.tmpFD(), name); err != nil && err != unix.ENOENT {
		s.say("store: cannot remove tmp/%s: %v", name, err)
	}
}

func removeAll(dirfd int, name string) error {
	err := unix.Unlinkat(dirfd, name, 0)
	if err != unix.EISDIR && err != unix.EPERM {
		return err
	}
	fd, err := beneath.Open(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	list, err := beneath.ReadDir(fd)
	if err != nil {
		return err
	}
	for _, d := range list {
		if err := removeAll(fd, d.Name); err != nil {
			return err
		}
	}
	return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
}

// createTemp makes a file in tmp/. spare allows the inode kept for a disk that
// has none free.
func (s *Store) createTemp(spare bool) (fd int, name string, err error) {
	name = s.tempName()
	fd, err = beneath.Open(s.tmpFD(), name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != unix.ENOSPC || !spare {
		return fd, name, err
	}
	kept := s.takeSpare()
	if kept == "" {
		return -1, "", err
	}
	fd, err = beneath.Open(s.tmpFD(), kept, unix.O_RDWR, 0)
	return fd, kept, err
}

func (s *Store) takeSpare() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.spare
	s.spare = ""
	return name
}

// fillSpare makes the spare inode where it is missing and the disk has one.
func (s *Store) fillSpare() {
	s.mu.Lock()
	have := s.spare != "" || s.closed
	s.mu.Unlock()
	if have {
		return
	}
	fd, name, err := s.createTemp(false)
	if err != nil {
		return
	}
	unix.Close(fd)
	s.mu.Lock()
	if s.spare == "" && !s.closed {
		s.spare, name = name, ""
	}
	s.mu.Unlock()
	if name != "" {
		s.dropTemp(name)
	}
}

// install renames tmp/name onto base in dirfd, which is the directory of p.
func (s *Store) install(name string, dirfd int, base, p string) error {
	s.names.Lock()
	defer s.names.Unlock()
	if err := unix.Renameat(s.tmpFD(), name, dirfd, base); err != nil {
		return err
	}
	s.own(dirfd, p, base)
	return nil
}
