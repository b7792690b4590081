package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cortexfs/node/fault"
	"cortexfs/policy"
)

// TestRows: each row that refuses, what the run is told of it, and the one event
// that the owner finds.
func TestRows(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		tool   string
		told   string // content of the observation
		reason string // of the event
		by     string
	}{
		"allowed":             {func(*world) {}, "fs.read", "output of fs.read", "exit 0, sha256 ", "/ctx/agent/coder.d/policy:1"},
		"1 no name":           {func(*world) {}, "tsh.d", "ERROR: EINVAL not the name of a tool", "row 1 name: ", ""},
		"1 a model":           {func(w *world) { w.model = true }, "fs.read", "ERROR: EACCES row 1 (name)", "row 1 name: a model executes nothing", ""},
		"2 not declared":      {func(w *world) { w.declared = []string{"bash"} }, "fs.read", "ERROR: EACCES row 2 (declared)", "row 2 declared: not declared; missing: fs.read", "/ctx/agent/coder.d/tools"},
		"2 and nothing there": {func(w *world) { delete(w.hits, "fs.read"); w.declared = nil }, "fs.read", "ERROR: ENOENT no such tool", "row 2 declared: not declared; missing: fs.read", "/ctx/agent/coder.d/tools"},
		"2 and no rule":       {func(w *world) { w.own = ""; w.declared = nil }, "fs.read", "ERROR: ENOENT no such tool", "row 2 declared: ", "/ctx/agent/coder.d/tools"},
		"3 nothing there":     {func(w *world) { delete(w.hits, "fs.read") }, "fs.read", "ERROR: ENOENT row 3 (search path)", "row 3 search path: no executable of that name in /ctx/tool", ""},
		"4 mode":              {func(w *world) { w.hits["fs.read"].Mode = 0o700 }, "fs.read", "ERROR: EACCES row 4 (linux)", "row 4 linux: no execute permission for the agent's ids", "/ctx/tool/fs.read"},
		"5 noexec":            {func(w *world) { w.mount.NoExec = true }, "fs.read", "ERROR: EACCES row 5 (mount)", "row 5 mount: mounted noexec at /ctx", "/ctx/agent/coder.d/mount:1"},
		"6 own policy":        {func(w *world) { w.own = "allow coder_t tool:bash execute\n" }, "fs.read", "ERROR: EACCES row 6 (agent policy)", "row 6 agent policy: no rule allows it; missing: allow coder_t tool:fs.read execute", "/ctx/agent/coder.d/policy"},
		"7 tool policy":       {func(w *world) { w.tools = "allow other_t tool:fs.read execute\n" }, "fs.read", "ERROR: EACCES row 7 (tool policy)", "row 7 tool policy: no rule allows it; missing: allow coder_t tool:fs.read execute", "/ctx/tool/fs.read.d/policy"},
		"8 a link": {func(w *world) {
			w.open = func(context.Context, *policy.Request) (policy.OpenFact, error) {
				return policy.OpenFact{Loop: true}, nil
			}
		}, "fs.read", "ERROR: ELOOP row 8 (open)", "row 8 open: a link stands where the executable was", ""},
		"8 a directory": {func(w *world) {
			w.open = func(context.Context, *policy.Request) (policy.OpenFact, error) { return policy.OpenFact{}, nil }
		}, "fs.read", "ERROR: EACCES row 8 (open)", "row 8 open: no regular executable any more", ""},
		"9 nobody": {func(w *world) { w.ask = true }, "fs.read", "ERROR: EACCES row 9 (approval): no-handler", "row 9 approval: not approved: no-handler", "approval"},
		"a fault": {func(w *world) {
			w.open = func(context.Context, *policy.Request) (policy.OpenFact, error) {
				return policy.OpenFact{}, fault.Newf(fault.Unavailable, "/host/path is gone")
			}
		}, "fs.read", "ERROR: EHOSTDOWN the call failed", "open: /host/path is gone", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c.change(w)
			o, err := w.caller().Call(t.Context(), call("c1", c.tool, `{"a":1}`), 0)
			if err != nil {
				t.Fatal(err)
			}
			allowed := name == "allowed"
			if o.Content != c.told || (o.Status == "ok") != allowed || o.ToolCallID != "c1" || o.Name != c.tool {
				t.Errorf("%+v", o)
			}
			v := w.verdicts()
			if len(v) != 1 || !strings.HasPrefix(v[0].Reason, c.reason) || v[0].By != c.by || v[0].Object != c.tool || v[0].Run != runID {
				t.Errorf("%+v", v)
			}
			if want := map[bool]string{true: "ok", false: "denied"}[allowed]; v[0].Status != want && name != "a fault" {
				t.Errorf("%+v", v)
			}
			if (len(w.execs) == 1) != allowed || len(w.messages) != 1 || w.stages[len(w.stages)-1] != "settled c1" {
				t.Errorf("%d executions, %v", len(w.execs), w.stages)
			}
			if allowed && (strings.Join(w.stages, ",") != "inflight c1 fs.read,settled c1" || w.closed != 1) {
				t.Errorf("%v, closed %d", w.stages, w.closed)
			}
			want := fmt.Sprintf(`{"type":"message","run":"%s","role":"tool","name":"%s","arguments":{"a":1},"status":"%s","content":[{"type":"tool_result","tool_call_id":"c1","content":"%s"}]}`, runID, c.tool, o.Status, c.told)
			if got := string(w.events[len(w.events)-1]); got != want {
				t.Errorf("%s", got)
			}
		})
	}
}

// TestCallForms: how arguments reach the tool.
func TestCallForms(t *testing.T) {
	big := `{"text":"` + strings.Repeat("x", 10_000) + `"}`
	for in, want := range map[string]struct {
		words []string
		stdin string
		mode  string
	}{
		`"-c 'echo hi'"`:   {[]string{"-c", "echo hi"}, "", "cli"},
		`{"args":["a b"]}`: {[]string{"a b"}, "", "cli"},
		`{"x":1}`:          {[]string{`{"x":1}`}, "", "native"},
		big:                {nil, big, "native"},
	} {
		w := newWorld(t)
		if _, err := w.caller().Call(t.Context(), call("c", "bash", in), 0); err != nil {
			t.Fatal(err)
		}
		e := w.execs[0]
		if fmt.Sprint(e.Words) != fmt.Sprint(want.words) || string(e.Stdin) != want.stdin || e.Limit != CaptureLimit || e.Timeout != DefaultToolTime ||
			fmt.Sprint(e.Env) != "[CTX_RUN_ID="+runID+" CTX_TOOL=bash CTX_TOOL_MODE="+want.mode+"]" {
			t.Errorf("%.40s: %+v", in, e)
		}
	}
}

// TestSchema: native arguments are judged before anything is opened or asked; the
// agent is told the place, not the value.
func TestSchema(t *testing.T) {
	w := newWorld(t)
	w.ask = true
	w.schemas = map[string]string{"bash": `{"type":"object","properties":{"cmd":{"type":"string"}},"required":["cmd"]}`}
	w.open = func(context.Context, *policy.Request) (policy.OpenFact, error) {
		t.Error("opened")
		return policy.OpenFact{}, nil
	}
	for _, args := range []string{`{"cmd":5}`, `{}`, `{"cmd":"a","cmd":"b"}`, `{"args":[5]}`, `"'"`} {
		o, err := w.caller().Call(t.Context(), call("c", "bash", args), 0)
		if err != nil || !strings.HasPrefix(o.Content, "ERROR: EINVAL ") || len(w.execs) > 0 {
			t.Errorf("%s: %+v %v", args, o, err)
		}
	}
	// A tool that may not be run tells nothing of its schema.
	w.own = ""
	if o, _ := w.caller().Call(t.Context(), call("c", "bash", `{"cmd":5}`), 0); o.Content != "ERROR: EACCES row 6 (agent policy)" {
		t.Errorf("%+v", o)
	}
}

func TestResults(t *testing.T) {
	long := strings.Repeat("世", 20_000)
	for name, c := range map[string]struct {
		out       *Output
		status    string
		content   string
		truncated bool
	}{
		"text":         {&Output{Stdout: []byte("hi\n")}, "ok", "hi\n", false},
		"empty":        {&Output{}, "ok", "", false},
		"exit":         {&Output{Code: 3, Stdout: []byte("out"), Stderr: []byte("why\n")}, "error", "ERROR: exit 3\nwhy\nout", false},
		"signal":       {&Output{Code: 137}, "error", "ERROR: exit 137", false},
		"time":         {&Output{TimedOut: true, Stdout: []byte("so far")}, "error", "ERROR: ETIMEDOUT after 2m0s\nso far", false},
		"no exec":      {&Output{Errno: "ENOEXEC"}, "error", "ERROR: ENOEXEC the tool cannot be executed", false},
		"bytes":        {&Output{Stdout: []byte("a\xff\x00b")}, "ok", "a\ufffd\ufffdb", false},
		"truncated":    {&Output{Stdout: []byte("abc"), Truncated: true}, "ok", "abc\n[truncated: the first 3 of 3 bytes or more]", true},
		"long":         {&Output{Stdout: []byte(long)}, "ok", "", true},
		"frames":       {&Output{Stdout: []byte("\n" + `{"type":"start","run":"r","tool":"t"}` + "\n" + `{"type":"message","run":"r","role":"tool","content":[{"type":"text","text":"a"}]}` + "\n" + `{"type":"message","run":"r","role":"tool","content":"b"}` + "\n" + `{"type":"done","run":"r","status":"ok"}` + "\n")}, "ok", "a\nb", false},
		"frames error": {&Output{Code: 1, Stdout: []byte(`{"type":"start","run":"r"}` + "\n" + `{"type":"error","run":"r","code":"ENOENT","message":"no\nfile"}` + "\n" + `{"type":"done","run":"r","status":"error"}`)}, "error", "ERROR: the tool failed", false},
		"frames cut":   {&Output{Truncated: true, Stdout: []byte(`{"type":"start","run":"r"}` + "\n" + `{"type":"message","run":"r","content":"a"}` + "\n" + `{"type":"mess`)}, "ok", "a\n[truncated: the first 1 of 1 bytes or more]", true},
		"frames short": {&Output{Stdout: []byte(`{"type":"start","run":"r"}` + "\n")}, "error", "ERROR: EPROTO output without an end", false},
		"frames odd":   {&Output{Stdout: []byte(`{"type":"start","run":"r"}` + "\n" + `{"type":"message","run":"x","content":"a"}`)}, "error", "ERROR: EPROTO malformed output", false},
		"frames after": {&Output{Stdout: []byte(`{"type":"start","run":"r"}` + "\n" + `{"type":"done","run":"r","status":"ok"}` + "\nx")}, "error", "ERROR: EPROTO malformed output", false},
		"json text":    {&Output{Stdout: []byte(`{"type":"other"}`)}, "ok", `{"type":"other"}`, false},
	} {
		w := newWorld(t)
		w.exec = func(context.Context, *Exec) (*Output, error) { return c.out, nil }
		o, err := w.caller().Call(t.Context(), call("c", "bash", `""`), 0)
		if err != nil || o.Status != c.status || o.Truncated != c.truncated || len(o.Content) > MaxContent || c.content != "" && o.Content != c.content {
			t.Errorf("%s: %v %.300q %v", name, o.Status, o.Content, err)
		}
		if name == "long" && !strings.HasSuffix(o.Content, "of 60000 bytes]") {
			t.Errorf("%q", o.Content[len(o.Content)-80:])
		}
		if _, err := (&Invocation{Step: 1, Observation: o}).Encode(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// askedCall makes a call that is asked about and gives its handler.
func askedCall(t *testing.T, w *world, c *Caller, ctx context.Context) (*Handler, chan *Observation, chan error) {
	t.Helper()
	h := c.Approver.(*Broker).Attach(runID, "uid 1000")
	t.Cleanup(h.Close)
	seen, failed := make(chan *Observation, 1), make(chan error, 1)
	go func() {
		o, err := c.Call(ctx, call("c1", "bash", `{"args":["-c","id"]}`), 0)
		seen <- o
		failed <- err
	}()
	return h, seen, failed
}

// TestApproval: asked for each call, executed once, recorded before and after.
func TestApproval(t *testing.T) {
	w := newWorld(t)
	w.ask = true
	c := w.caller()
	for i, decision := range []string{"allow_once", "deny", "allow_once"} {
		h := c.Approver.(*Broker).Attach(runID, "uid 1000")
		seen := make(chan *Observation)
		go func() {
			o, err := c.Call(t.Context(), call(fmt.Sprint("c", i), "bash", `{"args":["-c","id"]}`), 0)
			if err != nil {
				t.Error(err)
			}
			seen <- o
		}()
		frame, err := h.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var q struct {
			Args    []string
			Expires time.Time
		}
		if err := json.Unmarshal(frame, &q); err != nil || fmt.Sprint(q.Args) != "[-c id]" || time.Until(q.Expires) < 4*time.Minute || time.Until(q.Expires) > 5*time.Minute {
			t.Errorf("%s", frame)
		}
		h.Answer(reply(runID, fmt.Sprint("c", i), decision))
		o := <-seen
		if (o.Status == "ok") != (decision == "allow_once") {
			t.Errorf("%+v", o)
		}
		h.Close()
	}
	if len(w.execs) != 2 {
		t.Errorf("%d executions", len(w.execs))
	}
	want := "approval_request approval_result:allow_once:user message:tool approval_request approval_result:deny:user message:tool approval_request approval_result:allow_once:user message:tool"
	if got := w.types(); got != want {
		t.Errorf("%s", got)
	}
	if got := strings.Join(w.stages, ","); got != "pending c0 bash,inflight c0 bash,settled c0,pending c1 bash,settled c1,pending c2 bash,inflight c2 bash,settled c2" {
		t.Errorf("%s", got)
	}
	v := w.verdicts()
	if len(v) != 3 || v[0].By != "approval uid 1000" || v[1].By != "approval uid 1000" || v[1].Reason != "row 9 approval: not approved: user" {
		t.Errorf("%+v", v)
	}
}

// TestChangesWhileAsking: whatever is taken away between the question and the
// answer, a yes does not bring it back.
func TestChangesWhileAsking(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"own rule":  func(w *world) { w.own = "" },
		"tool rule": func(w *world) { w.tools = "" },
		"declared":  func(w *world) { w.declared = nil },
		"mode":      func(w *world) { w.hits["bash"] = &policy.Hit{Path: "/ctx/tool/bash", Mode: 0, Search: true} },
		"mount":     func(w *world) { w.mount = nil },
		"gone":      func(w *world) { delete(w.hits, "bash") },
		"other tier": func(w *world) {
			w.hits["bash"] = &policy.Hit{Path: "/ctx/home/1000/tool/bash", Mode: 0o755, Search: true}
		},
		"other file": func(w *world) {
			w.same = func() (policy.OpenFact, error) { return policy.OpenFact{Why: "another file"}, nil }
		},
		"link": func(w *world) { w.same = func() (policy.OpenFact, error) { return policy.OpenFact{Loop: true}, nil } },
		"sandbox": func(w *world) {
			w.same = func() (policy.OpenFact, error) { return policy.OpenFact{}, errors.New("the sandbox ended") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.ask = true
			h, seen, _ := askedCall(t, w, w.caller(), t.Context())
			next(t, h)
			w.set(func() { change(w) })
			h.Answer(reply(runID, "c1", "allow_once"))
			o := <-seen
			if o.Status != "error" || len(w.execs) > 0 {
				t.Errorf("%+v, %d executions", o, len(w.execs))
			}
			if s := next(t, h); s != "approval_result c1 deny policy-changed" {
				t.Error(s)
			}
			if v := w.verdicts(); len(v) != 1 || v[0].Status != "denied" {
				t.Errorf("%+v", v)
			}
		})
	}
}

// TestChangesBeforeExec: also what changes after row 9, while hooks run or the
// disk is slow, refuses; and auto that has become ask executes nothing unasked.
func TestChangesBeforeExec(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		told   string
	}{
		"rule": {func(w *world) { w.own = "" }, "ERROR: EACCES row 6 (agent policy)"},
		"ask":  {func(w *world) { w.ask = true }, "ERROR: EACCES row 9 (approval): policy-changed"},
		"tier": {func(w *world) {
			w.hits["bash"] = &policy.Hit{Path: "/ctx/home/1000/tool/bash", Mode: 0o755, Search: true}
		}, "ERROR: EACCES row 8 (open)"},
	} {
		w := newWorld(t)
		changed := false
		w.fail = func(what string) error {
			if strings.HasPrefix(what, "inflight") && !changed {
				changed = true
				c.change(w)
			}
			return nil
		}
		o, err := w.caller().Call(t.Context(), call("c1", "bash", `""`), 0)
		if err != nil || o.Content != c.told || len(w.execs) > 0 || len(w.verdicts()) != 1 {
			t.Errorf("%s: %+v %v %+v", name, o, err, w.verdicts())
		}
	}
}

// TestCancelOfACall: at every moment of a call a cancel ends it with nothing
// recorded after it, and never executes what has not begun.
func TestCancelOfACall(t *testing.T) {
	for _, at := range []string{"before", "open", "ask", "pending", "inflight", "exec"} {
		t.Run(at, func(t *testing.T) {
			w := newWorld(t)
			w.ask = at == "ask" || at == "pending"
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			switch at {
			case "before":
				cancel()
			case "open":
				w.open = func(ctx context.Context, _ *policy.Request) (policy.OpenFact, error) {
					cancel()
					return policy.OpenFact{}, ctx.Err()
				}
			case "exec":
				w.exec = func(ctx context.Context, _ *Exec) (*Output, error) {
					cancel()
					<-ctx.Done()
					return &Output{Stdout: []byte("late")}, nil
				}
			case "pending", "inflight":
				w.fail = func(what string) error {
					if strings.HasPrefix(what, at) {
						cancel()
					}
					return nil
				}
			}
			c := w.caller()
			if w.ask {
				h := c.Approver.(*Broker).Attach(runID, "uid 1")
				defer h.Close()
				if at == "ask" {
					go func() {
						h.Next(ctx)
						cancel()
						h.Answer(reply(runID, "c1", "allow_once"))
					}()
				}
			}
			o, err := c.Call(ctx, call("c1", "bash", `""`), 0)
			if !errors.Is(err, context.Canceled) || o != nil {
				t.Errorf("%+v %v", o, err)
			}
			if len(w.messages) > 0 || strings.Contains(w.types(), "message") {
				t.Errorf("recorded: %s", w.types())
			}
			if (len(w.execs) == 1) != (at == "exec") {
				t.Errorf("%d executions", len(w.execs))
			}
		})
	}
}

// TestHumanTime: the tool's clock starts at its spawn, not at the question.
func TestHumanTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.ask = true
		c := w.caller()
		c.Timeout = 5 * time.Second
		w.exec = func(ctx context.Context, e *Exec) (*Output, error) {
			if ctx.Err() != nil || e.Timeout != 5*time.Second {
				t.Error(ctx.Err(), e.Timeout)
			}
			return &Output{}, nil
		}
		h, seen, _ := askedCall(t, w, c, t.Context())
		synctest.Wait()
		time.Sleep(time.Minute)
		h.Answer(reply(runID, "c1", "allow_once"))
		if o := <-seen; o.Status != "ok" {
			t.Errorf("%+v", o)
		}
	})
}

func TestToolTimeIsBounded(t *testing.T) {
	w := newWorld(t)
	c := w.caller()
	c.Timeout = time.Hour
	if _, err := c.Call(t.Context(), call("c", "bash", `""`), 0); err != nil || w.execs[0].Timeout != MaxToolTime {
		t.Error(err, w.execs[0].Timeout)
	}
}

// TestHostTool: a tool of the host goes through every row, and its executable is
// opened, but its effect is ours.
func TestHostTool(t *testing.T) {
	w := newWorld(t)
	c := w.caller()
	var got *Args
	c.Host = map[string]HostTool{"bash": func(_ context.Context, a *Args) *Output { got = a; return &Output{Stdout: []byte("made")} }}
	o, err := c.Call(t.Context(), call("c", "bash", `{"name":"x"}`), 0)
	if err != nil || o.Content != "made" || string(got.Native) != `{"name":"x"}` || len(w.execs) > 0 || w.closed != 1 {
		t.Errorf("%+v %v", o, err)
	}
	w.own, got = "", nil
	if o, _ := c.Call(t.Context(), call("c2", "bash", `{"name":"x"}`), 0); o.Status != "error" || got != nil {
		t.Errorf("%+v", o)
	}
}

// TestRecorderFails: what cannot be recorded before it happens does not happen.
func TestRecorderFails(t *testing.T) {
	full := fault.Newf(fault.NoSpace, "disk full")
	for _, what := range []string{"pending", "inflight", "event", "settled"} {
		w := newWorld(t)
		w.ask = what == "pending"
		w.fail = func(s string) error {
			if strings.HasPrefix(s, what) {
				return full
			}
			return nil
		}
		c := w.caller()
		h := c.Approver.(*Broker).Attach("", "uid 1")
		o, err := c.Call(t.Context(), call("c", "bash", `""`), 0)
		if !errors.Is(err, full) || o != nil {
			t.Errorf("%s: %+v %v", what, o, err)
		}
		if len(w.execs) > 0 != (what == "event" || what == "settled") {
			t.Errorf("%s: %d executions", what, len(w.execs))
		}
		h.Close()
	}
}

// TestSwapInALoop: while the file is swapped and the rule flips, what is executed
// is always what row 8 has opened, once, and only while the rule was there.
func TestSwapInALoop(t *testing.T) {
	w := newWorld(t)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			w.set(func() {
				w.own = map[bool]string{true: "allow coder_t tool:bash execute\n", false: ""}[i%2 == 0]
				w.hits["bash"] = &policy.Hit{Path: map[bool]string{true: "/ctx/tool/bash", false: "/ctx/home/1/tool/bash"}[i%3 > 0], Mode: 0o755, Search: true}
			})
		}
	})
	c := w.caller()
	allowed := 0
	for i := range 3000 {
		o, err := c.Call(t.Context(), call(fmt.Sprint("c", i), "bash", `""`), 0)
		if err != nil {
			t.Fatal(err)
		}
		if o.Status == "ok" {
			allowed++
		}
	}
	stop.Store(true)
	wg.Wait()
	if allowed != len(w.execs) || len(w.verdicts()) != 3000 || allowed == 0 || allowed == 3000 {
		t.Errorf("%d allowed, %d executed, %d events", allowed, len(w.execs), len(w.verdicts()))
	}
}
