package fs

import (
	"sync"
	"sync/atomic"
	"time"
)

// crew keeps somebody listening at the device. A reader that has taken a request
// answers it itself, and mostly it is back within microseconds; starting a
// substitute for each would cost more than the requests. So:
//
//   - a watcher looks every tick, while there are requests, whether somebody
//     listens, and starts a reader where nobody has for a whole tick, or where at
//     tick after tick all were at work: more clients than one reader can serve;
//   - where requests were slow of late (a disk, a lock, a commit), a reader that is
//     about to wait starts its substitute at once, and a few may stay.
type crew struct {
	read  func()
	least int32 // that listen when all is quiet

	all       sync.WaitGroup // readers
	listening atomic.Int32   // readers at the device, or on their way
	returns   atomic.Uint64  // how often one came back
	slowUntil atomic.Int64   // requests are slow until then, in ns since began
	watching  atomic.Bool    // the watcher is awake
	kick      chan struct{}
	began     time.Time
}

const (
	crewTick  = 2 * time.Millisecond
	crewBusy  = 16               // ticks with nobody listening until there is one reader more
	crewQuiet = 100              // ticks without a request until the watcher sleeps
	slowWait  = time.Millisecond // a request that waited this long is slow
	slowFor   = 200 * time.Millisecond
	crewMost  = 2 // that listen while requests are slow
)

func (c *crew) start(readers int, read func(), stop <-chan struct{}) {
	c.read, c.least, c.began = read, int32(readers), time.Now()
	c.kick = make(chan struct{}, 1)
	for range readers {
		c.more()
	}
	c.all.Add(1)
	go c.watch(stop)
}

// more starts a reader.
func (c *crew) more() {
	c.listening.Add(1)
	c.all.Add(1)
	go c.read()
}

// leave is called by a reader that has taken a request.
func (c *crew) leave() {
	if c.listening.Add(-1) == 0 && !c.watching.Load() {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

// join is called by a reader that has answered; false sends it home because
// enough are listening.
func (c *crew) join() bool {
	c.returns.Add(1)
	most := c.least
	if c.slow() {
		most = max(most, crewMost)
	}
	if c.listening.Add(1) > most {
		c.listening.Add(-1)
		return false
	}
	return true
}

func (c *crew) slow() bool {
	return c.slowUntil.Load() > int64(time.Since(c.began))
}

// cover is called by a reader that is about to wait.
func (c *crew) cover() {
	if c.listening.Load() == 0 && c.slow() {
		c.more()
	}
}

// waited tells how long a request that might wait did.
func (c *crew) waited(d time.Duration) {
	if d >= slowWait {
		c.slowUntil.Store(int64(time.Since(c.began) + slowFor))
	}
}

// watch is the watcher. It is one of those counted in all, so that starting a
// reader never races with the end.
func (c *crew) watch(stop <-chan struct{}) {
	defer c.all.Done()
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	for {
		select {
		case <-c.kick:
		case <-stop:
			return
		}
		c.watching.Store(true)
		before, quiet, busy := c.returns.Load(), 0, 0
		for quiet < crewQuiet {
			tick.Reset(crewTick)
			select {
			case <-tick.C:
			case <-stop:
				return
			}
			now, nobody := c.returns.Load(), c.listening.Load() == 0
			if nobody {
				busy++
			} else {
				busy = 0
			}
			switch {
			case nobody && (now == before || busy >= crewBusy):
				c.waited(slowWait) // a few may stay for a while
				c.more()
				quiet, busy = 0, 0
			case now != before:
				quiet = 0
			default:
				quiet++
			}
			before = now
		}
		c.watching.Store(false)
		// A reader that left just before saw the watcher awake.
		if c.listening.Load() == 0 {
			select {
			case c.kick <- struct{}{}:
			default:
			}
		}
	}
}
