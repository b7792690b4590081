package model

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// Limits of a call (spec section 19, interop A6).
const (
	DefaultTimeout = 120 * time.Second
	MaxTimeout     = 600 * time.Second
	MaxAnswer      = 16 << 20 // bytes of frames
	MaxCandidates  = 16
)

// Driver speaks to one model. Complete emits deltas, reasoning_deltas, messages,
// tool_calls and usage, in order and from one goroutine; start, done and error
// are its caller's. An error of emit ends it. Its own errors are fault.Errors
// without secrets. It returns when ctx ends.
type Driver interface {
	Complete(ctx context.Context, r *Request, emit func(Frame) error) error
}

// Candidate is a model that may answer a call.
type Candidate struct {
	Name   string // provider/model
	Driver Driver
}

// Options of a call.
type Options struct {
	Run     string        // in every frame; "" is r1
	Timeout time.Duration // of each candidate; 0: DefaultTimeout
}

// Call asks the candidates in order until one answers: it emits start, the
// frames of the one that answers, and done, or error and done. The error is that
// of the error frame, or that of emit.
func Call(ctx context.Context, o Options, candidates []Candidate, r *Request, emit func(Frame) error) error {
	if o.Run == "" {
		o.Run = "r1"
	}
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	o.Timeout = min(o.Timeout, MaxTimeout)
	c := &call{run: o.Run, emit: emit}
	err := r.Check()
	if err == nil && len(candidates) == 0 {
		err = fault.Newf(fault.NotExist, "no such model")
	}
	if err != nil {
		return c.end(err)
	}
	var failed []string
	for i, one := range candidates[:min(len(candidates), MaxCandidates)] {
		c.begin(one.Name)
		err = c.try(ctx, one.Driver, o.Timeout, r)
		if err == nil || c.started || c.broken != nil || ctx.Err() != nil {
			break
		}
		failed = append(failed, fmt.Sprintf("%s: %v", one.Name, err))
		if i > 0 {
			err = fault.Newf(fault.KindOf(err), "%s", strings.Join(failed, "; "))
		}
	}
	if cause := ctx.Err(); cause != nil && err != nil {
		err = fault.Newf(fault.Interrupted, "cancelled")
	}
	return c.end(err)
}

// call is the output of one call.
type call struct {
	run     string
	emit    func(Frame) error
	model   string
	started bool  // something was emitted: no other candidate takes over
	broken  error // what emit has answered
	size    int
	message bool // a message frame was emitted
	calls   int
	text    strings.Builder
	think   strings.Builder
}

func (c *call) begin(name string) { c.model = name }

func (c *call) put(f Frame) error {
	if c.broken != nil {
		return c.broken
	}
	if !c.started {
		c.started = true
		if c.broken = c.emit(Frame{Type: "start", Run: c.run, Model: c.model}); c.broken != nil {
			return c.broken
		}
	}
	f.Run = c.run
	c.broken = c.emit(f)
	return c.broken
}

// errDeadline tells our own deadline from the caller's.
var errDeadline = errors.New("deadline of the call")

func (c *call) try(ctx context.Context, d Driver, timeout time.Duration, r *Request) error {
	inner, cancel := context.WithTimeoutCause(ctx, timeout, errDeadline)
	defer cancel()
	err := d.Complete(inner, r, c.frame)
	if err == nil {
		err = c.rest()
	}
	if err != nil && c.broken == nil && ctx.Err() == nil && errors.Is(context.Cause(inner), errDeadline) {
		err = fault.Newf(fault.TimedOut, "no answer within %v", timeout)
	}
	return err
}

// frame passes what a driver may say.
func (c *call) frame(f Frame) error {
	c.size += len(f.Text) + len(f.Arguments)
	for _, p := range f.Content {
		c.size += len(p.Text)
	}
	if c.size > 2*MaxAnswer { // the message repeats the deltas
		return fault.Newf(fault.TooBig, "answer of over %d bytes", MaxAnswer)
	}
	switch f.Type {
	case "delta":
		c.text.WriteString(f.Text)
	case "reasoning_delta":
		c.think.WriteString(f.Text)
	case "reasoning_message":
		c.think.Reset()
	case "message":
		c.message = true
		c.text.Reset()
		c.text.WriteString(f.Plain())
	case "tool_call":
		c.calls++
		if !node.IsName(f.ID) {
			f.ID = callID()
		}
	case "usage":
	default:
		return fault.Newf(fault.IO, "driver gave a frame of type %.32q", f.Type)
	}
	return c.put(f)
}

// callID is an id for a call that has none, or one that is no object name.
func callID() string {
	var b [9]byte
	rand.Read(b[:])
	return "call-" + hex.EncodeToString(b[:])
}

// rest emits what the frames before add up to.
func (c *call) rest() error {
	if c.think.Len() > 0 {
		if err := c.put(Text("reasoning_message", c.think.String())); err != nil {
			return err
		}
	}
	if !c.message && c.text.Len() > 0 {
		if err := c.put(Text("message", c.text.String())); err != nil {
			return err
		}
	}
	if c.calls == 0 {
		if t, ok := TextCall(c.text.String()); ok {
			return c.frame(Frame{Type: "tool_call", ID: t.ID, Name: t.Name, Arguments: t.Arguments})
		}
	}
	return nil
}

func (c *call) end(err error) error {
	if c.broken != nil {
		return c.broken
	}
	status := "ok"
	if err != nil {
		status = "error"
		if fault.Is(err, fault.Interrupted) {
			status = "cancelled"
		}
		f := ErrorFrame(c.run, err)
		if !c.started { // an error without a start: nothing has answered
			if e := c.emit(f); e != nil {
				return e
			}
			c.started = true
		} else if e := c.put(f); e != nil {
			return e
		}
	}
	if e := c.put(Frame{Type: "done", Status: status}); e != nil {
		return e
	}
	return err
}
