package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/model"
)

// bounded ends an answer that is too long, and tells of every byte that came.
type bounded struct {
	r     io.Reader
	left  int
	moved func()
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fault.Newf(fault.TooBig, "answer of over %d bytes", model.MaxAnswer)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	b.moved()
	return n, err
}

// answer gathers one answer.
type answer struct {
	d       *Driver
	aliases *Aliases
	emit    func(model.Frame) error
	broken  error // of emit
	calls   map[int]*building
	text    strings.Builder
	think   strings.Builder
	usage   *model.Usage
	ended   bool // finish_reason or [DONE] was there
	any     bool // some choice was there
}

type building struct {
	id, name string
	args     strings.Builder
}

func malformed(format string, args ...any) error {
	return fault.Newf(fault.IO, "malformed answer: "+format, args...)
}

// stream reads server-sent events. Comments, empty lines and fields other than
// data mean nothing here.
func (a *answer) stream(in io.Reader) error {
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 0, 16<<10), maxLine)
	var data []byte
	lines := 0
	flush := func() error {
		defer func() { data, lines = data[:0], 0 }()
		if lines == 0 {
			return nil
		}
		return a.event(data)
	}
	for sc.Scan() {
		line := bytes.TrimSuffix(sc.Bytes(), []byte("\r"))
		switch {
		case len(line) == 0:
			if err := flush(); err != nil {
				return done(err)
			}
		case bytes.HasPrefix(line, []byte("data:")):
			if lines++; lines > 1 {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(line[len("data:"):], []byte(" "))...)
			if len(data) > maxLine {
				return malformed("event of over %d bytes", maxLine)
			}
		case line[0] == '{': // JSON lines instead of events: some proxies do
			if err := a.event(line); err != nil {
				return done(err)
			}
		}
	}
	if err := sc.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return malformed("line of over %d bytes", maxLine)
		}
		return err
	}
	if err := flush(); err != nil {
		return done(err)
	}
	if !a.ended {
		return malformed("the stream ended in the middle")
	}
	return nil
}

// errDone ends a stream that said [DONE].
var errDone = errors.New("done")

func done(err error) error {
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// chunk is an event of a stream, or the whole answer.
type chunk struct {
	Choices []struct {
		Delta        *part   `json:"delta"`
		Message      *part   `json:"message"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt     *int `json:"prompt_tokens"`
		Completion *int `json:"completion_tokens"`
		Details    *struct {
			Cached *int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

type part struct {
	Content   json.RawMessage `json:"content"`
	Refusal   *string         `json:"refusal"`
	Reasoning *string         `json:"reasoning_content"`
	Thinking  *string         `json:"reasoning"`
	ToolCalls []struct {
		Index    *int   `json:"index"`
		ID       string `json:"id"`
		Function struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

func (a *answer) event(data []byte) error {
	if string(data) == "[DONE]" {
		a.ended = true
		return errDone
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return malformed("an event is no JSON of a completion")
	}
	return a.chunk(&c, data)
}

func (a *answer) chunk(c *chunk, data []byte) error {
	if len(c.Error) > 0 && string(c.Error) != "null" {
		code, msg := errorBody(data)
		text := strings.TrimSpace(a.d.clean(code) + " " + a.d.clean(msg))
		return fault.Newf(fault.IO, "the provider ended the answer: %s", text)
	}
	if u := c.Usage; u != nil {
		a.usage = &model.Usage{Input: count(u.Prompt), Output: count(u.Completion)}
		if u.Details != nil && u.Details.Cached != nil {
			a.usage.Cached = count(u.Details.Cached)
		}
	}
	if len(c.Choices) == 0 {
		return nil
	}
	a.any = true
	one := c.Choices[0] // we ask for one
	for _, p := range []*part{one.Delta, one.Message} {
		if p != nil {
			if err := a.part(p); err != nil {
				return err
			}
		}
	}
	if r := one.FinishReason; r != nil && *r != "" {
		a.ended = true
		if *r == "content_filter" {
			return fault.Newf(fault.Access, "the provider's filter ended the answer")
		}
	}
	return nil
}

func count(n *int) *int {
	if n == nil || *n < 0 {
		return new(int)
	}
	return n
}

func (a *answer) part(p *part) error {
	text, _, err := model.ContentText(p.Content)
	if err != nil {
		return malformed("content is no text")
	}
	if p.Refusal != nil {
		text += *p.Refusal
	}
	for _, r := range []*string{p.Reasoning, p.Thinking} {
		if r != nil && *r != "" {
			a.think.WriteString(*r)
			if err := a.put(model.Text("reasoning_delta", *r)); err != nil {
				return err
			}
			break // both names, one text
		}
	}
	if text != "" {
		a.text.WriteString(text)
		if err := a.put(model.Text("delta", text)); err != nil {
			return err
		}
	}
	for i, t := range p.ToolCalls {
		at := i
		if t.Index != nil {
			at = *t.Index
		}
		if at < 0 || at >= 128 {
			return malformed("tool call number %d", at)
		}
		if a.calls == nil {
			a.calls = map[int]*building{}
		}
		b := a.calls[at]
		if b == nil {
			b = &building{}
			a.calls[at] = b
		}
		if t.ID != "" {
			b.id = t.ID
		}
		if t.Function.Name != "" && b.name == "" {
			b.name = t.Function.Name
		}
		b.args.WriteString(argumentText(t.Function.Arguments))
		if b.args.Len() > 1<<20 {
			return malformed("arguments of over 1 MiB")
		}
	}
	return nil
}

// argumentText is a piece of arguments: text of JSON in a string, or, from some
// servers, the object itself.
func argumentText(raw json.RawMessage) string {
	var s string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return ""
	case json.Unmarshal(raw, &s) == nil:
		return s
	}
	return string(raw)
}

// whole reads an answer that is not streamed.
func (a *answer) whole(in io.Reader) error {
	b, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	var c chunk
	if json.Unmarshal(b, &c) != nil {
		return malformed("no JSON of a completion")
	}
	if err := a.chunk(&c, b); err != nil {
		return err
	}
	if !a.any {
		return malformed("no choice")
	}
	return nil
}

// finish emits what the pieces add up to.
func (a *answer) finish() error {
	if a.text.Len() > 0 {
		if err := a.put(model.Text("message", a.text.String())); err != nil {
			return err
		}
	}
	if a.think.Len() > 0 {
		if err := a.put(model.Text("reasoning_message", a.think.String())); err != nil {
			return err
		}
	}
	order := make([]int, 0, len(a.calls))
	for i := range a.calls {
		order = append(order, i)
	}
	slices.Sort(order)
	for _, i := range order {
		f, err := a.toolCall(a.calls[i])
		if err != nil {
			return err
		}
		if err := a.put(f); err != nil {
			return err
		}
	}
	if a.usage != nil {
		return a.put(model.Frame{Type: "usage", Usage: *a.usage})
	}
	return nil
}

func (a *answer) toolCall(b *building) (model.Frame, error) {
	name := a.aliases.Name(b.name)
	if !node.IsName(name) {
		return model.Frame{}, malformed("a tool call names no tool")
	}
	args := strings.TrimSpace(b.args.String())
	if args == "" {
		args = "{}"
	}
	if args[0] != '{' || !json.Valid([]byte(args)) {
		return model.Frame{}, malformed("the arguments of a call of %s are no JSON object", name)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(args)); err != nil {
		return model.Frame{}, fmt.Errorf("arguments: %w", err)
	}
	return model.Frame{Type: "tool_call", ID: b.id, Name: name, Arguments: compact.Bytes()}, nil
}

func (a *answer) put(f model.Frame) error {
	if a.broken == nil {
		a.broken = a.emit(f)
	}
	return a.broken
}
