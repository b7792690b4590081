package agentd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cortexfs/cmd/internal/peer"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
	"cortexfs/node/run"
	"cortexfs/node/session"
)

// Limits of the agent's socket (spec section 13).
const (
	maxFrame   = 1 << 20 // bytes
	frameTime  = 5 * time.Second
	maxClients = 512
	writeTime  = 5 * time.Minute // for a client that does not read
)

// acceptAgent serves agent/<name>.sock. Only the owner and root, from the host,
// may connect; each is told why it may not.
func (a *agent) acceptAgent(l *net.UnixListener) {
	var clients sync.WaitGroup
	slots := make(chan struct{}, maxClients)
	defer clients.Wait()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if retry(err) {
				continue
			}
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			refuseAgent(conn, fault.Newf(fault.Again, "%d clients are connected", maxClients))
			continue
		}
		clients.Go(func() {
			defer func() { <-slots }()
			a.serveAgent(conn)
		})
	}
}

// refuseAgent says one error frame and closes.
func refuseAgent(conn *net.UnixConn, err error) {
	conn.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = conn.Write(append(errorFrame("", err), '\n'))
	_ = conn.CloseWrite()
	// What the client has sent already would turn the close into a reset, which can
	// overtake the frame.
	conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, conn, maxFrame)
	conn.Close()
}

func errorFrame(id string, err error) []byte {
	f := struct {
		Type    string `json:"type"`
		Run     string `json:"run,omitempty"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}{"error", id, model.Code(err), model.Printable(err.Error(), 512)}
	var r *run.RunError
	if errors.As(err, &r) {
		f.Code = r.Code
	}
	return jsonl.Marshal(f)
}

// errFrame is a frame that is too long.
var errFrame = &run.RunError{Code: "EMSGSIZE", Message: fmt.Sprintf("frame of over %d bytes", maxFrame)}

// client is one connection to the agent's socket.
type client struct {
	r    *runs
	conn *net.UnixConn
	in   *bufio.Reader
	by   string
	ctx  context.Context // ends with the agent, or when the client is gone

	wmu sync.Mutex // one frame at a time
}

func (a *agent) serveAgent(conn *net.UnixConn) {
	p, err := peer.Host(conn)
	if err == nil {
		uid := p.UID
		p.Close()
		if uid != 0 && uid != a.p.Owner {
			err = fault.Newf(fault.Access, "uid %d is neither the owner nor root", uid)
		} else {
			defer conn.Close()
			c := &client{r: a.runs, conn: conn, in: bufio.NewReaderSize(conn, 64<<10), by: fmt.Sprintf("uid %d", uid)}
			c.serve()
			return
		}
	}
	refuseAgent(conn, err)
}

// serve answers requests: one, or those of a connection that is kept.
func (c *client) serve() {
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithCancel(c.r.ctx)
	defer cancel()
	stop := context.AfterFunc(c.ctx, func() { c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		line, err := c.read(true)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && c.ctx.Err() == nil {
				_ = c.write(errorFrame("", err))
				c.finish()
			}
			return
		}
		q, err := parseRequest(line)
		if err == nil {
			err = c.answer(q)
		}
		if err != nil {
			run := ""
			if q != nil && q.op == "cancel" {
				run = q.id
			}
			if c.write(errorFrame(run, err)) != nil {
				return
			}
		}
		if q == nil || !q.keep {
			c.finish()
			return
		}
	}
}

// finish closes so that the last frame arrives also when the client has sent more.
func (c *client) finish() {
	_ = c.conn.CloseWrite()
	c.conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, c.in, maxFrame)
}

// read is the next frame, without LF. A frame that has begun has to be whole
// within frameTime. The end of the input ends a frame too.
func (c *client) read(timed bool) ([]byte, error) {
	if _, err := c.in.Peek(1); err != nil {
		return nil, err
	}
	if timed {
		c.conn.SetReadDeadline(time.Now().Add(frameTime))
		defer func() {
			if c.ctx.Err() == nil {
				c.conn.SetReadDeadline(time.Time{})
			}
		}()
	}
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxFrame+1 || len(line) == maxFrame+1 && line[maxFrame] != '\n':
			return nil, errFrame
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return line, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, fault.Newf(fault.TimedOut, "the frame was not whole within %v", frameTime)
		case err != nil:
			return nil, err
		}
		return line[:len(line)-1], nil
	}
}

func (c *client) write(frame []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.conn.SetWriteDeadline(time.Now().Add(writeTime))
	_, err := c.conn.Write(append(frame, '\n'))
	return err
}

// wanted is one request, its fields judged by type only.
type wanted struct {
	op, id, session, scope, space, cwd, workspace, input, after string
	follow, keep                                                bool
}

// parseRequest reads a request: unknown fields are ignored, wrong types refused.
func parseRequest(line []byte) (*wanted, error) {
	o, err := jsonl.Parse(line)
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "request: %w", err)
	}
	q := &wanted{}
	for key, into := range map[string]*string{"op": &q.op, "id": &q.id, "session": &q.session, "scope": &q.scope, "space": &q.space,
		"cwd": &q.cwd, "workspace": &q.workspace, "input": &q.input, "after": &q.after} {
		if v, ok := o.Get(key); ok {
			if *into, ok = o.String(key); !ok && string(v) != "null" {
				return nil, fault.Newf(fault.Invalid, "%s is a string", key)
			}
		}
	}
	for key, into := range map[string]*bool{"follow": &q.follow, "keep": &q.keep} {
		if v, ok := o.Get(key); ok && json.Unmarshal(v, into) != nil {
			return nil, fault.Newf(fault.Invalid, "%s is true or false", key)
		}
	}
	if q.op == "" {
		return nil, fault.Newf(fault.Invalid, "request without op")
	}
	if q.op == "send" {
		if _, ok := o.String("input"); !ok {
			return nil, fault.Newf(fault.Invalid, "send without input")
		}
	}
	if q.session == "" {
		q.session = "default"
	}
	if q.scope == "" {
		q.scope = string(session.Private)
	}
	return q, nil
}

func (q *wanted) key() session.Key {
	return session.Key{Scope: session.Scope(q.scope), Space: q.space, Name: q.session}
}

// answer does one request up to its last frame. An error is that last frame.
func (c *client) answer(q *wanted) error {
	switch q.op {
	case "ping":
		return c.write([]byte(`{"type":"pong"}`))
	case "send":
		return c.send(q)
	case "resume":
		return c.resume(q)
	case "cancel":
		return c.cancel(q)
	case "handle":
		return c.handle()
	case "approve":
		return fault.Newf(fault.Invalid, "approve answers a question on the connection that was asked")
	}
	return fault.Newf(fault.Invalid, "unknown op")
}

func (c *client) send(q *wanted) error {
	one, replay, err := c.r.begin(c.ctx, session.Send{ID: q.id, Key: q.key(), Cwd: q.cwd, Workspace: q.workspace, Input: q.input})
	if err != nil {
		return err
	}
	defer replay.Release()
	var h *run.Handler
	var answers atomic.Bool // the client may answer: it has not shut its side
	if one != nil || c.r.store.Active(replay.RunID) != nil {
		h = c.r.broker.Attach(replay.RunID, c.by)
		answers.Store(true)
		defer h.Close()
		ended := make(chan struct{})
		defer func() { <-ended }()
		defer c.conn.SetReadDeadline(time.Unix(1, 0)) // ends the reader
		go func() {
			defer close(ended)
			c.listen(h, replay.RunID)
			answers.Store(false)
		}()
	}
	told := make(chan struct{}) // closed when all frames of the handler are written
	stop, enough := context.WithCancel(c.ctx)
	defer enough()
	if h == nil {
		close(told)
	} else {
		go func() {
			defer close(told)
			c.pass(stop, h)
		}()
	}
	err = replay.Stream(c.ctx, func(frame []byte) error {
		if typ := typeOf(frame); answers.Load() && (typ == "approval_request" || typ == "approval_result") {
			return nil // the handler has it, from the moment when it can be answered
		} else if typ == "done" && h != nil {
			enough()
			<-told
		}
		return c.write(frame)
	})
	enough()
	<-told
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// pass writes the frames of a handler, and when ctx ends those that are left.
func (c *client) pass(ctx context.Context, h *run.Handler) {
	for {
		frame, err := h.Next(ctx)
		if err != nil {
			break
		}
		if c.write(frame) != nil {
			return
		}
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	for {
		frame, err := h.Next(over)
		if err != nil || c.write(frame) != nil {
			return
		}
	}
}

func typeOf(frame []byte) string {
	var f struct{ Type string }
	if json.Unmarshal(frame, &f) != nil {
		return ""
	}
	return f.Type
}

// listen takes what a client says while its run is under way: answers to
// questions, and a cancel. Its end makes it no handler any more; the run goes on.
func (c *client) listen(h *run.Handler, id string) {
	defer h.Close()
	for {
		line, err := c.read(false)
		if err != nil {
			return
		}
		if q, err := parseRequest(line); err == nil && q.op == "cancel" && q.id == id {
			c.r.mu.Lock()
			if act := c.r.active[id]; act != nil {
				act.cancel()
			}
			c.r.mu.Unlock()
			continue
		}
		h.Answer(line)
	}
}

func (c *client) resume(q *wanted) error {
	k := q.key()
	one, err := c.r.store.Get(k, false)
	if err != nil {
		return err
	}
	defer one.Release()
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	if q.follow {
		ended := make(chan struct{})
		defer func() { <-ended }()
		defer c.conn.SetReadDeadline(time.Unix(1, 0))
		go func() {
			defer close(ended)
			_, _ = c.in.Peek(1) // anything but silence ends it
			cancel()
		}()
	}
	last, err := one.Follow(ctx, q.after, q.follow, func(line []byte) error {
		if !q.follow && !bytes.HasPrefix(line, []byte(`{"id":`)) {
			return nil // a delta of a run under way: it is not stored
		}
		return c.write(line)
	})
	if err != nil && (!q.follow || ctx.Err() == nil) {
		return err
	}
	return c.write(jsonl.Marshal(struct {
		Type string `json:"type"`
		Last string `json:"last"`
	}{"end", last}))
}

func (c *client) cancel(q *wanted) error {
	status, err := c.r.cancelRun(c.ctx, q.id)
	if err != nil {
		return err
	}
	return c.write(jsonl.Marshal(struct {
		Type   string `json:"type"`
		Run    string `json:"run"`
		Status string `json:"status"`
	}{"done", q.id, status}))
}

// handle makes the connection a handler of all runs until it closes.
func (c *client) handle() error {
	h := c.r.broker.Attach("", c.by)
	defer h.Close()
	told := make(chan struct{})
	go func() {
		defer close(told)
		c.pass(c.ctx, h)
		c.conn.SetReadDeadline(time.Unix(1, 0))
	}()
	for {
		line, err := c.read(false)
		if err != nil {
			break
		}
		h.Answer(line)
	}
	h.Close()
	<-told
	return nil
}
