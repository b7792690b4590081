package term

import (
	"sync"
	"time"
)

// backlog is output that waits for the emulator.
type backlog struct {
	mu         sync.Mutex // protects all
	more, room sync.Cond
	buf        []byte
	closed     bool
	much       chan struct{} // a quarter full, or closed: no more gathering
}

func (b *backlog) init() {
	b.more.L, b.room.L = &b.mu, &b.mu
	b.much = make(chan struct{}, 1)
}

// gather lets output come together for a while, so that a flood is looked at a
// hundred times a second and not ten thousand times.
func (b *backlog) gather(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-b.much:
	}
}

func (b *backlog) add(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.buf) > 0 && len(b.buf)+len(p) > maxBacklog && !b.closed {
		b.room.Wait()
	}
	if !b.closed {
		b.buf = append(b.buf, p...)
		b.more.Signal()
		if len(b.buf) > maxBacklog/4 {
			b.full()
		}
	}
}

func (b *backlog) full() {
	select {
	case b.much <- struct{}{}:
	default:
	}
}

// take returns what waits, nil at the end; old is a buffer that is free again.
func (b *backlog) take(old []byte) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.buf) == 0 && !b.closed {
		b.more.Wait()
	}
	if len(b.buf) == 0 {
		return nil
	}
	if cap(old) > 64<<10 {
		old = nil // an idle agent holds little
	}
	p := b.buf
	b.buf = old[:0]
	b.room.Signal()
	return p
}

func (b *backlog) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.full()
	b.more.Broadcast()
	b.room.Broadcast()
}

// answers is what the emulator wants to tell the program. It has a lock of its
// own because the emulator speaks while Hub.mu is held.
type answers struct {
	kick chan struct{}
	mu   sync.Mutex
	buf  []byte // protected by mu
}

func (a *answers) add(p []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.buf)+len(p) > maxAnswers {
		return // a program that asks and does not listen
	}
	a.buf = append(a.buf, p...)
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

func (a *answers) take() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.buf
	a.buf = nil
	return p
}
