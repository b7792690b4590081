// Package ordinary serves the users' own files, STORE/durable, as vnode nodes
// with the behaviour of a local file system (spec sections 2 and 24): what a
// process does through the tree and what another does through a direct bind of
// the same directory is one thing.
//
// Ideas, those of libfuse's passthrough_hp. A node is an inode, not a path: it
// holds an O_PATH descriptor and is found by (device, inode), so rename, hard
// links and unlink of an open file need no bookkeeping. Nothing is opened by a
// path from outside: always one name below a held directory, with openat2 that
// refuses symlinks, magic links, mounts and "..", or our own descriptor again
// through /proc/self/fd.
//
// A root daemon does each operation on an OS thread that takes the caller's
// file-system uid and gid and supplementary groups for that time, and has no
// effective capability; so the kernel decides, with all its rules, and real,
// effective and saved ids never change (a user could kill a thread that carries
// theirs: notes-security X4).
//
// Byte-range and BSD locks are taken on the file in the store, each lock owner
// through an open file description of its own, so that they conflict with one
// another and with processes that lock the file directly.
//
// Locks: lockTable.mu > lockFile.mu; FS.mu and waitGraph.mu are leaves. None is
// held over I/O but an open or close, or a lock that does not wait.
//
// The package knows no object, control or policy, and what lies on the border
// (names like agent/<name> in a home) is the tree's. New sets the process's umask
// to 0, because the modes that arrive have the caller's applied.
package ordinary

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// Options of New.
type Options struct {
	// Root: the daemon is root; every operation takes the caller's fsuid, fsgid
	// and groups. Otherwise all is done with the daemon's own.
	Root bool
	// Log hears faults of the store (one line, no newline); may be nil.
	Log func(msg string)
	// MaxOpen bounds the descriptors held for known files; 0: as many as the
	// process can spare.
	MaxOpen int
}

// FS serves one durable directory. All methods may be called at the same time.
type FS struct {
	root   *dnode
	asRoot bool
	groups []uint32 // the daemon's own supplementary groups
	caps   [2]unix.CapUserData
	log    func(string)

	mount    int  // names the file system to open_by_handle_at(2)
	byHandle bool // descriptors of nodes can be given up and had again
	maxOpen  int

	waiting waitGraph

	mu sync.Mutex
	lookupTable
}

// New serves the directory root (an O_PATH descriptor is enough), e.g.
// store.DurableRoot(), which it does not keep. It sets the umask to 0, and takes
// the capabilities and groups that the process has now for its own for ever.
func New(root *os.File, o Options) (*FS, error) {
	f := &FS{asRoot: o.Root, log: o.Log, mount: -1}
	f.nodes, f.handles = map[inode]*dnode{}, map[uint32]int{}
	if o.Root {
		if err := f.checkPrivilege(); err != nil {
			return nil, err
		}
	}
	unix.Umask(0)
	fd, err := beneath.Reopen(int(root.Fd()), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, fault.FromOS("open", root.Name(), err)
	}
	if err = f.openMount(fd); err == nil {
		if err = f.setLimits(o.MaxOpen); err == nil {
			f.root, err = f.adopt(fd)
		}
	}
	return f, err
}

// Close drops all descriptors; nodes still in use answer Stale.
func (f *FS) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.nodes {
		n.refs = 0
		if n.fd >= 0 {
			unix.Close(n.fd)
		}
		n.fd, n.place = -1, nil
	}
	clear(f.nodes)
	f.recent.Init()
	unix.Close(f.mount)
	f.mount = -1
	return nil
}

// Root is the node of the whole directory; the server need not Unref it.
func (f *FS) Root() vnode.Node {
	f.root.ref()
	return f.root
}

// Node is the node at path below the root, e.g. "home/1000/agent/coder" ("": the
// root), walked with the rights of r's caller; r nil: with the daemon's own. It
// carries one reference: Unref it.
func (f *FS) Node(r *vnode.Req, path string) (vnode.Node, error) {
	if path == "" {
		return f.Root(), nil
	}
	if !beneath.Clean(path) {
		return nil, fault.E("lookup", path, fault.Invalid, nil)
	}
	return f.find(r, f.root, path)
}

// Is says whether n is a node of f, which decides what a rename or link can reach.
func (f *FS) Is(n vnode.Node) bool {
	own, ok := n.(*dnode)
	return ok && own.fs == f
}

// Statfs is statfs(2) of the store's file system.
func (f *FS) Statfs() (vnode.Statfs, error) {
	if err := f.root.hold(); err != nil {
		return vnode.Statfs{}, fault.At("statfs", "", err)
	}
	defer f.root.release()
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.root.fd, &st); err != nil {
		return vnode.Statfs{}, fault.FromOS("statfs", "", err)
	}
	return vnode.Statfs{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Files: st.Files, Ffree: st.Ffree,
		Bsize: uint32(st.Bsize), Frsize: uint32(st.Frsize), Namelen: uint32(st.Namelen),
	}, nil
}

func (f *FS) say(format string, args ...any) {
	if f.log != nil {
		f.log(fmt.Sprintf(format, args...))
	}
}
