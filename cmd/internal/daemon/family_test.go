package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// fakes stands for the sandboxes of a manager: an agent is a sleeping process.
// stubborn ones use the whole grace. ends are the names in the order of their ends.
type fakes struct {
	t *testing.T

	mu       sync.Mutex
	ends     []string
	stubborn bool
	slow     time.Duration // of a start
}

func fake(t *testing.T, m *manager) *fakes {
	f := &fakes{t: t}
	m.begins = func(u *unit, ctx context.Context, o *agent.Object, p place, _ caller) (*running, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(f.slow):
		}
		proc, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{})
		if err != nil {
			return nil, err
		}
		host, err := holdProcess(proc.Pid, 0)
		if err != nil {
			return nil, err
		}
		r := &running{unit: u, owner: o.Config().Owner, want: p, host: host, done: make(chan struct{}), stopped: make(chan struct{})}
		u.set(node.Ready, r, "")
		go func() { // what follow and finish do
			_, _ = proc.Wait()
			f.mu.Lock()
			f.ends = append(f.ends, u.key.Name)
			f.mu.Unlock()
			u.set(node.Dead, nil, "ended")
			u.m.bereave(u.key, "ended")
			host.close()
			close(r.done)
		}()
		return r, nil
	}
	m.ends = func(r *running, ctx context.Context, grace time.Duration, _ string) error {
		r.unit.set(node.Stopping, r, "")
		if f.stubborn {
			time.Sleep(grace)
		}
		_ = r.host.signal(unix.SIGKILL)
		select {
		case <-r.done:
			return nil
		case <-ctx.Done():
			return errors.New("not gone in time")
		}
	}
	t.Cleanup(func() {
		for _, r := range m.running() {
			_ = r.host.signal(unix.SIGKILL)
			<-r.done
		}
	})
	return f
}

// order is the place of a name among the ends; -1: it did not end.
func (f *fakes) order(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Index(f.ends, name)
}

// adopt makes an agent and gives it its parent behind the daemon's back, so that
// no limit of births holds the test up.
func adopt(t *testing.T, w *world, name, parent string, texts map[string]string) *agent.Object {
	t.Helper()
	o := newAgent(t, w, name, w.uid, texts)
	if parent == "" {
		return o
	}
	p, err := w.agents.Lookup(agent.System(parent))
	if err != nil {
		t.Fatal(err)
	}
	c := p.Config()
	for name, text := range map[string]string{"parent": "agent:" + parent + "\n", "uid": fmt.Sprintf("%d\n", c.UID), "gid": fmt.Sprintf("%d\n", c.GID)} {
		if err := o.Store().Put(name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func begin(t *testing.T, m *manager, o *agent.Object) {
	t.Helper()
	if _, _, err := m.unit(o.Key()).start(context.Background(), o, place{Session: "default"}, caller{Root: true}); err != nil {
		t.Fatal(err)
	}
}

func state(m *manager, o *agent.Object) node.State {
	s, _ := m.Live(o.Key())
	return s
}

// TestOneStopForTheTree: 64 descendants in four generations, all of which use the
// whole grace, end within 2 s, the deepest first; nobody outside ends.
func TestOneStopForTheTree(t *testing.T) {
	w, m := testWorld(t)
	f := fake(t, m)
	f.stubborn = true
	top := adopt(t, w, "top", "", nil)
	all := []*agent.Object{top}
	parent := map[string]string{}
	names := []string{"top"}
	for len(all) <= agent.MaxFamily {
		for _, p := range names {
			for range 4 {
				if len(all) > agent.MaxFamily {
					break
				}
				name := fmt.Sprintf("k%d", len(all))
				all = append(all, adopt(t, w, name, p, nil))
				parent[name] = p
			}
		}
		names = names[:0]
		for _, o := range all {
			if up, _ := w.agents.Ancestors(o.Key()); len(up) == agentDepth(all, parent) {
				names = append(names, o.Key().Name)
			}
		}
	}
	other := adopt(t, w, "other", "", nil)
	for _, o := range append(all, other) {
		begin(t, m, o)
	}
	began := time.Now()
	if err := m.stopTree(context.Background(), top.Key(), time.Second, "test"); err != nil {
		t.Error(err)
	}
	took := time.Since(began)
	for _, o := range all {
		if s := state(m, o); s != node.Dead {
			t.Errorf("%s is %s", o.Key(), s)
		}
		if up := parent[o.Key().Name]; up != "" && f.order(o.Key().Name) > f.order(up) {
			t.Errorf("%s ended after %s, above it", o.Key().Name, up)
		}
	}
	if state(m, other) != node.Ready {
		t.Error("an agent of another tree was stopped")
	}
	// The graces of all generations together are the one that was given; a machine
	// may add to that, but not five times as much.
	t.Logf("took %v", took)
	if took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// agentDepth is how deep the deepest agent is.
func agentDepth(all []*agent.Object, parent map[string]string) int {
	deepest := 0
	for _, o := range all {
		n := 0
		for at := o.Key().Name; parent[at] != ""; at = parent[at] {
			n++
		}
		deepest = max(deepest, n)
	}
	return deepest
}

// TestDeathTakesChildrenAlong: a parent that dies by itself, two generations; the
// children of others and those started under a dead parent stay.
func TestDeathTakesChildrenAlong(t *testing.T) {
	w, m := testWorld(t)
	fake(t, m)
	top, mid := adopt(t, w, "top", "", nil), adopt(t, w, "mid", "top", nil)
	low, sister := adopt(t, w, "low", "mid", nil), adopt(t, w, "sister", "top", nil)
	begin(t, m, low) // under dead parents
	begin(t, m, sister)
	if state(m, low) != node.Ready {
		t.Fatal("a child of a dead parent does not run")
	}
	if err := m.stopTree(context.Background(), top.Key(), time.Second, "test"); err != nil {
		t.Error(err)
	}
	if state(m, low) != node.Ready || state(m, sister) != node.Ready {
		t.Error("a parent that never ran took its children along")
	}
	begin(t, m, mid)
	r := m.unit(mid.Key()).current()
	if err := r.host.signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-r.done
	if state(m, low) != node.Dead {
		t.Error("the child outlived its parent")
	}
	if state(m, sister) != node.Ready {
		t.Error("an aunt died too")
	}
	log, err := os.ReadFile(filepath.Join(w.st.Path(), "state/log/system.0.low.log"))
	if err != nil || !strings.Contains(string(log), `"type":"child.cancel"`) || !strings.Contains(string(log), "its parent mid ended") {
		t.Errorf("%s %v", log, err)
	}
}

// TestStopsWinOverStarts: whatever is being started below, when the stop of the
// tree has returned nothing of it runs, and nothing starts until it has.
func TestStopsWinOverStarts(t *testing.T) {
	w, m := testWorld(t)
	f := fake(t, m)
	f.slow = time.Millisecond
	top := adopt(t, w, "top", "", nil)
	var kids []*agent.Object
	for i := range 6 {
		kids = append(kids, adopt(t, w, fmt.Sprint("k", i), []string{"top", "k0", "k1"}[min(i, 2)], nil))
	}
	for range 20 {
		begin(t, m, top)
		stop := make(chan struct{})
		var all sync.WaitGroup
		var late sync.Map
		for _, o := range kids {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					_, _, err := m.unit(o.Key()).start(context.Background(), o, place{Session: "default"}, caller{Root: true})
					if err != nil && !fault.Is(err, fault.Again) && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					if fault.Is(err, fault.Again) {
						late.Store(o.Key(), true)
						return // it was told to
					}
				}
			})
		}
		time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
		release := m.halt(top.Key()) // held on, so that what is refused stays refused
		if err := m.stopTree(context.Background(), top.Key(), 100*time.Millisecond, "test"); err != nil {
			t.Error(err)
		}
		for _, o := range kids {
			if s := state(m, o); s != node.Dead && s != node.Start {
				t.Errorf("%s is %s after the stop of its tree", o.Key(), s)
			}
		}
		close(stop)
		all.Wait()
		for _, o := range kids {
			if s := state(m, o); s != node.Dead {
				t.Errorf("%s is %s", o.Key(), s)
			}
		}
		release()
	}
}

// TestTemporaryAgents: their objects go with their own end, and with their
// parent's whether they ran or not; others stay, as do the state directories.
func TestTemporaryAgents(t *testing.T) {
	w, m := testWorld(t)
	fake(t, m)
	temp := map[string]string{"life": "temp\n"}
	top := adopt(t, w, "top", "", nil)
	ran, idle, owned := adopt(t, w, "ran", "top", temp), adopt(t, w, "idle", "top", temp), adopt(t, w, "owned", "top", nil)
	alone := adopt(t, w, "alone", "", temp)
	cfg := ran.Config()
	if err := w.makeHomes(cfg); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*agent.Object{top, ran, owned, alone} {
		begin(t, m, o)
	}
	if err := m.stopTree(context.Background(), top.Key(), time.Second, "test"); err != nil {
		t.Error(err)
	}
	if err := m.stopTree(context.Background(), alone.Key(), time.Second, "test"); err != nil {
		t.Error(err)
	}
	for o, gone := range map[*agent.Object]bool{top: false, ran: true, idle: true, owned: false, alone: true} {
		_, err := w.agents.Lookup(o.Key())
		if fault.Is(err, fault.NotExist) != gone {
			t.Errorf("%s: %v, gone %v", o.Key(), err, gone)
		}
	}
	if n, err := w.ord.Node(w.as(cfg.Owner), fmt.Sprintf("home/%d/agent/ran/session", cfg.Owner)); err != nil {
		t.Errorf("the sessions are gone: %v", err)
	} else {
		unref(n)
	}
	// A restart is no end.
	again := adopt(t, w, "again", "", temp)
	begin(t, m, again)
	u := m.unit(again.Key())
	u.setAgain(true)
	if err := m.stopTree(context.Background(), again.Key(), time.Second, "test"); err != nil {
		t.Error(err)
	}
	u.setAgain(false)
	begin(t, m, again)
}

// TestCyclesStopToo: a cycle, which only an edit of the store makes, is stopped
// like any tree.
func TestCyclesStopToo(t *testing.T) {
	w, m := testWorld(t)
	fake(t, m)
	a, b := adopt(t, w, "a", "", nil), adopt(t, w, "b", "a", nil)
	begin(t, m, a)
	begin(t, m, b)
	if err := a.Store().Put("parent", []byte("agent:b\n")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := m.stopTree(ctx, a.Key(), 100*time.Millisecond, "test"); err != nil {
		t.Error(err)
	}
	if state(m, a) != node.Dead || state(m, b) != node.Dead {
		t.Error("somebody lives")
	}
}

// TestHaltedTrees: a mark is counted, and holds for what is below alone.
func TestHaltedTrees(t *testing.T) {
	w, m := testWorld(t)
	fake(t, m)
	top, mid := adopt(t, w, "top", "", nil), adopt(t, w, "mid", "top", nil)
	one, two := m.halt(top.Key()), m.halt(top.Key())
	try := func(o *agent.Object) error {
		_, _, err := m.unit(o.Key()).start(context.Background(), o, place{Session: "default"}, caller{Root: true})
		return err
	}
	if err := try(mid); !fault.Is(err, fault.Again) {
		t.Error(err)
	}
	if err := try(top); err != nil {
		t.Error(err)
	}
	one()
	if err := try(mid); !fault.Is(err, fault.Again) {
		t.Error(err)
	}
	two()
	if err := try(mid); err != nil {
		t.Error(err)
	}
}
