package guest

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"cortexfs/sandbox/wire"
)

const (
	killGrace = 2 * time.Second        // between SIGTERM and SIGKILL of a command
	pipeGrace = 500 * time.Millisecond // for output that outlives its command
)

// command is one running request of the host.
type command struct {
	kill chan struct{} // closed when the host wants it gone
	once sync.Once
	run  chan wire.GoMsg // a held one gets the word of the host, once
	in   *feed           // standard input; used where it is asked for
}

// feed is standard input that waits for its command. The host bounds it.
type feed struct {
	mu    sync.Mutex
	more  *sync.Cond
	queue [][]byte
	ended bool // no more comes
}

func newFeed() *feed {
	f := &feed{}
	f.more = sync.NewCond(&f.mu)
	return f
}

func (f *feed) add(p []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(p) == 0 {
		f.ended = true
	} else if !f.ended {
		f.queue = append(f.queue, p)
	}
	f.more.Signal()
}

// pump writes everything into w and closes it. A command that does not read
// makes it wait; closing w elsewhere ends that.
func (f *feed) pump(w *os.File) {
	defer w.Close()
	for {
		f.mu.Lock()
		for len(f.queue) == 0 && !f.ended {
			f.more.Wait()
		}
		if len(f.queue) == 0 {
			f.mu.Unlock()
			return
		}
		p := f.queue[0]
		f.queue = f.queue[1:]
		f.mu.Unlock()
		if _, err := w.Write(p); err != nil {
			return
		}
	}
}

func (r *requests) Run(m wire.RunMsg) {
	g := (*guest)(r)
	c := &command{kill: make(chan struct{}), run: make(chan wire.GoMsg, 1), in: newFeed()}
	g.mu.Lock()
	g.runs[m.ID] = c
	g.mu.Unlock()
	go func() {
		done := g.command(c, m)
		done.ID = m.ID
		g.mu.Lock()
		delete(g.runs, m.ID)
		g.mu.Unlock()
		g.wire.Done(done)
	}()
}

func (r *requests) Kill(id uint32) {
	g := (*guest)(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.runs[id]; c != nil {
		c.once.Do(func() { close(c.kill) })
	}
}

func (r *requests) Go(m wire.GoMsg) {
	g := (*guest)(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.runs[m.ID]; c != nil {
		select {
		case c.run <- m:
		default:
		}
	}
}

func (r *requests) Feed(id uint32, p []byte) {
	g := (*guest)(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	if c := g.runs[id]; c != nil {
		c.in.add(p)
	}
}

// program is what a command executes.
type program struct {
	path string
	file *os.File // held open; nil: path is all there is
	pass bool     // file is descriptor 3 of the command: a script's interpreter opens it again
}

func (p *program) close() {
	if p.file != nil {
		p.file.Close()
	}
}

// program finds the command, and with Held waits for the word of the host, which
// completes m.
func (g *guest) program(c *command, m *wire.RunMsg) (*program, error) {
	if !m.Exact {
		path, err := lookPath(m.Argv)
		return &program{path: path}, err
	}
	if len(m.Argv) == 0 || !strings.HasPrefix(m.Argv[0], "/") {
		return nil, syscall.EINVAL
	}
	file, script, err := openProgram(m.Argv[0])
	if err != nil {
		return nil, err
	}
	p := &program{path: "/proc/self/fd/" + strconv.Itoa(int(file.Fd())), file: file, pass: script}
	if script {
		p.path = "/proc/self/fd/3"
	}
	if !m.Held {
		return p, nil
	}
	g.wire.Opened(m.ID)
	select {
	case w := <-c.run:
		m.Argv = append(m.Argv[:1:1], w.Args...)
		m.Env, m.Stdin, m.Timeout, m.Limit = w.Env, w.Stdin, w.Timeout, w.Limit
		return p, nil
	case <-c.kill:
		p.close()
		return nil, syscall.ECANCELED
	}
}

// input is descriptor 0 of a command, and the end that is written to, if any.
func (c *command) input(fed bool) (r, w *os.File, err error) {
	if !fed {
		r, err = os.Open("/dev/null")
		return r, nil, err
	}
	return os.Pipe()
}

// environment is what a command finds: ours, with what the host has set or
// replaced.
func environment(m *wire.RunMsg) []string {
	if m.Bare {
		return m.Env
	}
	env := slices.DeleteFunc(os.Environ(), func(old string) bool {
		key, _, _ := strings.Cut(old, "=")
		return slices.ContainsFunc(m.Env, func(set string) bool { return strings.HasPrefix(set, key+"=") })
	})
	return append(env, m.Env...)
}

// command runs one command in a process group of its own, without a terminal,
// and forwards what it writes.
func (g *guest) command(c *command, m wire.RunMsg) wire.DoneMsg {
	prog, err := g.program(c, &m)
	if err != nil {
		return refused(err)
	}
	defer prog.close()
	stdin, fed, err := c.input(m.Stdin)
	if err != nil {
		return refused(err)
	}
	defer stdin.Close()
	if fed != nil {
		defer fed.Close() // also ends a pump that waits for a reader
		defer c.in.add(nil)
	}
	var pipes [2]struct{ r, w *os.File }
	for i := range pipes {
		if pipes[i].r, pipes[i].w, err = os.Pipe(); err != nil {
			return refused(err)
		}
		defer pipes[i].r.Close()
		defer pipes[i].w.Close()
	}
	attr := &syscall.ProcAttr{
		Dir:   m.Cwd,
		Env:   environment(&m),
		Files: []uintptr{stdin.Fd(), pipes[0].w.Fd(), pipes[1].w.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if prog.pass {
		attr.Files = append(attr.Files, prog.file.Fd())
	}
	pid, end, err := g.reap.start(prog.path, m.Argv, attr)
	if err != nil {
		return refused(err)
	}
	stdin.Close()
	if fed != nil {
		go c.in.pump(fed)
	}
	var copies sync.WaitGroup
	var cut [2]bool
	for i := range pipes {
		pipes[i].w.Close()
		copies.Go(func() { cut[i] = g.forward(m.ID, byte(i+1), pipes[i].r, m.Limit) })
	}
	done := wire.DoneMsg{}
	done.Code, done.TimedOut = waitCommand(pid, end, c.kill, time.Duration(m.Timeout)*time.Millisecond)
	// Whatever is left of its group goes with it; what left the group may still
	// hold the pipes, for a moment.
	syscall.Kill(-pid, syscall.SIGKILL)
	late := time.AfterFunc(pipeGrace, func() {
		for i := range pipes {
			pipes[i].r.SetReadDeadline(time.Unix(1, 0))
		}
	})
	copies.Wait()
	late.Stop()
	done.Truncated = cut[0] || cut[1]
	return done
}

// waitCommand waits for the end, helping it along when the host or the clock
// wants it.
func waitCommand(pid int, end <-chan syscall.WaitStatus, kill <-chan struct{}, timeout time.Duration) (code int, timedOut bool) {
	var deadline <-chan time.Time
	if timeout > 0 {
		t := time.NewTimer(timeout)
		defer t.Stop()
		deadline = t.C
	}
	select {
	case ws := <-end:
		return exitCode(ws), false
	case <-kill:
	case <-deadline:
		timedOut = true
	}
	syscall.Kill(-pid, syscall.SIGTERM)
	syscall.Kill(-pid, syscall.SIGCONT)
	select {
	case ws := <-end:
		return exitCode(ws), timedOut
	case <-time.After(killGrace):
	}
	syscall.Kill(-pid, syscall.SIGKILL)
	return exitCode(<-end), timedOut
}

// forward sends the first limit bytes of r and reads the rest, so that a command
// never waits for us; it says whether there was more.
func (g *guest) forward(id uint32, stream byte, r io.Reader, limit int) (cut bool) {
	buf := make([]byte, wire.MaxData)
	for {
		n, err := r.Read(buf)
		keep := min(n, limit)
		if keep > 0 {
			g.wire.Data(id, stream, buf[:keep])
			limit -= keep
		}
		cut = cut || keep < n
		if err != nil {
			return cut
		}
	}
}

// lookPath finds a command: a word with a slash is a path, another one is
// searched in the sandbox's own PATH.
func lookPath(argv []string) (string, error) {
	if len(argv) == 0 || argv[0] == "" {
		return "", syscall.EINVAL
	}
	if strings.Contains(argv[0], "/") {
		return argv[0], nil
	}
	path, err := exec.LookPath(argv[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "", syscall.EACCES
	case err != nil:
		return "", syscall.ENOENT
	}
	return path, nil
}

func refused(err error) wire.DoneMsg {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	return wire.DoneMsg{Code: -1, Errno: int(errno)}
}
