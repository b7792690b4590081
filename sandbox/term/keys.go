package term

import (
	"bytes"
	"os"
	"time"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"
)

// keyWait is how long a detach key that may be the first of two is held back
// when nothing follows: a person who meant Ctrl-\ itself gets it then.
const keyWait = 700 * time.Millisecond

// startTyping sends what is typed until the returned function is called. The reader
// waits in poll with a pipe beside the keyboard, so that it can be told to go
// without closing the caller's stdin or losing a byte of it.
func (c *client) startTyping() (stop func()) {
	if c.in == nil || (!c.o.Attach && !xterm.IsTerminal(int(c.in.Fd()))) {
		return func() {}
	}
	r, w, err := os.Pipe()
	if err != nil {
		c.leave()
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.readKeys(int(c.in.Fd()), int(r.Fd()))
	}()
	return func() {
		w.Close()
		c.conn.SetWriteDeadline(time.Unix(1, 0)) // a sender may wait for a stalled agent
		<-done
		r.Close()
	}
}

func (c *client) readKeys(in, quit int) {
	tty := xterm.IsTerminal(in)
	keys := keyWatch{detach: c.o.Detach}
	buf := make([]byte, chunk)
	for {
		wait := -1
		if keys.held > 0 {
			wait = int(keyWait.Milliseconds())
		}
		fds := []unix.PollFd{{Fd: int32(in), Events: unix.POLLIN}, {Fd: int32(quit), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, wait)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil || fds[1].Revents != 0:
			return
		case n == 0:
			c.typed(keys.release())
			continue
		}
		n, err = unix.Read(in, buf)
		switch {
		case err == unix.EINTR || err == unix.EAGAIN:
			continue
		case err != nil || n == 0:
			// No more input is no reason to go: the person may only look on. A
			// keyboard that is gone is.
			if tty {
				c.leave()
			}
			return
		}
		data := buf[:n]
		if tty {
			var gone bool
			data, gone = keys.feed(data)
			if !c.o.Attach && bytes.IndexByte(data, 0x03) >= 0 {
				gone = true // watching: Ctrl-C has no other meaning
			}
			if gone {
				c.leave()
				return
			}
		}
		if !c.typed(data) {
			return
		}
	}
}

// typed sends keys; a watcher's go nowhere (the server would drop them too).
func (c *client) typed(data []byte) bool {
	if len(data) == 0 || !c.o.Attach {
		return true
	}
	return c.send(frameData, data) == nil
}

// keyWatch finds the detach keys in what is typed.
type keyWatch struct {
	detach []byte
	held   int // how many of them were typed so far
}

// feed returns what to pass on, and whether the detach keys are complete.
func (k *keyWatch) feed(data []byte) (out []byte, gone bool) {
	if len(k.detach) == 0 {
		return data, false
	}
	out = make([]byte, 0, len(data)+k.held)
	for _, b := range data {
		if b != k.detach[k.held] {
			out = append(out, k.release()...)
		}
		if b != k.detach[k.held] {
			out = append(out, b)
			continue
		}
		k.held++
		if k.held == len(k.detach) {
			k.held = 0
			return out, true
		}
	}
	return out, false
}

// release gives back the keys held.
func (k *keyWatch) release() []byte {
	held := k.detach[:k.held]
	k.held = 0
	return held
}
