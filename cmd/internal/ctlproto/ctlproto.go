// Package ctlproto is the language of the daemon's control socket (spec section
// 13, last paragraph): JSON lines, one request a connection at a time, at most
// 64 KiB a frame.
//
// Two ideas. Each operation has a type of its own, and a request is taken only
// if it spells exactly that type's fields: an unknown, repeated or differently
// cased key is refused, so that a field which an older daemon does not know can
// never be dropped in silence. Answers are frames; the last one of a request
// says "done":true or is an error that carries the errno's name and the exit
// code of spec section 23.
//
// The package speaks; it decides nothing. Who may ask what is the daemon's
// business (cmd/internal/daemon).
package ctlproto

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"

	"cortexfs/node/fault"
)

// MaxFrame is the longest frame in either direction, without its LF.
const MaxFrame = 64 << 10

// Request is one operation with its fields.
type Request interface {
	// Op is the operation's name on the wire.
	Op() string
}

// The operations. Agent is a reference: NAME (the caller's home first, then the
// system's), agent/NAME or home/UID/agent/NAME.
type (
	// New makes an agent object. Texts are control names and their texts; the
	// other fields add to them what people say in words.
	New struct {
		Agent  string            `json:"agent"`
		Owner  *uint32           `json:"owner,omitempty"` // root only; default: the caller
		Like   string            `json:"like,omitempty"`  // copy the controls of this agent first
		Texts  map[string]string `json:"texts,omitempty"`
		Parent string            `json:"parent,omitempty"` // agent reference
		Label  string            `json:"label,omitempty"`
		Model  string            `json:"model,omitempty"`
		Temp   bool              `json:"temp,omitempty"`
		Tools  []string          `json:"tools,omitempty"`  // declared, and allowed by a rule of its own
		Shared []string          `json:"shared,omitempty"` // SPACE:read or SPACE:write
		Mounts [][]string        `json:"mounts,omitempty"` // [source, target, ro|rw], after the default table
	}
	// Rm removes a dead agent's object; its sessions stay.
	Rm struct {
		Agent string `json:"agent"`
	}
	// Start brings an agent up, or joins the one that runs.
	Start struct {
		Agent       string     `json:"agent"`
		Session     string     `json:"session,omitempty"`
		CWD         string     `json:"cwd,omitempty"`    // host directory for /workspace, absolute
		Mounts      [][]string `json:"mounts,omitempty"` // [source, target, ro|rw]
		NoWorkspace bool       `json:"no_workspace,omitempty"`
		Git         string     `json:"git,omitempty"` // "rw" leaves .git writable
		DryRun      bool       `json:"dry_run,omitempty"`
		AllowHome   bool       `json:"allow_home,omitempty"`
	}
	// Stop ends an agent; GraceMS is the time between SIGTERM and SIGKILL.
	Stop struct {
		Agent   string `json:"agent"`
		GraceMS int    `json:"grace_ms,omitempty"`
	}
	// Restart stops an agent and starts it where it ran.
	Restart struct {
		Agent   string `json:"agent"`
		GraceMS int    `json:"grace_ms,omitempty"`
	}
	// Attach asks for the terminal socket, to read and write.
	Attach struct {
		Agent   string `json:"agent"`
		Session string `json:"session,omitempty"`
	}
	// Watch asks for the terminal socket, to read.
	Watch struct {
		Agent   string `json:"agent"`
		Session string `json:"session,omitempty"`
	}
	// PS lists agents.
	PS struct {
		All bool `json:"all,omitempty"` // root: every user's too
	}
	// Status describes one agent.
	Status struct {
		Agent string `json:"agent"`
	}
	// Why explains a tool's verdict, row by row.
	Why struct {
		Agent string `json:"agent"`
		Tool  string `json:"tool"`
	}
	// View lists what an agent sees at its /ctx.
	View struct {
		Agent string `json:"agent"`
	}
	// Env lists an agent's environment.
	Env struct {
		Agent   string `json:"agent"`
		Session string `json:"session,omitempty"`
	}
	// Wait blocks until an agent is in a state; TimeoutMS < 0 is for ever. With
	// Child it waits for the end of what Agent has handed to that child, in Session
	// or in the newest channel that there is.
	Wait struct {
		Agent     string `json:"agent"`
		State     string `json:"state,omitempty"`
		Child     string `json:"child,omitempty"`
		Session   string `json:"session,omitempty"`
		TimeoutMS int64  `json:"timeout_ms,omitempty"`
	}
	// Grant lets a child have what its parents have not, or takes that back, or
	// lists it: root only. Kind is rule, group, mount or tool.
	Grant struct {
		Agent  string `json:"agent,omitempty"` // may be empty with List: all
		Kind   string `json:"kind,omitempty"`
		Value  string `json:"value,omitempty"`
		Reason string `json:"reason,omitempty"`
		Revoke int    `json:"revoke,omitempty"` // number of the grant
		List   bool   `json:"list,omitempty"`
	}
	// Children lists the children of an agent.
	Children struct {
		Agent string `json:"agent"`
	}
	// Reload waits until the store's changes made behind the daemon are read.
	Reload struct{}
	// Bootstrap makes the reference tree.
	Bootstrap struct {
		Owner  *uint32 `json:"owner,omitempty"`
		DryRun bool    `json:"dry_run,omitempty"`
	}
	// Exec runs a command in an agent's sandbox, as the agent. Its output comes
	// as "output" frames when it has ended, at most 64 KiB of each stream.
	Exec struct {
		Agent     string   `json:"agent"`
		Argv      []string `json:"argv,omitempty"`
		CWD       string   `json:"cwd,omitempty"`        // inside, absolute
		TimeoutMS int64    `json:"timeout_ms,omitempty"` // 0: the default of 120 s
	}
)

// ops is the one list of operations.
var ops = []func() Request{
	func() Request { return new(New) }, func() Request { return new(Rm) },
	func() Request { return new(Start) }, func() Request { return new(Stop) },
	func() Request { return new(Restart) }, func() Request { return new(Attach) },
	func() Request { return new(Watch) }, func() Request { return new(PS) },
	func() Request { return new(Status) }, func() Request { return new(Why) },
	func() Request { return new(View) }, func() Request { return new(Env) },
	func() Request { return new(Wait) }, func() Request { return new(Reload) },
	func() Request { return new(Bootstrap) }, func() Request { return new(Exec) },
	func() Request { return new(Grant) }, func() Request { return new(Children) },
}

// Op names; see Request.
func (*New) Op() string       { return "new" }
func (*Rm) Op() string        { return "rm" }
func (*Start) Op() string     { return "start" }
func (*Stop) Op() string      { return "stop" }
func (*Restart) Op() string   { return "restart" }
func (*Attach) Op() string    { return "attach" }
func (*Watch) Op() string     { return "watch" }
func (*PS) Op() string        { return "ps" }
func (*Status) Op() string    { return "status" }
func (*Why) Op() string       { return "why" }
func (*View) Op() string      { return "view" }
func (*Env) Op() string       { return "env" }
func (*Wait) Op() string      { return "wait" }
func (*Reload) Op() string    { return "reload" }
func (*Bootstrap) Op() string { return "bootstrap" }
func (*Exec) Op() string      { return "exec" }
func (*Grant) Op() string     { return "grant" }
func (*Children) Op() string  { return "children" }

// Ops returns the names of all operations, in a fixed order.
func Ops() []string {
	names := make([]string, len(ops))
	for i, f := range ops {
		names[i] = f().Op()
	}
	return names
}

// EncodeRequest makes the line of a request, with its LF. TooBig if it is over
// MaxFrame.
func EncodeRequest(q Request) ([]byte, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "encode %s: %v", q.Op(), err)
	}
	op, _ := json.Marshal(q.Op())
	line := append([]byte(`{"op":`), op...)
	if len(body) > 2 { // "{}" has no fields
		line = append(line, ',')
	}
	line = append(line, body[1:]...)
	if len(line) > MaxFrame {
		return nil, fault.Newf(fault.TooBig, "request %s is %d bytes, at most %d are allowed", q.Op(), len(line), MaxFrame)
	}
	return append(line, '\n'), nil
}

// DecodeRequest reads one line (without LF). Invalid with the key's name for
// anything but exactly one known operation with known fields of the right type.
func DecodeRequest(line []byte) (Request, error) {
	if len(line) > MaxFrame {
		return nil, fault.Newf(fault.TooBig, "request of %d bytes, at most %d are allowed", len(line), MaxFrame)
	}
	fields, err := object(line)
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "request: %v", err)
	}
	var op string
	if err := json.Unmarshal(fields["op"], &op); err != nil || op == "" {
		return nil, fault.Newf(fault.Invalid, "request without an operation: \"op\" is missing or no string")
	}
	for _, make := range ops {
		if q := make(); q.Op() == op {
			return q, fill(q, op, fields)
		}
	}
	return nil, fault.Newf(fault.Invalid, "unknown operation %q", op)
}

// fill sets q's fields from raw values; every key must be one of q's.
func fill(q Request, op string, fields map[string]json.RawMessage) error {
	v := reflect.ValueOf(q).Elem()
	known := map[string]reflect.Value{}
	for i := 0; i < v.NumField(); i++ {
		tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		known[tag] = v.Field(i)
	}
	for key, raw := range fields {
		if key == "op" {
			continue
		}
		f, ok := known[key]
		if !ok {
			return fault.Newf(fault.Invalid, "%s: unknown field %q", op, key)
		}
		if bytes.Equal(raw, []byte("null")) {
			return fault.Newf(fault.Invalid, "%s: field %q is null", op, key)
		}
		if err := json.Unmarshal(raw, f.Addr().Interface()); err != nil {
			return fault.Newf(fault.Invalid, "%s: field %q has the wrong type", op, key)
		}
	}
	return nil
}

// object splits one JSON object into its members; a repeated key is an error,
// which encoding/json alone would let pass.
func object(line []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	t, err := d.Token()
	if err != nil {
		return nil, errors.New("not JSON")
	}
	if t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	m := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, errors.New("not JSON")
		}
		key, _ := t.(string)
		if _, twice := m[key]; twice {
			return nil, fmt.Errorf("field %q is repeated", key)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, fmt.Errorf("field %q is not JSON", key)
		}
		m[key] = raw
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("unfinished JSON")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value on a line")
	}
	return m, nil
}

// Frame is one line of an answer. Types: "result" (Data is the operation's
// result type, done), "note" (Text for people: a warning or progress), "item"
// (Data is one element of a list), "output" (Stream and Bytes of exec), "error".
type Frame struct {
	Type   string          `json:"type"`
	Text   string          `json:"text,omitempty"`
	Data   json.RawMessage `json:"data,omitempty"`
	Stream string          `json:"stream,omitempty"` // "stdout" or "stderr"
	Bytes  []byte          `json:"bytes,omitempty"`
	Code   string          `json:"code,omitempty"` // errno name of an error
	Msg    string          `json:"message,omitempty"`
	Detail json.RawMessage `json:"detail,omitempty"`
	Exit   int             `json:"exit,omitempty"` // exit code of spec section 23
	Done   bool            `json:"done,omitempty"`
}

// Last says whether nothing follows f.
func (f *Frame) Last() bool { return f.Done || f.Type == "error" }

// Conn frames a stream. Reads are for one goroutine; Write may be called from
// several.
type Conn struct {
	rw  io.ReadWriter
	buf []byte
	wmu sync.Mutex // one frame at a time on the wire
}

// NewConn wraps rw.
func NewConn(rw io.ReadWriter) *Conn { return &Conn{rw: rw} }

// ReadLine returns the next line without its LF. io.EOF at the end, TooBig for
// a longer one (the stream is then of no further use).
func (c *Conn) ReadLine() ([]byte, error) {
	for {
		if i := bytes.IndexByte(c.buf, '\n'); i >= 0 {
			line := append([]byte(nil), c.buf[:i]...)
			c.buf = append(c.buf[:0], c.buf[i+1:]...)
			return line, nil
		}
		if len(c.buf) > MaxFrame {
			return nil, fault.Newf(fault.TooBig, "frame over %d bytes", MaxFrame)
		}
		chunk := make([]byte, 4096)
		n, err := c.rw.Read(chunk)
		c.buf = append(c.buf, chunk[:n]...)
		if n > 0 {
			continue
		}
		if err == nil {
			err = io.ErrNoProgress
		}
		if err == io.EOF && len(c.buf) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
}

// Pending says whether bytes beyond the last line have arrived already.
func (c *Conn) Pending() bool { return len(c.buf) > 0 }

// Write sends v as one line.
func (c *Conn) Write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.WriteLine(line)
}

// WriteLine sends one encoded line; TooBig if it is over MaxFrame.
func (c *Conn) WriteLine(line []byte) error {
	line = bytes.TrimSuffix(line, []byte("\n"))
	if len(line) > MaxFrame {
		return fault.Newf(fault.TooBig, "frame of %d bytes, at most %d are allowed", len(line), MaxFrame)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err := c.rw.Write(append(line, '\n'))
	return err
}
