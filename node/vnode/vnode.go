// Package vnode is the border between the tree (node/tree, node/ordinary) and
// what serves it (fs, tests): small interfaces that a node or an open handle
// implements as far as it can. It knows nothing of FUSE.
//
// Ideas. A Node is a comparable value: the same file is the same value, so a
// server can key a table with it. A node implements only the operations it has;
// a server answers for the rest (Perm for a missing change operation,
// NotSupported for extended attributes). All errors are fault errors.
//
// Life of an open file: Opener.Open → Handle; then Reader, Writer, Flusher,
// Syncer as the kernel asks; Release exactly once, last.
package vnode

import (
	"context"
	"time"
)

// Req says who asks. The context ends when the caller gives up. UID and GID are
// the file-system ids of the request in the host's user namespace.
type Req struct {
	Ctx context.Context
	UID uint32
	GID uint32
	// TID is the requesting thread in the daemon's pid namespace, or 0. It is no
	// identity: use it only to look at /proc/<tid> while the request is pending,
	// and to match a SETATTR to the OPEN of the same thread.
	TID uint32
}

// Type of a node.
type Type uint8

// The types of nodes.
const (
	Regular Type = iota
	Directory
	Symlink
	Socket
	FIFO
)

// Attr is what stat shows.
type Attr struct {
	Type    Type
	Ino     uint64
	Size    uint64
	Blocks  uint64 // 512-byte units; 0: derived from Size by the server
	Mode    uint32 // permission bits with suid, sgid, sticky (07777)
	Nlink   uint32 // 0 means 1 (2 for a directory)
	UID     uint32
	GID     uint32
	Atime   time.Time
	Mtime   time.Time
	Ctime   time.Time
	Blksize uint32
	// Valid is how long the kernel may keep these attributes; 0 = not at all.
	Valid time.Duration
}

// Entry is the answer to a lookup. A nil Node with a positive Valid is a cached
// "no such name".
type Entry struct {
	Node  Node
	Valid time.Duration // how long the kernel may keep the name
}

// Node is a file, directory, symlink or socket. Nodes are comparable.
type Node interface {
	Attr(r *Req) (Attr, error)
}

// InMemory marks nodes and handles whose operations (Lookup, Attr, Open, Read,
// ReadDir, Readlink, Getxattr, Release) never wait for I/O or another process:
// a server may answer them inline. Flush, Fsync, Rename, Create and other
// changes may always wait.
type InMemory interface{ InMemory() }

// Refcounted nodes hold a resource (a descriptor). Each Entry that carries the
// node out of Lookup, Create, Mkdir, … holds one reference; the server calls
// Unref once for each.
type Refcounted interface{ Unref() }

// Lookuper finds a name in a directory. NotExist when absent.
type Lookuper interface {
	Lookup(r *Req, name string) (Entry, error)
}

// Dirent is one name of a listing, without "." and "..".
type Dirent struct {
	Name string
	Ino  uint64
	Type Type
}

// Lister lists a directory: one consistent snapshot, order as shown.
type Lister interface {
	ReadDir(r *Req) ([]Dirent, error)
}

// PrivateListing marks directories whose listing depends on who asks. The
// listing of every other InMemory directory is kept by the kernel, for all
// callers, until NodeChanged; its Mtime must change with its names.
type PrivateListing interface{ PrivateListing() }

// Readlinker reads a symlink.
type Readlinker interface {
	Readlink(r *Req) (string, error)
}

// OpenFlags are the open(2) flags as the kernel gave them (O_ACCMODE, O_APPEND,
// O_TRUNC if it is passed on; FUSE's FMODE_EXEC 0x20 for an execve).
type OpenFlags uint32

// FlagExec is set by the kernel when the open is for execve (notes-security X14).
const FlagExec OpenFlags = 0x20

// Write says whether the open is for writing.
func (f OpenFlags) Write() bool { return f&3 == 1 || f&3 == 2 }

// Read says whether the open is for reading.
func (f OpenFlags) Read() bool { return f&3 == 0 || f&3 == 2 }

// Mode is how the kernel is to treat an open handle.
type Mode struct {
	Direct    bool // direct I/O: every read and write comes to us
	KeepCache bool // cached pages of this node stay valid (immutable content)
	NoFlush   bool // no FLUSH wanted at close
}

// Opener opens a regular file.
type Opener interface {
	Open(r *Req, flags OpenFlags) (Handle, Mode, error)
}

// Handle is an open file. It implements what it can of Reader, Writer, Flusher,
// Syncer, Sizer, Poller.
type Handle interface {
	Release(r *Req)
}

// Reader reads at an offset; fewer bytes than asked for mean end of file.
type Reader interface {
	Read(r *Req, p []byte, off int64) (int, error)
}

// Writer writes at an offset.
type Writer interface {
	Write(r *Req, p []byte, off int64) (int, error)
}

// Flusher hears each close(2) of a descriptor of this handle; its error is
// close's. owner identifies the closing process's lock owner.
type Flusher interface {
	Flush(r *Req, owner uint64) error
}

// Syncer makes data durable; its error is fsync's.
type Syncer interface {
	Fsync(r *Req, dataOnly bool) error
}

// DirSyncer is fsync on a directory.
type DirSyncer interface {
	FsyncDir(r *Req) error
}

// Poller reports readiness and calls wake once when it may have changed.
type Poller interface {
	Poll(r *Req, wake func()) (readable bool, err error)
}

// Creator creates and opens a regular file.
type Creator interface {
	Create(r *Req, name string, flags OpenFlags, mode uint32) (Entry, Handle, Mode, error)
}

// Mkdirer makes a directory.
type Mkdirer interface {
	Mkdir(r *Req, name string, mode uint32) (Entry, error)
}

// Mknoder makes a regular file, socket or FIFO.
type Mknoder interface {
	Mknod(r *Req, name string, typ Type, mode uint32) (Entry, error)
}

// Symlinker makes a symlink.
type Symlinker interface {
	Symlink(r *Req, name, target string) (Entry, error)
}

// Linker makes name in the receiver a hard link to old.
type Linker interface {
	Link(r *Req, old Node, name string) (Entry, error)
}

// Remover removes a name: Unlink for all but directories, Rmdir for those.
type Remover interface {
	Unlink(r *Req, name string) error
	Rmdir(r *Req, name string) error
}

// Renamer moves oldName of the receiver to newName in newDir. CrossDevice where
// the two are of different kinds.
type Renamer interface {
	Rename(r *Req, oldName string, newDir Node, newName string) error
}

// SetAttr is a SETATTR request: nil fields stay.
type SetAttr struct {
	Size   *uint64
	Mode   *uint32
	UID    *uint32
	GID    *uint32
	Atime  *time.Time
	Mtime  *time.Time
	Handle Handle // the open handle that the kernel named, or nil
}

// Setattrer changes attributes and returns the new ones.
type Setattrer interface {
	Setattr(r *Req, s SetAttr) (Attr, error)
}

// Xattrer has extended attributes. Getxattr answers NoData for an unknown name.
type Xattrer interface {
	Getxattr(r *Req, name string) ([]byte, error)
	Listxattr(r *Req) ([]string, error)
}

// XattrSetter changes extended attributes; flags as in setxattr(2).
type XattrSetter interface {
	Setxattr(r *Req, name string, value []byte, flags uint32) error
	Removexattr(r *Req, name string) error
}

// Lock is a POSIX byte-range or BSD file lock request.
type Lock struct {
	Owner      uint64 // lock owner as the kernel names it
	Flock      bool   // BSD lock: the whole file
	Type       int16  // F_RDLCK, F_WRLCK, F_UNLCK
	Start, End uint64 // inclusive; End = 1<<63-1 for "to the end"
	PID        uint32
	Wait       bool // F_SETLKW: wait until r.Ctx ends
}

// Locker takes locks on an open handle. A conflicting lock without Wait is
// Again.
type Locker interface {
	SetLock(r *Req, l Lock) error
	// GetLock returns the first conflicting lock, or one of type F_UNLCK.
	GetLock(r *Req, l Lock) (Lock, error)
}

// Statfs is what statfs(2) shows.
type Statfs struct {
	Blocks, Bfree, Bavail uint64
	Files, Ffree          uint64
	Bsize, Frsize         uint32
	Namelen               uint32
}

// FS is a tree: its root and its numbers.
type FS interface {
	Root() Node
	Statfs(r *Req) (Statfs, error)
}

// Notifier is told by the tree what changed behind the kernel's back. The calls
// only queue; they never block and may be made with locks held.
type Notifier interface {
	// EntryChanged: name in dir appeared, vanished or is another node now.
	EntryChanged(dir Node, name string)
	// NodeChanged: attributes or content (for a directory: the listing).
	NodeChanged(n Node)
}
