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
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"

	"cortexfs/node/fault"
)

// ClientOptions say how a person's terminal joins an agent's.
type ClientOptions struct {
	Attach bool // type as well as look; else watch
	Raw    bool // the PTY's bytes unfiltered (queries, OSC 52, titles): only for who trusts the agent

	In  *os.File // keyboard; need not be a terminal; nil: nothing is typed
	Out *os.File // screen
	// Notice gets one line of text for the person ("session ended (code 0)",
	// "skipped 4096 bytes"), without LF, when the terminal is in its normal
	// state. nil: dropped.
	Notice func(string)

	Detach []byte // keys that detach; nil: DefaultDetach
	// Server decides from the uid behind the socket whether it is ours, before a
	// byte is sent; nil: root and the own uid.
	Server func(uid uint32) bool
}

// DefaultDetach is Ctrl-\ Ctrl-d.
var DefaultDetach = []byte{0x1c, 0x04}

// killedCode is the exit code of a session whose end nobody could tell.
const killedCode = 137

// Outcome says how a client's time at a terminal ended.
type Outcome struct {
	Ended    bool // the session ended; Code is its exit code
	Code     int
	Detached bool  // by the detach keys, a signal, a closed output, or ctx
	Skipped  int64 // bytes that this client was too slow to get
}

// Run connects to the terminal socket at path and serves the caller's terminal
// until the session ends, the person detaches, or ctx ends. The caller's
// terminal is put into raw mode and always restored, its modes reset, pending
// input flushed. SIGHUP, SIGINT and SIGTERM detach.
//
// Errors: Unavailable (no such socket, or it went away without a last word),
// Access (refused, or a foreign server).
func Run(ctx context.Context, path string, o ClientOptions) (Outcome, error) {
	if o.Detach == nil {
		o.Detach = DefaultDetach
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	conn, err := dial(ctx, path, o.Server)
	if err != nil {
		return Outcome{}, err
	}
	defer conn.Close()
	c := &client{o: o, conn: conn, in: o.In, detach: make(chan struct{})}
	return c.run(ctx)
}

// dial connects and looks at who listens: the credentials on the client's side
// are those of the process that called listen, which is the daemon.
func dial(ctx context.Context, path string, ours func(uint32) bool) (*net.UnixConn, error) {
	if ours == nil {
		ours = func(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fault.E("connect", path, fault.Unavailable, err)
	}
	conn := nc.(*net.UnixConn)
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, fault.FromOS("connect", path, err)
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, cerr); err != nil {
		conn.Close()
		return nil, fault.FromOS("connect", path, err)
	}
	if !ours(cred.Uid) {
		conn.Close()
		return nil, fault.E("connect", path, fault.Access, fmt.Errorf("the server runs as uid %d", cred.Uid))
	}
	return conn, nil
}

type client struct {
	o    ClientOptions
	conn *net.UnixConn
	in   *os.File

	wmu    sync.Mutex // serialises frames to the server
	once   sync.Once
	detach chan struct{} // closed when the person wants to go
	modes  tracker       // what the stream has switched on in the person's terminal
}

func (c *client) leave() { c.once.Do(func() { close(c.detach) }) }

func (c *client) run(ctx context.Context) (Outcome, error) {
	m := mode{attach: c.o.Attach, framed: true, raw: c.o.Raw, size: c.size()}
	// A server that refuses may have closed already; its reason waits to be read.
	if _, err := io.WriteString(c.conn, m.line()); err != nil && !errors.Is(err, syscall.EPIPE) {
		return Outcome{}, fault.E("attach", "", fault.Unavailable, err)
	}
	restore, err := c.rawMode()
	if err != nil {
		return Outcome{}, err
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	over := make(chan struct{})
	var side sync.WaitGroup
	side.Go(func() { c.watchSignals(ctx, signals, over) })
	stopTyping := c.startTyping()

	out, err := c.show()

	close(over)
	signal.Stop(signals)
	stopTyping()
	side.Wait()
	// The person's terminal comes back before a word is printed on it.
	c.o.Out.Write(c.modes.undo())
	restore()
	if out.Skipped > 0 {
		c.o.Notice(fmt.Sprintf("skipped %d bytes", out.Skipped))
	}
	if out.Ended {
		c.o.Notice(ended(out.Code))
	}
	return out, err
}

// show copies the stream to the screen until it ends or the person leaves.
func (c *client) show() (out Outcome, err error) {
	go func() {
		<-c.detach
		c.conn.SetReadDeadline(time.Unix(1, 0))
	}()
	defer c.leave()
	left := func() bool {
		select {
		case <-c.detach:
			return true
		default:
			return false
		}
	}
	r := bufio.NewReaderSize(c.conn, 64<<10)
	if first, err := r.Peek(1); err == nil && first[0] == '{' {
		return out, refusal(r)
	}
	for joined := false; ; joined = true {
		kind, data, err := readFrame(r)
		switch {
		case err != nil && left():
			out.Detached = true
			return out, nil
		case joined && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
			// The host process was killed: its agent has ended with it.
			out.Ended, out.Code = true, killedCode
			return out, nil
		case err != nil:
			return out, fault.Newf(fault.Unavailable, "the agent's terminal went away: %v", err)
		}
		switch kind {
		case frameData:
			c.modes.watch(data)
			if _, err := c.o.Out.Write(data); err != nil {
				out.Detached = true // nobody looks any more
				return out, nil
			}
		case frameSkip:
			n, err := strconv.ParseInt(string(data), 10, 64)
			if err != nil || n < 0 {
				return out, fault.Newf(fault.Invalid, "bad skip frame")
			}
			out.Skipped += n
		case frameExit:
			code, err := strconv.Atoi(string(data))
			if err != nil {
				return out, fault.Newf(fault.Invalid, "bad exit frame")
			}
			out.Ended, out.Code = true, code
			return out, nil
		}
	}
}

// refusal reads the one error line that a server sends instead of a stream.
func refusal(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	var e struct{ Type, Code, Message string }
	if err != nil || json.Unmarshal(line, &e) != nil || e.Type != "error" {
		return fault.Newf(fault.Unavailable, "the agent's terminal does not answer as one")
	}
	kind := fault.Unavailable
	switch e.Code {
	case "EACCES", "EPERM":
		kind = fault.Access
	case "EINVAL":
		kind = fault.Invalid
	case "EAGAIN":
		kind = fault.Again
	}
	return fault.Newf(kind, "%s", printable(e.Message))
}

func (c *client) send(kind byte, data []byte) error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err := c.conn.Write(appendFrame(nil, kind, data))
	return err
}

// size is the window of the person's screen, 0x0 when it is no terminal: then
// the session keeps its size.
func (c *client) size() Size {
	if c.o.Out == nil || c.in == nil || !xterm.IsTerminal(int(c.in.Fd())) {
		return Size{}
	}
	cols, rows, err := xterm.GetSize(int(c.o.Out.Fd()))
	if err != nil || cols > 0xffff || rows > 0xffff {
		return Size{}
	}
	return Size{Cols: cols, Rows: rows}
}

// rawMode switches the keyboard's terminal to raw. The returned function brings
// it back and drops what was typed meanwhile, so that no answer of the terminal
// lands in the shell that follows.
func (c *client) rawMode() (func(), error) {
	if c.in == nil || !xterm.IsTerminal(int(c.in.Fd())) {
		return func() {}, nil
	}
	fd := int(c.in.Fd())
	old, err := xterm.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("raw mode: %w", err)
	}
	return func() {
		unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH)
		xterm.Restore(fd, old)
	}, nil
}

func (c *client) watchSignals(ctx context.Context, signals <-chan os.Signal, over <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGWINCH {
				c.leave()
				return
			}
			if size := c.size(); size.Rows > 0 {
				c.send(frameSize, []byte(size.String()))
			}
		case <-ctx.Done():
			c.leave()
			return
		case <-over:
			return
		}
	}
}

// ParseKeys reads detach keys as people write them: names separated by commas,
// each one character or ctrl-C ("ctrl-\,ctrl-d", "ctrl-a,d").
func ParseKeys(s string) ([]byte, error) {
	var keys []byte
	for _, word := range strings.Split(s, ",") {
		name, ctrl := strings.CutPrefix(strings.ToLower(word), "ctrl-")
		if !ctrl {
			name = word
		}
		if len(name) != 1 || name[0] < 0x20 || name[0] > 0x7e {
			return nil, fault.Newf(fault.Invalid, "%q is not a key: one character, or ctrl- and one", word)
		}
		b := name[0]
		if ctrl {
			up := bytes.ToUpper([]byte{b})[0]
			if up < '@' || up > '_' {
				return nil, fault.Newf(fault.Invalid, "%q: ctrl- goes with a letter or one of @ [ \\ ] ^ _", word)
			}
			b = up & 0x1f
		}
		keys = append(keys, b)
	}
	return keys, nil
}
