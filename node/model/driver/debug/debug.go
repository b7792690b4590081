// Package debug has the two models that need no network: Echo repeats its input,
// Script replays a file of frames. Tests and demos run on them.
//
// A script is JSONL. Its frames are those of a model (delta, reasoning_delta,
// message, reasoning_message, tool_call, usage, error); a `done` ends the answer
// to one call, and so does a tool_call. Which answer a call gets is told by the
// request alone: the number of calls that the run has made before, or where that
// is not known the number of assistant messages since the last user message.
// Nothing is remembered, so that a restart in the middle changes nothing. `{"type":"wait","ms":N}` waits,
// for demos and for tests of cancelling.
package debug

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
)

// Echo answers with the last user message.
type Echo struct{}

// Complete emits the text as one delta, the message and the usage.
func (Echo) Complete(ctx context.Context, r *model.Request, emit func(model.Frame) error) error {
	text := ""
	for _, m := range r.Messages {
		if m.Role == "user" {
			text = m.Content
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	in := 0
	for _, m := range r.Messages {
		in += tokens(m.Content)
	}
	out := tokens(text)
	for _, f := range []model.Frame{model.Text("delta", text), model.Text("message", text),
		{Type: "usage", Usage: model.Usage{Input: &in, Output: &out}}} {
		if err := emit(f); err != nil {
			return err
		}
	}
	return nil
}

// tokens is the estimate that the tree shows too: bytes/4 rounded up.
func tokens(s string) int { return (len(s) + 3) / 4 }

// Limits of a script.
const (
	maxLine   = 256 << 10
	maxScript = 16 << 20
	maxWait   = 10 * time.Minute
)

// Script replays frames. Open is called at every call.
type Script struct {
	Open func() (io.ReadCloser, error)
}

// Complete emits the answer of the script that belongs to the request.
func (s Script) Complete(ctx context.Context, r *model.Request, emit func(model.Frame) error) error {
	f, err := s.Open()
	if err != nil {
		return fault.FromOS("open", "script", err)
	}
	defer f.Close()
	want, at := turn(r), 0
	sc := bufio.NewScanner(io.LimitReader(f, maxScript))
	sc.Buffer(nil, maxLine)
	for n := 1; sc.Scan(); n++ {
		if len(sc.Bytes()) == 0 {
			continue
		}
		line, err := parse(sc.Bytes())
		if err != nil {
			return fault.E("replay", "script", fault.Invalid, fmt.Errorf("line %d: %w", n, err))
		}
		if at == want {
			if err := line.play(ctx, emit); err != nil {
				return err
			}
		}
		if line.last() {
			if at == want {
				return nil
			}
			at++
		}
	}
	if err := sc.Err(); err != nil {
		return fault.E("replay", "script", fault.Invalid, errors.New("a line is too long"))
	}
	if at < want || at == want && want > 0 {
		return fault.Newf(fault.NotExist, "the script has no answer number %d", want+1)
	}
	return nil
}

// turn is how many answers came before.
func turn(r *model.Request) int {
	n := 0
	for _, m := range r.Messages {
		switch m.Role {
		case "user":
			n = 0
		case "assistant":
			n++
		}
	}
	return max(n, r.Turn)
}

type line struct {
	frame model.Frame
	wait  time.Duration
}

func parse(b []byte) (*line, error) {
	o, err := jsonl.Parse(b)
	if err != nil {
		return nil, err
	}
	var f model.Frame
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, errors.New("a key has the wrong type")
	}
	l := &line{frame: f}
	switch f.Type {
	case "delta", "reasoning_delta":
		l.frame = model.Text(f.Type, f.Text)
	case "message", "reasoning_message":
		l.frame = model.Text(f.Type, f.Plain())
	case "tool_call":
		if !node.IsName(f.Name) {
			return nil, errors.New("the name of a tool_call is an object name")
		}
		if f.Arguments == nil {
			l.frame.Arguments = json.RawMessage("{}")
		}
	case "usage", "error", "done":
	case "wait":
		var w struct{ MS int }
		if json.Unmarshal(b, &w) != nil || w.MS < 0 {
			return nil, errors.New("ms is a number of milliseconds")
		}
		l.wait = min(time.Duration(w.MS)*time.Millisecond, maxWait)
	default:
		typ, _ := o.String("type")
		return nil, fmt.Errorf("no frame is of type %.32q", typ)
	}
	return l, nil
}

func (l *line) last() bool {
	return l.frame.Type == "done" || l.frame.Type == "tool_call" || l.frame.Type == "error"
}

func (l *line) play(ctx context.Context, emit func(model.Frame) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	switch l.frame.Type {
	case "wait":
		t := time.NewTimer(l.wait)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case "done":
		return nil
	case "error":
		return scripted(l.frame)
	}
	return emit(l.frame)
}

// scripted is the error that a script asks for.
func scripted(f model.Frame) error {
	for _, k := range fault.Kinds() {
		if model.Code(fault.Newf(k, "x")) == f.Code {
			return fault.Newf(k, "%s", model.Printable(f.Message, 512))
		}
	}
	return fault.Newf(fault.IO, "%s", model.Printable(f.Message, 512))
}
