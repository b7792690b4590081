package run

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
	"cortexfs/policy"
)

// Limits of a tool's time.
const (
	DefaultToolTime = 120 * time.Second
	MaxToolTime     = 600 * time.Second
)

// Caller makes the hosted calls of one run: those of its steps, and those of its
// control socket.
type Caller struct {
	Agent    string
	AgentDir string // its .d in the tree
	Session  string
	Run      string

	Gate     Gate
	Spawn    Spawner
	Approver Approver
	Hooks    Hooks // nil: none
	Record   Recorder
	Log      Log // nil: nobody
	// Check judges native arguments by a schema, in a process that can be killed
	// (CheckArguments). Nil: schemas are not applied.
	Check func(ctx context.Context, schema, args []byte) error
	// Host has the tools whose effect is the host process's own, by name.
	Host    map[string]HostTool
	Timeout time.Duration // of a tool; 0: 120 s, at most 600 s

	mu   sync.Mutex
	seen map[string]bool // call ids of the run
}

// errRepeated ends the run: a call id names one call.
var errRepeated = &RunError{Code: "EIO", Message: "the agent's program broke the wire format", Detail: "a tool call id is repeated"}

// Claim takes a call id for this run; a second time is an error.
func (c *Caller) Claim(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen[id] {
		return errRepeated
	}
	if c.seen == nil {
		c.seen = map[string]bool{}
	}
	c.seen[id] = true
	return nil
}

// attempt is one call on its way.
type attempt struct {
	*Caller
	t    *ToolCall
	step int
	args *Args
	q    *policy.Request
	exe  Executable
	by   string // who decided, for the event
}

// Call decides and makes one call. The observation says what came of it, refusals
// included; it is recorded. The error ends the run: it was cancelled, or nothing
// can be recorded any more.
func (c *Caller) Call(ctx context.Context, t *ToolCall, step int) (*Observation, error) {
	a := &attempt{Caller: c, t: t, step: step}
	o, err := a.make(ctx)
	if a.exe != nil {
		a.exe.Close()
	}
	if err != nil {
		return nil, err
	}
	if err := a.record(o); err != nil {
		return nil, err
	}
	return o, nil
}

// make goes through the rows in their order.
func (a *attempt) make(ctx context.Context) (*Observation, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	a.q = a.Gate.Request(a.t.Name)
	if o := a.judge(); o != nil { // rows 1–7
		return o, nil
	}
	if o := a.arguments(ctx); o != nil || ctx.Err() != nil {
		return o, ctx.Err()
	}
	exe, fact, err := a.Spawn.Open(ctx, a.q)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return a.fault("open", err), nil
	}
	a.exe, a.q.Opened = exe, &fact
	if o := a.judge(); o != nil { // row 8
		return o, nil
	}
	if a.q.Approval == nil {
		if err := a.ask(ctx); err != nil {
			return nil, err
		}
	}
	if o := a.judge(); o != nil { // row 9, and 3–7 again after an answer
		return o, nil
	}
	if err := a.hooks(ctx, "pre", ""); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := toRunError(err)
		a.event("tool.denied", "denied", r.Message, "hook")
		return refusal(a.t, r.Code, r.Message), nil
	}
	return a.execute(ctx)
}

// judge is the first row that is not known to hold; nil when what is known does,
// or when the next row is still to be opened or asked.
func (a *attempt) judge() *Observation {
	v, ok := policy.Authorize(a.q)
	if ok {
		return nil
	}
	if !v.Asked && (v.Row == 8 && a.q.Opened == nil || v.Row == 9 && a.q.Approval == nil) {
		return nil
	}
	by := v.File
	if by != "" && v.Line > 0 {
		by = fmt.Sprintf("%s:%d", v.File, v.Line)
	}
	if v.Row == 9 {
		by = a.by
	}
	reason := fmt.Sprintf("row %d %s: %s", v.Row, v.Name, v.Why)
	if v.Missing != "" {
		reason += "; missing: " + v.Missing
	}
	a.event("tool.denied", "denied", reason, by)
	code, text := Told(a.q, v)
	return refusal(a.t, code, text)
}

// Told is what a run learns of a refusal (spec section 8): of a tool that is not
// declared and fails rows 3–7 only that there is none, of others the row. No path
// of the host.
func Told(q *policy.Request, v policy.Verdict) (code, text string) {
	if v.Row == 1 && v.Kind == fault.Invalid {
		return codeOf(fault.E("", "", v.Kind, nil)), "not the name of a tool"
	}
	if !q.Declared {
		again := *q
		again.Hosted = false
		if _, ok := policy.Authorize(&again); !ok {
			return "ENOENT", "no such tool"
		}
	}
	text = fmt.Sprintf("row %d (%s)", v.Row, v.Name)
	if v.Row == 9 && q.Approval != nil && q.Approval.Reason != "" {
		text += ": " + q.Approval.Reason
	}
	return codeOf(fault.E("", "", v.Kind, nil)), text
}

// arguments reads the arguments and applies the schema, before anything is
// opened. A bad one is the agent's to repair.
func (a *attempt) arguments(ctx context.Context) *Observation {
	schema := a.Gate.Schema(a.q)
	var err error
	if a.args, err = ParseArgs(a.t.Arguments, schema); err == nil && a.args.Native != nil && a.Check != nil && len(schema) > 0 {
		err = a.Check(ctx, schema, a.args.Native)
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	a.event("tool.denied", "denied", "arguments: "+err.Error(), a.q.Hit.Path+".d/schema")
	return refusal(a.t, codeOf(err), model.Printable(err.Error(), 512))
}

// ask is row 9. What is recorded before and after it lets a restart deny it.
func (a *attempt) ask(ctx context.Context) error {
	_, stdin := a.args.Exec()
	q := &Question{Run: a.Run, ID: a.t.ID, Name: a.t.Name, Args: a.args.Shown(), Stdin: stdin, Executable: a.exe.Digest(),
		Expires: time.Now().Add(a.Approver.Deadline())}
	if err := a.Record.Pending(a.t.ID, a.t.Name); err != nil {
		return err
	}
	if frame := q.frame(); len(frame) <= MaxQuestion {
		if err := a.Record.Event(frame); err != nil {
			return err
		}
	}
	a.event("approval.request", "ok", "sha256 "+q.Executable+", digest "+q.Digest(), "")
	d := a.Approver.Ask(ctx, q, func() bool { return a.still(ctx) })
	if err := a.Record.Event(d.frame(q)); err != nil {
		return err
	}
	status := "denied"
	if d.Allow {
		status = "ok"
	}
	reason := d.Reason
	if d.Detail != "" {
		reason += ": " + d.Detail
	}
	a.by = strings.TrimSuffix("approval "+d.By, " ")
	a.event("approval.result", status, reason, d.By)
	if err := ctx.Err(); err != nil {
		return err
	}
	a.q.Approval = &policy.ApprovalFact{Allowed: d.Allow, Reason: d.Reason}
	return nil
}

// still evaluates rows 1–8 again after an answer: the facts of this moment, and
// the file that the path leads to now.
func (a *attempt) still(ctx context.Context) bool {
	fact, err := a.exe.Same(ctx)
	if err != nil {
		return false
	}
	_, ok := a.again(&fact, &policy.ApprovalFact{Allowed: true, Reason: ByUser})
	return ok
}

// again states the facts of rows 1–7 anew, next to those of 8 and 9, and judges
// all. false too when another file is the hit now: it is not the one that is held.
func (a *attempt) again(opened *policy.OpenFact, approval *policy.ApprovalFact) (*policy.Request, bool) {
	q := a.Gate.Request(a.t.Name)
	q.Opened = opened
	switch {
	case !approval.Auto:
		q.Approval = approval
	case q.Approval == nil: // auto before and ask now: nobody was asked
		q.Approval = &policy.ApprovalFact{Reason: PolicyChanged}
	}
	_, ok := policy.Authorize(q)
	return q, ok && q.Hit.Path == a.q.Hit.Path
}

func (a *attempt) hooks(ctx context.Context, phase, status string) error {
	if a.Hooks == nil {
		return nil
	}
	return a.Hooks.Run(ctx, Object{"tool", a.q.Hit.Path + ".d"}, &HookEvent{Phase: phase, Action: "tool", Run: a.Run, Step: a.step, Tool: a.t.Name, Status: status})
}

// execute runs the held file. Before that the call is in flight on disk.
func (a *attempt) execute(ctx context.Context) (*Observation, error) {
	if err := a.Record.InFlight(a.t.ID, a.t.Name); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil { // nothing has run
		if e := a.Record.Settled(a.t.ID); e != nil {
			return nil, e
		}
		return nil, err
	}
	// Once more, with nothing between it and the execution: a rule that was taken
	// away while a hook ran or the disk was slow is not used any more.
	if q, ok := a.again(a.q.Opened, a.q.Approval); !ok {
		was := a.q
		a.q = q
		if o := a.judge(); o != nil {
			return o, nil
		}
		a.q = was
		a.event("tool.denied", "denied", "row 8 open: another file is found now", a.q.Hit.Path)
		return refusal(a.t, "EACCES", "row 8 (open)"), nil
	}
	timeout := a.Timeout
	if timeout <= 0 {
		timeout = DefaultToolTime
	}
	timeout = min(timeout, MaxToolTime)
	digest := a.exe.Digest()
	out, err := a.spawn(ctx, timeout)
	if ctx.Err() != nil { // whatever it has written is dropped
		a.event("tool.call", "cancelled", "sha256 "+digest, a.decider())
		return nil, a.settle(ctx.Err())
	}
	if err != nil {
		return a.fault("exec", err), nil
	}
	o := observe(a.t, out, timeout.String())
	reason := fmt.Sprintf("exit %d, sha256 %s", out.Code, digest)
	switch {
	case out.Errno != "":
		reason = out.Errno + ", sha256 " + digest
	case out.TimedOut:
		reason = fmt.Sprintf("timed out after %v, sha256 %s", timeout, digest)
	}
	a.event("tool.call", o.Status, reason, a.decider())
	if err := a.hooks(ctx, "post", o.Status); err != nil && ctx.Err() == nil {
		o.set(cutText(o.Content, MaxContent-1024)+"\n["+model.Printable(toRunError(err).Message, 512)+"]", o.Truncated && !strings.Contains(o.Content, "[truncated:"))
	}
	return o, nil
}

func (a *attempt) spawn(ctx context.Context, timeout time.Duration) (*Output, error) {
	if host := a.Host[a.t.Name]; host != nil {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		out := host(ctx, a.args)
		if ctx.Err() != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			out.TimedOut = true
		}
		return out, nil
	}
	words, stdin := a.args.Exec()
	return a.exe.Exec(ctx, &Exec{Tool: a.t.Name, Words: words, Stdin: stdin, Env: toolEnv(a.Run, a.t.Name, a.args.Native != nil),
		Timeout: timeout, Limit: CaptureLimit})
}

// decider is who let the call through: the approval, or the rule of the agent.
func (a *attempt) decider() string {
	if a.by != "" {
		return a.by
	}
	line, _ := a.q.AgentPolicy.Allows(a.q.Subject, policy.Tool, a.t.Name, policy.Execute)
	return fmt.Sprintf("%s:%d", a.q.AgentPolicyFile, line)
}

// fault is a fault of ours on the way: the call failed, the run goes on.
func (a *attempt) fault(what string, err error) *Observation {
	a.event("tool.call", "error", what+": "+err.Error(), "")
	return refusal(a.t, codeOf(err), "the call failed")
}

// settle records that a call which was in flight is over, and ends the run with
// the cause.
func (a *attempt) settle(cause error) error {
	if err := a.Record.Settled(a.t.ID); err != nil {
		return err
	}
	return cause
}

// record keeps the result: the frame, the message, and that the call is settled.
func (a *attempt) record(o *Observation) error {
	part := struct {
		Type       string `json:"type"`
		ToolCallID string `json:"tool_call_id"`
		Content    string `json:"content"`
	}{"tool_result", o.ToolCallID, o.Content}
	err := a.Record.Event(jsonl.Marshal(struct {
		Type      string `json:"type"`
		Run       string `json:"run"`
		Role      string `json:"role"`
		Name      string `json:"name"`
		Arguments any    `json:"arguments"`
		Status    string `json:"status"`
		Content   []any  `json:"content"`
	}{"message", a.Run, "tool", o.Name, a.t.Arguments, o.Status, []any{part}}))
	if err != nil {
		return err
	}
	err = a.Record.Message(jsonl.Marshal(struct {
		Role    string `json:"role"`
		Name    string `json:"name"`
		Content []any  `json:"content"`
	}{"tool", o.Name, []any{part}}))
	if err != nil {
		return err
	}
	return a.Record.Settled(a.t.ID)
}

func (c *Caller) event(e agent.Event) {
	if c.Log != nil {
		e.Session, e.Run = c.Session, c.Run
		c.Log(e)
	}
}

func (a *attempt) event(typ, status, reason, by string) {
	a.Caller.event(agent.Event{Type: typ, Object: a.t.Name, Status: status, Reason: reason, By: by})
}
