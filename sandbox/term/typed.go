package term

import (
	"context"
	"sync"
)

// typed is the bounded queue of one client's input. Whoever waits for a change
// selects on the channel that comes with the answer.
type typed struct {
	base context.Context // ends with the client

	mu      sync.Mutex
	parts   [][]byte
	size    int           // bytes in parts and in the part on its way
	closed  bool          // no more will be added
	changed chan struct{} // closed and renewed at every change
	round   context.Context
	void    context.CancelFunc // ends round: what is queued and on its way is dropped
}

func newTyped(base context.Context) *typed {
	t := &typed{base: base, changed: make(chan struct{})}
	t.round, t.void = context.WithCancel(base)
	return t
}

func (t *typed) noteLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// add queues data unless the queue is full; wait fires when it is worth trying
// again. One part always fits into an empty queue.
func (t *typed) add(data []byte) (ok bool, wait <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.size > 0 && t.size+len(data) > maxTyped {
		return false, t.changed
	}
	t.parts = append(t.parts, data)
	t.size += len(data)
	t.noteLocked()
	return true, nil
}

// take returns a part of at most chunk bytes, whose ctx ends when it is dropped;
// nil and a channel when there is nothing now; over when there will be nothing.
func (t *typed) take() (p []byte, ctx context.Context, over bool, wait <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.parts) == 0 {
		return nil, nil, t.closed, t.changed
	}
	p = t.parts[0]
	if len(p) > chunk {
		p, t.parts[0] = p[:chunk], p[chunk:]
	} else {
		t.parts = t.parts[1:]
	}
	return p, t.round, false, nil
}

// done says that a taken part of n bytes is sent, unless it was dropped.
func (t *typed) done(ctx context.Context, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx == t.round {
		t.size -= n
		t.noteLocked()
	}
}

// drop empties the queue and voids the part on its way. It returns how many
// bytes that were.
func (t *typed) drop() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.size
	t.parts, t.size = nil, 0
	t.void()
	t.round, t.void = context.WithCancel(t.base)
	t.noteLocked()
	return n
}

// close says that nothing will be added.
func (t *typed) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.noteLocked()
}

// idle says whether nothing waits.
func (t *typed) idle() (bool, <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.size == 0, t.changed
}
