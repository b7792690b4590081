package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"cortexfs/node/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline is for what must happen at all; no test measures with it.
const deadline = time.Minute

// quiet takes every event.
type quiet struct{ out bytes.Buffer }

func (q *quiet) Hello(HelloMsg)     {}
func (q *quiet) Started(StartedMsg) {}
func (q *quiet) Output(p []byte)    { q.out.Write(p) }
func (q *quiet) Exit(ExitMsg)       {}

// begun is what every session starts with.
func begun() []byte {
	return append(frameJSON(Hello, HelloMsg{Version: Version}), frameJSON(Started, StartedMsg{})...)
}

// hear runs a host against bytes of a guest and returns Serve's error.
func hear(t *testing.T, q *quiet, guest []byte) error {
	t.Helper()
	near, far := net.Pipe()
	h := NewHost(near, q)
	over := make(chan error, 1)
	go func() { over <- h.Serve() }()
	go func() {
		far.Write(guest)
		far.Close()
	}()
	select {
	case err := <-over:
		return err
	case <-time.After(deadline):
		t.Fatal("the host did not end")
		return nil
	}
}

func raw(kind byte, n uint32, data string) []byte {
	b := frame(Kind(kind), nil)
	copy(b[1:], u32(n))
	return append(b, data...)
}

func TestGuestIsNotBelieved(t *testing.T) {
	for _, c := range []struct {
		name  string
		guest []byte
	}{
		{"no hello", frame(Output, []byte("x"))},
		{"hello twice", append(frameJSON(Hello, HelloMsg{Version: Version}), frameJSON(Hello, HelloMsg{Version: Version})...)},
		{"another version", frameJSON(Hello, HelloMsg{Version: Version + 1})},
		{"unknown field", raw('h', 25, `{"version":1,"uid":"root"}`[:25])},
		{"two objects", frame(Hello, []byte(`{"version":1,"pid":1}{}`))},
		{"not an object", frame(Hello, []byte(`[1,2]`))},
		{"output before the start", append(frameJSON(Hello, HelloMsg{Version: Version}), frame(Output, []byte("x"))...)},
		{"started twice", append(begun(), frameJSON(Started, StartedMsg{})...)},
		{"more after a refusal", append(append(frameJSON(Hello, HelloMsg{Version: Version}), frameJSON(Started, StartedMsg{Errno: 13})...), frame(Output, []byte("x"))...)},
		{"unknown type", append(begun(), raw('?', 0, "")...)},
		{"a host's type", append(begun(), raw('T', 4, "\x00\x00\x00\x00")...)},
		{"huge", append(begun(), raw('o', 1<<31, "")...)},
		{"empty output", append(begun(), raw('o', 0, "")...)},
		{"over the limit", append(begun(), raw('o', MaxData+1, "")...)},
		{"credit for nothing", append(begun(), frame(Credit, u32(1))...)},
		{"credit of nothing", append(begun(), frame(Credit, u32(0))...)},
		{"short credit", append(begun(), raw('c', 3, "abc")...)},
		{"output of no command", append(begun(), frame(Data, append(u32(7), 1, 'x'))...)},
		{"end of no command", append(begun(), frameJSON(Done, DoneMsg{ID: 7})...)},
		{"odd code", append(begun(), frameJSON(Exit, ExitMsg{Code: 256})...)},
		{"after the exit", append(append(begun(), frameJSON(Exit, ExitMsg{})...), frame(Output, []byte("x"))...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := hear(t, &quiet{}, c.guest)
			if !errors.Is(err, ErrViolation) || !fault.Is(err, fault.Invalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCleanSession(t *testing.T) {
	q := &quiet{}
	b := append(begun(), frame(Output, []byte("out"))...)
	b = append(b, frameJSON(Exit, ExitMsg{Code: 3})...)
	if err := hear(t, q, b); err != nil || q.out.String() != "out" {
		t.Errorf("%v, output %q", err, q.out.String())
	}
	if err := hear(t, q, b[:len(b)-3]); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a torn frame: %v", err)
	}
}

// slowGuest records what the host asks and gives credit when told.
type slowGuest struct {
	g    *Guest
	mu   sync.Mutex
	got  int
	more chan struct{}
}

func (s *slowGuest) Start(StartMsg)           { s.g.Started(StartedMsg{}) }
func (s *slowGuest) Resize(rows, cols uint16) {}
func (s *slowGuest) Flush()                   {}
func (s *slowGuest) Run(m RunMsg) {
	s.g.Data(m.ID, 1, []byte("out"))
	s.g.Data(m.ID, 2, []byte("err"))
	s.g.Done(DoneMsg{ID: m.ID, Code: 4})
}
func (s *slowGuest) Kill(uint32)             {}
func (s *slowGuest) Go(GoMsg)                {}
func (s *slowGuest) Feed(uint32, []byte)     {}
func (s *slowGuest) Terminate(time.Duration) {}
func (s *slowGuest) Input(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got += len(p)
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *slowGuest) until(t *testing.T, n int) {
	t.Helper()
	late := time.After(deadline)
	for {
		s.mu.Lock()
		got := s.got
		s.mu.Unlock()
		if got == n {
			return
		}
		select {
		case <-s.more:
		case <-late:
			t.Fatalf("%d bytes came, want %d", got, n)
		}
	}
}

// starter begins a session when the guest says hello.
type starter struct {
	quiet
	h       *Host
	started chan struct{}
}

func (s *starter) Hello(HelloMsg)     { s.h.Start(StartMsg{Program: "/p"}) }
func (s *starter) Started(StartedMsg) { close(s.started) }

func session(t *testing.T) (*Host, *slowGuest) {
	t.Helper()
	near, far := net.Pipe()
	ev := &starter{started: make(chan struct{})}
	ev.h = NewHost(near, ev)
	guest := &slowGuest{g: NewGuest(far), more: make(chan struct{}, 1)}
	var both sync.WaitGroup
	both.Go(func() { ev.h.Serve() })
	both.Go(func() { guest.g.Serve(guest) })
	if err := guest.g.Hello(HelloMsg{Version: Version}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ev.h.Close()
		far.Close()
		both.Wait()
	})
	<-ev.started
	return ev.h, guest
}

// Input never runs ahead of the window, and a caller can give up.
func TestWindow(t *testing.T) {
	h, guest := session(t)
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan error, 1)
	go func() { sent <- h.Input(ctx, make([]byte, 3*Window)) }()
	guest.until(t, Window)
	guest.g.Credit(1000)
	guest.until(t, Window+1000)
	guest.g.Credit(Window)
	guest.until(t, 2*Window+1000)
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	for end := time.Now().Add(deadline); !h.Stalled(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a full window that stands still is no stall")
		}
	}
	guest.g.Credit(Window)
	if err := h.Input(context.Background(), []byte("x")); err != nil {
		t.Error(err)
	}
}

func TestRunOverTheWire(t *testing.T) {
	h, _ := session(t)
	res, err := h.Run(context.Background(), RunMsg{Argv: []string{"x"}, Limit: 10})
	if err != nil || res.Code != 4 || string(res.Stdout) != "out" || string(res.Stderr) != "err" {
		t.Errorf("%+v, %v", res, err)
	}
	// A guest that sends more than it was asked for breaks the protocol.
	if _, err := h.Run(context.Background(), RunMsg{Argv: []string{"x"}, Limit: 2}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

func TestBeforeTheSession(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	h := NewHost(near, &quiet{})
	if _, err := h.Run(context.Background(), RunMsg{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a command before the session: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Input(ctx, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("input before the session: %v", err)
	}
	h.Close()
	if err := h.Flush(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after the end: %v", err)
	}
}

func FuzzHost(f *testing.F) {
	f.Add(begun())
	f.Add(append(begun(), frame(Output, []byte("x"))...))
	f.Add(append(begun(), frameJSON(Exit, ExitMsg{Code: 3})...))
	f.Fuzz(func(t *testing.T, in []byte) { hear(t, &quiet{}, in) })
}
