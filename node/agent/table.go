package agent

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/store"
)

// Defaults of Options (spec sections 10.2 and 13).
const (
	PoolFirst = 1879048192 // first uid given to agents of owner 0
	PoolLast  = 1879113727
	PerUID    = 256 // agents of one owner
)

// Runtime says what lives. It is asked at every read of status and pid.
type Runtime interface {
	// Live is the state of the agent and the pid of its host process in one
	// snapshot; Dead and 0 when there is none.
	Live(k Key) (node.State, int)
}

// Subjects says who uses a policy subject on the tools' side.
type Subjects interface {
	// NamedElsewhere finds a tool whose policy names subject and whose file does
	// not belong to uid.
	NamedElsewhere(subject string, uid uint32) (path string, ok bool)
}

// Options of New.
type Options struct {
	Users UserDB // nil: SystemUsers
	// Root: the daemon runs as root. Without it everything is one user's.
	Root bool
	// DaemonUID, DaemonGID and DaemonGroups are the daemon's own ids.
	DaemonUID, DaemonGID uint32
	DaemonGroups         []uint32
	// PoolFirst, PoolLast and PerUID override the defaults when not 0.
	PoolFirst, PoolLast uint32
	PerUID              int
	Subjects            Subjects // nil: no tool names anybody
}

// Table is the agents of one store. All methods may be called at the same time.
type Table struct {
	st    *store.Store
	o     Options
	state *os.Root // STORE/state

	// commit orders what must be decided and written in one step: labels,
	// parents, creation, removal. It is held over the store's write.
	commit sync.Mutex
	pool   uint32            // next uid to give out; under commit
	labels map[string]uint32 // label type → owner it is reserved for; under mu, changed under commit too

	mu      sync.RWMutex
	objects map[Key]*Object

	names   atomic.Pointer[names]
	lineage atomic.Pointer[lineage]
	runtime atomic.Pointer[Runtime]
	kin     atomic.Pointer[kin] // changed under commit

	born map[Key][]time.Time // births of the last minute, by the family's top; under commit
	now  func() time.Time
}

// New makes the table of the agents in st. It reads the records of earlier
// daemons and writes nothing.
func New(st *store.Store, o Options) (*Table, error) {
	if o.Users == nil {
		o.Users = SystemUsers()
	}
	if o.PoolFirst == 0 {
		o.PoolFirst, o.PoolLast = PoolFirst, PoolLast
	}
	if o.PerUID == 0 {
		o.PerUID = PerUID
	}
	// The descriptor is the store's and O_PATH: opened again through /proc it
	// stays the same directory, whatever the path means by now.
	state, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", st.StateRoot().Fd()))
	if err != nil {
		return nil, fault.FromOS("open", "state", err)
	}
	t := &Table{st: st, o: o, state: state, objects: map[Key]*Object{}, born: map[Key][]time.Time{}, now: time.Now}
	if err := t.readRecords(); err != nil {
		state.Close()
		return nil, err
	}
	return t, nil
}

// Close writes out what the logs hold back and releases descriptors. Objects
// stay readable.
func (t *Table) Close() error {
	t.mu.RLock()
	all := make([]*Object, 0, len(t.objects))
	for _, o := range t.objects {
		all = append(all, o)
	}
	t.mu.RUnlock()
	for _, o := range all {
		o.log.close()
	}
	return t.state.Close()
}

// SetRuntime says who knows what lives; until then everything is dead.
func (t *Table) SetRuntime(r Runtime) {
	if r == nil {
		t.runtime.Store(nil)
		return
	}
	t.runtime.Store(&r)
}

// Live is the state and the host pid of an agent in one snapshot.
func (t *Table) Live(k Key) (node.State, int) {
	r := t.runtime.Load()
	if r == nil {
		return node.Dead, 0
	}
	state, pid := (*r).Live(k)
	if !state.Alive() {
		return node.Dead, 0
	}
	return state, pid
}

// Store is the store that the table is about.
func (t *Table) Store() *store.Store { return t.st }

// Options are the options that the table was made with, defaults filled in.
func (t *Table) Options() Options { return t.o }

// Lookup is the agent of that key; NotExist. The same agent is the same *Object
// until it is removed.
func (t *Table) Lookup(k Key) (*Object, error) {
	t.mu.RLock()
	o := t.objects[k]
	t.mu.RUnlock()
	if o != nil && !o.st.Gone() {
		return o, nil
	}
	if err := node.CheckAgentName(k.Name); err != nil {
		return nil, fault.E("lookup", k.TreeDir(), fault.NotExist, err)
	}
	so, err := t.st.Object(k.StoreDir())
	if err != nil {
		return nil, fault.At("lookup", k.TreeDir(), err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.objects[k]; o != nil && o.st == so {
		return o, nil
	}
	o = t.newObject(k, so)
	t.objects[k] = o
	return o, nil
}

// names are the keys of all agents, sorted, as long as no directory that was
// read for them changes.
type names struct {
	seen  []seen
	keys  []Key
	homes []uint32
}

// seen is a directory's counter and what it said before the directory was read.
type seen struct {
	counter *store.Counter
	n       uint64
}

func (n *names) fresh() bool {
	for _, s := range n.seen {
		if s.counter.Load() != s.n {
			return false
		}
	}
	return true
}

// list reads a directory and remembers its state. One that is not there is
// empty; so is one that cannot be read.
func (n *names) list(st *store.Store, dir string) []store.Entry {
	c := st.Changes(dir)
	n.seen = append(n.seen, seen{c, c.Load()})
	entries, _ := st.List(dir)
	return entries
}

// loadNames reads the directories again when one of them has changed.
func (t *Table) loadNames() *names {
	if n := t.names.Load(); n != nil && n.fresh() {
		return n
	}
	n := &names{}
	n.tier(t.st, Key{})
	for _, e := range n.list(t.st, "home") {
		uid, err := node.ParseUint(e.Name)
		if err != nil || !e.Type.IsDir() {
			continue
		}
		n.homes = append(n.homes, uid)
		n.tier(t.st, Key{Home: true, UID: uid})
	}
	slices.Sort(n.homes)
	slices.SortFunc(n.keys, Key.Compare)
	t.names.Store(n)
	return n
}

// tier adds the keys of the agents in like's tier.
func (n *names) tier(st *store.Store, like Key) {
	for _, e := range n.list(st, like.Tier()) {
		name, ok := strings.CutSuffix(e.Name, ".d")
		if !ok || !e.Type.IsDir() || node.CheckAgentName(name) != nil {
			continue
		}
		like.Name = name
		n.keys = append(n.keys, like)
	}
}

// All is every agent of the store: system agents first, then by uid, by name.
// The slice is not to be changed.
func (t *Table) All() []Key { return t.loadNames().keys }

// Homes are the uids that have a home in the store's object tree, sorted. The
// slice is not to be changed.
func (t *Table) Homes() []uint32 { return t.loadNames().homes }

// List is every agent of one tier, sorted by name. The slice is not to be
// changed.
func (t *Table) List(home bool, uid uint32) []Key {
	if !home {
		uid = 0
	}
	keys := t.All()
	first := Key{Home: home, UID: uid}
	from, _ := slices.BinarySearchFunc(keys, first, Key.Compare)
	to := from
	for to < len(keys) && keys[to].Home == home && keys[to].UID == uid {
		to++
	}
	return keys[from:to:to]
}

// ByBareName finds the agent that a person means: a bare name in the caller's
// home first, then among the system agents; "agent/NAME" and
// "home/UID/agent/NAME" name one exactly (spec section 2). NotExist.
func (t *Table) ByBareName(caller uint32, ref string) (Key, error) {
	if strings.Contains(ref, "/") {
		k, ok := ParseKey(strings.TrimPrefix(ref, node.Root+"/"))
		if !ok {
			return Key{}, fault.Newf(fault.NotExist, "no agent %s", node.Escape(ref))
		}
		_, err := t.Lookup(k)
		return k, err
	}
	if err := node.CheckAgentName(ref); err != nil {
		return Key{}, err
	}
	for _, k := range []Key{InHome(caller, ref), System(ref)} {
		_, err := t.Lookup(k)
		if err == nil || !fault.Is(err, fault.NotExist) {
			return k, err
		}
	}
	return Key{}, fault.Newf(fault.NotExist, "no agent %s in home/%d/agent or agent", ref, caller)
}

// NamesGen moves when agents may have come or gone.
func (t *Table) NamesGen() uint64 {
	var sum uint64
	for _, s := range t.loadNames().seen {
		sum += s.counter.Load()
	}
	return sum
}
