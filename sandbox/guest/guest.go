package guest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"cortexfs/sandbox/wire"
)

// WireFD is where ctxterm finds the wire.
const WireFD = 3

const (
	killTime  = time.Second            // to see everything gone after SIGKILL
	exitGrace = 200 * time.Millisecond // for what the session program leaves behind
	drainTime = 300 * time.Millisecond // for the PTY's last words
)

// Main runs the guest on descriptor WireFD with the process's own environment
// and working directory. It returns the exit code of ctxterm: the session
// program's, or 70 when it could not do its work.
func Main() int {
	if err := harden(WireFD); err != nil {
		fmt.Fprintln(os.Stderr, "ctxterm:", err)
		return 70
	}
	// The sandbox's environment is the session's and every command's. bubblewrap
	// has added one variable of its own to it (spec 10.4 has none such).
	os.Unsetenv("PWD")
	file := os.NewFile(WireFD, "wire")
	if file == nil {
		fmt.Fprintln(os.Stderr, "ctxterm: no wire on descriptor 3")
		return 70
	}
	conn, err := net.FileConn(file)
	file.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ctxterm: the wire is no socket:", err)
		return 70
	}
	// As an init we get only signals that have a handler, and only from inside
	// then; none of them is a reason to end. (Ignored ones would be inherited.)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE)
	g := &guest{wire: wire.NewGuest(conn), reap: newReaper(), ready: make(chan *session, 1), runs: map[uint32]*command{}}
	return g.run()
}

// guest is the state of one ctxterm.
type guest struct {
	wire   *wire.Guest
	reap   *reaper
	ready  chan *session // one value: the session, nil when it could not start
	ending sync.Once

	// mu protects the fields below.
	mu      sync.Mutex
	started bool
	session *session
	size    *[2]uint16 // rows, cols asked for before the session began
	runs    map[uint32]*command
}

// run serves the wire. Its end is the end of everything, at once.
func (g *guest) run() int {
	if err := g.wire.Hello(wire.HelloMsg{Version: wire.Version, Pid: os.Getpid()}); err != nil {
		return 70
	}
	code := make(chan int, 2)
	go func() {
		err := g.wire.Serve((*requests)(g))
		if errors.Is(err, wire.ErrViolation) {
			fmt.Fprintln(os.Stderr, "ctxterm:", err)
		}
		g.reap.killAll(killTime)
		code <- 70
	}()
	go func() {
		code <- g.waitSession()
	}()
	return <-code
}

// waitSession returns when the session is over and told, with its code.
func (g *guest) waitSession() int {
	s := <-g.ready
	if s == nil {
		return 70
	}
	ws := <-s.end
	g.end(exitGrace)
	s.drain()
	code := exitCode(ws)
	g.wire.Exit(wire.ExitMsg{Code: code})
	return code
}

// open starts the session and tells the host what came of it.
func (g *guest) open(m wire.StartMsg) {
	s, err := g.startSession(m)
	if err != nil {
		var refused startError
		errors.As(err, &refused)
		g.wire.Started(wire.StartedMsg{Errno: int(refused.errno), Step: refused.step})
		g.ready <- nil
		return
	}
	g.mu.Lock()
	g.session = s // before the host hears of it and sends input
	if g.size != nil {
		s.resize(g.size[0], g.size[1])
	}
	g.mu.Unlock()
	g.wire.Started(wire.StartedMsg{})
	s.serve()
	go g.watchRepositories()
	g.ready <- s
}

// end takes everything inside down: SIGTERM, grace, SIGKILL. Further calls wait
// for the first.
func (g *guest) end(grace time.Duration) {
	g.ending.Do(func() {
		signalAll(syscall.SIGTERM)
		signalAll(syscall.SIGCONT) // a stopped process cannot take the hint
		select {
		case <-g.reap.childless():
		case <-time.After(grace):
			g.reap.killAll(killTime)
		}
	})
}

// requests is guest as the wire sees it: nothing here waits for a program.
type requests guest

func (r *requests) Start(m wire.StartMsg) {
	g := (*guest)(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.started {
		return
	}
	g.started = true
	go g.open(m)
}

func (r *requests) Resize(rows, cols uint16) {
	g := (*guest)(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.session == nil {
		g.size = &[2]uint16{rows, cols}
		return
	}
	g.session.resize(rows, cols)
}

func (r *requests) Input(p []byte) {
	if s := (*guest)(r).current(); s != nil {
		s.input(p)
		return
	}
	(*guest)(r).wire.Credit(len(p))
}

func (r *requests) Flush() {
	if s := (*guest)(r).current(); s != nil {
		s.flush()
	}
}

func (r *requests) Terminate(grace time.Duration) {
	g := (*guest)(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.started { // nothing runs, nothing will
		g.started = true
		g.ready <- nil
		return
	}
	go g.end(grace)
}

func (g *guest) current() *session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.session
}
