package term

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"cortexfs/node/fault"
)

// clientMain is Run on the process's own terminal, for tests that need a real
// one: client-under-test watch|attach SOCKET.
func clientMain(args []string) int {
	out, err := Run(context.Background(), args[1], ClientOptions{
		Attach: args[0] == "attach", In: os.Stdin, Out: os.Stdout,
		Notice: func(s string) { fmt.Printf("[%s]\r\n", s) },
	})
	fmt.Printf("<<%+v %v>>\r\n", out, err)
	return 0
}

// server serves a hub on a real socket.
func server(t *testing.T, h *Hub) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { h.Serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		h.End(0)
		all.Wait()
	})
	return path
}

// person is a client process on a terminal of its own.
type person struct {
	t    *testing.T
	cmd  *exec.Cmd
	tty  *os.File
	mu   sync.Mutex
	seen bytes.Buffer
	more chan struct{}
	end  chan struct{}
}

func sit(t *testing.T, args ...string) *person {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &person{t: t, more: make(chan struct{}, 1), end: make(chan struct{})}
	p.cmd = exec.Command(exe, append([]string{"client-under-test"}, args...)...)
	if p.tty, err = pty.StartWithSize(p.cmd, &pty.Winsize{Rows: 30, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := p.tty.Read(buf)
			p.mu.Lock()
			p.seen.Write(buf[:n])
			p.mu.Unlock()
			select {
			case p.more <- struct{}{}:
			default:
			}
			if err != nil {
				close(p.end)
				return
			}
		}
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		<-p.end
		p.tty.Close()
	})
	return p
}

func (p *person) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

func (p *person) until(want string) {
	p.t.Helper()
	late := time.After(deadline)
	for !strings.Contains(p.text(), want) {
		select {
		case <-p.more:
		case <-late:
			p.t.Fatalf("never seen: %q in %q", want, p.text())
		}
	}
}

func TestPersonAttaches(t *testing.T) {
	fake := newPTY(true)
	h := newHub(t, fake)
	h.Output([]byte("\x1b[?1049h\x1b[?2004hthe screen"))
	p := sit(t, "attach", server(t, h))
	p.until("the screen")
	fake.until(t, "the person's size", func() bool { return len(fake.sizes) == 1 && fake.sizes[0] == Size{100, 30} })
	p.tty.WriteString("typed\r\x03")
	fake.until(t, "typed", func() bool { return string(fake.got) == "typed\r\x03" })
	pty.Setsize(p.tty, &pty.Winsize{Rows: 40, Cols: 120})
	fake.until(t, "a new size", func() bool { return len(fake.sizes) == 2 && fake.sizes[1] == Size{120, 40} })
	p.tty.WriteString("\x1cx")
	fake.until(t, "half a detach", func() bool { return strings.HasSuffix(string(fake.got), "\x1cx") })
	p.tty.WriteString("\x1c")
	fake.until(t, "a lone Ctrl-\\", func() bool { return strings.HasSuffix(string(fake.got), "x\x1c") })
	p.tty.WriteString("\x1c\x04")
	p.until("Detached:true")
	// Modes are reset in the right order before anything else is printed.
	_, after, _ := strings.Cut(p.text(), "the screen")
	paste, alt, word := strings.Index(after, "\x1b[?2004l"), strings.Index(after, "\x1b[?1049l"), strings.Index(after, "<<")
	if paste < 0 || alt < paste || word < alt {
		t.Errorf("after detach: %q", after)
	}
	untilClients(t, h, 0)
}

func TestPersonSeesTheEnd(t *testing.T) {
	h := newHub(t, newPTY(true))
	p := sit(t, "watch", server(t, h))
	untilClients(t, h, 1)
	h.End(3)
	p.until("[session ended (code 3)]")
	p.until("Ended:true Code:3")
}

func TestPersonLeavesAWatch(t *testing.T) {
	for _, leave := range []struct {
		name string
		do   func(p *person)
	}{
		{"Ctrl-C", func(p *person) { p.tty.WriteString("\x03") }},
		{"SIGTERM", func(p *person) { p.cmd.Process.Signal(syscall.SIGTERM) }},
		{"kill -9", func(p *person) { p.cmd.Process.Kill() }},
	} {
		t.Run(leave.name, func(t *testing.T) {
			fake := newPTY(true)
			h := newHub(t, fake)
			p := sit(t, "watch", server(t, h))
			untilClients(t, h, 1)
			h.Output([]byte("shown"))
			p.until("shown")
			p.tty.WriteString("ignored")
			leave.do(p)
			untilClients(t, h, 0)
			fake.mu.Lock()
			defer fake.mu.Unlock()
			if len(fake.got) > 0 {
				t.Errorf("a watcher typed %q", fake.got)
			}
		})
	}
}

// Without a terminal the session keeps its size, input is passed on as it is,
// and its end is no reason to go (cases P10).
func TestPersonWithoutTerminal(t *testing.T) {
	fake := newPTY(true)
	h := newHub(t, fake)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "client-under-test", "attach", server(t, h))
	cmd.Stdin = strings.NewReader("ls\n\x1c\x04")
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	fake.until(t, "input", func() bool { return string(fake.got) == "ls\n\x1c\x04" })
	h.Output([]byte("listing"))
	h.End(0)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "listing") || !strings.Contains(out.String(), "session ended (code 0)") {
		t.Errorf("saw %q", out.String())
	}
	if len(fake.sizes) > 0 {
		t.Errorf("sizes %v", fake.sizes)
	}
}

func TestRunErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := Run(t.Context(), filepath.Join(dir, "none"), ClientOptions{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("no socket: %v", err)
	}
	h := newHub(t, newPTY(true))
	path := server(t, h)
	_, err := Run(t.Context(), path, ClientOptions{Server: func(uint32) bool { return false }})
	if !fault.Is(err, fault.Access) {
		t.Errorf("foreign server: %v", err)
	}
	refusing := filepath.Join(dir, "refusing")
	l, err := net.Listen("unix", refusing)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			Refuse(conn, fault.Newf(fault.Access, "not \x1b[31myou"))
		}
	}()
	_, err = Run(t.Context(), refusing, ClientOptions{Out: os.Stderr})
	if !fault.Is(err, fault.Access) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("refused: %q", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := Run(ctx, path, ClientOptions{Out: null}); err == nil {
		t.Log("a context that is over may still connect") // and then detaches
	}
}

func TestParseKeys(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`ctrl-\,ctrl-d`, "\x1c\x04"}, {"ctrl-a,d", "\x01d"}, {"Ctrl-@", "\x00"}, {"~,.", "~."},
	} {
		if got, err := ParseKeys(c.in); err != nil || string(got) != c.want {
			t.Errorf("%q: %q, %v", c.in, got, err)
		}
	}
	for _, bad := range []string{"", "ctrl-", "ctrl-1", "ab", "ctrl-a,", "é"} {
		if got, err := ParseKeys(bad); err == nil {
			t.Errorf("%q is %q", bad, got)
		}
	}
}

// The death of the host process is the end of the session, not a fault of the
// client's.
func TestPersonSeesTheHostProcessDie(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := sit(t, "watch", path)
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Write(appendFrame(nil, frameData, []byte("seen")))
	p.until("seen")
	conn.Close()
	p.until("[session ended (code 137)]")
}
