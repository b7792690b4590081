package run

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"cortexfs/node"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
)

// Limits of a run's control socket.
const (
	MaxControlFrame = 1 << 20 // bytes
	ModelBudget     = 256     // model calls of a run
	maxRequests     = 4096    // frames of a run
)

// Control answers the frames that come from inside the sandbox during one run
// (spec section 14). Holding the socket proves nothing: every frame names agent,
// session and run, and every op that does something is judged like the tool of
// its name, or by `model:<ref> use`.
type Control struct {
	Calls  *Caller
	Models Models
	// Prompt renders the first system message of the run, as of now.
	Prompt func(ctx context.Context) (string, error)
	Budget int // model calls; 0: ModelBudget

	mu   sync.Mutex
	seen map[string]bool // request ids
	used int
}

// Serve answers one frame; emit gets the answer's frames. It returns what emit
// has returned; what is wrong with the frame is an error frame.
func (c *Control) Serve(ctx context.Context, frame []byte, emit func([]byte) error) error {
	o, id, err := c.admit(frame)
	if err != nil {
		return emit(controlError(id, err))
	}
	switch op, _ := o.String("op"); op {
	case "ping":
		return emit(jsonl.Marshal(map[string]string{"type": "pong", "request_id": id}))
	case "prompt":
		text, err := c.Prompt(ctx)
		if err != nil {
			return emit(controlError(id, err))
		}
		return emit(jsonl.Marshal(map[string]string{"type": "prompt", "request_id": id, "text": text}))
	case "model":
		return c.model(ctx, o, id, emit)
	default:
		return c.tool(ctx, op, o, id, emit)
	}
}

func controlError(id string, err error) []byte {
	return jsonl.Marshal(struct {
		Type    string `json:"type"`
		ID      string `json:"request_id,omitempty"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}{"error", id, codeOf(err), model.Printable(err.Error(), 512)})
}

// admit judges what every frame has. A request id is used up by its first frame,
// whatever that was worth.
func (c *Control) admit(frame []byte) (o jsonl.Object, id string, err error) {
	bad := func(code, format string, args ...any) (jsonl.Object, string, error) {
		return nil, id, &RunError{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	if len(frame) > MaxControlFrame {
		return bad("EMSGSIZE", "frame of over %d bytes", MaxControlFrame)
	}
	if o, err = jsonl.Parse(frame); err != nil {
		return bad("EINVAL", "frame: %v", err)
	}
	name, _ := o.String("request_id")
	if !node.IsName(name) {
		return bad("EINVAL", "request_id is an object name")
	}
	id = name
	if op, ok := o.String("op"); !ok || !node.IsName(op) {
		return bad("EINVAL", "op is missing")
	}
	for key, want := range map[string]string{"agent": c.Calls.Agent, "session": c.Calls.Session, "run": c.Calls.Run} {
		if got, ok := o.String(key); !ok || got != want {
			return bad("EACCES", "%s is not the one of this socket", key)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.seen[id]:
		return bad("EALREADY", "the request was made before")
	case len(c.seen) >= maxRequests:
		return bad("EAGAIN", "over %d requests in one run", maxRequests)
	}
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	c.seen[id] = true
	return o, id, nil
}

// model makes one model call. The host's prompt stands before the messages.
func (c *Control) model(ctx context.Context, o jsonl.Object, id string, emit func([]byte) error) error {
	ref, _ := o.String("ref")
	var rest jsonl.Object
	for _, key := range []string{"messages", "tools", "max_tokens", "temperature", "stop", "effort"} {
		if v, ok := o.Get(key); ok {
			rest = append(rest, jsonl.Field{Key: key, Value: v})
		}
	}
	r, err := model.ParseRequest(rest.Append(nil))
	if err != nil {
		return emit(controlError(id, err))
	}
	turn, err := c.spend()
	if err != nil {
		return emit(controlError(id, err))
	}
	text, err := c.Prompt(ctx)
	if err != nil {
		return emit(controlError(id, err))
	}
	r.Turn = turn
	r.Messages = append([]model.Message{{Role: "system", Content: text}}, r.Messages...)
	answered := false
	var broken error
	err = c.Models.Call(ctx, c.Calls.Run, ref, r, func(f model.Frame) error {
		answered = true
		broken = emit(f.JSON())
		return broken
	})
	if err != nil && broken == nil && !answered { // refused before a model was asked
		return emit(controlError(id, err))
	}
	return broken
}

// spend takes one call of the budget and tells how many were made before.
func (c *Control) spend() (before int, err error) {
	limit := c.Budget
	if limit <= 0 {
		limit = ModelBudget
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used >= limit {
		return 0, &RunError{Code: "EAGAIN", Message: fmt.Sprintf("over %d model calls in one run", limit)}
	}
	c.used++
	return c.used - 1, nil
}

// tool makes a call of the tool that the op names, with the request's id.
func (c *Control) tool(ctx context.Context, op string, o jsonl.Object, id string, emit func([]byte) error) error {
	if c.Calls.Host[op] == nil {
		return emit(controlError(id, &RunError{Code: "EINVAL", Message: "unknown op"}))
	}
	args, ok := o.Get("arguments")
	if !ok {
		args = json.RawMessage("{}")
	}
	if args[0] != '{' && args[0] != '"' {
		return emit(controlError(id, &RunError{Code: "EINVAL", Message: "arguments is an object or a string"}))
	}
	call := &ToolCall{ID: id, Name: op, Arguments: args}
	if err := c.Calls.Claim(id); err != nil {
		return emit(controlError(id, &RunError{Code: "EALREADY", Message: "the id is that of another call"}))
	}
	frame := jsonl.Marshal(struct {
		Type      string          `json:"type"`
		Run       string          `json:"run"`
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}{"tool_call", c.Calls.Run, id, op, args})
	if err := c.Calls.Record.Event(frame); err != nil {
		return emit(controlError(id, err))
	}
	seen, err := c.Calls.Call(ctx, call, 0)
	if err != nil {
		return emit(controlError(id, err))
	}
	return emit(jsonl.Marshal(struct {
		Type      string `json:"type"`
		ID        string `json:"request_id"`
		Status    string `json:"status"`
		Content   string `json:"content"`
		Truncated bool   `json:"truncated"`
	}{"result", id, seen.Status, seen.Content, seen.Truncated}))
}
