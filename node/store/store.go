package store

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// Options of Open.
type Options struct {
	// Mountpoint is recorded in the lock file, for the message that a second
	// daemon gets.
	Mountpoint string
	// Create makes the directory itself (0700) when it is missing; its parent
	// must exist.
	Create bool
	// ReadOnly takes no lock and changes nothing: for helpers beside a running
	// daemon. Every change is ReadOnly.
	ReadOnly bool
	// Log hears what an administrator should know (one line, no newline); may be
	// nil.
	Log func(msg string)
}

// Store is an open store. All methods may be called at the same time.
type Store struct {
	// Fixed after Open.
	path     string
	readOnly bool
	log      func(string)
	lock     int // descriptor of STORE/lock, -1 when ReadOnly
	object   *os.File
	durable  *os.File
	state    *os.File
	tmp      *os.File
	reserve  *reserve

	gen      atomic.Uint64
	counters counters
	serial   atomic.Uint64 // names in tmp/

	// names orders changes of directory entries against loading: written to for
	// one rename, read while a directory is read for the first time.
	names sync.RWMutex

	// exec is held while one executable is put in force, renamed or given other
	// attributes, over the fsync of its (small) attributes.
	exec sync.Mutex

	mu      sync.Mutex
	objects map[string]*Object
	files   map[string]fileGen
	spare   string // a ready inode in tmp/, for a disk without free ones
	watch   *watcher
	closed  bool
}

// Entry is one name of a directory below object/.
type Entry struct {
	Name string
	Type fs.FileMode // type bits only: 0 regular, fs.ModeDir, fs.ModeSymlink, ...
}

// Path is the absolute path of the store.
func (s *Store) Path() string { return s.path }

// Gen is the newest generation given out.
func (s *Store) Gen() uint64 { return s.gen.Load() }

// DurableRoot is STORE/durable as an O_PATH descriptor; it belongs to the store.
func (s *Store) DurableRoot() *os.File { return s.durable }

// ObjectRoot is STORE/object as an O_PATH descriptor; it belongs to the store.
func (s *Store) ObjectRoot() *os.File { return s.object }

// StateRoot is STORE/state (0700) as an O_PATH descriptor; it belongs to the
// store. What lies there is no part of the tree and its formats are its users'.
func (s *Store) StateRoot() *os.File { return s.state }

func (s *Store) say(format string, args ...any) {
	if s.log != nil {
		s.log(fmt.Sprintf(format, args...))
	}
}

// openDir opens a directory below object/ for reading and fsync.
func (s *Store) openDir(dir string) (int, error) {
	if dir == "" || dir == "." {
		return beneath.Reopen(int(s.object.Fd()), unix.O_RDONLY|unix.O_DIRECTORY)
	}
	if !beneath.Clean(dir) {
		return -1, unix.EINVAL
	}
	return beneath.Open(int(s.object.Fd()), dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// split opens the parent directory of p.
func (s *Store) split(p string) (dirfd int, base string, err error) {
	if !beneath.Clean(p) {
		return -1, "", unix.EINVAL
	}
	dir, base := path.Split(p)
	dirfd, err = s.openDir(strings.TrimSuffix(dir, "/"))
	return dirfd, base, err
}

func (s *Store) writable(op, p string) error {
	if s.readOnly {
		return fault.E(op, p, fault.ReadOnly, fmt.Errorf("the store was opened read-only"))
	}
	return nil
}

// Object is the mirror of one directory, e.g. "agent/coder.d", read at its first
// use and kept; NotExist. The same directory is the same *Object until it is
// removed.
func (s *Store) Object(dir string) (*Object, error) {
	s.mu.Lock()
	o := s.objects[dir]
	s.mu.Unlock()
	if o != nil {
		return o, nil
	}
	s.names.RLock()
	defer s.names.RUnlock()
	fd, err := s.openDir(dir)
	if err != nil {
		return nil, fault.FromOS("open object", dir, err)
	}
	defer unix.Close(fd)
	o = &Object{store: s, dir: dir}
	next, _, err := o.read(fd, &Snapshot{Gen: s.gen.Add(1), Values: map[string]Value{}})
	if err != nil {
		return nil, fault.FromOS("read object", dir, err)
	}
	o.snap.Store(next)
	s.mu.Lock()
	defer s.mu.Unlock()
	if first := s.objects[dir]; first != nil {
		return first, nil
	}
	s.objects[dir] = o
	return o, nil
}

// Ensure is Object, or Create without texts where there is none.
func (s *Store) Ensure(dir string) (*Object, error) {
	for tries := 0; ; tries++ {
		o, err := s.Object(dir)
		if !fault.Is(err, fault.NotExist) {
			return o, err
		}
		o, err = s.Create(dir, nil)
		lost := fault.Is(err, fault.Exist) || fault.Is(err, fault.NotExist) // a race with Create or Remove
		if !lost || tries == 100 {
			return o, err
		}
	}
}

// List lists a directory below object/, sorted by name; NotExist. Names that
// begin with a dot are the store's own and left out. It reads the disk: a caller
// that lists often keeps the answer.
func (s *Store) List(dir string) ([]Entry, error) {
	fd, err := s.openDir(dir)
	if err != nil {
		return nil, fault.FromOS("list", dir, err)
	}
	defer unix.Close(fd)
	names, err := beneath.ReadDir(fd)
	if err != nil {
		return nil, fault.FromOS("list", dir, err)
	}
	out := make([]Entry, 0, len(names))
	for _, d := range names {
		if d.Name[0] != '.' {
			out = append(out, Entry{Name: d.Name, Type: fileType(d.Type)})
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

func fileType(dt uint8) fs.FileMode {
	switch dt {
	case unix.DT_REG:
		return 0
	case unix.DT_DIR:
		return fs.ModeDir
	case unix.DT_LNK:
		return fs.ModeSymlink
	case unix.DT_SOCK:
		return fs.ModeSocket
	case unix.DT_FIFO:
		return fs.ModeNamedPipe
	}
	return fs.ModeIrregular
}
