package term

import (
	"bufio"
	"context"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"cortexfs/node/fault"
)

const (
	hangupCheck = 500 * time.Millisecond // how often a client that is not read is looked at
	lingerTime  = 2 * time.Second        // how long typed input of a client that left may wait
)

// itemCost is what a queued frame weighs beyond its data: many small ones are no
// way around the bound.
const itemCost = 64

// item is one frame for a client.
type item struct {
	kind byte
	data []byte
}

// viewer is one joined client.
type viewer struct {
	hub  *Hub
	nc   net.Conn
	in   *bufio.Reader
	mode mode
	wake chan struct{}   // something to write, or the end
	ctx  context.Context // ends when the client's connection is finished
	end  context.CancelFunc
	keys *typed

	// Protected by Hub.mu.
	size     Size
	out      []item
	queued   int   // bytes in out
	skipped  int64 // bytes lost since the queue overflowed; > 0: a replay is due
	noOutput bool  // a write failed
}

// handshake reads the mode line.
func (h *Hub) handshake(nc net.Conn) (*viewer, error) {
	nc.SetReadDeadline(time.Now().Add(modeDeadline * time.Second))
	in := bufio.NewReaderSize(nc, 64<<10)
	var line []byte
	for {
		b, err := in.ReadByte()
		switch {
		case os.IsTimeout(err):
			return nil, fault.Newf(fault.TimedOut, "no mode line within %d s", modeDeadline)
		case err != nil:
			return nil, fault.FromOS("read mode line", "", err)
		}
		if b == '\n' {
			break
		}
		if line = append(line, b); len(line) >= maxModeLine {
			return nil, fault.Newf(fault.Invalid, "no mode line within %d bytes", maxModeLine)
		}
	}
	m, err := parseMode(string(line))
	if err != nil {
		return nil, err
	}
	nc.SetReadDeadline(time.Time{})
	c := &viewer{hub: h, nc: nc, in: in, mode: m, size: m.size, wake: make(chan struct{}, 1)}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.keys = newTyped(c.ctx)
	return c, nil
}

// serve runs the client until it or the session ends.
func (c *viewer) serve() {
	var parts sync.WaitGroup
	parts.Go(c.write)
	parts.Go(c.read)
	if c.mode.attach {
		parts.Go(c.typeOn)
	}
	parts.Wait()
}

// finish ends the client's connection; every part of it notices.
func (c *viewer) finish() {
	c.end()
	c.nc.Close()
}

// queueLocked adds data to the client's queue, or throws the queue away when it
// would grow over its bound. Hub.mu is held.
func (c *viewer) queueLocked(data []byte) {
	if len(data) == 0 || c.noOutput {
		return
	}
	if c.skipped > 0 || c.queued+len(data) > maxQueue {
		for _, it := range c.out {
			if it.kind == frameData {
				c.skipped += int64(len(it.data))
			}
		}
		c.skipped += int64(len(data))
		c.out, c.queued = nil, 0
		c.wakeLocked()
		return
	}
	c.out = append(c.out, item{kind: frameData, data: data})
	c.queued += len(data) + itemCost
	c.wakeLocked()
}

// sizeLocked queues the PTY's new size, which a skip would tell anyway.
func (c *viewer) sizeLocked(s Size) {
	if c.skipped > 0 || c.noOutput {
		return
	}
	it := item{kind: frameSize, data: []byte(s.String())}
	if n := len(c.out); n > 0 && c.out[n-1].kind == frameSize {
		c.out[n-1] = it
	} else {
		c.out = append(c.out, it)
		c.queued += itemCost
	}
	c.wakeLocked()
}

func (c *viewer) wakeLocked() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// next takes what is to be written now; last when the session's end follows it.
func (c *viewer) next() (items []item, last bool) {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	if c.skipped > 0 {
		items = []item{
			{kind: frameSkip, data: strconv.AppendInt(nil, c.skipped, 10)},
			{kind: frameSize, data: []byte(c.hub.screen.Size().String())},
			{kind: frameData, data: c.hub.screen.Replay()},
		}
		c.skipped = 0
		c.out, c.queued = nil, 0
	} else {
		items = c.out
		c.out, c.queued = nil, 0
	}
	if last = c.hub.ended; last {
		items = append(items, item{kind: frameExit, data: strconv.AppendInt(nil, int64(c.hub.code), 10)})
	}
	return items, last
}

func (c *viewer) write() {
	for {
		items, last := c.next()
		err := c.writeItems(items)
		if last {
			c.finish()
			return
		}
		if err != nil {
			// It is gone, or its read side is; what it typed before may still wait.
			// The reader sees the end.
			c.deaf()
			return
		}
		if len(items) > 0 {
			continue
		}
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
	}
}

// deaf drops the client's output from now on.
func (c *viewer) deaf() {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	c.noOutput = true
	c.out, c.queued = nil, 0
	if c.hub.ended {
		c.finish()
	}
}

func (c *viewer) writeItems(items []item) error {
	var b []byte
	for i, it := range items {
		switch {
		case c.mode.framed && it.kind == frameData:
			b = appendData(b, it.data)
		case c.mode.framed:
			b = appendFrame(b, it.kind, it.data)
		case it.kind == frameData:
			b = append(b, it.data...)
		}
		if len(b) < chunk && i+1 < len(items) {
			continue
		}
		if _, err := c.nc.Write(b); err != nil {
			return err
		}
		b = b[:0]
	}
	return nil
}
