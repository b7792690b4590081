package term

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// read takes the client's frames. A watcher's data goes nowhere, whatever it is.
func (c *viewer) read() {
	err := c.readAll()
	c.keys.close()
	if err != nil {
		c.finish()
		return
	}
	// The write side is shut; the client may look on. What it typed is still
	// passed on when it is gone, for a short while.
	tick := time.NewTicker(hangupCheck)
	defer tick.Stop()
	var left time.Time
	for {
		idle, wait := c.keys.idle()
		if c.hungUp() {
			if left.IsZero() {
				left = time.Now()
			}
			if idle || time.Since(left) > lingerTime {
				c.finish()
				return
			}
		}
		select {
		case <-tick.C:
		case <-wait:
		case <-c.ctx.Done():
			return
		}
	}
}

// readAll reads until the client shuts its write side (nil) or breaks a rule.
func (c *viewer) readAll() error {
	if !c.mode.framed {
		buf := make([]byte, chunk)
		for {
			n, err := c.in.Read(buf)
			if n > 0 {
				if err := c.typedData(bytes.Clone(buf[:n])); err != nil {
					return err
				}
			}
			if err != nil {
				return endOfInput(err)
			}
		}
	}
	for {
		kind, data, err := readFrame(c.in)
		if err != nil {
			return endOfInput(err)
		}
		switch kind {
		case frameData:
			err = c.typedData(data)
		case frameSize:
			err = c.resized(string(data))
		default:
			err = fault.Newf(fault.Invalid, "frame %q from a client", kind)
		}
		if err != nil {
			return err
		}
	}
}

// endOfInput is nil for a clean end of the client's stream.
func endOfInput(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // it left output unread
		return nil
	}
	return err
}

func (c *viewer) resized(text string) error {
	size, err := parseSize(text)
	if err != nil {
		return err
	}
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	c.size = size
	if c.mode.attach && (c.hub.decider == c || c.hub.decider == nil) {
		c.hub.decideLocked(c)
	}
	return nil
}

// typedData takes what the person typed. Ctrl-C alone, while the program does
// not read, means that the person wants out: what waits is dropped then, and the
// client is told how much.
func (c *viewer) typedData(data []byte) error {
	if !c.mode.attach || len(data) == 0 {
		return nil
	}
	c.hub.mu.Lock()
	if c.hub.decider != c {
		c.hub.decideLocked(c)
	}
	c.hub.mu.Unlock()
	if len(data) == 1 && data[0] == 0x03 && c.hub.pty.Stalled() {
		n := c.keys.drop()
		c.hub.pty.Flush()
		if n > 0 {
			c.hub.mu.Lock()
			c.queueLocked(fmt.Appendf(nil, "\r\n[%d bytes of input dropped]\r\n", n))
			c.hub.mu.Unlock()
		}
	}
	for {
		ok, wait := c.keys.add(data)
		if ok {
			return nil
		}
		select {
		case <-wait:
		case <-time.After(hangupCheck):
			if c.hungUp() {
				return errLeft
			}
		case <-c.ctx.Done():
			return errLeft
		}
	}
}

// typeOn passes the queue to the PTY at the pace of the program.
func (c *viewer) typeOn() {
	defer func() {
		if c.keys.drop() > 0 && c.hub.pty.Stalled() {
			c.hub.pty.Flush() // nobody is left who could want it
		}
	}()
	for {
		p, ctx, over, wait := c.keys.take()
		if over {
			return
		}
		if p == nil {
			select {
			case <-wait:
				continue
			case <-c.ctx.Done():
				return
			}
		}
		err := c.hub.pty.Input(ctx, p)
		switch {
		case err == nil:
			c.keys.done(ctx, len(p))
		case ctx.Err() == nil || c.ctx.Err() != nil:
			return // the agent is gone, or the client; a dropped part is neither
		}
	}
}

// hungUp says whether the peer has closed its socket altogether, which a read
// cannot tell from a shut write side.
func (c *viewer) hungUp() bool {
	sc, ok := c.nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	hup := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, perr := unix.Poll(fds, 0)
		hup = perr == nil && n > 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return hup || err != nil
}
