package guest

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
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
}

func (r *requests) Run(m wire.RunMsg) {
	g := (*guest)(r)
	c := &command{kill: make(chan struct{})}
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

// command runs one command in a process group of its own, without a terminal,
// and forwards what it writes.
func (g *guest) command(c *command, m wire.RunMsg) wire.DoneMsg {
	path, err := lookPath(m.Argv)
	if err != nil {
		return refused(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return refused(err)
	}
	defer null.Close()
	var pipes [2]struct{ r, w *os.File }
	for i := range pipes {
		if pipes[i].r, pipes[i].w, err = os.Pipe(); err != nil {
			return refused(err)
		}
		defer pipes[i].r.Close()
		defer pipes[i].w.Close()
	}
	pid, end, err := g.reap.start(path, m.Argv, &syscall.ProcAttr{
		Dir:   m.Cwd,
		Env:   os.Environ(),
		Files: []uintptr{null.Fd(), pipes[0].w.Fd(), pipes[1].w.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return refused(err)
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
