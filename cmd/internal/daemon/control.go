package daemon

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/cmd/internal/peer"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// Limits of the control socket (spec section 13).
const (
	maxConns    = 32              // connections of one uid
	maxPending  = 8               // requests of one uid that are being answered
	frameTime   = 5 * time.Second // for a frame that has begun
	idleTime    = time.Minute     // between two requests of a connection
	answerTime  = 5 * time.Second // for a client to take a frame of the answer
	hangupCheck = time.Second
)

// server answers control.sock.
type server struct {
	w *world
	m *manager
	l *net.UnixListener

	// mu protects the fields below.
	mu      sync.Mutex
	conns   map[uint32]int // by uid
	pending map[uint32]int
	open    map[*net.UnixConn]struct{}
	closed  bool

	all sync.WaitGroup
}

// listenControl makes RT/sock/control.sock, 0666: credentials decide.
func listenControl(w *world, m *manager) (*server, error) {
	f, err := listenAt(w.run.control(), 0o666)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fault.FromOS("listen", w.run.control(), err)
	}
	c := &server{
		w: w, m: m, l: l.(*net.UnixListener),
		conns: map[uint32]int{}, pending: map[uint32]int{}, open: map[*net.UnixConn]struct{}{},
	}
	go c.accept()
	return c, nil
}

// close ends the listener and every connection, and waits for their handlers.
func (c *server) close() {
	c.l.Close()
	c.mu.Lock()
	c.closed = true
	for nc := range c.open {
		nc.Close()
	}
	c.mu.Unlock()
	done := make(chan struct{})
	go func() { c.all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(killBound):
	}
}

func (c *server) accept() {
	for {
		nc, err := c.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors: others give theirs back
			c.w.log.Warn("accept", zap.Error(err))
			time.Sleep(100 * time.Millisecond)
			continue
		}
		// Never more than the check itself before the peer is known.
		c.all.Go(func() { c.serve(nc) })
	}
}

// serve talks to one client.
func (c *server) serve(nc *net.UnixConn) {
	defer nc.Close()
	conn := ctlproto.NewConn(timed{nc})
	p, err := peer.Host(nc)
	if err != nil {
		_ = conn.Write(ctlproto.ErrorFrame(err))
		return
	}
	defer p.Close()
	if err := c.enter(nc, p.UID); err != nil {
		_ = conn.Write(ctlproto.ErrorFrame(err))
		return
	}
	defer c.leave(nc, p.UID)
	for {
		line, err := conn.ReadLine()
		if err != nil {
			if fault.Is(err, fault.TooBig) {
				_ = conn.Write(ctlproto.ErrorFrame(err))
			}
			return
		}
		if !c.request(nc, conn, p, line) {
			return
		}
	}
}

// request answers one line; false ends the connection.
func (c *server) request(nc *net.UnixConn, conn *ctlproto.Conn, p *peer.Peer, line []byte) bool {
	q, err := ctlproto.DecodeRequest(line)
	if err != nil {
		return conn.Write(ctlproto.ErrorFrame(err)) == nil
	}
	// A process that connected may have handed the connection on and gone.
	if !p.Alive() {
		_ = conn.Write(ctlproto.ErrorFrame(fault.Newf(fault.Access, "the process that connected is gone")))
		return false
	}
	if _, idle := q.(*ctlproto.Wait); !idle { // who waits costs a connection only
		if err := c.begin(p.UID); err != nil {
			return conn.Write(ctlproto.ErrorFrame(err)) == nil
		}
		defer c.end(p.UID)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go hangup(ctx, nc, cancel)
	o := &op{c: c, w: c.w, m: c.m, conn: conn, peer: p, by: c.w.caller(p)}
	result, err := o.run(ctx, q)
	if err != nil {
		return conn.Write(ctlproto.ErrorFrame(err)) == nil
	}
	f, err := ctlproto.Result(result)
	if err != nil {
		f = ctlproto.ErrorFrame(err)
	}
	return conn.Write(f) == nil
}

// run is one operation. A panic ends this request only.
func (o *op) run(ctx context.Context, q ctlproto.Request) (result any, err error) {
	defer func() {
		if p := recover(); p != nil {
			o.w.log.Error("panic in a request", zap.String("op", q.Op()), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = failure{ctlproto.ExitInternal, fault.Newf(fault.IO, "internal error; the daemon's log has it")}
		}
	}()
	return o.do(ctx, q)
}

// caller is the full identity of a peer.
func (w *world) caller(p *peer.Peer) caller {
	by := caller{UID: p.UID, GID: p.GID, Root: p.UID == 0 || !w.root && p.UID == w.uid}
	by.Groups = w.users.Groups(p.UID)
	if !w.root && p.UID == w.uid {
		by.Groups = w.groups
	}
	return by
}

func (by caller) writer() agent.Writer {
	return agent.Writer{UID: by.UID, GID: by.GID, Groups: by.Groups, Root: by.Root}
}

func (c *server) enter(nc *net.UnixConn, uid uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fault.Newf(fault.Unavailable, "the daemon ends")
	}
	if c.conns[uid] >= maxConns {
		return fault.Newf(fault.Again, "uid %d has %d connections", uid, maxConns)
	}
	c.conns[uid]++
	c.open[nc] = struct{}{}
	return nil
}

func (c *server) leave(nc *net.UnixConn, uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns[uid]--; c.conns[uid] == 0 {
		delete(c.conns, uid)
	}
	delete(c.open, nc)
}

// begin counts a request in. start, stop and wait take their time, so 20 starts
// at once of one uid wait here for each other rather than fail.
func (c *server) begin(uid uint32) error {
	deadline := time.Now().Add(frameTime)
	for {
		c.mu.Lock()
		if c.pending[uid] < maxPending {
			c.pending[uid]++
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		if time.Now().After(deadline) {
			return fault.Newf(fault.Again, "uid %d has %d requests pending", uid, maxPending)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *server) end(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending[uid]--; c.pending[uid] == 0 {
		delete(c.pending, uid)
	}
}

// hangup cancels when the client has closed its end wholly. A client that only
// shut its write side still waits for the answer.
func hangup(ctx context.Context, nc *net.UnixConn, cancel func()) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return
	}
	t := time.NewTicker(hangupCheck)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		gone := false
		err := raw.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd)}}
			n, err := unix.Poll(fds, 0)
			gone = err == nil && n > 0 && fds[0].Revents&unix.POLLHUP != 0
		})
		if gone || err != nil {
			cancel()
			return
		}
	}
}

// timed puts a deadline on every read and write of a connection.
type timed struct{ nc *net.UnixConn }

func (t timed) Read(p []byte) (int, error) {
	if err := t.nc.SetReadDeadline(time.Now().Add(idleTime)); err != nil {
		return 0, err
	}
	return t.nc.Read(p)
}

func (t timed) Write(p []byte) (int, error) {
	if err := t.nc.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
		return 0, err
	}
	n, err := t.nc.Write(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fault.Newf(fault.TimedOut, "the client does not read")
	}
	return n, err
}
