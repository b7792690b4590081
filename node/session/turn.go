package session

import (
	"context"
	"sync"
)

// turn lets the runs of a session work one after another, in the order in which
// they were begun: the second is to see what the first has said.
type turn struct {
	mu      sync.Mutex
	queue   []string
	changed chan struct{}
}

func (t *turn) init() { t.changed = make(chan struct{}) }

func (t *turn) join(run string) {
	t.mu.Lock()
	t.queue = append(t.queue, run)
	t.mu.Unlock()
}

func (t *turn) leave(run string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range t.queue {
		if r == run {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
			break
		}
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// wait returns when run is the first of the queue.
func (t *turn) wait(ctx context.Context, run string) error {
	for {
		t.mu.Lock()
		mine := len(t.queue) > 0 && t.queue[0] == run
		changed := t.changed
		t.mu.Unlock()
		if mine {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
