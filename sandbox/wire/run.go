package wire

import (
	"context"
	"encoding/binary"
	"io"
	"sync"

	"cortexfs/node/fault"
)

// Command is one command that the guest works on. Its methods are safe for
// concurrent use.
type Command struct {
	h    *Host
	id   uint32
	held bool

	opened chan struct{} // closed when a held program is open
	end    chan struct{} // closed with done

	// mu protects the fields below; it comes before Host.mu.
	mu          sync.Mutex
	out, errOut []byte
	more        chan struct{} // closed and renewed when out has grown
	over        bool          // there will be no more output
	limit       int           // of each stream; of a held one 0 before Go
	going       bool          // a held one was let go
	isOpen      bool
	done        DoneMsg
	fed         int
}

// Result is what came of a command.
type Result struct {
	DoneMsg
	Stdout, Stderr []byte
}

// Run executes a command inside and collects its output. When ctx ends, the
// command is killed and what it wrote so far is returned with ctx's error. EAGAIN
// when too many run.
func (h *Host) Run(ctx context.Context, m RunMsg) (*Result, error) {
	c, err := h.Begin(m)
	if err != nil {
		return nil, err
	}
	return c.Wait(ctx)
}

// Begin starts a command. The caller calls Wait, once. EAGAIN when too many run.
func (h *Host) Begin(m RunMsg) (*Command, error) {
	c := &Command{h: h, held: m.Held, limit: m.Limit, opened: make(chan struct{}), end: make(chan struct{}), more: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.live {
		return nil, fault.Newf(fault.Unavailable, "the session has not begun")
	}
	if len(h.runs) >= maxRuns {
		return nil, fault.Newf(fault.Again, "%d commands run inside already", maxRuns)
	}
	h.nextRun++
	m.ID, c.id = h.nextRun, h.nextRun
	b := frameJSON(Run, m)
	if len(b) > MaxControl {
		return nil, fault.Newf(fault.TooBig, "command of %d bytes", len(b))
	}
	if err := h.sendLocked(b); err != nil {
		return nil, err
	}
	h.runs[m.ID] = c
	return c, nil
}

// Opened waits until the program of a held command is open: true; or until the
// command has ended without.
func (c *Command) Opened(ctx context.Context) (bool, error) {
	select {
	case <-c.opened:
		return true, nil
	case <-c.end:
		return false, nil
	case <-c.h.over:
		return false, errGone
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// Go lets a held command run, once.
func (c *Command) Go(m GoMsg) error {
	m.ID = c.id
	b := frameJSON(Go, m)
	if len(b) > MaxControl {
		return fault.Newf(fault.TooBig, "command of %d bytes", len(b))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isOpen || c.going {
		return fault.Newf(fault.Invalid, "the command is not held")
	}
	c.going, c.limit = true, m.Limit
	return c.h.send(b)
}

// Kill ends the command: SIGTERM to its process group, SIGKILL after a grace of
// the guest. A held one is dropped.
func (c *Command) Kill() { c.h.send(frame(Kill, u32(c.id))) }

// Feed gives a command its standard input, in all at most MaxFeed bytes; an empty
// p ends it.
func (c *Command) Feed(p []byte) error {
	c.mu.Lock()
	c.fed += len(p)
	tooMuch := c.fed > MaxFeed
	c.mu.Unlock()
	if tooMuch {
		return fault.Newf(fault.TooBig, "standard input of over %d bytes", MaxFeed)
	}
	for first := true; first || len(p) > 0; first = false {
		n := min(len(p), MaxData)
		if err := c.h.send(frame(Feed, append(u32(c.id), p[:n]...))); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Stdout reads what the command writes, as it comes, up to its end. The kept
// output is the buffer, so that a slow reader delays nobody.
func (c *Command) Stdout(ctx context.Context) io.Reader { return &stdout{c: c, ctx: ctx} }

type stdout struct {
	c   *Command
	ctx context.Context
	at  int
}

func (s *stdout) Read(p []byte) (int, error) {
	for {
		s.c.mu.Lock()
		n := copy(p, s.c.out[s.at:])
		over, more := s.c.over, s.c.more
		s.c.mu.Unlock()
		s.at += n
		if n > 0 || len(p) == 0 {
			return n, nil
		}
		if over {
			return 0, io.EOF
		}
		select {
		case <-more:
		case <-s.c.h.over:
			return 0, errGone
		case <-s.ctx.Done():
			return 0, s.ctx.Err()
		}
	}
}

var errGone = fault.Newf(fault.Unavailable, "the sandbox ended")

// Wait returns when the command has ended. When ctx ends first, the command is
// killed and what it wrote so far is returned with ctx's error.
func (c *Command) Wait(ctx context.Context) (*Result, error) {
	var err error
	select {
	case <-c.end:
	case <-c.h.over:
		err = errGone
	case <-ctx.Done():
		c.Kill()
		err = ctx.Err()
		select { // the guest needs its own grace for the process group
		case <-c.end:
		case <-c.h.over:
		}
	}
	c.h.mu.Lock()
	delete(c.h.runs, c.id)
	c.h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return &Result{DoneMsg: c.done, Stdout: c.out, Stderr: c.errOut}, err
}

func (h *Host) command(id uint32) *Command {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[id]
}

func (h *Host) runData(data []byte) error {
	c := h.command(binary.BigEndian.Uint32(data))
	if c == nil {
		return violation("output of no command")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	into := &c.out
	switch data[4] {
	case 1:
	case 2:
		into = &c.errOut
	default:
		return violation("output stream %d", data[4])
	}
	if c.over || c.held && !c.going {
		return violation("output of a command that does not run")
	}
	if len(*into)+len(data)-5 > c.limit {
		return violation("more output than asked for")
	}
	*into = append(*into, data[5:]...)
	close(c.more)
	c.more = make(chan struct{})
	return nil
}

func (h *Host) runOpened(id uint32) error {
	c := h.command(id)
	if c == nil {
		return violation("opening of no command")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.held || c.isOpen || c.over {
		return violation("opening of a command that is not held")
	}
	c.isOpen = true
	close(c.opened)
	return nil
}

func (h *Host) runDone(m DoneMsg) error {
	c := h.command(m.ID)
	if c == nil {
		return violation("end of no command")
	}
	if m.Code < -1 || m.Code > 255 || m.Errno < 0 || m.Errno > 4095 {
		return violation("end of a command with code %d", m.Code)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return violation("end of no command")
	}
	c.done, c.over = m, true
	close(c.more)
	c.more = make(chan struct{})
	close(c.end)
	return nil
}
