package agentd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/peer"
	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/sandbox/term"
	"cortexfs/sandbox/wire"
)

const (
	maxCtls    = 4 // daemons at once: one, and its successor
	sendWait   = 5 * time.Second
	keepOutput = 64 << 10 // of each stream of a run (spec section 14)
	runDefault = 120 * time.Second
	runMax     = 600 * time.Second
)

// ctls are the daemon's connections.
type ctls struct {
	mu      sync.Mutex // protects all; below agent.mu
	all     map[*ctl]struct{}
	last    *ctl          // the newest that is there
	changed chan struct{} // closed and renewed when last changes
	done    bool
	wg      sync.WaitGroup
}

// newest is the daemon that came last, nil when none is there; changed closes
// when that is another.
func (s *ctls) newest() (*ctl, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.last, s.changed
}

// push sends a line to a connection that may have gone meanwhile.
func (s *ctls) push(c *ctl, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.all[c]; there {
		c.send(a)
	}
}

func (s *ctls) setLastLocked(c *ctl) {
	s.last = c
	if s.changed != nil {
		close(s.changed)
	}
	s.changed = make(chan struct{})
}

// ctl is one connection. Lines leave through a queue, so that a daemon that does
// not read delays nobody; one that leaves 1,000 lines is cut off.
type ctl struct {
	conn *net.UnixConn
	out  chan answer
	gone chan struct{} // closed when nothing more comes from it
}

func (c *ctl) send(a answer) {
	select {
	case c.out <- a:
	default:
		c.conn.Close()
	}
}

func (s *ctls) tell(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.all {
		c.send(answer{Event: &e})
	}
}

// finish lets every connection say its last and ends it.
func (s *ctls) finish() {
	s.mu.Lock()
	s.done = true
	for c := range s.all {
		c.conn.SetReadDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func (s *ctls) add(c *ctl, now Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done || len(s.all) >= maxCtls {
		return false
	}
	if s.all == nil {
		s.all = map[*ctl]struct{}{}
	}
	s.all[c] = struct{}{}
	s.wg.Add(1)
	c.send(answer{Event: &now})
	s.setLastLocked(c)
	return true
}

// remove takes a connection out: nothing is sent to it any more.
func (s *ctls) remove(c *ctl) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, c)
	close(c.gone)
	if s.last != c {
		return
	}
	var other *ctl
	for o := range s.all {
		other = o
	}
	s.setLastLocked(other)
}

// acceptTerm serves the terminal socket. Only the owner and root, from the host,
// may connect (spec section 13).
func (a *agent) acceptTerm(l *net.UnixListener) {
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if retry(err) {
				continue
			}
			return
		}
		clients.Go(func() {
			if err := a.mayConnect(conn, a.p.Owner); err != nil {
				a.log.Sugar().Warnw("terminal client refused", "reason", err.Error())
				term.Refuse(conn, err)
				return
			}
			a.hub.Serve(conn)
		})
	}
}

// retry says whether accepting goes on after an error, and waits where that is
// needed: without descriptors the connection stays in the backlog.
func retry(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		time.Sleep(50 * time.Millisecond)
	}
	return true
}

// mayConnect checks the process behind an accepted connection: uid, alive, a
// process of the host.
func (a *agent) mayConnect(conn *net.UnixConn, uid uint32) error {
	p, err := peer.Host(conn)
	if err != nil {
		return err
	}
	defer p.Close()
	if p.UID != 0 && p.UID != uid {
		return fault.Newf(fault.Access, "uid %d is neither the owner nor root", p.UID)
	}
	return nil
}

func (a *agent) acceptCtl(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if retry(err) {
				continue
			}
			return
		}
		if err := a.mayConnect(conn, a.p.DaemonUID); err != nil {
			a.log.Sugar().Warnw("ctl client refused", "reason", err.Error())
			conn.Close()
			continue
		}
		c := &ctl{conn: conn, out: make(chan answer, 1000), gone: make(chan struct{})}
		// Under agent.mu, so that no state is missed between the first event and
		// the next.
		a.mu.Lock()
		ok := a.ctls.add(c, a.event)
		a.mu.Unlock()
		if !ok {
			conn.Close()
			continue
		}
		go a.serveCtl(c)
	}
}

func (a *agent) serveCtl(c *ctl) {
	defer a.ctls.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	var requests, writer sync.WaitGroup
	writer.Go(func() { c.write() })
	in := bufio.NewReaderSize(c.conn, 64<<10)
	for {
		line, err := readLine(in)
		if err != nil {
			break
		}
		var r request
		if err := strict(line, &r); err != nil {
			a.log.Sugar().Warnw("bad line on ctl.sock", "error", err.Error())
			break
		}
		if r.Op == "told" {
			a.asks.told(r)
			continue
		}
		requests.Go(func() { c.send(a.answer(ctx, r)) })
	}
	a.ctls.remove(c)
	cancel()
	requests.Wait()
	close(c.out)
	writer.Wait()
	c.conn.Close()
}

// write sends lines until the queue is closed; after an error it only empties it.
func (c *ctl) write() {
	broken := false
	for a := range c.out {
		if broken {
			continue
		}
		line, err := json.Marshal(a)
		if err == nil {
			c.conn.SetWriteDeadline(time.Now().Add(sendWait))
			_, err = c.conn.Write(append(line, '\n'))
		}
		if err != nil {
			broken = true
			c.conn.Close()
		}
	}
}

// answer does one request.
func (a *agent) answer(ctx context.Context, r request) answer {
	out := answer{ID: r.ID}
	var err error
	switch {
	case r.Op == "state":
		e := a.current()
		out.Event = &e
	case r.Op == "stop":
		grace := time.Duration(r.GraceMS) * time.Millisecond
		if grace < 0 || grace > MaxGrace {
			err = fault.Newf(fault.Invalid, "grace of %v", grace)
			break
		}
		a.stop(grace, "stop asked for")
		<-a.dead
		e := a.current()
		out.Event = &e
	case r.Op == "run" && r.Run != nil:
		out.Run, err = a.runInside(ctx, r.Run)
	case r.Op == "notice" && r.Text != "":
		a.hub.Notice(r.Text)
	case r.Op == "sandbox" && r.Sandbox != nil:
		err = a.takeSandbox(*r.Sandbox)
	default:
		err = fault.Newf(fault.Invalid, "no such request: %q", r.Op)
	}
	if err != nil {
		out.Code, out.Error = unix.ErrnoName(fault.Errno(err)), err.Error()
	}
	return out
}

func (a *agent) takeSandbox(s Sandbox) error {
	w, err := watch(s, func() { a.fail(errors.New("bwrap ended")) })
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sandbox != nil || !a.event.State.Alive() {
		w.close()
		return fault.Newf(fault.Exist, "the sandbox was handed over already")
	}
	a.sandbox, a.initPID = w, s.Init.Pid
	return nil
}

func (a *agent) runInside(ctx context.Context, r *RunRequest) (*RunResult, error) {
	if len(r.Argv) == 0 || len(r.Argv) > 64 {
		return nil, fault.Newf(fault.Invalid, "a command has 1 to 64 words, not %d", len(r.Argv))
	}
	for i, w := range r.Argv {
		if len(w) > 8<<10 {
			return nil, fault.Newf(fault.TooBig, "word %d has %d bytes", i+1, len(w))
		}
	}
	timeout := r.Timeout
	if timeout == 0 {
		timeout = runDefault
	}
	if timeout < 0 || timeout > runMax {
		return nil, fault.Newf(fault.Invalid, "time limit of %v, at most %v", timeout, runMax)
	}
	if s := a.state(); !s.Alive() || s == node.Start {
		return nil, fault.Newf(fault.Unavailable, "the agent is not ready")
	}
	res, err := a.host.Run(ctx, wire.RunMsg{Argv: r.Argv, Cwd: r.Cwd, Timeout: timeout.Milliseconds(), Limit: keepOutput})
	if err != nil {
		return nil, fmt.Errorf("run %q: %w", r.Argv[0], err)
	}
	out := &RunResult{
		Code: res.Code, Stdout: res.Stdout, Stderr: res.Stderr,
		Truncated: res.Truncated, TimedOut: res.TimedOut,
	}
	if res.Errno != 0 {
		out.Errno = unix.ErrnoName(syscall.Errno(res.Errno))
	}
	return out, nil
}
