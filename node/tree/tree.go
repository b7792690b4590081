package tree

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/ordinary"
	"cortexfs/node/store"
	"cortexfs/node/tool"
	"cortexfs/node/view"
	"cortexfs/node/vnode"
)

// dirValid is how long the kernel may keep names and attributes of directories
// of the main mount: not longer than 1 s, because nothing is pushed there that a
// stranger's slow listing could hold up (notes X7).
const dirValid = time.Second

// viewValid is the same on an agent's own connection, where changes are pushed.
const viewValid = 10 * time.Second

// hideFor is how long an unlinked control stays hidden (spec section 4.6).
const hideFor = time.Second

// Options of New. Store, Agents, Tools, Views and Ordinary are needed.
type Options struct {
	Store    *store.Store
	Agents   *agent.Table
	Tools    *tool.Catalog
	Views    *view.Views
	Ordinary *ordinary.FS
	Users    agent.UserDB // nil: agent.SystemUsers()

	Root                 bool // the daemon runs as root
	DaemonUID, DaemonGID uint32
	// AgentGroup may make agents in agent/ (-o agent_group); 0: only root.
	AgentGroup uint32
	// ForeignNS lets threads of other namespaces write (-o foreign_ns).
	ForeignNS bool

	// Bin are the files of bin/; AgentExec is what every agent/NAME is made of.
	Bin       map[string]File
	AgentExec File
	// ModelExec is what every model/PROVIDER/MODEL is made of; none: not shown.
	ModelExec File
	// Socket is where NAME.sock points while something listens there.
	Socket func(agent.Key) (target string, live bool)
	// Status is the word of /status; nil: "ready".
	Status func() string
	// Runtime and Version are shown as attributes of the root.
	Runtime, Version string
	// Log hears what an administrator should know; may be nil.
	Log func(msg string)
	// Groups overrides how the groups of a caller are found; for tests.
	Groups func(*vnode.Req) []uint32
	// HideFor overrides how long an unlinked control stays hidden; for tests.
	HideFor time.Duration
}

// File is a file of the host that the tree shows: a path, or bytes.
type File struct {
	Path string
	Data []byte
}

// Tree is the whole tree. It implements vnode.FS.
type Tree struct {
	o      Options
	agents *agent.Table
	tools  *tool.Catalog
	st     *store.Store
	ord    *ordinary.FS
	ns     namespaces
	born   time.Time
	use    usage
	homes  homes
	open   openFiles
	root   *rootDir

	notifiers atomic.Pointer[[]notifier]
	status    pollers // of the root's status

	// mu protects the fields below.
	mu     sync.Mutex
	closed bool
	dirs   map[string]*ctlDir    // by store directory
	execs  map[string]*execDir   // by store directory
	views  map[viewID]*agentView // by agent object
	nextN  uint64
}

// notifier hears what changed in one of our file systems: the main tree (view
// nil) or an agent's own connection.
type notifier struct {
	id   uint64
	view *agentView
	n    vnode.Notifier
}

// New makes the tree over an open store.
func New(o Options) (*Tree, error) {
	if o.Store == nil || o.Agents == nil || o.Tools == nil || o.Views == nil || o.Ordinary == nil {
		return nil, errors.New("tree: store, agents, tools, views and ordinary are needed")
	}
	ns, err := namespacesOf("/proc/self")
	if err != nil && !o.ForeignNS {
		return nil, fault.FromOS("read namespaces", "/proc/self/ns", err)
	}
	if o.Users == nil {
		o.Users = agent.SystemUsers()
	}
	if o.HideFor == 0 {
		o.HideFor = hideFor
	}
	t := &Tree{
		o: o, agents: o.Agents, tools: o.Tools, st: o.Store, ord: o.Ordinary, ns: ns, born: time.Now(),
		dirs: map[string]*ctlDir{}, execs: map[string]*execDir{}, views: map[viewID]*agentView{},
		open: openFiles{files: map[content]*sharedFile{}},
	}
	t.root = &rootDir{t: t}
	return t, nil
}

// Close stops timers and forgets scratch. The tree must not be served any more.
func (t *Tree) Close() {
	t.mu.Lock()
	t.closed = true
	dirs := t.dirs
	t.dirs = map[string]*ctlDir{}
	t.mu.Unlock()
	for _, d := range dirs {
		d.forget()
	}
	t.open.forget("")
}

// Root is the root of the main mount.
func (t *Tree) Root() vnode.Node { return t.root }

// Statfs gives the numbers of the store's file system.
func (t *Tree) Statfs(*vnode.Req) (vnode.Statfs, error) { return t.ord.Statfs() }

// AddNotifier tells n about changes of the main tree until cancel is called.
func (t *Tree) AddNotifier(n vnode.Notifier) (cancel func()) { return t.addNotifier(nil, n) }

func (t *Tree) addNotifier(v *agentView, n vnode.Notifier) (cancel func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nextN++
	id := t.nextN
	var all []notifier
	if old := t.notifiers.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, notifier{id, v, n})
	t.notifiers.Store(&all)
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		var rest []notifier
		for _, x := range *t.notifiers.Load() {
			if x.id != id {
				rest = append(rest, x)
			}
		}
		t.notifiers.Store(&rest)
	}
}

// push tells the servers of one file system (view nil: the main tree). They only
// queue what they hear.
func (t *Tree) push(v *agentView, tell func(vnode.Notifier)) {
	if all := t.notifiers.Load(); all != nil {
		for _, x := range *all {
			if x.view == v {
				tell(x.n)
			}
		}
	}
}

func (t *Tree) log(msg string) {
	if t.o.Log != nil {
		t.o.Log(msg)
	}
}

// daemonIDs are the owner of what belongs to the system: root, or in a user's
// daemon that user.
func (t *Tree) daemonIDs() (uid, gid uint32) {
	if t.o.Root {
		return 0, 0
	}
	return t.o.DaemonUID, t.o.DaemonGID
}

// primaryGID is the gid of what belongs to uid.
func (t *Tree) primaryGID(uid uint32) uint32 {
	if !t.o.Root && uid == t.o.DaemonUID {
		return t.o.DaemonGID
	}
	if gid, ok := t.o.Users.User(uid); ok {
		return gid
	}
	return uid
}

// Host files.

func (f File) open() (*hostFile, error) {
	if f.Path == "" {
		return &hostFile{data: f.Data}, nil
	}
	fd, err := os.Open(f.Path)
	if err != nil {
		return nil, fault.FromOS("open", f.Path, err)
	}
	return &hostFile{f: fd}, nil
}

func (f File) stat() (size int64, mod time.Time, err error) {
	if f.Path == "" {
		return int64(len(f.Data)), time.Time{}, nil
	}
	fi, err := os.Stat(f.Path)
	if err != nil {
		return 0, time.Time{}, fault.FromOS("stat", f.Path, err)
	}
	return fi.Size(), fi.ModTime(), nil
}
