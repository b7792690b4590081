package agentd

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// What the host process asks of the daemon goes over the same connection, the
// other way round: the controls, the policies and the tools are the daemon's.
// Every question is a look, or a line for the log, so that it can be asked again
// when a daemon goes away in the middle.

// question is one ask of the host process; a request with op "told" answers it.
type question struct {
	ID   uint64          `json:"id"`
	Op   string          `json:"op"`
	Data json.RawMessage `json:"data,omitempty"`
}

const (
	askWait = 15 * time.Second // for a daemon to be there
	maxAsks = 64               // at once, per agent
)

// Answerer answers what a host process asks. What it returns becomes JSON.
type Answerer func(ctx context.Context, op string, data json.RawMessage) (any, error)

// asks are the questions that wait for their answer.
type asks struct {
	mu      sync.Mutex // protects all; a leaf
	next    uint64
	waiting map[uint64]chan request
}

func (s *asks) add() (uint64, chan request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[uint64]chan request{}
	}
	s.next++
	ch := make(chan request, 1)
	s.waiting[s.next] = ch
	return s.next, ch
}

func (s *asks) drop(id uint64) {
	s.mu.Lock()
	delete(s.waiting, id)
	s.mu.Unlock()
}

func (s *asks) told(r request) {
	s.mu.Lock()
	ch := s.waiting[r.ID]
	delete(s.waiting, r.ID)
	s.mu.Unlock()
	if ch != nil {
		ch <- r
	}
}

// ask asks the daemon. Unavailable when none is there for askWait.
func (a *agent) ask(ctx context.Context, op string, in, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return fault.Newf(fault.Invalid, "ask %s: %v", op, err)
	}
	late := time.NewTimer(askWait)
	defer late.Stop()
	for {
		c, changed := a.ctls.newest()
		if c == nil {
			select {
			case <-changed:
				continue
			case <-late.C:
				return fault.Newf(fault.Unavailable, "no daemon answers")
			case <-a.dead:
				return fault.Newf(fault.Unavailable, "the agent ends")
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		id, ch := a.asks.add()
		a.ctls.push(c, answer{Ask: &question{ID: id, Op: op, Data: data}})
		select {
		case r := <-ch:
			if r.Error != "" {
				return fault.E(op, "", fault.KindOf(fault.FromOS("", "", errnoOf(r.Code))), errors.New(r.Error))
			}
			if out == nil {
				return nil
			}
			if err := json.Unmarshal(r.Data, out); err != nil {
				return fault.Newf(fault.IO, "answer to %s: %v", op, err)
			}
			return nil
		case <-c.gone: // the next daemon is asked again
			a.asks.drop(id)
		case <-a.dead:
			a.asks.drop(id)
			return fault.Newf(fault.Unavailable, "the agent ends")
		case <-ctx.Done():
			a.asks.drop(id)
			return ctx.Err()
		}
	}
}

// answerAsk is the daemon's side.
func (c *Client) answerAsk(q question) {
	select {
	case c.asking <- struct{}{}:
	default:
		c.tell(request{ID: q.ID, Op: "told", Code: "EAGAIN", Error: "too many questions at once"})
		return
	}
	go func() {
		defer func() { <-c.asking }()
		r := request{ID: q.ID, Op: "told"}
		v, err := c.answers(c.ctx, q.Op, q.Data)
		if err == nil {
			r.Data, err = json.Marshal(v)
		}
		if err != nil {
			r.Data, r.Code, r.Error = nil, unix.ErrnoName(fault.Errno(err)), err.Error()
		}
		c.tell(r)
	}()
}

// tell sends a line that has no answer.
func (c *Client) tell(r request) {
	line, err := json.Marshal(r)
	if err != nil {
		c.fail(err)
		return
	}
	c.wmu.Lock()
	c.conn.SetWriteDeadline(time.Now().Add(sendWait))
	_, err = c.conn.Write(append(line, '\n'))
	c.wmu.Unlock()
	if err != nil {
		c.fail(err)
	}
}
