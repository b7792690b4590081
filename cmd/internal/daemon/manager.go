package daemon

import (
	"context"
	"sort"
	"sync"
	"time"

	"go.uber.org/zap"

	"cortexfs/cmd/internal/agentd"
	cfs "cortexfs/fs"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// maxRunning is how many agents of one uid may run at once (spec section 13),
// unless cortexfs.conf says otherwise.
const maxRunning = 64

// manager holds the live side of all agents. It implements agent.Runtime.
type manager struct {
	w *world

	// begins and ends are (*unit).bringUp and (*running).stop: what a start and a stop
	// do with processes.
	begins func(u *unit, ctx context.Context, o *agent.Object, p place, by caller) (*running, error)
	ends   func(r *running, ctx context.Context, grace time.Duration, why string) error

	// birth is held for reading while a child is made, for writing to mark a tree;
	// it comes before mu.
	birth sync.RWMutex

	// mu protects the fields below.
	mu    sync.Mutex
	units map[agent.Key]*unit
	over  bool // the daemon ends: nothing starts any more
	left  bool // it ends without its agents (SIGHUP)
	// halting counts who is stopping the tree of an agent: nothing starts below it.
	halting map[agent.Key]int

	reviews reviews
}

func newManager(w *world) *manager {
	m := &manager{w: w, begins: (*unit).bringUp, ends: (*running).stop, units: map[agent.Key]*unit{}, halting: map[agent.Key]int{}}
	w.socketOf.Store(&[]func(agent.Key) (string, bool){m.agentSocketOf}[0])
	return m
}

// unit is the live side of one agent. It exists from the first start on.
type unit struct {
	m   *manager
	key agent.Key

	// turn holds one token: whoever has it starts or stops this agent.
	turn chan struct{}

	// mu protects the fields below.
	mu      sync.Mutex
	state   node.State
	live    *running           // nil: none
	cancel  context.CancelFunc // ends the start that is under way; nil: none
	changed chan struct{}      // closed and replaced at every change
	reason  string             // why the last one ended
	restart bool               // it is stopped only to be started again
}

// running is a started agent. Fixed once it is published, but for what the
// processes themselves change.
type running struct {
	unit   *unit
	owner  uint32
	want   place
	ids    ids
	host   *process // ctxagent
	exe    fileID   // what it executes
	client *agentd.Client
	box    *sandbox.Running
	view   *cfs.Server
	unview func()
	since  time.Time
	socket string
	runs   bool              // agent.sock is served
	git    []string          // repositories that appeared; under the unit's mutex
	texts  map[string]string // controls that apply at the next start, as they were
	warn   []string
	noticing
	done    chan struct{} // everything is gone and put away
	stopped chan struct{} // closed by the first stop: its end is no surprise
	once    sync.Once
}

// ids are what an agent runs as, whatever its controls say by now.
type ids struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups"`
	Cwd    string   `json:"cwd"` // inside
}

// place is where an agent runs: what two starts must agree on to be one.
type place struct {
	Session     string     `json:"session"`
	Workspace   string     `json:"workspace,omitempty"`
	NoWorkspace bool       `json:"no_workspace,omitempty"`
	Mounts      [][]string `json:"mounts,omitempty"`
	GitRW       bool       `json:"git_rw,omitempty"`
	AllowHome   bool       `json:"allow_home,omitempty"`
	CallerUID   uint32     `json:"caller_uid"` // whose rights opened the workspace
}

// unit returns the agent's unit, made if need be.
func (m *manager) unit(k agent.Key) *unit {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.units[k]
	if u == nil {
		u = &unit{m: m, key: k, turn: make(chan struct{}, 1), state: node.Dead, changed: make(chan struct{})}
		m.units[k] = u
	}
	return u
}

// lookup is unit without making one.
func (m *manager) lookup(k agent.Key) *unit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.units[k]
}

// Live implements agent.Runtime: one snapshot, derived from the host process at
// this moment. It waits for nothing.
func (m *manager) Live(k agent.Key) (node.State, int) {
	u := m.lookup(k)
	if u == nil {
		return node.Dead, 0
	}
	return u.snapshot()
}

func (u *unit) snapshot() (node.State, int) {
	u.mu.Lock()
	state, live := u.state, u.live
	u.mu.Unlock()
	if live == nil {
		return state, 0 // dead, or being set up before there is a process
	}
	if !live.host.alive() {
		return node.Dead, 0
	}
	return state, live.host.PID
}

// current is the running agent, nil if it is dead.
func (u *unit) current() *running {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.live == nil || !u.live.host.alive() {
		return nil
	}
	return u.live
}

// set publishes a state and wakes everybody who waits for one.
func (u *unit) set(state node.State, live *running, reason string) {
	u.mu.Lock()
	same := u.state == state && u.live == live
	u.state, u.live = state, live
	if reason != "" || state == node.Start {
		u.reason = reason
	}
	if !same {
		close(u.changed)
		u.changed = make(chan struct{})
	}
	u.mu.Unlock()
	if !same {
		u.m.w.tree.StateChanged(u.key)
	}
}

// await blocks until the state is want, or ctx ends: then it says false.
func (u *unit) await(ctx context.Context, want node.State) bool {
	for {
		u.mu.Lock()
		changed := u.changed
		u.mu.Unlock()
		if state, _ := u.snapshot(); state == want {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			state, _ := u.snapshot()
			return state == want
		}
	}
}

// take gets the unit's turn.
func (u *unit) take(ctx context.Context) error {
	select {
	case u.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.E("wait for", u.key.String(), fault.Busy, ctx.Err())
	}
}

func (u *unit) give() { <-u.turn }

// running lists what runs, by key.
func (m *manager) running() []*running {
	m.mu.Lock()
	units := make([]*unit, 0, len(m.units))
	for _, u := range m.units {
		units = append(units, u)
	}
	m.mu.Unlock()
	var list []*running
	for _, u := range units {
		if r := u.current(); r != nil {
			list = append(list, r)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].unit.key.Compare(list[j].unit.key) < 0 })
	return list
}

// mayRun counts the running agents of an owner.
func (m *manager) mayRun(owner uint32) error {
	n := 0
	for _, r := range m.running() {
		if r.owner == owner {
			n++
		}
	}
	if n >= m.w.conf.MaxRunning {
		return fault.Newf(fault.Again, "%d agents of uid %d run already", n, owner)
	}
	return nil
}

// stopAll ends everything, children before their parents, within ctx.
func (m *manager) stopAll(ctx context.Context, grace time.Duration) {
	m.mu.Lock()
	m.over = true
	m.mu.Unlock()
	list := m.running()
	depth := func(r *running) int {
		up, _ := m.w.agents.Ancestors(r.unit.key)
		return len(up)
	}
	levels := map[int][]*running{}
	deepest := 0
	for _, r := range list {
		d := depth(r)
		levels[d] = append(levels[d], r)
		deepest = max(deepest, d)
	}
	for d := deepest; d >= 0; d-- {
		var all sync.WaitGroup
		for _, r := range levels[d] {
			all.Go(func() {
				if err := r.stop(ctx, grace, "the daemon ends"); err != nil {
					m.w.log.Error("stop", zap.String("agent", r.unit.key.String()), zap.Error(err))
				}
			})
		}
		all.Wait()
	}
}

// abandon lets the agents live on for the next daemon.
func (m *manager) abandon() {
	m.mu.Lock()
	m.over, m.left = true, true
	m.mu.Unlock()
	for _, r := range m.running() {
		r.client.Close()
	}
}

// abandoned says whether agents are left to the next daemon.
func (m *manager) abandoned() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left
}

// event writes a line into the agent's log.
func (m *manager) event(k agent.Key, e agent.Event) {
	if o, err := m.w.agents.Lookup(k); err == nil {
		o.Log().Add(e)
	}
}
