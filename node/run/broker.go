package run

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"cortexfs/node/jsonl"
)

// DefaultDeadline is how long a question waits for its answer.
const DefaultDeadline = 300 * time.Second

// Limits of a broker.
const (
	maxQueue   = 1024 // frames that wait for one handler; one that reads no more is gone
	maxSettled = 4096 // settled questions that are remembered, to tell late answers
)

// Broker asks those who may answer for an agent: for a run the connection that
// sent it, and every handle connection of the owner. A question is settled once.
type Broker struct {
	deadline time.Duration
	up       Approver // asks the parent's handlers when there are none; may be nil
	agent    string   // shown in a question that goes up

	// mu protects the fields below.
	mu       sync.Mutex
	handlers map[*Handler]struct{}
	open     map[key]*asked
	settled  map[key]struct{}
	order    []key // of settled, oldest first
}

type key struct{ run, id string }

// asked is a question that is open. Its fields are protected by Broker.mu but for
// done, which is closed when it is settled.
type asked struct {
	q        *Question
	frame    []byte
	decision Decision
	over     bool
	done     chan struct{}
	shown    map[*Handler]struct{}
}

// BrokerOptions of NewBroker.
type BrokerOptions struct {
	Deadline time.Duration // 0: 300 s; on the monotonic clock
	Agent    string        // the agent's name
	Up       Approver      // the parent's broker; nil: the agent has no parent
}

// NewBroker makes the broker of an agent.
func NewBroker(o BrokerOptions) *Broker {
	if o.Deadline <= 0 {
		o.Deadline = DefaultDeadline
	}
	return &Broker{deadline: o.Deadline, agent: o.Agent, up: o.Up,
		handlers: map[*Handler]struct{}{}, open: map[key]*asked{}, settled: map[key]struct{}{}}
}

// Deadline is how long a question of this broker waits.
func (b *Broker) Deadline() time.Duration { return b.deadline }

// Ask implements Approver. A ctx that ends settles the question as expired.
func (b *Broker) Ask(ctx context.Context, q *Question, confirm func() bool) Decision {
	x := &asked{q: q, frame: q.frame(), done: make(chan struct{}), shown: map[*Handler]struct{}{}}
	if len(x.frame) > MaxQuestion {
		return Decision{Reason: Malformed, Detail: fmt.Sprintf("a question of %d bytes is not asked; at most %d", len(x.frame), MaxQuestion)}
	}
	if early, ok := b.begin(x); !ok {
		if early.Reason == NoHandler && b.up != nil {
			up := *q
			if up.Agent == "" {
				up.Agent = b.agent
			}
			return b.up.Ask(ctx, &up, confirm)
		}
		return early
	}
	timer := time.NewTimer(b.deadline)
	defer timer.Stop()
	select {
	case <-x.done:
	case <-timer.C:
		b.settle(x, Decision{Reason: Expired, By: "timeout", Detail: "nobody answered in time"})
	case <-ctx.Done():
		b.settle(x, Decision{Reason: Expired, By: "cancel", Detail: "the run ended while asking"})
	}
	<-x.done
	d := x.decision
	if d.Allow && (ctx.Err() != nil || !confirm()) {
		d.Allow, d.Reason, d.Detail = false, PolicyChanged, "it may not be executed any more"
		if ctx.Err() != nil {
			d.Reason, d.Detail = Expired, "the run ended while asking"
		}
	}
	b.tell(x, d)
	return d
}

// begin opens a question and shows it to those who may answer. false: it is
// settled already.
func (b *Broker) begin(x *asked) (Decision, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := key{x.q.Run, x.q.ID}
	if b.open[k] != nil {
		return Decision{Reason: Malformed, Detail: "the call is being asked about already"}, false
	}
	asked := false
	for h := range b.handlers {
		if h.run == "" || h.run == x.q.Run {
			asked = b.showLocked(h, x) || asked
		}
	}
	if !asked {
		return Decision{Reason: NoHandler, Detail: "nobody is there to be asked"}, false
	}
	b.open[k] = x
	return Decision{}, true
}

// showLocked gives the question to a handler.
func (b *Broker) showLocked(h *Handler, x *asked) bool {
	if !h.pushLocked(x.frame) {
		return false
	}
	x.shown[h] = struct{}{}
	return true
}

// settle decides a question unless it is decided.
func (b *Broker) settle(x *asked, d Decision) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked(x, d)
}

func (b *Broker) settleLocked(x *asked, d Decision) bool {
	if x.over {
		return false
	}
	x.over, x.decision = true, d
	k := key{x.q.Run, x.q.ID}
	delete(b.open, k)
	if _, known := b.settled[k]; !known {
		b.settled[k] = struct{}{}
		if b.order = append(b.order, k); len(b.order) > maxSettled {
			delete(b.settled, b.order[0])
			b.order = b.order[1:]
		}
	}
	close(x.done)
	return true
}

// tell gives the result to all that have seen the question.
func (b *Broker) tell(x *asked, d Decision) {
	frame := d.frame(x.q)
	b.mu.Lock()
	defer b.mu.Unlock()
	for h := range x.shown {
		h.pushLocked(frame)
	}
}

// Open are the questions that wait for an answer, as frames.
func (b *Broker) Open() [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all [][]byte
	for _, x := range b.open {
		all = append(all, x.frame)
	}
	return all
}

// Handler is one connection that may answer.
type Handler struct {
	b   *Broker
	run string // only this run's questions; "": all
	by  string

	// Broker.mu protects the fields below.
	queue  [][]byte
	wake   chan struct{} // holds one token while there is something to do
	closed bool
}

// Attach adds a handler: of one run, or with an empty run of all. Questions that
// are open are shown to it. by names it in the log ("uid 1000").
func (b *Broker) Attach(run, by string) *Handler {
	b.mu.Lock()
	defer b.mu.Unlock()
	h := &Handler{b: b, run: run, by: by, wake: make(chan struct{}, 1)}
	b.handlers[h] = struct{}{}
	for _, x := range b.open {
		if run == "" || run == x.q.Run {
			b.showLocked(h, x)
		}
	}
	return h
}

// pushLocked queues a frame for the handler. One that lets its queue fill reads
// no more: it is gone. false: it was.
func (h *Handler) pushLocked(frame []byte) bool {
	if h.closed {
		return false
	}
	if len(h.queue) >= maxQueue {
		h.closeLocked()
		return false
	}
	h.queue = append(h.queue, frame)
	h.signal()
	return true
}

func (h *Handler) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// Next is the next frame for the connection: approval_request, approval_result,
// error. It waits; io.EOF after Close.
func (h *Handler) Next(ctx context.Context) ([]byte, error) {
	for {
		h.b.mu.Lock()
		switch {
		case len(h.queue) > 0:
			frame := h.queue[0]
			h.queue = h.queue[1:]
			if len(h.queue) > 0 {
				h.signal()
			}
			h.b.mu.Unlock()
			return frame, nil
		case h.closed:
			h.b.mu.Unlock()
			return nil, io.EOF
		}
		h.b.mu.Unlock()
		select {
		case <-h.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Answer takes a frame that the connection sent as an answer. The first valid one
// settles its question; one to a settled question gets `error ENOENT` and changes
// nothing. Anything that is no answer, and an answer to a question that was never
// there, denies what this handler was asked.
func (h *Handler) Answer(line []byte) {
	a, ok := parseAnswer(line)
	b := h.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.closed {
		return
	}
	if ok {
		k := key{a.run, a.id}
		x := b.open[k]
		if x != nil {
			if _, shown := x.shown[h]; shown {
				b.settleLocked(x, Decision{Allow: a.allow, Reason: ByUser, By: h.by})
				return
			}
		} else if _, late := b.settled[k]; late {
			h.pushLocked(answerError("ENOENT", a.run, "unknown or settled"))
			return
		}
	}
	h.pushLocked(answerError("EINVAL", "", "not an answer to a question that was asked here"))
	for _, x := range b.open {
		if _, shown := x.shown[h]; shown {
			b.settleLocked(x, Decision{Reason: Malformed, By: h.by, Detail: "a handler sent no valid answer"})
		}
	}
}

func answerError(code, run, message string) []byte {
	return jsonl.Marshal(struct {
		Type    string `json:"type"`
		Run     string `json:"run,omitempty"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}{"error", run, code, message})
}

// Close ends the handler: its connection has ended, or has shut its write side.
// A question that nobody else can answer is denied at once.
func (h *Handler) Close() {
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	h.closeLocked()
}

func (h *Handler) closeLocked() {
	if h.closed {
		return
	}
	h.closed = true
	h.signal()
	b := h.b
	delete(b.handlers, h)
	for _, x := range b.open {
		if _, shown := x.shown[h]; !shown {
			continue
		}
		delete(x.shown, h)
		if len(x.shown) == 0 {
			b.settleLocked(x, Decision{Reason: HandlerGone, By: h.by, Detail: "who was asked is gone"})
		}
	}
}
