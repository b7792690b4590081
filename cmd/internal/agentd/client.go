package agentd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// Client is the daemon's connection to one host process. It is safe for
// concurrent use; a lost connection fails all calls and closes Done.
type Client struct {
	conn    *net.UnixConn
	events  chan Event
	answers Answerer // nil: questions are refused
	asking  chan struct{}
	ctx     context.Context // ends with the connection
	cancel  context.CancelFunc

	done chan struct{}

	wmu sync.Mutex // serialises lines

	// mu protects the fields below.
	mu      sync.Mutex
	last    Event
	queue   []Event
	kick    chan struct{}
	next    uint64
	waiting map[uint64]chan answer
	err     error
}

// Dial connects to a ctl.sock. The path lies in a directory that only the
// daemon can enter, so the server is not checked further; compare Pid with the
// recorded host process before trusting an adopted one.
func Dial(ctx context.Context, path string) (*Client, error) { return DialWith(ctx, path, nil) }

// DialWith is Dial with somebody who answers what the host process asks.
func DialWith(ctx context.Context, path string, answers Answerer) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fault.FromOS("connect", path, err)
	}
	c := &Client{
		conn:    conn.(*net.UnixConn),
		answers: answers,
		asking:  make(chan struct{}, maxAsks),
		events:  make(chan Event),
		done:    make(chan struct{}),
		kick:    make(chan struct{}, 1),
		waiting: map[uint64]chan answer{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if answers == nil {
		c.answers = func(_ context.Context, op string, _ json.RawMessage) (any, error) {
			return nil, fault.Newf(fault.Unavailable, "nobody answers %s", op)
		}
	}
	go c.read()
	go c.deliver()
	if _, err := c.call(ctx, request{Op: "state"}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Events delivers every state in order, the current one first. It is closed
// when the connection ends. A reader that is slow delays nobody.
func (c *Client) Events() <-chan Event { return c.events }

// Done is closed when the connection ends.
func (c *Client) Done() <-chan struct{} { return c.done }

// Last is the newest event.
func (c *Client) Last() Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// WaitReady returns nil once the session program runs; else the event that
// ended the start, with its reason as the error (kind Access when the program
// was refused inside, TimedOut when ctx ended first, else Unavailable).
func (c *Client) WaitReady(ctx context.Context) error {
	for {
		select {
		case ev, ok := <-c.events:
			switch {
			case !ok:
				return fault.Newf(fault.Unavailable, "host process went away: %v", c.Err())
			case ev.State == node.Ready, ev.State == node.Busy, ev.State == node.Idle:
				return nil
			case ev.State == node.Stopping, ev.State == node.Dead:
				return ev.Err()
			}
		case <-ctx.Done():
			return fault.E("start", "", fault.TimedOut, ctx.Err())
		}
	}
}

// Err is the event's reason as an error.
func (e Event) Err() error {
	kind := fault.Unavailable
	switch e.Refused {
	case "":
	case "ENOENT":
		kind = fault.NotExist
	case "ELOOP":
		kind = fault.Loop
	default:
		kind = fault.Access
	}
	if e.Reason == "" {
		return fault.Newf(kind, "agent is %s", e.State)
	}
	return fault.E("", "", kind, errors.New(e.Reason))
}

// Stop asks for an orderly end: SIGTERM to every process inside, grace, then
// the end of all. It returns when the host process is done or ctx ends; the
// daemon backs it with SIGKILL.
func (c *Client) Stop(ctx context.Context, grace time.Duration) error {
	_, err := c.call(ctx, request{Op: "stop", GraceMS: grace.Milliseconds()})
	return err
}

// Run executes a command inside and collects its output.
func (c *Client) Run(ctx context.Context, r RunRequest) (*RunResult, error) {
	a, err := c.call(ctx, request{Op: "run", Run: &r})
	if err != nil {
		return nil, err
	}
	if a.Run == nil {
		return nil, fault.Newf(fault.IO, "run: answer without a result")
	}
	return a.Run, nil
}

// Sandbox hands over the processes of the sandbox; from then on the death of
// bwrap ends the agent. ESRCH when the process is already gone.
func (c *Client) Sandbox(ctx context.Context, s Sandbox) error {
	_, err := c.call(ctx, request{Op: "sandbox", Sandbox: &s})
	return err
}

// Notice shows a line to everybody at the agent's terminal; control bytes in it are
// escaped there.
func (c *Client) Notice(ctx context.Context, text string) error {
	_, err := c.call(ctx, request{Op: "notice", Text: text})
	return err
}

// Close ends the connection, not the agent.
func (c *Client) Close() error {
	c.fail(net.ErrClosed)
	return nil
}

// Err says why the connection ended; nil while it lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *Client) call(ctx context.Context, r request) (answer, error) {
	ch := make(chan answer, 1)
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		return answer{}, fault.Newf(fault.Unavailable, "host process: %v", err)
	}
	c.next++
	r.ID = c.next
	c.waiting[r.ID] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, r.ID)
		c.mu.Unlock()
	}()

	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, fmt.Errorf("encode %s: %w", r.Op, err)
	}
	c.wmu.Lock()
	c.conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, err = c.conn.Write(append(line, '\n'))
	c.wmu.Unlock()
	if err != nil {
		c.fail(err)
		return answer{}, fault.Newf(fault.Unavailable, "host process: %v", err)
	}
	select {
	case a := <-ch:
		if a.Error != "" {
			return a, fault.E(r.Op, "", fault.KindOf(fault.FromOS("", "", errnoOf(a.Code))), errors.New(a.Error))
		}
		return a, nil
	case <-c.done:
		select {
		case a := <-ch: // the last answer came with the end
			return a, nil
		default:
		}
		return answer{}, fault.Newf(fault.Unavailable, "host process: %v", c.Err())
	case <-ctx.Done():
		return answer{}, fault.E(r.Op, "", fault.TimedOut, ctx.Err())
	}
}

func (c *Client) read() {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		line, err := readLine(in)
		if err != nil {
			c.fail(err)
			return
		}
		var a answer
		if err := strict(line, &a); err != nil {
			c.fail(fault.Newf(fault.Invalid, "answer of the host process: %v", err))
			return
		}
		if a.Ask != nil && a.ID == 0 {
			c.answerAsk(*a.Ask)
			continue
		}
		c.mu.Lock()
		if a.Event != nil && a.ID == 0 {
			c.last = *a.Event
			c.queue = append(c.queue, *a.Event)
			select {
			case c.kick <- struct{}{}:
			default:
			}
		}
		ch := c.waiting[a.ID]
		delete(c.waiting, a.ID)
		c.mu.Unlock()
		if ch != nil {
			ch <- a
		}
	}
}

// deliver hands events over without ever making read wait.
func (c *Client) deliver() {
	defer close(c.events)
	for {
		c.mu.Lock()
		var ev Event
		have := len(c.queue) > 0
		if have {
			ev = c.queue[0]
			c.queue = c.queue[1:]
		}
		ended := c.err != nil
		c.mu.Unlock()
		switch {
		case have && ended:
			select { // nobody may be left to read
			case c.events <- ev:
			case <-time.After(time.Second):
				return
			}
		case have:
			select {
			case c.events <- ev:
			case <-c.done:
				c.mu.Lock()
				c.queue = append([]Event{ev}, c.queue...)
				c.mu.Unlock()
			}
		case ended:
			return
		default:
			select {
			case <-c.kick:
			case <-c.done:
			}
		}
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	c.cancel()
	c.conn.Close()
	close(c.done)
}
