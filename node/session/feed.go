package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// Limits of the live frames that wait for followers.
const (
	maxLive      = 1024
	maxLiveBytes = 1 << 20
	// stallTime is how long a run waits for the slowest of its followers before
	// it goes on without it. That one has lost deltas then, never an event.
	stallTime = 10 * time.Second
)

// live is a frame that is not stored.
type live struct {
	at    int64 // the end of the last event that was durable before it
	run   string
	frame []byte
}

// feed wakes the followers of a session and keeps its live frames.
type feed struct {
	mu      sync.Mutex
	changed chan struct{} // closed and renewed at every change
	ring    []live
	bytes   int
	first   uint64 // number of ring[0]
	readers map[*reader]struct{}
	over    bool
}

// reader is the place of one follower.
type reader struct {
	pos  int64  // in the file
	next uint64 // number of the next live frame
	run  string // only this run's; "": all
	lost bool   // fell behind; nobody waits for it
}

func (f *feed) init() {
	f.changed = make(chan struct{})
	f.readers = map[*reader]struct{}{}
}

func (f *feed) wake() {
	f.mu.Lock()
	f.wakeLocked()
	f.mu.Unlock()
}

func (f *feed) wakeLocked() {
	if !f.over {
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

func (f *feed) close() {
	f.mu.Lock()
	if !f.over {
		f.over = true
		close(f.changed)
	}
	f.mu.Unlock()
}

// publish adds a live frame. When the ring is full it waits for the followers
// that have not read its oldest frame, at most stallTime.
func (f *feed) publish(ctx context.Context, l live) error {
	var timeout <-chan time.Time
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.ring) >= maxLive || f.bytes+len(l.frame) > maxLiveBytes && len(f.ring) > 0 {
		if !f.waitedForLocked() {
			f.bytes -= len(f.ring[0].frame)
			f.ring[0].frame = nil
			f.ring, f.first = f.ring[1:], f.first+1
			continue
		}
		if timeout == nil {
			t := time.NewTimer(stallTime)
			defer t.Stop()
			timeout = t.C
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-timeout:
			f.giveUp()
		case <-ctx.Done():
			f.mu.Lock()
			return ctx.Err()
		}
		f.mu.Lock()
	}
	f.ring = append(f.ring, l)
	f.bytes += len(l.frame)
	f.wakeLocked()
	return nil
}

// waitedForLocked says whether a follower still has to read the oldest frame.
func (f *feed) waitedForLocked() bool {
	for r := range f.readers {
		if !r.lost && r.next <= f.first {
			return true
		}
	}
	return false
}

func (f *feed) giveUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.readers {
		if r.next <= f.first {
			r.lost = true
		}
	}
}

// errStop ends a follower from within its function, without an error.
var errStop = errors.New("enough")

// follow gives fn the stored lines from r.pos on and the live frames between
// them, in order. Without more it ends where nothing is left.
func (s *Session) follow(ctx context.Context, r *reader, more bool, fn func(line []byte, live bool, end int64) error) error {
	f := &s.feed
	f.mu.Lock()
	f.readers[r] = struct{}{}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.readers, r)
		f.wakeLocked()
		f.mu.Unlock()
	}()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		limit := s.events.size()
		f.mu.Lock()
		changed, over := f.changed, f.over
		r.next = max(r.next, f.first)
		var next *live
		for int(r.next-f.first) < len(f.ring) {
			l := f.ring[r.next-f.first]
			if l.at >= r.pos && (r.run == "" || r.run == l.run) {
				next, limit = &l, min(limit, l.at)
				break
			}
			r.next++ // of a place behind us, or of another run
		}
		f.mu.Unlock()
		switch {
		case r.pos < limit:
			err := each(s.events, r.pos, limit, func(line []byte, end int64) error {
				r.pos = end
				return fn(line, false, end)
			})
			if err != nil {
				return err
			}
			r.pos = limit
		case next != nil:
			if err := fn(next.frame, true, r.pos); err != nil {
				return err
			}
			f.mu.Lock()
			r.next, r.lost = r.next+1, false
			f.wakeLocked()
			f.mu.Unlock()
		case s.events.size() > r.pos: // grew between the two looks
		case !more:
			return nil
		case over:
			return fault.Newf(fault.Unavailable, "the session is closed")
		default:
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// Follow gives fn every stored event after the one with id after ("": from the
// first), as it is stored. With more it goes on with what comes, live frames
// included, until ctx ends. last is the id of the last event that fn was given,
// or after. NotExist: there is no event of that id.
func (s *Session) Follow(ctx context.Context, after string, more bool, fn func(line []byte) error) (last string, err error) {
	r := &reader{}
	last = after
	if after != "" {
		if r.pos, err = s.find(after); err != nil {
			return after, err
		}
	}
	err = s.follow(ctx, r, more, func(line []byte, isLive bool, _ int64) error {
		if !isLive {
			if id := eventID(line); id != "" {
				last = id
			}
		}
		return fn(line)
	})
	return last, err
}

// find is the end of the event with that id.
func (s *Session) find(id string) (pos int64, err error) {
	err = each(s.events, 0, s.events.size(), func(line []byte, end int64) error {
		if eventID(line) == id {
			pos = end
			return errStop
		}
		return nil
	})
	switch {
	case errors.Is(err, errStop):
		return pos, nil
	case err != nil:
		return 0, err
	}
	return 0, fault.E("resume", "session "+s.key.String(), fault.NotExist, errors.New("no event of that id"))
}

// eventID is the id of a stored event. Our own lines begin with it.
func eventID(line []byte) string {
	const head = `{"id":"`
	if len(line) > len(head)+27 && string(line[:len(head)]) == head && line[len(head)+26] == '"' {
		return string(line[len(head) : len(head)+26])
	}
	o, err := jsonl.Parse(line)
	if err != nil {
		return ""
	}
	id, _ := o.String("id")
	return id
}
