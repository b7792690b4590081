package model

import (
	"encoding/json"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// Frame is one line of a model's output. Which fields are set its Type says:
// start, delta, message, reasoning_delta, reasoning_message, tool_call, usage,
// error, done.
type Frame struct {
	Type      string          `json:"type"`
	Run       string          `json:"run"`
	Model     string          `json:"model,omitempty"`
	Text      string          `json:"text,omitempty"`
	Role      string          `json:"role,omitempty"`
	Content   []Part          `json:"content,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Usage
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	Detail  string `json:"detail,omitempty"`
	Status  string `json:"status,omitempty"`
}

// Part is a piece of a message.
type Part struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// Usage counts tokens. In a frame of type usage both of the first are written,
// also where they are 0.
type Usage struct {
	Input  *int `json:"input_tokens,omitempty"`
	Output *int `json:"output_tokens,omitempty"`
	Cached *int `json:"cached_tokens,omitempty"`
}

// Text makes a frame of the given type with one text: deltas, and messages of the
// assistant.
func Text(typ, text string) Frame {
	switch typ {
	case "message", "reasoning_message":
		return Frame{Type: typ, Role: "assistant", Content: []Part{{"text", text}}}
	}
	return Frame{Type: typ, Text: text}
}

// JSON is the line without LF.
func (f Frame) JSON() []byte {
	if (f.Type == "delta" || f.Type == "reasoning_delta") && f.Text == "" {
		return jsonl.Marshal(struct { // text is never left out
			Type string `json:"type"`
			Run  string `json:"run"`
			Text string `json:"text"`
		}{f.Type, f.Run, ""})
	}
	return jsonl.Marshal(f)
}

// Plain is the text of all parts.
func (f Frame) Plain() string {
	var b strings.Builder
	for _, p := range f.Content {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Code is the errno name of an error, as frames carry it: EACCES, EIO …
func Code(err error) string {
	if name := unix.ErrnoName(fault.Errno(err)); name != "" {
		return name
	}
	return "EIO"
}

// ErrorFrame reduces an error: its code, and at most 512 printable characters.
func ErrorFrame(run string, err error) Frame {
	return Frame{Type: "error", Run: run, Code: Code(err), Message: Printable(err.Error(), 512)}
}

// Printable is s on one line with control and deceptive characters gone, at most
// max characters.
func Printable(s string, max int) string {
	var b strings.Builder
	n, blank := 0, false
	for _, r := range strings.ToValidUTF8(s, "\ufffd") {
		switch {
		case r == '\n' || r == '\t' || r == ' ' || r == '\r':
			blank = b.Len() > 0
			continue
		case r < 0x20 || r == 0x7f || node.Deceptive(r):
			continue
		}
		if n += 1; blank {
			n++
		}
		if n > max {
			break
		}
		if blank {
			b.WriteByte(' ')
			blank = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

// TextCall finds a tool call that a model has written as its text: one JSON
// object with type tool_call (interop A14).
func TextCall(text string) (ToolCall, bool) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "{") {
		return ToolCall{}, false
	}
	o, err := jsonl.Parse([]byte(text))
	if err != nil {
		return ToolCall{}, false
	}
	if typ, _ := o.String("type"); typ != "tool_call" {
		return ToolCall{}, false
	}
	c := ToolCall{}
	c.ID, _ = o.String("id")
	c.Name, _ = o.String("name")
	c.Arguments, _ = o.Get("arguments")
	if c.Arguments == nil {
		c.Arguments = json.RawMessage("{}")
	}
	return c, node.IsName(c.Name)
}
