package run

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"cortexfs/node/agent"
	"cortexfs/policy"
)

const runID = "ctx-0123"

// world is an agent without a sandbox: a gate whose rules can change at any
// moment, programs that are functions, a recorder in memory.
type world struct {
	t testing.TB

	mu       sync.Mutex
	declared []string
	hits     map[string]*policy.Hit
	mount    *policy.MountFact
	own      string // the agent's policy
	tools    string // every tool's policy
	ask      bool
	schemas  map[string]string
	model    bool

	open   func(ctx context.Context, q *policy.Request) (policy.OpenFact, error)
	same   func() (policy.OpenFact, error)
	exec   func(ctx context.Context, e *Exec) (*Output, error)
	step   func(ctx context.Context, v *Invocation, out io.Writer) Exit
	execs  []*Exec
	steps  []*Invocation
	closed int

	events   [][]byte
	lives    [][]byte
	messages [][]byte
	stages   []string
	done     []string
	answer   string
	log      []agent.Event
	fail     func(what string) error
}

func newWorld(t testing.TB) *world {
	return &world{
		t:        t,
		declared: []string{"fs.read", "bash"},
		hits: map[string]*policy.Hit{
			"fs.read": {Path: "/ctx/tool/fs.read", Mode: 0o755, Search: true},
			"bash":    {Path: "/ctx/tool/bash", Mode: 0o755, Search: true},
		},
		mount: &policy.MountFact{Line: 1, Target: "/ctx"},
		own:   "allow coder_t tool:fs.read execute\nallow coder_t tool:bash execute\n",
		tools: "allow coder_t tool:fs.read execute\nallow coder_t tool:bash execute\n",
	}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) Request(tool string) *policy.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	own, err := policy.Parse([]byte(w.own))
	if err != nil {
		w.t.Error(err)
	}
	tools, err := policy.Parse([]byte(w.tools))
	if err != nil {
		w.t.Error(err)
	}
	line := slices.Index(w.declared, tool) + 1
	q := &policy.Request{Tool: tool, Model: w.model, Hosted: true, Declared: line > 0, DeclaredLine: line, ToolsFile: "/ctx/agent/coder.d/tools",
		Searched: []string{"/ctx/tool"}, Hit: w.hits[tool], UID: 1000, GID: 1000, Mount: w.mount, MountFile: "/ctx/agent/coder.d/mount",
		Subject: "coder_t", AgentPolicy: own, ToolPolicy: tools, AgentPolicyFile: "/ctx/agent/coder.d/policy"}
	if q.Hit != nil {
		q.ToolPolicyFile = q.Hit.Path + ".d/policy"
	}
	if !w.ask {
		q.Approval = &policy.ApprovalFact{Auto: true}
	}
	return q
}

func (w *world) Schema(q *policy.Request) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return []byte(w.schemas[q.Tool])
}

type process struct {
	io.Reader
	exit chan Exit
}

func (p process) Wait() (Exit, error) { return <-p.exit, nil }

func (w *world) Step(ctx context.Context, s *Step) (Process, error) {
	if err := w.failing("step"); err != nil {
		return nil, err
	}
	v, err := ParseInvocation(s.Stdin)
	if err != nil {
		w.t.Errorf("step %d: %v", s.Number, err)
		return nil, err
	}
	w.set(func() { w.steps = append(w.steps, v) })
	r, out := io.Pipe()
	p := process{r, make(chan Exit, 1)}
	stop := context.AfterFunc(ctx, func() { out.Close() })
	go func() {
		exit := w.step(ctx, v, out)
		stop()
		out.Close()
		p.exit <- exit
	}()
	return p, nil
}

type executable struct {
	w    *world
	once sync.Once
}

func (w *world) Open(ctx context.Context, q *policy.Request) (Executable, policy.OpenFact, error) {
	fact := policy.OpenFact{OK: true}
	if w.open != nil {
		var err error
		if fact, err = w.open(ctx, q); err != nil || !fact.OK {
			return nil, fact, err
		}
	}
	return &executable{w: w}, fact, nil
}

func (*executable) Digest() string { return strings.Repeat("ab", 32) }

func (e *executable) Same(context.Context) (policy.OpenFact, error) {
	if e.w.same != nil {
		return e.w.same()
	}
	return policy.OpenFact{OK: true}, nil
}

func (e *executable) Exec(ctx context.Context, x *Exec) (*Output, error) {
	twice := true
	e.once.Do(func() { twice = false })
	if twice {
		e.w.t.Error("executed twice")
	}
	e.w.set(func() { e.w.execs = append(e.w.execs, x) })
	if e.w.exec != nil {
		return e.w.exec(ctx, x)
	}
	return &Output{Stdout: []byte("output of " + x.Tool)}, nil
}

func (e *executable) Close() { e.w.set(func() { e.w.closed++ }) }

func (w *world) failing(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		return w.fail(what)
	}
	return nil
}

func (w *world) Event(frame []byte) error {
	if err := w.failing("event"); err != nil {
		return err
	}
	w.set(func() { w.events = append(w.events, frame) })
	return nil
}

func (w *world) Live(ctx context.Context, frame []byte) error {
	w.set(func() { w.lives = append(w.lives, frame) })
	return ctx.Err()
}

func (w *world) Message(m []byte) error {
	w.set(func() { w.messages = append(w.messages, m) })
	return nil
}

func (w *world) stage(s string) error {
	if err := w.failing(s); err != nil {
		return err
	}
	w.set(func() { w.stages = append(w.stages, s) })
	return nil
}

func (w *world) Pending(call, tool string) error  { return w.stage("pending " + call + " " + tool) }
func (w *world) InFlight(call, tool string) error { return w.stage("inflight " + call + " " + tool) }
func (w *world) Settled(call string) error        { return w.stage("settled " + call) }

func (w *world) Finish(status, answer string) error {
	w.set(func() { w.done, w.answer = append(w.done, status), answer })
	return nil
}

func (w *world) caller() *Caller {
	return &Caller{Agent: "coder", AgentDir: "/ctx/agent/coder.d", Session: "default", Run: runID, Gate: w, Spawn: w, Record: w,
		Approver: NewBroker(BrokerOptions{Agent: "coder"}), Log: func(e agent.Event) { w.set(func() { w.log = append(w.log, e) }) },
		Check: func(_ context.Context, schema, args []byte) error { return CheckArguments(schema, args) }}
}

func (w *world) loop(steps int) *Loop {
	return &Loop{Calls: w.caller(), Input: "the task", Steps: steps,
		Prepare: func(context.Context) (string, string, error) { return "history", "tools", nil }}
}

// types are the frames that were recorded, in a short form.
func (w *world) types() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, e := range w.events {
		var f struct{ Type, Role, Code, Decision, Reason string }
		if err := json.Unmarshal(e, &f); err != nil {
			w.t.Errorf("%v: %s", err, e)
		}
		s := f.Type
		for _, x := range []string{f.Role, f.Code, f.Decision, f.Reason} {
			if x != "" {
				s += ":" + x
			}
		}
		all = append(all, s)
	}
	return strings.Join(all, " ")
}

// verdicts are the events of the log about calls.
func (w *world) verdicts() []agent.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.log), func(e agent.Event) bool { return e.Type != "tool.call" && e.Type != "tool.denied" })
}

func call(id, name, args string) *ToolCall {
	return &ToolCall{ID: id, Name: name, Arguments: json.RawMessage(args)}
}

func say(out io.Writer, format string, args ...any) {
	fmt.Fprintf(out, strings.ReplaceAll(format, "RUN", runID)+"\n", args...)
}

func toolLine(id, name, args string) string {
	return fmt.Sprintf(`{"type":"tool_call","run":"%s","id":"%s","name":"%s","arguments":%s}`, runID, id, name, args)
}

func messageLine(text string) string {
	return fmt.Sprintf(`{"type":"message","run":"%s","role":"assistant","content":[{"type":"text","text":%q}]}`, runID, text)
}
