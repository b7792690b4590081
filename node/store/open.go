package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// Version is the format that this program writes. A store with a higher one is
// refused, a lower one is served.
const Version = 1

const formatWord = "cortexfs-store"

// dirs of a store, with their modes: the users walk through durable/ with their
// own ids (from a descriptor of ours), everything else is the daemon's.
var dirs = []struct {
	name string
	mode uint32
}{
	{"tmp", 0o700}, {"object", 0o700}, {"state", 0o700},
	{"durable", 0o755}, {"durable/home", 0o755}, {"durable/shared", 0o755},
}

// foreign are the file systems on which flock, inotify or rename lie
// (statfs(2) magic numbers).
var foreign = map[int64]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB2",
	unix.V9FS_MAGIC: "9p", unix.FUSE_SUPER_MAGIC: "FUSE", unix.CEPH_SUPER_MAGIC: "Ceph",
	unix.AFS_SUPER_MAGIC: "AFS", 0x6B414653: "AFS", unix.CODA_SUPER_MAGIC: "Coda", 0x0BD00BD0: "Lustre",
	0x786F4256: "vboxsf",
}

// Open opens the store at path, which must be a 0700 directory of this process's
// user on a local file system that no other daemon serves. An empty directory
// becomes a store. What a crash left half done is swept away.
//
// Errors: Perm (mode or owner, with the command that repairs it), NotSupported
// (file system), Busy (another daemon, named), Invalid (no store, or a newer
// one), and those of the system.
func Open(path string, o Options) (*Store, error) {
	s, err := open(path, o)
	if err != nil {
		return nil, fault.At("open store", path, err)
	}
	return s, nil
}

func open(path string, o Options) (_ *Store, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if o.Create && !o.ReadOnly {
		if err := unix.Mkdir(abs, 0o700); err != nil && err != unix.EEXIST {
			return nil, fault.FromOS("", "", err)
		}
	}
	root, err := unix.Open(abs, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.FromOS("", "", err)
	}
	defer unix.Close(root)
	if err := checkRoot(root, abs); err != nil {
		return nil, err
	}
	s := &Store{
		path: abs, readOnly: o.ReadOnly, log: o.Log, lock: -1, reserve: &reserve{fd: -1},
		objects: map[string]*Object{}, files: map[string]fileGen{},
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err := checkFormat(root); err != nil {
		return nil, err
	}
	if !o.ReadOnly {
		if err := s.takeLock(root, o.Mountpoint); err != nil {
			return nil, err
		}
		if err := makeLayout(root); err != nil {
			return nil, err
		}
	}
	if err := s.openDirs(root); err != nil {
		return nil, err
	}
	if !o.ReadOnly {
		s.sweep()
		s.reserve.open(root, s.say)
		s.fillSpare()
	}
	return s, nil
}

// checkRoot refuses a directory that others can enter, that is not ours, or that
// lies on a file system we cannot trust.
func checkRoot(fd int, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault.FromOS("", "", err)
	}
	if me := uint32(os.Geteuid()); st.Uid != me {
		return fault.Newf(fault.Perm, "belongs to uid %d and not to %d; repair: chown %d %s", st.Uid, me, me, quote(path))
	}
	if st.Mode&0o777 != 0o700 {
		return fault.Newf(fault.Perm, "has mode %04o, others could read or change it; repair: chmod 700 %s", st.Mode&0o7777, quote(path))
	}
	var fsys unix.Statfs_t
	if err := unix.Fstatfs(fd, &fsys); err != nil {
		return fault.FromOS("", "", err)
	}
	if name, bad := foreign[int64(fsys.Type)&0xffffffff]; bad {
		return fault.Newf(fault.NotSupported, "lies on %s, where locks and change notices cannot be trusted; use a local disk", name)
	}
	return nil
}

// quote makes a path safe to paste into a shell.
func quote(s string) string {
	if strings.IndexFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-+,@%:=", r) && !(r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// checkFormat accepts our format up to Version, and a directory without one only
// if nothing foreign is in it (a first Open may have been cut short).
func checkFormat(root int) error {
	text, _, err := readText(root, "format")
	switch {
	case err == nil:
	case fault.Is(err, fault.NotExist):
		return checkFresh(root)
	default:
		return err
	}
	word, num, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	version, err := strconv.Atoi(num)
	if word != formatWord || err != nil || version < 1 {
		return fault.Newf(fault.Invalid, "the file format does not read %q", formatWord+" "+strconv.Itoa(Version))
	}
	if version > Version {
		return fault.Newf(fault.Invalid, "has format %d, this program knows up to %d: use a newer cortexfs", version, Version)
	}
	return nil
}

func checkFresh(root int) error {
	list, err := beneath.ReadDir(root)
	if err != nil {
		return fault.FromOS("", "", err)
	}
	for _, d := range list {
		switch d.Name {
		case "lock", "reserve", "tmp", "object", "state", "durable", "lost+found":
		default:
			return fault.Newf(fault.Invalid, "is no store and not empty (%s is in it)", strconv.Quote(d.Name))
		}
	}
	return nil
}

// takeLock holds STORE/lock by flock(2) as long as the store is open. The file is
// 0600: a stranger who may open it could hold it too (notes-security X23).
func (s *Store) takeLock(root int, mountpoint string) error {
	fd, err := beneath.Open(root, "lock", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return fault.FromOS("", "lock", err)
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	for tries := 0; err == unix.EWOULDBLOCK && tries < 30; tries++ {
		// A child that a killed daemon was just starting has the file open until
		// its execve.
		time.Sleep(10 * time.Millisecond)
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		defer unix.Close(fd)
		if err != unix.EWOULDBLOCK {
			return fault.FromOS("", "lock", err)
		}
		return fault.Newf(fault.Busy, "is served by another daemon: %s", readHolder(fd))
	}
	s.lock = fd
	text := fmt.Sprintf("pid %d\nmount %s\n", os.Getpid(), strconv.Quote(mountpoint))
	if err := unix.Ftruncate(fd, 0); err != nil {
		return fault.FromOS("", "lock", err)
	}
	// On a full disk the lock still holds; only the message will be poorer.
	if _, err := unix.Pwrite(fd, []byte(text), 0); err != nil {
		s.say("store lock: %v", err)
	}
	return nil
}

// readHolder is "pid 12, mounted at /ctx" as the lock file tells it.
func readHolder(fd int) string {
	buf := make([]byte, 4096)
	n, _ := unix.Pread(fd, buf, 0)
	pid, mount := "unknown", ""
	for line := range strings.SplitSeq(string(buf[:max(n, 0)]), "\n") {
		if v, ok := strings.CutPrefix(line, "pid "); ok {
			if _, err := strconv.Atoi(v); err == nil {
				pid = v
			}
		}
		if v, ok := strings.CutPrefix(line, "mount "); ok {
			mount, _ = strconv.Unquote(v)
		}
	}
	if mount == "" {
		return "pid " + pid
	}
	return fmt.Sprintf("pid %s, mounted at %q", pid, mount)
}

// makeLayout makes what is missing; format comes last, when the rest is durable.
func makeLayout(root int) error {
	for _, d := range dirs {
		err := unix.Mkdirat(root, d.name, d.mode)
		if err == nil || err == unix.EEXIST {
			// Not what the umask, or a backup restored, left of it.
			err = chmodDir(root, d.name, d.mode)
		}
		if err != nil {
			return fault.FromOS("", d.name, err)
		}
	}
	if unix.Fstatat(root, "format", new(unix.Stat_t), unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil
	}
	if err := fsync(root); err != nil {
		return fault.FromOS("", "", err)
	}
	_ = unix.Unlinkat(root, "tmp/format", 0)
	if err := writeNew(root, "tmp/format", fmt.Appendf(nil, "%s %d\n", formatWord, Version)); err != nil {
		return fault.FromOS("", "format", err)
	}
	if err := unix.Renameat(root, "tmp/format", root, "format"); err != nil {
		return fault.FromOS("", "format", err)
	}
	return fault.FromOS("", "", fsync(root))
}

func chmodDir(root int, name string, mode uint32) error {
	fd, err := beneath.Open(root, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o777 == mode {
		return err
	}
	return unix.Fchmod(fd, mode)
}

func (s *Store) openDirs(root int) error {
	for _, d := range []struct {
		name string
		to   **os.File
		how  int
	}{
		{"object", &s.object, unix.O_PATH}, {"durable", &s.durable, unix.O_PATH},
		{"state", &s.state, unix.O_PATH}, {"tmp", &s.tmp, unix.O_RDONLY},
	} {
		fd, err := beneath.Open(root, d.name, d.how|unix.O_DIRECTORY, 0)
		if err != nil {
			return fault.FromOS("", d.name, err)
		}
		*d.to = os.NewFile(uintptr(fd), filepath.Join(s.path, d.name))
	}
	return nil
}

// sweep empties tmp/: whatever is there was never in force, or is no more.
func (s *Store) sweep() {
	list, err := beneath.ReadDir(s.tmpFD())
	if err != nil {
		s.say("store: sweeping tmp/: %v", err)
	}
	for _, d := range list {
		s.dropTemp(d.Name)
	}
}

// Close releases lock and descriptors. Objects stay readable, their changes fail.
func (s *Store) Close() error {
	s.mu.Lock()
	closed, w := s.closed, s.watch
	s.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	if w != nil {
		w.stop()
	}
	if spare := s.takeSpare(); spare != "" {
		s.dropTemp(spare)
	}
	for _, f := range []*os.File{s.object, s.durable, s.state, s.tmp} {
		if f != nil {
			f.Close()
		}
	}
	s.reserve.close()
	if s.lock >= 0 {
		unix.Close(s.lock)
	}
	return nil
}
