package run

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
)

// Limits of a step's output, in bytes.
const (
	MaxLine   = 256 << 10 // without its LF
	MaxOutput = 1 << 20
)

// Violation is a breach of the wire format by the agent's program. It ends the
// run with EIO; the text is the detail and repeats nothing of the frame.
type Violation struct{ Detail string }

func (v *Violation) Error() string { return v.Detail }

func violation(format string, args ...any) error {
	return &Violation{fmt.Sprintf(format, args...)}
}

// Frame is an allowed frame of an agent's program.
type Frame struct {
	Type string
	Text string    // of deltas and messages
	JSON []byte    // the frame with the keys that we know, in our order
	Call *ToolCall // of a tool_call
}

// ToolCall is what an agent asks for.
type ToolCall struct {
	ID        string
	Name      string
	Arguments json.RawMessage // a string or an object
}

// Decoder reads the frames of one step.
type Decoder struct {
	r      *bufio.Reader
	run    string
	size   int
	lines  int
	called bool
	err    error
}

// NewDecoder reads the output of a step of run.
func NewDecoder(r io.Reader, run string) *Decoder {
	return &Decoder{r: bufio.NewReaderSize(r, 32<<10), run: run}
}

// Next is the next frame; io.EOF after the last. A *Violation, or an error of the
// reader, is final. Lines of blanks are no frames.
func (d *Decoder) Next() (*Frame, error) {
	if d.err != nil {
		return nil, d.err
	}
	f, err := d.next()
	d.err = err
	return f, err
}

func (d *Decoder) next() (*Frame, error) {
	for {
		line, err := d.line()
		if err != nil {
			return nil, err
		}
		if len(strings.Trim(string(line), " \t\r")) == 0 {
			continue
		}
		if d.called {
			return nil, violation("line %d: a frame after the tool_call", d.lines)
		}
		f, err := decodeFrame(line, d.run)
		if err != nil {
			var v *Violation
			if errors.As(err, &v) {
				err = violation("line %d: %s", d.lines, v.Detail)
			}
			return nil, err
		}
		d.called = f.Type == "tool_call"
		return f, nil
	}
}

// line reads one line without its LF; the last may have none.
func (d *Decoder) line() ([]byte, error) {
	var line []byte
	for {
		part, err := d.r.ReadSlice('\n')
		d.size += len(part)
		line = append(line, part...)
		end := len(line)
		if err == nil {
			end--
		}
		switch {
		case d.size > MaxOutput:
			return nil, violation("over %d bytes in one step", MaxOutput)
		case end > MaxLine:
			return nil, violation("line %d: over %d bytes", d.lines+1, MaxLine)
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			d.lines++
			return line[:end], nil
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			return nil, err
		}
	}
}

// decodeFrame judges one line.
func decodeFrame(line []byte, run string) (*Frame, error) {
	o, err := jsonl.Parse(line)
	if err != nil {
		return nil, violation("%v", err)
	}
	typ, ok := o.String("type")
	if !ok {
		return nil, violation("a frame without a type")
	}
	decode, ok := frames[typ]
	if !ok {
		return nil, violation("a frame of type %.32q is not the agent's", typ)
	}
	// Whatever it is called, a frame with a role is one of the assistant.
	if role, has := o.Get("role"); has && string(role) != `"assistant"` {
		return nil, violation("%s: role is assistant", typ)
	}
	if of, ok := o.String("run"); !ok || of != run {
		return nil, violation("%s: wrong run", typ)
	}
	f := &Frame{Type: typ}
	out := jsonl.Object{{Key: "type", Value: jsonl.Marshal(typ)}, {Key: "run", Value: jsonl.Marshal(run)}}
	if out, err = decode(o, f, out); err != nil {
		return nil, violation("%s: %v", typ, err)
	}
	f.JSON = out.Append(nil)
	return f, nil
}

// frames are the types that an agent may emit, and how each is read.
var frames = map[string]func(in jsonl.Object, f *Frame, out jsonl.Object) (jsonl.Object, error){
	"delta":             textFrame,
	"reasoning_delta":   textFrame,
	"message":           messageFrame,
	"reasoning_message": messageFrame,
	"usage":             usageFrame,
	"tool_call":         callFrame,
	"error":             errorFrame,
}

func textFrame(in jsonl.Object, f *Frame, out jsonl.Object) (jsonl.Object, error) {
	text, ok := in.String("text")
	if !ok {
		return nil, errors.New("text is a string")
	}
	f.Text = text
	return append(out, jsonl.Field{Key: "text", Value: jsonl.Marshal(text)}), nil
}

func messageFrame(in jsonl.Object, f *Frame, out jsonl.Object) (jsonl.Object, error) {
	if _, ok := in.Get("role"); !ok {
		return nil, errors.New("role is missing")
	}
	raw, _ := in.Get("content")
	var parts []json.RawMessage
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &parts) != nil {
		return nil, errors.New("content is a list of parts")
	}
	texts := make([]model.Part, 0, len(parts))
	for _, p := range parts {
		o, err := jsonl.Parse(p)
		if err != nil {
			return nil, errors.New("a part of content is an object")
		}
		typ, _ := o.String("type")
		text, ok := o.String("text")
		if typ != "text" || !ok {
			return nil, errors.New("a part of content is of type text")
		}
		texts = append(texts, model.Part{Type: "text", Text: text})
		f.Text += text
	}
	return append(out, jsonl.Field{Key: "role", Value: jsonl.Marshal("assistant")}, jsonl.Field{Key: "content", Value: jsonl.Marshal(texts)}), nil
}

func usageFrame(in jsonl.Object, _ *Frame, out jsonl.Object) (jsonl.Object, error) {
	for i, key := range []string{"input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens"} {
		raw, ok := in.Get(key)
		if !ok && i >= 2 {
			continue
		}
		var n uint32
		if json.Unmarshal(raw, &n) != nil {
			return nil, fmt.Errorf("%s is a number", key)
		}
		out = append(out, jsonl.Field{Key: key, Value: raw})
	}
	return out, nil
}

func callFrame(in jsonl.Object, f *Frame, out jsonl.Object) (jsonl.Object, error) {
	f.Call = &ToolCall{}
	f.Call.ID, _ = in.String("id")
	f.Call.Name, _ = in.String("name")
	if !node.IsName(f.Call.ID) || !node.IsName(f.Call.Name) {
		return nil, errors.New("id and name are object names")
	}
	raw, _ := in.Get("arguments")
	if len(raw) == 0 || raw[0] != '{' && raw[0] != '"' {
		return nil, errors.New("arguments is an object or a string")
	}
	f.Call.Arguments = slices.Clone(raw)
	return append(out, jsonl.Field{Key: "id", Value: jsonl.Marshal(f.Call.ID)}, jsonl.Field{Key: "name", Value: jsonl.Marshal(f.Call.Name)},
		jsonl.Field{Key: "arguments", Value: f.Call.Arguments}), nil
}

func errorFrame(in jsonl.Object, _ *Frame, out jsonl.Object) (jsonl.Object, error) {
	if raw, _ := in.Get("recoverable"); string(raw) != "true" {
		return nil, errors.New("only a recoverable one is the agent's")
	}
	code, _ := in.String("code")
	if !node.IsName(code) {
		code = "EIO"
	}
	message, _ := in.String("message")
	return append(out, jsonl.Field{Key: "code", Value: jsonl.Marshal(code)}, jsonl.Field{Key: "message", Value: jsonl.Marshal(model.Printable(message, 512))},
		jsonl.Field{Key: "recoverable", Value: json.RawMessage("true")}), nil
}
