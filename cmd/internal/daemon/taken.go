package daemon

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// Rights that the kernel holds for a running agent: its mounts, its groups, its
// ids. Taking one away ends the agent (spec sections 5 and 9), for nothing else
// takes it out of the processes that have it. What was added waits for the next
// start and shows in status as restart=.

// noticeBound is how long an agent has between the notice and its end, unless
// cortexfs.conf says otherwise.
const noticeBound = 5 * time.Second

// maxTold is how many losses of one agent get an event each.
const maxTold = 16

// reviews are agents whose texts were changed and whose tree is to be looked at. A
// commit leaves its word here and waits for nothing; one goroutine works it off.
type reviews struct {
	mu   sync.Mutex // a leaf
	due  map[agent.Key]string
	busy bool
}

// Changed implements agent.Hearer: whoever runs and is bounded by k is looked at.
func (m *manager) Changed(k agent.Key, by string) {
	q := &m.reviews
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.due == nil {
		q.due = map[agent.Key]string{}
	}
	q.due[k] = by
	if !q.busy {
		q.busy = true
		go m.reviewAll()
	}
}

func (m *manager) reviewAll() {
	q := &m.reviews
	for {
		q.mu.Lock()
		due := q.due
		q.due = nil
		if q.busy = len(due) > 0; !q.busy {
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		for k, by := range due {
			m.review(k, by)
		}
	}
}

// review looks at the running agents that k's texts bound.
func (m *manager) review(k agent.Key, by string) {
	for _, r := range m.running() {
		if r.texts == nil {
			continue
		}
		if r.unit.key != k {
			o, err := m.w.agents.Lookup(r.unit.key)
			if err == nil {
				if f := o.Family(); !f.Includes(k) && f.Broken == nil {
					continue
				}
			}
		}
		r.review(by)
	}
}

// losses are what was taken from the agent since its start, in words.
func (r *running) losses() []string {
	o, err := r.unit.m.w.agents.Lookup(r.unit.key)
	if err != nil {
		if fault.Is(err, fault.NotExist) {
			return []string{"owner: the object of the agent is gone"}
		}
		return nil
	}
	var all []string
	for _, l := range o.Taken(r.owner, r.texts) {
		all = append(all, l.String())
	}
	return all
}

// review gives the agent notice if something was taken from it; once, however much
// more is taken meanwhile.
func (r *running) review(by string) {
	lost := r.losses()
	if len(lost) == 0 || !r.noticed.CompareAndSwap(false, true) {
		return
	}
	m := r.unit.m
	notice := m.w.conf.Notice
	for i, l := range lost {
		if i == maxTold {
			l = fmt.Sprintf("and %d more", len(lost)-i)
		}
		m.event(r.unit.key, agent.Event{Type: "agent.revoke", Session: r.want.Session, Object: controlOf(l), Status: "notice",
			Reason: fmt.Sprintf("%s; what runs cannot lose it in place: it is stopped in %v", l, notice), By: by})
		if i == maxTold {
			break
		}
	}
	text := fmt.Sprintf("taken away by %s: %s", by, strings.Join(lost, "; "))
	r.notice.Store(&[]string{fmt.Sprintf("it is stopped within %v: %s", notice, text)}[0])
	m.w.log.Info("agent.revoke", zap.String("agent", r.unit.key.String()), zap.String("by", by), zap.Strings("taken", lost))
	go r.serveNotice(notice, text, by)
}

// controlOf is the control that a loss names first.
func controlOf(loss string) string {
	if i := strings.IndexAny(loss, ",:"); i > 0 {
		return loss[:i]
	}
	return ""
}

// serveNotice tells the terminal, waits, and ends the agent with all below it,
// unless what was taken has been given back in time: a table that is written in
// several commands lacks lines for a moment.
func (r *running) serveNotice(notice time.Duration, text, by string) {
	u := r.unit
	m := u.m
	if r.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), max(notice, time.Second))
		if err := r.client.Notice(ctx, fmt.Sprintf("this agent is stopped in %v; %s", notice, text)); err != nil {
			m.w.log.Warn("tell the terminal", zap.String("agent", u.key.String()), zap.Error(err))
		}
		cancel()
	}
	select {
	case <-time.After(notice):
	case <-r.done:
		return
	}
	if m.abandoned() {
		return // the next daemon looks again
	}
	if len(r.losses()) == 0 {
		m.event(u.key, agent.Event{Type: "agent.revoke", Session: r.want.Session, Status: "void", Reason: "what was taken has been given back in time"})
		r.notice.Store(nil)
		r.noticed.Store(false)
		m.Changed(u.key, by) // what was taken since the last look
		return
	}
	if err := r.endTree(context.Background(), m.w.conf.StopGrace, text); err != nil {
		m.w.log.Error("stop", zap.String("agent", u.key.String()), zap.Error(err))
	}
}

// endTree is manager.stopTree for this run of the agent only: one that was started
// anew meanwhile has nothing that was taken.
func (r *running) endTree(ctx context.Context, grace time.Duration, why string) error {
	u := r.unit
	m := u.m
	if u.current() != r {
		return nil
	}
	defer m.halt(u.key)()
	err := m.cancelBelow(ctx, u.key, grace/2, why)
	if terr := u.take(ctx); terr != nil {
		return terr
	}
	defer u.give()
	if u.current() != r {
		return err
	}
	if serr := m.ends(r, ctx, grace, why); serr != nil {
		return serr
	}
	return err
}

// noticeGiven is the notice that the agent was given; "": none.
func (r *running) noticeGiven() string {
	if text := r.notice.Load(); text != nil {
		return *text
	}
	return ""
}

// noticing are the fields of running that a notice needs.
type noticing struct {
	noticed atomic.Bool
	notice  atomic.Pointer[string]
}

// reviewed looks at an agent that has just come up, or was adopted: a text may have
// been changed after the start had read it, or while there was no daemon.
func (r *running) reviewed(by string) {
	if state, _ := r.unit.snapshot(); state != node.Dead && r.texts != nil {
		r.review(by)
	}
}
