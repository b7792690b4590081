package agentd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/sandbox/term"
	"cortexfs/sandbox/wire"
)

// killedCode is what clients hear when the session ended without a word.
const killedCode = 137

// agent is the state of one host process.
type agent struct {
	p    *Params
	log  *zap.Logger
	host *wire.Host
	hub  *term.Hub
	ctls ctls
	asks asks
	runs *runs // nil: none are asked for

	stopping sync.Once
	failed   chan error    // why the agent must end: wire, sandbox, start
	dead     chan struct{} // closed when everything is told

	// mu protects the fields below.
	mu      sync.Mutex
	event   Event // the current state
	sandbox *watched
	initPID int // of the sandbox, as the host sees it
}

// newAgent joins a wire and its terminal.
func newAgent(p *Params, log *zap.Logger, conn net.Conn) *agent {
	a := &agent{
		p: p, log: log,
		failed: make(chan error, 8),
		dead:   make(chan struct{}),
		event:  Event{State: node.Start, Pid: os.Getpid()},
	}
	size := term.Size{Cols: int(p.Cols), Rows: int(p.Rows)}
	if !size.Usable() {
		size = term.Size{Cols: 80, Rows: 24}
	}
	a.host = wire.NewHost(conn, (*events)(a))
	a.hub = term.NewHub((*ptyOf)(a), size)
	return a
}

// run serves until the agent is dead.
func (a *agent) run(termL, ctlL *net.UnixListener, signals <-chan os.Signal, more *runSockets) {
	var listeners sync.WaitGroup
	if more != nil {
		listeners.Go(func() { a.acceptAgent(more.agent) })
		listeners.Go(func() { a.acceptInner(more.inner) })
	}
	listeners.Go(func() { a.acceptTerm(termL) })
	listeners.Go(func() { a.acceptCtl(ctlL) })
	wireEnd := make(chan error, 1)
	go func() { wireEnd <- a.host.Serve() }()
	tooLong := time.NewTimer(StartTimeout)
	defer tooLong.Stop()

	var reason error
	wireOver := false
	for done := false; !done; {
		select {
		case reason = <-wireEnd:
			done, wireOver = true, true
		case reason = <-a.failed:
			done = true
		case s := <-signals:
			a.stop(DefaultGrace, fmt.Sprintf("signal %v", s))
		case <-tooLong.C:
			if a.state() == node.Start {
				reason = fmt.Errorf("the session program did not start within %v", StartTimeout)
				done = true
			}
		}
	}
	a.host.Close()
	if !wireOver {
		<-wireEnd // its last event comes before the end
	}
	if a.runs != nil {
		more.agent.Close()
		more.inner.Close()
		a.runs.close() // while the daemon is still told
	}
	a.end(reason)
	termL.Close()
	ctlL.Close()
	listeners.Wait()
}

// end makes the agent dead once the wire is closed, which ends the sandbox: the
// clients and the daemon hear it.
func (a *agent) end(reason error) {
	if errors.Is(reason, wire.ErrViolation) {
		a.log.Warn("the sandbox broke the protocol", zap.Error(reason))
	}
	a.mu.Lock()
	sb := a.sandbox
	code := killedCode
	if a.event.Exit != nil {
		code = *a.event.Exit
	}
	a.mu.Unlock()
	if sb != nil {
		sb.kill()
		sb.close()
	}
	a.hub.End(code)
	a.change(func(e *Event) {
		e.State = node.Dead
		switch {
		case reason != nil:
			e.Reason = reason.Error()
		case e.Reason == "":
			e.Reason = "the sandbox went away"
		}
	})
	a.log.Info("dead", zap.String("reason", a.current().Reason))
	close(a.dead)
	a.ctls.finish()
}

// stop asks for an orderly end; the first call counts.
func (a *agent) stop(grace time.Duration, reason string) {
	a.stopping.Do(func() {
		a.change(func(e *Event) {
			e.State = node.Stopping
			if e.Reason == "" {
				e.Reason = reason
			}
		})
		a.log.Info("stopping", zap.String("reason", reason), zap.Duration("grace", grace))
		a.host.Terminate(grace)
		// A guest that does not obey is cut off; the daemon's SIGKILL is the last word.
		go func() {
			select {
			case <-time.After(grace + stopSlack):
				a.fail(fmt.Errorf("the sandbox did not end within %v", grace+stopSlack))
			case <-a.dead:
			}
		}()
	})
}

// stopSlack is what an orderly end may take beyond its grace.
const stopSlack = 700 * time.Millisecond

func (a *agent) fail(err error) {
	select {
	case a.failed <- err:
	default: // it ends already
	}
}

// change makes a new state known. A dead agent stays dead, a stopping one can
// only die.
func (a *agent) change(edit func(*Event)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.event
	edit(&next)
	if a.event.State == node.Dead || a.event.State == node.Stopping && next.State != node.Dead {
		next.State = a.event.State
	}
	a.event = next
	a.ctls.tell(next)
}

func (a *agent) current() Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.event
}

func (a *agent) state() node.State { return a.current().State }

// events is agent as the wire sees it.
type events agent

func (e *events) Hello(wire.HelloMsg) {
	a := (*agent)(e)
	size := a.hub.Size()
	err := a.host.Start(wire.StartMsg{
		Program: a.p.Program, Args: a.p.Args,
		Rows: uint16(size.Rows), Cols: uint16(size.Cols),
	})
	if err != nil {
		a.fail(err)
	}
}

func (e *events) Started(m wire.StartedMsg) {
	a := (*agent)(e)
	if m.Errno == 0 {
		a.change(func(e *Event) { e.State = node.Ready })
		a.log.Info("ready")
		return
	}
	name := unix.ErrnoName(syscall.Errno(m.Errno))
	if name == "" {
		name = "EIO"
	}
	reason := fmt.Sprintf("%s %s inside: %s", step(m.Step), a.p.Program, syscall.Errno(m.Errno).Error())
	a.change(func(e *Event) {
		e.State, e.Refused, e.Reason = node.Stopping, name, reason
	})
	a.fail(errors.New(reason))
}

// step names what the guest says it was doing, from a fixed list.
func step(s string) string {
	switch s {
	case "open", "exec":
		return s
	case "pty":
		return "make a terminal for"
	}
	return "start"
}

func (e *events) Output(p []byte) { (*agent)(e).hub.Output(p) }

// maxFound bounds what an agent's directories can make us remember.
const maxFound = 64

// Found is wire.Finder. The list is a new one each time: others hold the old.
func (e *events) Found(m wire.FoundMsg) {
	(*agent)(e).change(func(e *Event) {
		if path := node.Escape(m.Path); len(e.Git) < maxFound && !slices.Contains(e.Git, path) {
			e.Git = append(slices.Clone(e.Git), path)
		}
	})
}

func (e *events) Exit(m wire.ExitMsg) {
	a := (*agent)(e)
	a.change(func(e *Event) {
		e.State, e.Exit = node.Stopping, &m.Code
		if e.Reason == "" {
			e.Reason = fmt.Sprintf("the session program ended with code %d", m.Code)
		}
	})
}

// ptyOf is agent as the hub sees it.
type ptyOf agent

func (p *ptyOf) Input(ctx context.Context, b []byte) error { return p.host.Input(ctx, b) }
func (p *ptyOf) Stalled() bool                             { return p.host.Stalled() }
func (p *ptyOf) Flush()                                    { p.host.Flush() }
func (p *ptyOf) Resize(s term.Size)                        { p.host.Resize(uint16(s.Rows), uint16(s.Cols)) }
