package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"cortexfs/node/fault"
)

const (
	// stallTime is how long the window must have stood still for Stalled.
	stallTime = 250 * time.Millisecond
	maxRuns   = 128 // commands at once: steps, tools, what people run
)

// Events is what a Host tells. All are called from Serve's goroutine, in order.
type Events interface {
	Hello(HelloMsg)
	Started(StartedMsg)
	Output([]byte) // valid during the call
	Exit(ExitMsg)
}

// A Finder among Events also hears of repositories that appear.
type Finder interface{ Found(FoundMsg) }

// Host is ctxagent's end of the wire. Its methods are safe for concurrent use.
type Host struct {
	conn   net.Conn
	events Events

	// mu protects the fields below.
	mu      sync.Mutex
	sendq   [][]byte
	sending chan struct{} // there is something in sendq
	live    bool          // the session program runs
	window  int           // input that may be sent now; 0 before live
	moved   time.Time     // when the window last moved
	opened  chan struct{} // closed and renewed when the window opens
	runs    map[uint32]*Command
	nextRun uint32
	err     error
	over    chan struct{} // closed with err
}

// NewHost makes the host's end. The caller runs Serve.
func NewHost(conn net.Conn, events Events) *Host {
	return &Host{
		conn:    conn,
		events:  events,
		sending: make(chan struct{}, 1),
		opened:  make(chan struct{}),
		runs:    map[uint32]*Command{},
		over:    make(chan struct{}),
	}
}

// Serve reads what the guest says until the wire ends. It returns nil when the
// guest closed it between frames, a Violation, or the wire's error.
func (h *Host) Serve() error {
	var w sync.WaitGroup
	w.Go(h.write)
	err := h.read()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	h.fail(err)
	w.Wait()
	return err
}

// Close ends the wire; an honest guest ends its sandbox then.
func (h *Host) Close() { h.fail(net.ErrClosed) }

func (h *Host) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.over:
		return
	default:
	}
	if err == nil {
		err = io.EOF
	}
	h.err = err
	close(h.over)
	h.conn.Close()
}

// read enforces the order of frames: hello, started, then the rest, exit last.
func (h *Host) read() error {
	const (
		wantHello = iota
		wantStarted
		inSession
		ended
	)
	state := wantHello
	buf := make([]byte, 5+MaxData)
	for {
		kind, data, err := readFrame(h.conn, fromGuest, buf)
		if err != nil {
			return err
		}
		switch {
		case kind == Hello && state == wantHello:
			var m HelloMsg
			if err := decode(kind, data, &m); err != nil {
				return err
			}
			if m.Version != Version {
				return violation("version %d", m.Version)
			}
			state = wantStarted
			h.events.Hello(m)
		case kind == Started && state == wantStarted:
			var m StartedMsg
			if err := decode(kind, data, &m); err != nil {
				return err
			}
			state = ended
			if m.Errno == 0 {
				state = inSession
				h.begin()
			}
			h.events.Started(m)
		case state != inSession:
			return violation("frame %q out of order", kind)
		default:
			if err := h.session(kind, data); err != nil {
				return err
			}
			if kind == Exit {
				state = ended
			}
		}
	}
}

// begin opens the session for input and commands.
func (h *Host) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.live, h.window, h.moved = true, Window, time.Now()
	close(h.opened)
	h.opened = make(chan struct{})
}

func (h *Host) session(kind Kind, data []byte) error {
	switch kind {
	case Output:
		h.events.Output(data)
	case Credit:
		return h.credit(binary.BigEndian.Uint32(data))
	case Data:
		return h.runData(data)
	case Opened:
		return h.runOpened(binary.BigEndian.Uint32(data))
	case Found:
		var m FoundMsg
		if err := decode(kind, data, &m); err != nil {
			return err
		}
		if f, ok := h.events.(Finder); ok {
			f.Found(m)
		}
	case Done:
		var m DoneMsg
		if err := decode(kind, data, &m); err != nil {
			return err
		}
		return h.runDone(m)
	case Exit:
		var m ExitMsg
		if err := decode(kind, data, &m); err != nil {
			return err
		}
		if m.Code < 0 || m.Code > 255 {
			return violation("exit code %d", m.Code)
		}
		h.events.Exit(m)
	default:
		return violation("frame %q out of order", kind)
	}
	return nil
}

// ---- sending. The queue is bounded by what fills it: input by the window,
// commands by maxRuns, the rest is small and rare.

func (h *Host) send(b []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sendLocked(b)
}

func (h *Host) sendLocked(b []byte) error {
	if h.err != nil {
		return fault.E("wire", "", fault.Unavailable, h.err)
	}
	if Kind(b[0]) == Size { // only the newest counts
		for i, q := range h.sendq {
			if Kind(q[0]) == Size {
				h.sendq[i] = b
				return nil
			}
		}
	}
	h.sendq = append(h.sendq, b)
	select {
	case h.sending <- struct{}{}:
	default:
	}
	return nil
}

func (h *Host) write() {
	for {
		select {
		case <-h.sending:
		case <-h.over:
			return
		}
		h.mu.Lock()
		queue := h.sendq
		h.sendq = nil
		h.mu.Unlock()
		bufs := net.Buffers(queue)
		if _, err := bufs.WriteTo(h.conn); err != nil {
			h.fail(err)
			return
		}
	}
}

// Start tells the guest what to run. Once, after Hello.
func (h *Host) Start(m StartMsg) error {
	m.Version = Version
	b := frameJSON(Start, m)
	if len(b) > MaxControl {
		return fault.Newf(fault.TooBig, "session program with %d bytes of arguments", len(b))
	}
	return h.send(b)
}

// Resize sets the size of the PTY.
func (h *Host) Resize(rows, cols uint16) error {
	return h.send(frame(Size, append(binary.BigEndian.AppendUint16(nil, rows), byte(cols>>8), byte(cols))))
}

// Flush makes the guest drop input that the program has not read.
func (h *Host) Flush() error { return h.send(frame(Flush, nil)) }

// Terminate asks the guest to end all processes: SIGTERM, grace, the end.
func (h *Host) Terminate(grace time.Duration) error {
	return h.send(frame(Terminate, u32(uint32(max(grace.Milliseconds(), 0)))))
}

// ---- input

// Input sends p as the window allows, from the session's begin. It returns an error when ctx ends or the
// wire does; a part of p may have been sent then.
func (h *Host) Input(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		h.mu.Lock()
		n := min(len(p), h.window, MaxData)
		if n > 0 {
			if h.window == Window {
				h.moved = time.Now() // it stood full: a stall begins now at the earliest
			}
			h.window -= n
			err := h.sendLocked(frame(Input, p[:n]))
			h.mu.Unlock()
			if err != nil {
				return err
			}
			p = p[n:]
			continue
		}
		opened := h.opened
		h.mu.Unlock()
		select {
		case <-opened:
		case <-ctx.Done():
			return ctx.Err()
		case <-h.over:
			return fault.E("wire", "", fault.Unavailable, net.ErrClosed)
		}
	}
	return nil
}

// Stalled says that input is on its way and none has arrived for 250 ms.
func (h *Host) Stalled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.live && h.window < Window && time.Since(h.moved) > stallTime
}

func (h *Host) credit(n uint32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n == 0 || int64(n) > int64(Window-h.window) {
		return violation("credit of %d bytes for %d", n, Window-h.window)
	}
	h.window += int(n)
	h.moved = time.Now()
	close(h.opened)
	h.opened = make(chan struct{})
	return nil
}
