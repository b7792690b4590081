package store

import (
	"io/fs"
	"os"
	"time"

	"cortexfs/node/fault"
)

var errLater = fault.Newf(fault.Unavailable, "not there yet")

// Options of Open.
type Options struct {
	// Mountpoint is recorded in the lock file, for the message that a second daemon gets.
	Mountpoint string
	// Create makes the directory itself (0700) when it is missing; its parent must exist.
	Create bool
	// ReadOnly takes no lock and changes nothing: for helpers beside a running daemon.
	ReadOnly bool
	// Log hears what an administrator should know (one line, no newline); may be nil.
	Log func(msg string)
}

// Store is an open store.
type Store struct{}

// Entry is one name of a directory below object/.
type Entry struct {
	Name string
	Type fs.FileMode // type bits only: 0 regular, fs.ModeDir, fs.ModeSymlink, ...
}

// Open opens the store at path.
func Open(path string, o Options) (*Store, error) { return nil, errLater }

// Close releases lock and descriptors.
func (s *Store) Close() error { return nil }

// Path is the absolute path given to Open.
func (s *Store) Path() string { return "" }

// Gen is the newest generation given out.
func (s *Store) Gen() uint64 { return 0 }

// DurableRoot is STORE/durable as an O_PATH descriptor; it belongs to the store.
func (s *Store) DurableRoot() *os.File { return nil }

// ObjectRoot is STORE/object as an O_PATH descriptor; it belongs to the store.
func (s *Store) ObjectRoot() *os.File { return nil }

// StateRoot is STORE/state (0700) as an O_PATH descriptor; it belongs to the store.
func (s *Store) StateRoot() *os.File { return nil }

// Object is the mirror of one directory, e.g. "agent/coder.d"; NotExist. The same directory is the same *Object until it is removed.
func (s *Store) Object(dir string) (*Object, error) { return nil, errLater }

// Create makes the directory with these texts in one step; Exist. Missing parents are made.
func (s *Store) Create(dir string, texts map[string][]byte) (*Object, error) { return nil, errLater }

// MkdirAll makes a directory below object/ (a tier such as "home/1000/agent") and its parents.
func (s *Store) MkdirAll(dir string) error { return errLater }

// Remove removes a directory below object/ with all that is in it, in one step; NotExist.
func (s *Store) Remove(dir string) error { return errLater }

// List lists a directory below object/, sorted by name; NotExist.
func (s *Store) List(dir string) ([]Entry, error) { return nil, errLater }

// Symlink makes or replaces a symlink (model aliases) below object/.
func (s *Store) Symlink(path, target string) error { return errLater }

// Readlink reads a symlink below object/.
func (s *Store) Readlink(path string) (string, error) { return "", errLater }

// Watch calls fn(dir) after something below object/dir was changed by somebody else and the new state is published. One watcher per store.
func (s *Store) Watch(fn func(dir string)) error { return errLater }

// Reload re-reads everything now; returns after all watch calls have returned.
func (s *Store) Reload() error { return errLater }

// Value is one text. Err is set, and Text nil, where the store holds something under the name that is no readable text.
type Value struct {
	Text []byte // never changed
	Gen  uint64
	Mod  time.Time
	Err  error
}

// Snapshot is the state of an object at one generation. Immutable. exec and hooks/ and names that begin with a dot are not in Values.
type Snapshot struct {
	Gen    uint64
	Values map[string]Value
}

// Object is the mirror of one directory.
type Object struct{}

// Snapshot is the newest published state, never nil; empty after Remove.
func (o *Object) Snapshot() *Snapshot { return nil }

// Dir is the directory below object/.
func (o *Object) Dir() string { return "" }

// Gone says whether the directory was removed. A Put then is Stale.
func (o *Object) Gone() bool { return false }

// Put makes text durable under name and publishes it.
func (o *Object) Put(name string, text []byte) error { return errLater }

// PutIf is Put if the present value has generation gen (0: there is none); else Again.
func (o *Object) PutIf(name string, text []byte, gen uint64) error { return errLater }

// Delete removes name; no error when absent.
func (o *Object) Delete(name string) error { return errLater }

// DeleteIf is Delete if the present value has generation gen; else Again.
func (o *Object) DeleteIf(name string, gen uint64) error { return errLater }

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
	Gen  uint64 // changes when the bytes are others
	Attr FileAttr
}

// File is an open executable: the bytes of one inode. Close it.
type File struct{}

// ReadAt is io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return 0, errLater }

// Info is the state at OpenFile.
func (f *File) Info() FileInfo { return FileInfo{} }

// Close gives the descriptor back.
func (f *File) Close() error { return nil }

// StatFile is the Info of OpenFile without opening. NotExist; Loop, IsDir, ... where it is no regular file.
func (s *Store) StatFile(path string) (FileInfo, error) { return FileInfo{}, errLater }

// OpenFile opens an executable below object/, e.g. "tool/fs.read", "agent/coder.d/exec", "agent/coder.d/hooks/pre.d/10-check".
func (s *Store) OpenFile(path string) (*File, error) { return nil, errLater }

// Draft is a new executable that is not in force yet. Not for concurrent use.
type Draft struct{}

// NewFile starts a draft for a file in dir (which must exist).
func (s *Store) NewFile(dir string) (*Draft, error) { return nil, errLater }

// WriteAt is io.WriterAt; TooBig beyond 64 MiB.
func (d *Draft) WriteAt(p []byte, off int64) (int, error) { return 0, errLater }

// ReadAt is io.ReaderAt.
func (d *Draft) ReadAt(p []byte, off int64) (int, error) { return 0, errLater }

// Truncate sets the size.
func (d *Draft) Truncate(size int64) error { return errLater }

// Size in bytes.
func (d *Draft) Size() int64 { return 0 }

// Commit puts the draft in force at path (replacing what is there) and returns the file, opened. The draft is used up, also on error.
func (d *Draft) Commit(path string, a FileAttr) (*File, error) { return nil, errLater }

// Discard throws the draft away; after Commit it does nothing.
func (d *Draft) Discard() {}

// SetAttr changes what the tree shows of path; the bytes and Gen stay.
func (s *Store) SetAttr(path string, a FileAttr) error { return errLater }

// RemoveFile removes an executable (not its .d).
func (s *Store) RemoveFile(path string) error { return errLater }

// RenameFile moves an executable with its attributes, replacing new.
func (s *Store) RenameFile(oldPath, newPath string) error { return errLater }
