package wire

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// Requests is what a Guest is asked. All are called from Serve's goroutine and
// must not wait for a program, so that the end of the wire is always noticed.
type Requests interface {
	Start(StartMsg)
	Input([]byte) // the callee keeps the slice
	Resize(rows, cols uint16)
	Flush()
	Run(RunMsg)
	Kill(id uint32)
	Go(GoMsg)
	Feed(id uint32, p []byte) // the callee keeps the slice; empty: the end
	Terminate(grace time.Duration)
}

// Guest is ctxterm's end of the wire. Its methods are safe for concurrent use.
type Guest struct {
	conn net.Conn
	mu   sync.Mutex // one frame at a time
	last bool       // Exit was sent; protected by mu
}

// NewGuest makes the guest's end.
func NewGuest(conn net.Conn) *Guest { return &Guest{conn: conn} }

// Serve passes on what the host asks until the wire ends.
func (g *Guest) Serve(r Requests) error {
	for {
		kind, data, err := readFrame(g.conn, fromHost, nil)
		if err != nil {
			return err
		}
		switch kind {
		case Start:
			var m StartMsg
			if err := decode(kind, data, &m); err != nil {
				return err
			}
			if m.Version != Version {
				return violation("version %d", m.Version)
			}
			r.Start(m)
		case Input:
			r.Input(data)
		case Size:
			r.Resize(binary.BigEndian.Uint16(data), binary.BigEndian.Uint16(data[2:]))
		case Flush:
			r.Flush()
		case Run:
			var m RunMsg
			if err := decode(kind, data, &m); err != nil {
				return err
			}
			r.Run(m)
		case Kill:
			r.Kill(binary.BigEndian.Uint32(data))
		case Go:
			var m GoMsg
			if err := decode(kind, data, &m); err != nil {
				return err
			}
			r.Go(m)
		case Feed:
			r.Feed(binary.BigEndian.Uint32(data), data[4:])
		case Terminate:
			r.Terminate(time.Duration(binary.BigEndian.Uint32(data)) * time.Millisecond)
		}
	}
}

func (g *Guest) send(b []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last {
		return net.ErrClosed
	}
	g.last = Kind(b[0]) == Exit
	_, err := g.conn.Write(b)
	return err
}

// Hello is the first frame.
func (g *Guest) Hello(m HelloMsg) error { return g.send(frameJSON(Hello, m)) }

// Started answers Start.
func (g *Guest) Started(m StartedMsg) error { return g.send(frameJSON(Started, m)) }

// Output passes on what the PTY said, at most MaxData bytes.
func (g *Guest) Output(p []byte) error { return g.send(frame(Output, p)) }

// Credit says that n bytes of input were taken or dropped; 0 is not sent.
func (g *Guest) Credit(n int) error {
	if n == 0 {
		return nil
	}
	return g.send(frame(Credit, u32(uint32(n))))
}

// Data passes on what a command wrote to stream 1 or 2, at most MaxData bytes.
func (g *Guest) Data(id uint32, stream byte, p []byte) error {
	return g.send(frame(Data, append(append(u32(id), stream), p...)))
}

// Opened says that the program of a held command is open.
func (g *Guest) Opened(id uint32) error { return g.send(frame(Opened, u32(id))) }

// Done ends a command.
func (g *Guest) Done(m DoneMsg) error { return g.send(frameJSON(Done, m)) }

// Found tells of a repository that appeared. A path too long for a frame is cut.
func (g *Guest) Found(m FoundMsg) error {
	m.Path = m.Path[:min(len(m.Path), maxReply/8)]
	return g.send(frameJSON(Found, m))
}

// Exit ends the session; nothing may follow it.
func (g *Guest) Exit(m ExitMsg) error { return g.send(frameJSON(Exit, m)) }
