package fs

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"bazil.org/fuse"
	"go.uber.org/zap"

	"cortexfs/node/vnode"
)

// A change is one invalidation: of a name in a directory, or (no name) of a
// node's attributes and content.
type change struct {
	id   uint64
	name string
}

// allNames is the change that makes the kernel ask again for every name.
var allNames = change{name: "*"}

// push is the queue of invalidations of one connection. It takes any number of
// changes without waiting; equal ones that are not yet written count once. One
// goroutine writes them: the kernel takes the lock of the directory for it, and
// waits for lookups in flight there, so it must be neither a handler nor anybody
// who holds a lock of the tree.
type push struct {
	write   func(change) error
	known   func(id uint64) bool
	log     *zap.Logger
	changes atomic.Uint64 // NodeChanged so far

	mu      sync.Mutex
	queue   []change
	queued  map[change]struct{}
	put     uint64 // changes ever queued
	written uint64 // of these, written
	waiters []pushWaiter
	closed  bool

	kick    chan struct{}
	stop    chan struct{}
	stopped chan struct{}
}

type pushWaiter struct {
	upTo uint64
	done chan struct{}
}

func (p *push) start(write func(change) error, known func(uint64) bool, log *zap.Logger) {
	p.write, p.known, p.log = write, known, log
	p.queued = map[change]struct{}{}
	p.kick = make(chan struct{}, 1)
	p.stop, p.stopped = make(chan struct{}), make(chan struct{})
	go p.run()
}

func (p *push) add(c change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.queued[c]; there || p.closed {
		return
	}
	p.queued[c] = struct{}{}
	p.queue = append(p.queue, c)
	p.put++
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// next takes the oldest change. It may be queued again from now on: what is
// being written may be older than what changes next.
func (p *push) next() (change, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 || p.closed {
		return change{}, false
	}
	c := p.queue[0]
	p.queue = p.queue[1:]
	delete(p.queued, c)
	return c, true
}

// wrote counts one and tells those who wait for it.
func (p *push) wrote() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written++
	kept := p.waiters[:0]
	for _, w := range p.waiters {
		if p.written >= w.upTo {
			close(w.done)
		} else {
			kept = append(kept, w)
		}
	}
	p.waiters = kept
}

func (p *push) run() {
	defer close(p.stopped)
	for {
		select {
		case <-p.kick:
		case <-p.stop:
			return
		}
		for {
			c, ok := p.next()
			if !ok {
				break
			}
			p.one(c)
			p.wrote()
		}
	}
}

// The kernel may not have made its inode yet when a change follows the answer to
// a first lookup at once; until then it does not know the number.
const (
	unknownRetries = 3
	unknownPause   = time.Millisecond
)

func (p *push) one(c change) {
	for try := 0; ; try++ {
		err := p.write(c)
		if err == nil {
			return
		}
		if !errors.Is(err, fuse.ErrNotCached) {
			p.log.Debug("invalidation", zap.Uint64("node", c.id), zap.Error(err))
			return
		}
		if c.name != "" || try == unknownRetries || !p.known(c.id) {
			return
		}
		select {
		case <-time.After(unknownPause):
		case <-p.stop:
			return
		}
	}
}

// waiter is a channel that is closed once all that is queued now is written, or
// nil if it is.
func (p *push) waiter() chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written == p.put || p.closed {
		return nil
	}
	w := pushWaiter{upTo: p.put, done: make(chan struct{})}
	p.waiters = append(p.waiters, w)
	return w.done
}

// close stops the goroutine; what is queued is void, as the kernel's caches are.
func (p *push) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	p.queue = nil
	for _, w := range p.waiters {
		close(w.done)
	}
	p.waiters = nil
	close(p.stop)
}

func (p *push) wait() { <-p.stopped }

// EntryChanged implements vnode.Notifier: name in dir appeared, vanished or is
// another node now. It only queues.
//
// On a view all names are asked for again (FUSE_NOTIFY_INC_EPOCH, kernel 6.16)
// rather than this one invalidated: an invalidation waits for the lock of the
// directory, which the agent could hold as long as it likes, and a daemon that
// is killed meanwhile does not die. The price is that what was mounted on a
// directory inside is detached and that open files show as deleted in /proc, so
// the main mount keeps to invalidations.
func (s *Server) EntryChanged(dir vnode.Node, name string) {
	id := s.nodes.id(dir)
	switch {
	case id == 0 || name == "":
	case s.epoch:
		s.push.add(allNames)
	default:
		s.push.add(change{id: id, name: name})
	}
}

// NodeChanged implements vnode.Notifier: attributes or content of n, for a
// directory its listing. It only queues.
func (s *Server) NodeChanged(n vnode.Node) {
	s.push.changes.Add(1)
	if id := s.nodes.id(n); id != 0 {
		s.push.add(change{id: id})
	}
}

// WaitPushed waits until what was queued before the call has reached the kernel,
// ctx ends, or PushBound is over, and says whether it has. A commit may call it
// before it returns; what it decides must never depend on it.
func (s *Server) WaitPushed(ctx context.Context) bool {
	done := s.push.waiter()
	if done == nil {
		return true
	}
	bound := time.NewTimer(PushBound)
	defer bound.Stop()
	select {
	case <-done:
		return true
	case <-ctx.Done():
	case <-bound.C:
	}
	return false
}

func (s *Server) writeChange(c change) error {
	if c == allNames {
		return incEpoch(s.dev)
	}
	if c.name != "" {
		return s.conn.InvalidateEntry(fuse.NodeID(c.id), c.name)
	}
	return s.conn.InvalidateNode(fuse.NodeID(c.id), 0, -1)
}

// polls wakes processes that wait in poll(2). Its writes take no lock that a
// handler could hold, so they do not queue behind invalidations, but the tree
// may ask for them with locks held: a goroutine of its own.
type polls struct {
	mu      sync.Mutex
	tokens  map[fuse.PollWakeup]struct{}
	closed  bool
	kick    chan struct{}
	stop    chan struct{}
	stopped chan struct{}
}

func (p *polls) start(wake func(fuse.PollWakeup) error) {
	p.tokens = map[fuse.PollWakeup]struct{}{}
	p.kick = make(chan struct{}, 1)
	p.stop, p.stopped = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(p.stopped)
		for {
			select {
			case <-p.kick:
			case <-p.stop:
				return
			}
			for _, t := range p.take() {
				// An unknown token is of a file that has been closed.
				_ = wake(t)
			}
		}
	}()
}

func (p *polls) add(t fuse.PollWakeup) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.tokens[t] = struct{}{}
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *polls) take() []fuse.PollWakeup {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]fuse.PollWakeup, 0, len(p.tokens))
	for t := range p.tokens {
		all = append(all, t)
		delete(p.tokens, t)
	}
	return all
}

func (p *polls) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.closed = true
		close(p.stop)
	}
}

func (p *polls) wait() { <-p.stopped }
