package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// Lifetimes of families (spec section 17): who stops or dies takes all that run
// below it along, deepest first, within killBound.
//
// What makes a race with births impossible is one mark. A tree that is being
// stopped is marked before the first of it is; a start looks at the marks of all
// its ancestors in the same step in which it becomes something that a stop can
// cancel, and a birth holds manager.birth, for which the mark waits. So a start or
// birth is either seen by the stop or refused by the mark.

// halt marks the tree below k: nothing starts and nothing is born there until the
// release is called.
func (m *manager) halt(k agent.Key) (release func()) {
	m.birth.Lock()
	defer m.birth.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.halting[k]++
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.halting[k]--; m.halting[k] == 0 {
			delete(m.halting, k)
		}
	}
}

// haltedLocked says which of the agents is marked.
func (m *manager) haltedLocked(above []agent.Key) error {
	for _, k := range above {
		if m.halting[k] > 0 {
			return fault.Newf(fault.Again, "%s, above it, is being stopped", k)
		}
	}
	return nil
}

// admit lets a start that has the unit's turn go on, and makes it one that a stop
// can end by cancel; both in one step.
func (u *unit) admit(cancel context.CancelFunc) error {
	above, err := u.m.w.agents.Ancestors(u.key)
	if err != nil {
		above = nil // a cycle: StartFaults says so
	}
	m := u.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return fault.E("start", u.key.String(), fault.Unavailable, errors.New("the daemon ends"))
	}
	if err := m.haltedLocked(above); err != nil {
		return fault.At("start", u.key.String(), err)
	}
	u.mu.Lock()
	u.cancel = cancel
	u.mu.Unlock()
	return nil
}

// again says whether the agent ends only to be started again.
func (u *unit) again() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.restart
}

func (u *unit) setAgain(on bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.restart = on
}

// busy says whether there is something of the unit to stop: a start under way, or
// processes.
func (u *unit) busy() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.cancel != nil || u.live != nil
}

// stopTree stops an agent with all that run below it. A dead one leaves what its
// owner started below it alone.
func (m *manager) stopTree(ctx context.Context, k agent.Key, grace time.Duration, why string) error {
	u := m.lookup(k)
	if u == nil || !u.busy() {
		return nil
	}
	defer m.halt(k)()
	spent := time.Now()
	err := m.cancelBelow(ctx, k, grace/2, why)
	return errors.Join(err, u.stop(ctx, max(grace-time.Since(spent), grace/2), why))
}

// cancelBelow stops what runs below k, the deepest generation first; the grace is
// shared by the generations. The tree has to be marked.
func (m *manager) cancelBelow(ctx context.Context, k agent.Key, grace time.Duration, why string) error {
	levels := m.generations(k)
	var errs []error
	for i, level := range levels {
		share := grace / time.Duration(len(levels)-i)
		began := time.Now()
		var all sync.WaitGroup
		var mu sync.Mutex
		for _, u := range level {
			all.Go(func() {
				m.event(u.key, agent.Event{Type: "child.cancel", Object: u.key.Name, Status: "cancelled", Reason: why, By: k.String()})
				m.event(k, agent.Event{Type: "child.cancel", Object: u.key.Name, Status: "cancelled", Reason: why, By: k.String()})
				if err := u.stop(ctx, share, "cancelled: "+why); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			})
		}
		all.Wait()
		grace = max(grace-time.Since(began), 0)
	}
	return errors.Join(errs...)
}

// generations are the units below k that have something to stop, deepest first.
func (m *manager) generations(k agent.Key) [][]*unit {
	byDepth := map[int][]*unit{}
	for _, d := range m.w.agents.Descendants(k) {
		u := m.lookup(d)
		if u == nil || !u.busy() {
			continue
		}
		above, err := m.w.agents.Ancestors(d)
		depth := slices.Index(above, k)
		if err != nil || depth < 0 {
			depth = agent.MaxDepth + 1 // in a cycle: first of all
		}
		byDepth[depth] = append(byDepth[depth], u)
	}
	var levels [][]*unit
	for depth := agent.MaxDepth + 1; depth >= 0; depth-- {
		if len(byDepth[depth]) > 0 {
			levels = append(levels, byDepth[depth])
		}
	}
	return levels
}

// bereave is called when an agent has ended, however: what runs below it ends too,
// and what is temporary is removed. The agent is dead already, but its end is not
// told before this is done.
func (m *manager) bereave(k agent.Key, why string) {
	if m.abandoned() {
		return
	}
	defer m.halt(k)()
	ctx, cancel := context.WithTimeout(context.Background(), 2*killBound)
	defer cancel()
	if err := m.cancelBelow(ctx, k, agentd.DefaultGrace, fmt.Sprintf("its parent %s ended: %s", k.Name, why)); err != nil {
		m.w.log.Error("cancel the children", zap.String("agent", k.String()), zap.Error(err))
	}
	m.closeChannels(k)
	for _, d := range m.w.agents.Descendants(k) {
		m.removeTemp(d)
	}
	if !m.unit(k).again() {
		m.removeTemp(k)
	}
}

// removeTemp removes the object of a temporary agent that is dead; its sessions
// stay.
func (m *manager) removeTemp(k agent.Key) {
	o, err := m.w.agents.Lookup(k)
	if err != nil || o.Config().Life != "temp" {
		return
	}
	if state, _ := m.Live(k); state != node.Dead {
		return
	}
	if err := m.w.tree.RemoveAgent(k); err != nil && !fault.Is(err, fault.NotExist) {
		m.w.log.Error("remove the temporary agent", zap.String("agent", k.String()), zap.Error(err))
		return
	}
	m.w.changed(k.StoreDir())
}

// StartLines implements agent.Started: what the start of a running agent added to
// its table, as its children may be given it.
func (m *manager) StartLines(k agent.Key) []control.MountLine {
	u := m.lookup(k)
	if u == nil {
		return nil
	}
	r := u.current()
	if r == nil || r.box == nil {
		return nil
	}
	var lines []control.MountLine
	for _, e := range r.box.Table {
		if e.Kind != sandbox.Host || e.Origin != "workspace" && e.Origin != "--mount" || e.Made != "" {
			continue
		}
		source := e.Resolved
		if source == "" {
			source = e.Source
		}
		lines = append(lines, control.MountLine{
			Source: source, Target: e.Target, RW: e.RW, Recursive: e.Recursive, Bind: !e.Recursive, NoSuid: true, NoDev: true, NoExec: e.NoExec,
		})
	}
	return lines
}
