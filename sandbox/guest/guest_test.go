package guest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/sandbox/guest"
	"cortexfs/sandbox/wire"
)

// The guest must be a process of its own: the test binary runs itself.
func TestMain(m *testing.M) {
	if os.Args[0] == "ctxterm-under-test" {
		os.Exit(guest.Main())
	}
	os.Exit(m.Run())
}

// deadline is for what must happen at all; no test measures with it.
const deadline = time.Minute

// fixture is a guest in a plain child process and the host's end of its wire.
type fixture struct {
	t    *testing.T
	host *wire.Host
	cmd  *exec.Cmd
	done chan error // the guest process ended
	over chan error // Serve returned

	mu      sync.Mutex
	changed *sync.Cond
	start   *wire.StartMsg
	out     bytes.Buffer
	started *wire.StartedMsg
	exit    *wire.ExitMsg
	ended   bool // the wire is closed
}

func (f *fixture) Hello(wire.HelloMsg) {
	if f.start != nil {
		f.host.Start(*f.start)
	}
}

func (f *fixture) Started(m wire.StartedMsg) { f.note(func() { f.started = &m }) }
func (f *fixture) Output(p []byte)           { f.note(func() { f.out.Write(p) }) }
func (f *fixture) Exit(m wire.ExitMsg)       { f.note(func() { f.exit = &m }) }

func (f *fixture) note(edit func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	edit()
	f.changed.Broadcast()
}

// until waits for a condition on what the guest said.
func (f *fixture) until(what string, cond func() bool) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	defer context.AfterFunc(ctx, func() { f.note(func() {}) })()
	f.mu.Lock()
	defer f.mu.Unlock()
	for !cond() {
		if ctx.Err() != nil || f.ended {
			f.t.Fatalf("never happened: %s; output %q; started %+v", what, tail(f.out.String()), f.started)
		}
		f.changed.Wait()
	}
}

func (f *fixture) untilOutput(want string) {
	f.t.Helper()
	f.until(fmt.Sprintf("output %q", want), func() bool { return strings.Contains(f.out.String(), want) })
}

func (f *fixture) untilCount(want string, n int) {
	f.t.Helper()
	f.until(fmt.Sprintf("%d times %q", n, want), func() bool { return strings.Count(f.out.String(), want) >= n })
}

func tail(s string) string { return s[max(0, len(s)-400):] }

func pair(t *testing.T) (host net.Conn, inside *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fds[0]), "wire")
	defer file.Close()
	host, err = net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	return host, os.NewFile(uintptr(fds[1]), "inside")
}

func startGuest(t *testing.T, start *wire.StartMsg, extra ...*os.File) *fixture {
	t.Helper()
	conn, inside := pair(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	f := &fixture{t: t, start: start, done: make(chan error, 1), over: make(chan error, 1)}
	f.changed = sync.NewCond(&f.mu)
	f.host = wire.NewHost(conn, f)
	f.cmd = exec.Command(exe)
	f.cmd.Args = []string{"ctxterm-under-test"}
	f.cmd.Env = []string{"PATH=/usr/bin:/bin", "TERM=xterm-256color", "MARK=inside"}
	f.cmd.ExtraFiles = append([]*os.File{inside}, extra...)
	f.cmd.Stderr = &errs
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inside.Close()
	go func() { f.done <- f.cmd.Wait() }()
	go func() {
		err := f.host.Serve()
		f.note(func() { f.ended = true })
		f.over <- err
	}()
	t.Cleanup(func() {
		f.host.Close()
		f.waitGone()
		if errs.Len() > 0 {
			t.Logf("ctxterm said: %s", errs.String())
		}
	})
	return f
}

func shell(script string) *wire.StartMsg {
	return &wire.StartMsg{Program: "/usr/bin/dash", Args: []string{"-c", script}, Rows: 24, Cols: 80}
}

func (f *fixture) waitGone() {
	select {
	case err := <-f.done:
		f.done <- err
	case <-time.After(deadline):
		f.cmd.Process.Kill()
		f.t.Errorf("ctxterm did not end")
	}
}

func (f *fixture) waitExit(want int) {
	f.t.Helper()
	f.until("exit", func() bool { return f.exit != nil })
	if f.exit.Code != want {
		f.t.Errorf("session ended with %d, want %d; output %q", f.exit.Code, want, tail(f.out.String()))
	}
	f.waitGone()
}

func (f *fixture) input(s string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := f.host.Input(ctx, []byte(s)); err != nil {
		f.t.Fatalf("input: %v", err)
	}
}

func TestSession(t *testing.T) {
	f := startGuest(t, shell(`tty; stty size; echo mark=$MARK; ls -l /proc/self/fd | wc -l; exit 7`))
	f.waitExit(7)
	out := f.out.String()
	for _, want := range []string{"/dev/pts/", "24 80\r\n", "mark=inside\r\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("output %q lacks %q", out, want)
		}
	}
}

func TestEndBySignal(t *testing.T) {
	f := startGuest(t, shell(`kill -TERM $$`))
	f.waitExit(143)
}

func TestNoDescriptorReachesTheSession(t *testing.T) {
	secret, err := os.Open("/etc")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	f := startGuest(t, shell(`exec ls -l /proc/self/fd`), secret, secret)
	f.waitExit(0)
	for _, line := range strings.Split(f.out.String(), "\r\n") {
		_, target, ok := strings.Cut(line, " -> ")
		if ok && !strings.HasPrefix(target, "/dev/pts/") && !strings.HasPrefix(target, "/proc/") { // ls's own
			t.Errorf("the session has %s", line)
		}
	}
}

func TestJobControlAndResize(t *testing.T) {
	f := startGuest(t, &wire.StartMsg{Program: "/usr/bin/bash", Args: []string{"--norc", "--noediting", "-i"}, Rows: 24, Cols: 80})
	f.input("PS1='> '; trap 'echo size now $(stty size)' WINCH; echo re''ady\r")
	f.untilOutput("ready")
	f.host.Resize(50, 132)
	f.input("\r")
	f.untilOutput("size now 50 132")
	// cat repeats a line when it has the terminal.
	f.input("cat\r")
	f.input("one\r")
	f.untilCount("one\r\n", 2)
	f.input("\x1a")
	f.untilOutput("Stopped")
	f.input("fg\r")
	f.input("two\r")
	f.untilCount("two\r\n", 2)
	f.input("\x03")
	f.untilOutput("^C\r\n") // bash drops what was typed before it has seen the end of its job
	f.input("echo code $?\r")
	f.untilOutput("code 130")
	f.input("exit 3\r")
	f.waitExit(3)
}

func TestScriptByDescriptor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho script with $1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f := startGuest(t, &wire.StartMsg{Program: path, Args: []string{"word"}, Rows: 24, Cols: 80})
	f.waitExit(0)
	if !strings.Contains(f.out.String(), "script with word") {
		t.Errorf("output %q", f.out.String())
	}
}

func TestRefusedProgram(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	text := filepath.Join(dir, "text")
	link := filepath.Join(dir, "link")
	if err := errors.Join(
		os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o644),
		os.WriteFile(text, []byte("no program\n"), 0o755),
		os.Symlink("/bin/sh", link),
	); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		want syscall.Errno
		step string
	}{
		{filepath.Join(dir, "none"), syscall.ENOENT, "open"},
		{plain, syscall.EACCES, "exec"},
		{text, syscall.ENOEXEC, "exec"},
		{link, syscall.ELOOP, "open"},
		{dir, syscall.EACCES, "open"},
	} {
		t.Run(c.want.Error()+" "+filepath.Base(c.path), func(t *testing.T) {
			f := startGuest(t, &wire.StartMsg{Program: c.path, Rows: 24, Cols: 80})
			f.until("started", func() bool { return f.started != nil })
			if f.started.Errno != int(c.want) || f.started.Step != c.step {
				t.Errorf("%s: refused with %v at %s, want %v at %s", c.path, syscall.Errno(f.started.Errno), f.started.Step, c.want, c.step)
			}
			f.waitGone()
		})
	}
}

// A big paste into a program that echoes it: both directions are full all the
// time (cases P02).
func TestPasteEchoed(t *testing.T) {
	line := strings.Repeat("0123456789", 7) + "\n"
	n := 10 << 20 / len(line)
	f := startGuest(t, shell(`stty -opost; cat | cksum`))
	want := exec.Command("cksum")
	want.Stdin = strings.NewReader(strings.Repeat(line, n))
	sum, err := want.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range chunks(strings.Repeat(line, n), 256<<10) {
		f.input(part)
	}
	f.input("\x04")
	f.untilOutput(strings.Fields(string(sum))[0])
	f.waitExit(0)
}

func chunks(s string, size int) (out []string) {
	for len(s) > 0 {
		n := min(size, len(s))
		out = append(out, s[:n])
		s = s[n:]
	}
	return out
}

// A program that does not read holds the input and nothing else; a flush gets
// Ctrl-C through.
func TestPasteIntoSleep(t *testing.T) {
	f := startGuest(t, shell(`trap 'echo got int; exit 5' INT; echo up; while :; do sleep 1000 & wait; done`))
	f.untilOutput("up")
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan error, 1)
	go func() { sent <- f.host.Input(ctx, bytes.Repeat([]byte("paste\n"), 1<<20)) }()
	for end := time.Now().Add(deadline); !f.host.Stalled(); {
		if time.Now().After(end) {
			t.Fatal("the window never filled")
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Output still flows: another command's, and the wire answers.
	res, err := f.host.Run(context.Background(), wire.RunMsg{Argv: []string{"echo", "alive"}, Timeout: 10_000, Limit: 100})
	if err != nil || string(res.Stdout) != "alive\n" {
		t.Fatalf("run beside a stalled paste: %v %q", err, res.Stdout)
	}
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Fatalf("stalled input returned %v", err)
	}
	f.host.Flush()
	f.input("\x03")
	f.waitExit(5)
}

func TestRun(t *testing.T) {
	f := startGuest(t, shell(`echo up; exec sleep 1000`))
	f.untilOutput("up")
	for _, c := range []struct {
		name     string
		argv     []string
		timeout  int64
		code     int
		errno    syscall.Errno
		out, err string
		cut      bool
		late     bool
	}{
		{name: "output", argv: []string{"sh", "-c", "echo a; echo b >&2; exit 4"}, code: 4, out: "a\n", err: "b\n"},
		{name: "stdin is empty", argv: []string{"cat"}},
		{name: "no terminal", argv: []string{"sh", "-c", "tty; : </dev/tty"}, code: 2, out: "not a tty\n", err: "sh: 1: cannot open /dev/tty: No such device or address\n"},
		{name: "signal", argv: []string{"sh", "-c", "kill -9 $$"}, code: 137},
		{name: "missing", argv: []string{"no-such-program"}, code: -1, errno: syscall.ENOENT},
		{name: "missing path", argv: []string{"/no/such"}, code: -1, errno: syscall.ENOENT},
		{name: "no program", argv: []string{"/etc/passwd"}, code: -1, errno: syscall.EACCES},
		{name: "no words", argv: nil, code: -1, errno: syscall.EINVAL},
		{name: "cut", argv: []string{"sh", "-c", "yes | head -c 100000"}, out: strings.Repeat("y\n", 512), cut: true},
		{name: "time", argv: []string{"sleep", "1000"}, timeout: 100, code: 143, late: true},
		{name: "left behind", argv: []string{"sh", "-c", "sleep 1000 & echo gone"}, out: "gone\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			timeout := c.timeout
			if timeout == 0 {
				timeout = deadline.Milliseconds()
			}
			res, err := f.host.Run(context.Background(), wire.RunMsg{Argv: c.argv, Timeout: timeout, Limit: 1024})
			if err != nil {
				t.Fatal(err)
			}
			if res.Code != c.code || res.Errno != int(c.errno) || res.Truncated != c.cut || res.TimedOut != c.late {
				t.Errorf("got %+v", res.DoneMsg)
			}
			if string(res.Stdout) != c.out || string(res.Stderr) != c.err {
				t.Errorf("stdout %q, stderr %q", tail(string(res.Stdout)), res.Stderr)
			}
		})
	}
	t.Run("killed by the caller", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
		res, err := f.host.Run(ctx, wire.RunMsg{Argv: []string{"sleep", "1000"}, Timeout: 0, Limit: 10})
		if !errors.Is(err, context.Canceled) || res.Code != 143 {
			t.Errorf("got %v, %+v", err, res)
		}
	})
}

// A held program is what was opened, whatever its name means when it is let go;
// links and other things are refused at the open.
func TestHeldProgram(t *testing.T) {
	f := startGuest(t, shell(`echo up; exec sleep 1000`))
	f.untilOutput("up")
	ctx := context.Background()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	tool, other := filepath.Join(dir, "tool"), filepath.Join(dir, "other")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	held := wire.RunMsg{Argv: []string{tool}, Exact: true, Held: true}
	word := wire.GoMsg{Args: []string{"word"}, Stdin: true, Timeout: deadline.Milliseconds(), Limit: 1024, Env: []string{"CTX_TOOL=t"}}
	for i := range 20 {
		put(tool, "#!/bin/sh\necho right $1 $CTX_TOOL; cat\n")
		put(other, "#!/bin/sh\necho wrong\n")
		c, err := f.host.Begin(held)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := c.Opened(ctx); !ok || err != nil {
			t.Fatalf("not open: %v %v", ok, err)
		}
		if i%2 == 0 {
			err = os.Rename(other, tool)
		} else {
			err = errors.Join(os.Remove(tool), os.Symlink(other, tool))
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Go(word), c.Feed([]byte("fed\n")), c.Feed(nil)); err != nil {
			t.Fatal(err)
		}
		read, rerr := io.ReadAll(c.Stdout(ctx))
		res, err := c.Wait(ctx)
		if err != nil || rerr != nil || res.Code != 0 || string(res.Stdout) != "right word t\nfed\n" || string(read) != string(res.Stdout) {
			t.Fatalf("%v %v %+v %q %q", err, rerr, res.DoneMsg, res.Stdout, res.Stderr)
		}
		os.Remove(tool)
	}
	if err := os.Symlink(other, tool); err != nil {
		t.Fatal(err)
	}
	put(other, "#!/bin/sh\necho wrong\n")
	for path, want := range map[string]syscall.Errno{tool: syscall.ELOOP, dir: syscall.EACCES, dir + "/none": syscall.ENOENT, "tool": syscall.EINVAL} {
		m := held
		m.Argv = []string{path}
		c, err := f.host.Begin(m)
		if err != nil {
			t.Fatal(err)
		}
		ok, err := c.Opened(ctx)
		res, werr := c.Wait(ctx)
		if ok || err != nil || werr != nil || syscall.Errno(res.Errno) != want {
			t.Errorf("%s: open %v, %v %v, %v", path, ok, err, werr, syscall.Errno(res.Errno))
		}
	}
	// One that is never let go is dropped.
	if err := errors.Join(os.Remove(tool), os.Rename(other, tool)); err != nil {
		t.Fatal(err)
	}
	c, err := f.host.Begin(held)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := c.Opened(ctx); !ok || err != nil {
		t.Fatal(ok, err)
	}
	c.Kill()
	if res, err := c.Wait(ctx); err != nil || syscall.Errno(res.Errno) != syscall.ECANCELED || len(res.Stdout) > 0 {
		t.Errorf("dropped: %+v %q %v", res.DoneMsg, res.Stdout, err)
	}
	// A bare one has no environment of ours; one that does not read its input
	// ends all the same.
	res, err := f.host.Run(ctx, wire.RunMsg{Argv: []string{"env"}, Bare: true, Env: []string{"A=1"}, Stdin: true, Timeout: deadline.Milliseconds(), Limit: 1024})
	if err != nil || string(res.Stdout) != "A=1\n" {
		t.Errorf("%q %v", res.Stdout, err)
	}
}

// stubborn leaves processes in other groups and sessions behind, some deaf to
// SIGTERM, and prints their pids.
const stubborn = `
for i in 1 2 3; do setsid sh -c 'trap "" TERM HUP; echo pid $$; exec sleep 1000' & done
sh -c '(sh -c "echo pid \$\$; exec sleep 1000" &) ; exit'
echo pid $$
`

func (f *fixture) pids(n int) []int {
	f.t.Helper()
	var pids []int
	f.until("pids", func() bool {
		pids = pids[:0]
		for _, line := range strings.Split(f.out.String(), "\r\n") {
			if s, ok := strings.CutPrefix(line, "pid "); ok {
				if pid, err := strconv.Atoi(s); err == nil {
					pids = append(pids, pid)
				}
			}
		}
		return len(pids) == n
	})
	return pids
}

// nobody waits until none of the processes is left. They are not ours, but no
// other process can have taken so fresh a pid with the same parent chain.
func nobody(t *testing.T, pids []int) {
	t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, pid := range pids {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && bytes.Contains(b, []byte("sleep")) {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			for _, pid := range pids {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			t.Fatalf("%d processes are left", left)
		}
	}
}

func TestNothingIsLeft(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(f *fixture)
		tail string
	}{
		{name: "terminate", tail: "sleep 1000", end: func(f *fixture) { f.host.Terminate(100 * time.Millisecond) }},
		{name: "wire closed", tail: "sleep 1000", end: func(f *fixture) { f.host.Close() }},
		{name: "session over", tail: "read x", end: func(f *fixture) { f.input("\r") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := startGuest(t, shell(stubborn+c.tail))
			pids := f.pids(5)
			c.end(f)
			f.waitGone()
			nobody(t, pids)
		})
	}
}

func TestTerminateBeforeStart(t *testing.T) {
	f := startGuest(t, nil)
	f.host.Terminate(0)
	f.waitGone()
}

func TestZombiesAreReaped(t *testing.T) {
	f := startGuest(t, shell(`for i in 1 2 3 4 5; do (sh -c 'exit 0' &); done; echo up; exec sleep 1000`))
	f.untilOutput("up")
	for end := time.Now().Add(deadline); ; time.Sleep(5 * time.Millisecond) {
		out, err := exec.Command("ps", "--ppid", strconv.Itoa(f.cmd.Process.Pid), "-o", "stat=").Output()
		if err == nil && !bytes.Contains(out, []byte("Z")) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("zombies: %s %v", out, err)
		}
	}
}

func TestGarbageOnTheWireEndsTheGuest(t *testing.T) {
	conn, inside := pair(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Args = []string{"ctxterm-under-test"}
	cmd.ExtraFiles = []*os.File{inside}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inside.Close()
	conn.Write([]byte("X\xff\xff\xff\xffnonsense"))
	io.Copy(io.Discard, conn)
	conn.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("ctxterm ended well")
	}
}
