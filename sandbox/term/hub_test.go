package term

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
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// deadline is for what must happen at all; no test measures with it.
const deadline = time.Minute

// fakePTY takes input when it is told to.
type fakePTY struct {
	mu      sync.Mutex
	changed chan struct{}
	got     []byte
	reads   bool // the program reads
	stalled bool
	flushed int
	sizes   []Size
}

func newPTY(reads bool) *fakePTY { return &fakePTY{reads: reads, changed: make(chan struct{})} }

func (p *fakePTY) note(edit func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *fakePTY) Input(ctx context.Context, b []byte) error {
	for {
		p.mu.Lock()
		reads, changed := p.reads, p.changed
		p.mu.Unlock()
		if reads {
			p.note(func() { p.got = append(p.got, b...) })
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *fakePTY) Stalled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stalled
}
func (p *fakePTY) Flush()        { p.note(func() { p.flushed++; p.reads = true; p.stalled = false }) }
func (p *fakePTY) Resize(s Size) { p.note(func() { p.sizes = append(p.sizes, s) }) }

func (p *fakePTY) until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	late := time.After(deadline)
	for {
		p.mu.Lock()
		ok, changed := cond(), p.changed
		p.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("never happened: %s; got %d bytes", what, len(p.got))
		}
	}
}

func newHub(t *testing.T, pty PTY) *Hub {
	h := NewHub(pty, Size{80, 24})
	t.Cleanup(func() { h.End(0) })
	return h
}

// testClient is the far end of a client's socket.
type testClient struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	data bytes.Buffer
	skip int
	exit string
	size string
}

func socketpair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conns := [2]net.Conn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	t.Cleanup(func() { conns[0].Close(); conns[1].Close() })
	return conns[0], conns[1]
}

func join(t *testing.T, h *Hub, line string) *testClient {
	t.Helper()
	near, far := socketpair(t)
	go h.Serve(near)
	far.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(far, line); err != nil {
		t.Fatal(err)
	}
	return &testClient{t: t, conn: far, in: bufio.NewReader(far)}
}

// frame reads one frame into the client's record.
func (c *testClient) frame() error {
	kind, data, err := readFrame(c.in)
	if err != nil {
		return err
	}
	switch kind {
	case frameData:
		c.data.Write(data)
	case frameSkip:
		var n int
		fmt.Sscan(string(data), &n)
		c.skip += n
		c.data.Reset()
	case frameExit:
		c.exit = string(data)
	case frameSize:
		c.size = string(data)
	}
	return nil
}

func (c *testClient) until(what string, cond func() bool) {
	c.t.Helper()
	for !cond() {
		if err := c.frame(); err != nil {
			s := c.data.String()
			c.t.Fatalf("waiting for %s: %v; data %q", what, err, s[max(0, len(s)-200):])
		}
	}
}

func (c *testClient) untilData(want string) {
	c.t.Helper()
	c.until(want, func() bool { return strings.Contains(c.data.String(), want) })
}

func (c *testClient) send(kind byte, data string) {
	c.t.Helper()
	if _, err := c.conn.Write(appendFrame(nil, kind, []byte(data))); err != nil {
		c.t.Fatal(err)
	}
}

func TestModeLine(t *testing.T) {
	for _, c := range []struct {
		line string
		code string
	}{
		{"attack\n", "EINVAL"},
		{"\n", "EINVAL"},
		{"watch \n", "EINVAL"},
		{"watch2\n", "EINVAL"},
		{"watch2 80\n", "EINVAL"},
		{"watch2 80x24x1\n", "EINVAL"},
		{"watch2 -1x24\n", "EINVAL"},
		{"watch2 99999x24\n", "EINVAL"},
		{"attach\r\n", "EINVAL"},
		{"watch 80x24\n", "EINVAL"},
		{strings.Repeat("x", 1<<20), "EINVAL"},
	} {
		t.Run(c.line[:min(20, len(c.line))], func(t *testing.T) {
			h := newHub(t, newPTY(true))
			near, far := socketpair(t)
			go h.Serve(near)
			far.SetDeadline(time.Now().Add(deadline))
			go io.WriteString(far, c.line)
			got, err := bufio.NewReader(far).ReadBytes('\n')
			var e struct{ Type, Code string }
			if err != nil || json.Unmarshal(got, &e) != nil || e.Type != "error" || e.Code != c.code {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		if testing.Short() {
			t.Skip("takes the five seconds of the rule")
		}
		h := newHub(t, newPTY(true))
		near, far := socketpair(t)
		go h.Serve(near)
		far.SetDeadline(time.Now().Add(deadline))
		got, _ := bufio.NewReader(far).ReadBytes('\n')
		if !bytes.Contains(got, []byte("ETIMEDOUT")) {
			t.Errorf("got %q", got)
		}
	})
}

func TestWatchAndAttach(t *testing.T) {
	pty := newPTY(true)
	h := newHub(t, pty)
	h.Output([]byte("\x1b[31mbefore\x1b[m \x1b[?2004h"))
	w := join(t, h, "watch2 80x24\n")
	w.untilData("before")
	w.untilData("\x1b[?2004h") // modes are sent again (cases P12)
	raw := join(t, h, "watch\n")
	buf := make([]byte, 1)
	if _, err := io.ReadFull(raw.in, buf); err != nil {
		t.Fatal(err)
	}
	a := join(t, h, "attach2 80x24\n")
	a.untilData("before")
	a.send(frameData, "typed")
	pty.until(t, "typed", func() bool { return string(pty.got) == "typed" })
	h.Output([]byte("after\x1b]52;c;?\x07\x1b[6n."))
	w.untilData("after.")
	a.untilData("after.")
	pty.until(t, "the emulator's answer", func() bool { return strings.HasSuffix(string(pty.got), "R") })
	h.End(7)
	w.until("exit", func() bool { return w.exit == "7" })
	a.until("exit", func() bool { return a.exit == "7" })
	if rest, err := io.ReadAll(raw.in); err != nil || !bytes.HasSuffix(rest, []byte("after.")) {
		t.Errorf("raw client: %q, %v", rest, err)
	}
}

// Whatever a watcher sends goes nowhere (cases P06).
func TestWatchCannotType(t *testing.T) {
	pty := newPTY(true)
	h := newHub(t, pty)
	w := join(t, h, "watch\nattach\nrm -rf /\n")
	w2 := join(t, h, "watch2 80x24\n")
	w2.send(frameData, "evil")
	w2.send(frameSize, "40x10")
	a := join(t, h, "attach2 0x0\n")
	a.send(frameData, "good")
	pty.until(t, "good", func() bool { return len(pty.got) >= 4 })
	h.Output([]byte("x"))
	w2.untilData("x")
	w.conn.Close()
	pty.mu.Lock()
	defer pty.mu.Unlock()
	if string(pty.got) != "good" || len(pty.sizes) > 0 {
		t.Errorf("input %q, sizes %v", pty.got, pty.sizes)
	}
}

func TestWhoDecidesTheSize(t *testing.T) {
	pty := newPTY(true)
	h := newHub(t, pty)
	sizes := func(want ...string) func() bool {
		return func() bool {
			var got []string
			for _, s := range pty.sizes {
				got = append(got, s.String())
			}
			return strings.Join(got, " ") == strings.Join(want, " ")
		}
	}
	w := join(t, h, "watch2 10x10\n")
	w.until("size", func() bool { return w.size == "80x24" })
	none := join(t, h, "attach2 0x0\n") // no terminal (cases P10)
	none.send(frameData, "x")
	first := join(t, h, "attach2 100x30\n")
	pty.until(t, "the first", sizes("100x30"))
	second := join(t, h, "attach2 120x40\n")
	second.until("size", func() bool { return second.size == "100x30" })
	second.send(frameSize, "121x40") // has not typed: nothing
	second.send(frameData, "x")
	pty.until(t, "who typed", sizes("100x30", "121x40"))
	w.until("size", func() bool { return w.size == "121x40" })
	first.send(frameSize, "50x20")
	second.send(frameSize, "65535x65535") // beyond all bounds: stays
	second.send(frameSize, "122x40")
	pty.until(t, "who decides resizes", sizes("100x30", "121x40", "122x40"))
	first.send(frameData, "x")
	pty.until(t, "the first again", sizes("100x30", "121x40", "122x40", "50x20"))
}

// A watcher that does not read costs a bounded amount and delays nobody; when it
// reads again it is told what it missed and gets the screen (cases P01).
func TestSlowWatcher(t *testing.T) {
	h := newHub(t, newPTY(true))
	slow := join(t, h, "watch2 80x24\n")
	fast := join(t, h, "watch2 80x24\n")
	slow.until("size", func() bool { return slow.size != "" })
	done := make(chan struct{})
	go func() {
		defer close(done)
		fast.untilData("the end")
	}()
	line := []byte(strings.Repeat("0123456789", 7) + "\r\n")
	piece := bytes.Repeat(line, 400)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	sent := 0
	for sent < 12<<20 {
		h.Output(piece)
		sent += len(piece)
	}
	last := "\x1b[2J\x1b[Hthe end"
	h.Output([]byte(last))
	sent += len(last)
	<-done
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("a slow watcher holds %d MiB", grown>>20)
	}
	slow.until("a skip", func() bool { return slow.skip > 0 })
	slow.untilData("the end")
	if slow.skip < 8<<20 || slow.skip > sent {
		t.Errorf("%d bytes skipped of %d", slow.skip, sent)
	}
}

// A big paste waits for a program that does not read, holds back its client and
// nobody else, and arrives whole (cases P02).
func TestPaste(t *testing.T) {
	pty := newPTY(false)
	h := newHub(t, pty)
	a := join(t, h, "attach2 80x24\n")
	paste := bytes.Repeat([]byte("0123456789abcdef"), (maxTyped+4<<20)/16)
	sent := make(chan error, 1)
	go func() {
		_, err := a.conn.Write(appendData(nil, paste))
		sent <- err
	}()
	w := join(t, h, "watch2 80x24\n")
	h.Output([]byte("still here"))
	w.untilData("still here")
	a.untilData("still here")
	select {
	case err := <-sent:
		t.Fatalf("20 MiB went somewhere: %v", err)
	case <-time.After(100 * time.Millisecond): // back-pressure has no event
	}
	pty.note(func() { pty.reads = true })
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	pty.until(t, "the paste", func() bool { return len(pty.got) == len(paste) })
	if !bytes.Equal(pty.got, paste) {
		t.Error("the paste arrived changed")
	}
}

// Ctrl-C gets past a paste that nobody reads, and says what it cost.
func TestInterruptOfAStalledPaste(t *testing.T) {
	pty := newPTY(false)
	h := newHub(t, pty)
	a := join(t, h, "attach2 80x24\n")
	paste := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	if _, err := a.conn.Write(appendData(nil, paste)); err != nil {
		t.Fatal(err)
	}
	pty.note(func() { pty.stalled = true })
	a.send(frameData, "\x03")
	pty.until(t, "Ctrl-C", func() bool { return bytes.HasSuffix(pty.got, []byte{0x03}) })
	if pty.flushed != 1 || len(pty.got) > 2*chunk {
		t.Errorf("flushed %d times, %d bytes arrived", pty.flushed, len(pty.got))
	}
	a.untilData("bytes of input dropped]")
}

// What a client typed before it left arrives, as far as the program reads; a
// client that is killed in a stall leaves nothing behind.
func TestClientsThatLeave(t *testing.T) {
	t.Run("quick", func(t *testing.T) {
		pty := newPTY(true)
		h := newHub(t, pty)
		c := join(t, h, "attach\nls\n")
		c.conn.Close()
		pty.until(t, "ls", func() bool { return string(pty.got) == "ls\n" })
		untilClients(t, h, 0)
	})
	t.Run("half closed looks on", func(t *testing.T) {
		pty := newPTY(true)
		h := newHub(t, pty)
		c := join(t, h, "attach2 0x0\n")
		c.conn.(*net.UnixConn).CloseWrite()
		time.Sleep(2 * hangupCheck) // that nothing happens has no event
		h.Output([]byte("still"))
		c.untilData("still")
	})
	t.Run("killed in a stall", func(t *testing.T) {
		pty := newPTY(false)
		pty.stalled = true
		h := newHub(t, pty)
		c := join(t, h, "attach\n"+strings.Repeat("x", 1000))
		untilClients(t, h, 1)
		c.conn.Close()
		untilClients(t, h, 0)
		pty.until(t, "flush", func() bool { return pty.flushed == 1 })
	})
}

func untilClients(t *testing.T, h *Hub, n int) {
	t.Helper()
	for end := time.Now().Add(deadline); h.Clients() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d clients, want %d", h.Clients(), n)
		}
	}
}

func TestTooManyClients(t *testing.T) {
	h := newHub(t, newPTY(true))
	for range maxClients {
		c := join(t, h, "watch2 80x24\n")
		c.until("size", func() bool { return c.size != "" })
	}
	c := join(t, h, "watch\n")
	if got, err := c.in.ReadBytes('\n'); err != nil || !bytes.Contains(got, []byte("EAGAIN")) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRawClientGetsAll(t *testing.T) {
	h := newHub(t, newPTY(true))
	c := join(t, h, "watch2 80x24 raw\n")
	c.until("size", func() bool { return c.size != "" })
	c.frame() // the replay
	h.Output([]byte("a\x1b]0;title\x07b"))
	c.untilData("a\x1b]0;title\x07b")
}

func TestEndCutsOffAClientThatDoesNotRead(t *testing.T) {
	h := NewHub(newPTY(true), Size{80, 24})
	c := join(t, h, "watch2 80x24\n")
	c.until("size", func() bool { return c.size != "" })
	silent, far := socketpair(t) // never sends its mode line
	served := make(chan struct{})
	go func() { h.Serve(silent); close(served) }()
	for range 100 {
		h.Output(bytes.Repeat([]byte("line\r\n"), 4<<10))
	}
	h.End(0)
	<-served
	far.Close()
	if _, err := io.Copy(io.Discard, c.in); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Logf("the client's stream ended with %v", err)
	}
}
