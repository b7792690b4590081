package term

import "sync"

// backlog is output that waits for the emulator.
type backlog struct {
	mu         sync.Mutex // protects all
	more, room sync.Cond
	buf        []byte
	closed     bool
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
	if cap(old) > maxBacklog/4 {
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
