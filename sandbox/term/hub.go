package term

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// Bounds of one hub.
const (
	maxClients = 32                   // handshakes included
	maxQueue   = 1 << 20              // bytes of output that wait for one client
	maxTyped   = 16 << 20             // bytes of input held for one client; then its socket backs up
	maxAnswers = 16 << 10             // bytes of emulator replies that wait
	maxBacklog = 1 << 20              // bytes of output that wait for the emulator
	frameTime  = 8 * time.Millisecond // between two looks at output that does not stop
	endWait    = 2 * time.Second
)

// PTY is the other side of a hub: the agent's terminal. Its methods are safe for
// concurrent use.
type PTY interface {
	// Input returns when the program's side has taken p, or with an error when ctx
	// ends before.
	Input(ctx context.Context, p []byte) error
	// Stalled says that the program has not read for a while although input waits.
	Stalled() bool
	// Flush drops input that the program has not read; it does not block.
	Flush()
	// Resize sets the window; it does not block.
	Resize(Size)
}

// Hub joins one PTY and its clients.
type Hub struct {
	pty PTY

	backlog backlog
	answers answers
	ctx     context.Context // ends with End
	end     context.CancelFunc
	all     sync.WaitGroup // client goroutines and the answer pump
	drained chan struct{}  // closed when all output has been shown

	// mu protects the fields below.
	mu      sync.Mutex
	screen  *Screen
	clients map[*viewer]struct{}
	joining map[net.Conn]struct{} // handshakes
	decider *viewer               // the attached client whose size counts
	rawers  int                   // clients that get the unfiltered stream
	ended   bool
	code    int
}

// NewHub makes the hub of a PTY of the given size. The caller calls End.
func NewHub(pty PTY, size Size) *Hub {
	h := &Hub{
		pty:     pty,
		answers: answers{kick: make(chan struct{}, 1)},
		clients: map[*viewer]struct{}{},
		joining: map[net.Conn]struct{}{},
	}
	h.ctx, h.end = context.WithCancel(context.Background())
	h.screen = NewScreen(size, h.answers.add)
	h.backlog.init()
	h.drained = make(chan struct{})
	go h.drain()
	h.all.Go(h.pumpAnswers)
	return h
}

// Output takes what the PTY said. It waits for the emulator, never for a client.
func (h *Hub) Output(p []byte) { h.backlog.add(p) }

// drain shows output in pieces as large as have gathered: then what scrolls away
// at once costs nearly nothing.
func (h *Hub) drain() {
	defer close(h.drained)
	for p := h.backlog.take(nil); p != nil; p = h.backlog.take(p) {
		began := time.Now()
		h.show(p)
		h.backlog.gather(frameTime - time.Since(began))
	}
}

func (h *Hub) show(p []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var clean, raw []byte
	if out := h.screen.Write(p); len(out) > 0 {
		clean = bytes.Clone(out) // one copy, shared by all queues
	}
	if h.rawers > 0 {
		raw = bytes.Clone(p)
	}
	for c := range h.clients {
		if c.mode.raw {
			c.queueLocked(raw)
		} else {
			c.queueLocked(clean)
		}
	}
}

// Size is the PTY's current size.
func (h *Hub) Size() Size {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.screen.Size()
}

// Text is the current screen as plain text.
func (h *Hub) Text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.screen.Text()
}

// Clients is the number of joined clients.
func (h *Hub) Clients() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.clients)
}

// End tells every client that the session ended with this code and returns when
// all of them are gone, after 2 s at most.
func (h *Hub) End(code int) {
	h.backlog.close()
	<-h.drained // the last words come before the end
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		h.all.Wait()
		return
	}
	h.ended, h.code = true, code
	h.end()
	for nc := range h.joining {
		nc.SetReadDeadline(time.Unix(1, 0))
	}
	for c := range h.clients {
		c.nc.SetWriteDeadline(time.Now().Add(endWait))
		c.wakeLocked()
		if c.noOutput {
			c.finish()
		}
	}
	h.mu.Unlock()
	h.all.Wait()
	h.screen.Close()
}

// Serve speaks with one accepted client, whose right to connect the caller has
// checked, until either side ends it. It closes nc.
func (h *Hub) Serve(nc net.Conn) {
	h.mu.Lock()
	full := len(h.joining)+len(h.clients) >= maxClients
	if full || h.ended {
		h.mu.Unlock()
		if full {
			Refuse(nc, fault.Newf(fault.Again, "%d clients are connected", maxClients))
		} else {
			nc.Close()
		}
		return
	}
	h.joining[nc] = struct{}{}
	h.all.Add(1)
	h.mu.Unlock()
	defer h.all.Done()
	defer nc.Close()

	c, err := h.handshake(nc)
	h.mu.Lock()
	delete(h.joining, nc)
	if err == nil {
		h.joinLocked(c)
	}
	h.mu.Unlock()
	if err != nil {
		Refuse(nc, err)
		return
	}
	c.serve()
	h.leave(c)
}

// Refuse tells a client why it is not served, in one error line, and closes it.
func Refuse(nc net.Conn, err error) {
	defer nc.Close()
	line, jerr := json.Marshal(map[string]string{
		"type":    "error",
		"code":    unix.ErrnoName(fault.Errno(err)),
		"message": err.Error(),
	})
	if jerr != nil {
		return
	}
	nc.SetWriteDeadline(time.Now().Add(time.Second))
	nc.Write(append(line, '\n'))
}

func (h *Hub) joinLocked(c *viewer) {
	h.clients[c] = struct{}{}
	if c.mode.raw {
		h.rawers++
	}
	if h.ended {
		c.nc.SetWriteDeadline(time.Now().Add(endWait))
	}
	if c.mode.attach && h.decider == nil {
		h.decideLocked(c)
	}
	c.sizeLocked(h.screen.Size())
	c.queueLocked(h.screen.Replay())
}

func (h *Hub) leave(c *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, c)
	if c.mode.raw {
		h.rawers--
	}
	if h.decider == c {
		h.decider = nil
	}
}

// decideLocked makes c the client whose window is the PTY's, if it has a usable
// one (spec section 12: the last attached client that typed).
func (h *Hub) decideLocked(c *viewer) {
	if !c.size.Usable() || h.ended {
		return
	}
	h.decider = c
	if h.screen.Size() == c.size {
		return
	}
	h.screen.Resize(c.size)
	h.pty.Resize(c.size)
	for other := range h.clients {
		other.sizeLocked(c.size)
	}
}

// pumpAnswers types the emulator's replies.
func (h *Hub) pumpAnswers() {
	for {
		select {
		case <-h.answers.kick:
		case <-h.ctx.Done():
			return
		}
		for p := h.answers.take(); len(p) > 0; p = h.answers.take() {
			if err := h.pty.Input(h.ctx, p); err != nil {
				return
			}
		}
	}
}

// errLeft ends a viewer whose peer went away.
var errLeft = errors.New("client left")
