package run

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/session"
)

// script makes a program that says the given lines, a list for each step, and
// ends with 0.
func script(steps ...[]string) func(context.Context, *Invocation, io.Writer) Exit {
	return func(_ context.Context, v *Invocation, out io.Writer) Exit {
		for _, line := range steps[min(v.Step, len(steps)-1)] {
			say(out, "%s", line)
		}
		return Exit{}
	}
}

func deltaLine(text string) string {
	return fmt.Sprintf(`{"type":"delta","run":"%s","text":%q}`, runID, text)
}

// TestLoop: a run of three steps, with everything that it leaves.
func TestLoop(t *testing.T) {
	w := newWorld(t)
	w.step = script(
		[]string{deltaLine("let me"), messageLine("let me look"), toolLine("c1", "fs.read", `{"path":"a"}`)},
		[]string{toolLine("c2", "nothing", `"x"`)},
		[]string{deltaLine("it "), deltaLine("is x"), messageLine("it is x"), `{"type":"usage","run":"` + runID + `","input_tokens":5,"output_tokens":6}`},
	)
	if status := w.loop(0).Do(t.Context()); status != session.OK {
		t.Fatal(status)
	}
	if got := w.types(); got != "message:assistant tool_call message:tool tool_call message:tool message:assistant usage" {
		t.Errorf("%s", got)
	}
	if len(w.lives) != 3 || fmt.Sprint(w.done) != "[ok]" || w.answer != "it is x" {
		t.Errorf("%d live, %v, %q", len(w.lives), w.done, w.answer)
	}
	if len(w.steps) != 3 {
		t.Fatal(len(w.steps))
	}
	for i, v := range w.steps {
		if v.Step != i || v.Input != "the task" || v.History != "history" || v.ToolContext != "tools" {
			t.Errorf("%+v", v)
		}
	}
	if o := *w.steps[1].Observation; o != (Observation{ToolCallID: "c1", Name: "fs.read", Status: "ok", Content: "output of fs.read"}) {
		t.Errorf("%+v", o)
	}
	if o := *w.steps[2].Observation; o != (Observation{ToolCallID: "c2", Name: "nothing", Status: "error", Content: "ERROR: ENOENT no such tool"}) {
		t.Errorf("%+v", o)
	}
	want := []string{
		`{"role":"assistant","content":[{"type":"text","text":"let me look"}]}`,
		`{"role":"tool","name":"fs.read","content":[{"type":"tool_result","tool_call_id":"c1","content":"output of fs.read"}]}`,
		`{"role":"tool","name":"nothing","content":[{"type":"tool_result","tool_call_id":"c2","content":"ERROR: ENOENT no such tool"}]}`,
		`{"role":"assistant","content":[{"type":"text","text":"it is x"}]}`,
	}
	for i, m := range w.messages {
		if string(m) != want[i] {
			t.Errorf("%s", m)
		}
	}
}

// TestStreamedAnswer: text that was only streamed is the message.
func TestStreamedAnswer(t *testing.T) {
	w := newWorld(t)
	w.step = script([]string{deltaLine("all "), deltaLine("of it"), `{"type":"reasoning_delta","run":"` + runID + `","text":"hm"}`})
	if status := w.loop(0).Do(t.Context()); status != session.OK || w.answer != "all of it" || w.types() != "message:assistant" || len(w.messages) != 1 {
		t.Errorf("%s %q %s", status, w.answer, w.types())
	}
}

// TestBadRuns: how each mistake of a program ends its run.
func TestBadRuns(t *testing.T) {
	repeat := []string{toolLine("c1", "fs.read", `{}`)}
	for name, c := range map[string]struct {
		step  func(context.Context, *Invocation, io.Writer) Exit
		steps int
		types string
		text  string // in the error frame
	}{
		"forbidden frame": {script([]string{`{"type":"done","run":"RUN","status":"ok"}`}), 0, "error:EIO", `"detail":"line 1: a frame of type \"done\" is not the agent's"`},
		"after a message": {script([]string{messageLine("fine"), "oops"}), 0, "message:assistant error:EIO", `"detail":"line 2: no JSON at byte 1"`},
		"after a call":    {script([]string{toolLine("c1", "bash", `""`), messageLine("x")}), 0, "tool_call error:EIO", "a frame after the tool_call"},
		"repeated id":     {script(repeat, repeat), 0, "tool_call message:tool tool_call error:EIO", `"detail":"a tool call id is repeated"`},
		"loop limit": {func(_ context.Context, v *Invocation, out io.Writer) Exit {
			say(out, "%s", toolLine(fmt.Sprint("c", v.Step), "bash", `""`))
			return Exit{}
		}, 2, "tool_call message:tool tool_call message:tool tool_call error:EIO", `"message":"tool loop limit"`},
		"exit": {func(_ context.Context, _ *Invocation, out io.Writer) Exit {
			say(out, "%s", messageLine("bye"))
			return Exit{Code: 3, Stderr: []byte("\n\x1b[31mpanic: token=abc123\nmore\n")}
		}, 0, "message:assistant error:EIO", `"message":"the agent's program ended with exit 3","detail":"[31mpanic: token=[secret]"`},
		"exit after a call": {func(_ context.Context, _ *Invocation, out io.Writer) Exit {
			say(out, "%s", toolLine("c1", "bash", `""`))
			return Exit{Code: 1}
		}, 0, "tool_call error:EIO", "ended with exit 1 after its tool call"},
		"killed": {func(context.Context, *Invocation, io.Writer) Exit { return Exit{Code: 137} }, 0, "error:EIO", "exit 137"},
		"half a line": {func(_ context.Context, _ *Invocation, out io.Writer) Exit {
			io.WriteString(out, `{"type":"mess`)
			return Exit{}
		}, 0, "error:EIO", "no complete JSON"},
		"panic":  {func(context.Context, *Invocation, io.Writer) Exit { return Exit{} }, -1, "error:EIO", "internal fault"},
		"no end": {script([]string{strings.Repeat("x", MaxLine+1)}), 0, "error:EIO", "over 262144 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.step = func(ctx context.Context, v *Invocation, out io.Writer) Exit {
				return c.step(ctx, v, &replaced{out})
			}
			l := w.loop(max(c.steps, 0))
			if c.steps < 0 {
				l.Prepare = func(context.Context) (string, string, error) { panic("a mistake of ours") }
			}
			if status := l.Do(t.Context()); status != session.Failed {
				t.Error(status)
			}
			if got := w.types(); got != c.types {
				t.Errorf("%s", got)
			}
			if last := string(w.events[len(w.events)-1]); !strings.Contains(last, c.text) {
				t.Errorf("%s", last)
			}
			if fmt.Sprint(w.done) != "[error]" || w.answer != "" {
				t.Errorf("%v %q", w.done, w.answer)
			}
			if name != "repeated id" && name != "loop limit" && len(w.execs) > 0 {
				t.Error("executed")
			}
		})
	}
}

// replaced writes the id of the run where RUN stands.
type replaced struct{ w io.Writer }

func (r *replaced) Write(p []byte) (int, error) {
	_, err := io.WriteString(r.w, strings.ReplaceAll(string(p), "RUN", runID))
	return len(p), err
}

func TestSpawnFails(t *testing.T) {
	w := newWorld(t)
	w.fail = func(what string) error {
		if what == "step" {
			return fault.Newf(fault.Unavailable, "the sandbox ended")
		}
		return nil
	}
	if status := w.loop(0).Do(t.Context()); status != session.Failed || w.types() != "error:EHOSTDOWN" {
		t.Error(status, w.types())
	}
	big := newWorld(t)
	l := big.loop(0)
	l.Input = strings.Repeat("\x01", MaxInvocation/4)
	if status := l.Do(t.Context()); status != session.Failed || big.types() != "error:EMSGSIZE" {
		t.Error(status, big.types())
	}
}

// TestCancelOfARun: the program is told, what it says later is not recorded, and
// the run has one done.
func TestCancelOfARun(t *testing.T) {
	for _, at := range []string{"before", "step", "tool"} {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan struct{})
		w.step = func(inner context.Context, v *Invocation, out io.Writer) Exit {
			if at == "tool" {
				say(out, "%s", toolLine("c1", "bash", `""`))
				close(told)
				return Exit{}
			}
			say(out, "%s", messageLine("so far"))
			cancel()
			<-inner.Done() // SIGTERM
			say(out, "%s", messageLine("late"))
			close(told)
			return Exit{Code: 143}
		}
		w.exec = func(ctx context.Context, _ *Exec) (*Output, error) {
			cancel()
			<-ctx.Done()
			return &Output{Stdout: []byte("late")}, ctx.Err()
		}
		if at == "before" {
			cancel()
		}
		if status := w.loop(0).Do(ctx); status != session.Cancelled || fmt.Sprint(w.done) != "[cancelled]" {
			t.Error(at, status, w.done)
		}
		if at != "before" {
			<-told
		}
		for _, m := range w.messages {
			if strings.Contains(string(m), "late") {
				t.Errorf("%s: %s", at, m)
			}
		}
		if strings.Contains(w.types(), "error") {
			t.Errorf("%s: %s", at, w.types())
		}
		cancel()
	}
}

func TestRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.step = func(ctx context.Context, _ *Invocation, _ io.Writer) Exit {
			<-ctx.Done()
			return Exit{Code: 143}
		}
		l := w.loop(0)
		l.Time = time.Minute
		began := time.Now()
		if status := l.Do(t.Context()); status != session.Failed || w.types() != "error:ETIMEDOUT" || time.Since(began) != time.Minute {
			t.Error(status, w.types(), time.Since(began))
		}
	})
}

// TestStepLimits: steps 0…N are run, N+1 of them, and no more.
func TestStepLimits(t *testing.T) {
	for _, limit := range []int{1, 3, 0} {
		w := newWorld(t)
		var n atomic.Int32
		w.step = func(_ context.Context, v *Invocation, out io.Writer) Exit {
			n.Add(1)
			say(out, "%s", toolLine(fmt.Sprint("c", v.Step), "bash", `""`))
			return Exit{}
		}
		want := limit + 1
		if limit == 0 {
			want = DefaultSteps + 1
		}
		if status := w.loop(limit).Do(t.Context()); status != session.Failed || int(n.Load()) != want || len(w.execs) != want-1 {
			t.Errorf("limit %d: %s, %d steps, %d tools", limit, status, n.Load(), len(w.execs))
		}
	}
}

// ---- hooks

type hooks struct {
	names []string
	out   map[string]*Output
	err   error
	ran   []*Hook
}

func (h *hooks) Names(context.Context, Object, string) ([]string, error) { return h.names, h.err }

func (h *hooks) Run(_ context.Context, x *Hook) (*Output, error) {
	h.ran = append(h.ran, x)
	if out := h.out[x.Name]; out != nil {
		return out, nil
	}
	return &Output{}, nil
}

// TestHooks: order, what they are told, and what each failure refuses with.
func TestHooks(t *testing.T) {
	many := make([]string, MaxHooks+1)
	for i := range many {
		many[i] = fmt.Sprint("h", i)
	}
	for name, c := range map[string]struct {
		h    hooks
		ran  string
		code string
	}{
		"none":        {hooks{}, "[]", ""},
		"order":       {hooks{names: []string{"b", "a", "Z", "10", "2"}}, "[10 2 Z a b]", ""},
		"refuses":     {hooks{names: []string{"a", "b", "c"}, out: map[string]*Output{"b": {Code: 1}}}, "[a b]", "EACCES"},
		"slow":        {hooks{names: []string{"a"}, out: map[string]*Output{"a": {TimedOut: true}}}, "[a]", "ETIMEDOUT"},
		"loud":        {hooks{names: []string{"a"}, out: map[string]*Output{"a": {Truncated: true}}}, "[a]", "EOVERFLOW"},
		"loud in two": {hooks{names: []string{"a"}, out: map[string]*Output{"a": {Stdout: make([]byte, HookOutput), Stderr: []byte("x")}}}, "[a]", "EOVERFLOW"},
		"no exec":     {hooks{names: []string{"a"}, out: map[string]*Output{"a": {Errno: "ELOOP"}}}, "[a]", "EACCES"},
		"many":        {hooks{names: many}, "[]", "E2BIG"},
		"bad name":    {hooks{names: []string{"a", "../x"}}, "[]", "EINVAL"},
		"unreadable":  {hooks{err: fault.Newf(fault.IO, "x")}, "[]", "EIO"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			h := &c.h
			r := &HookRunner{Spawn: h, Agent: "coder", Session: "default", Log: w.caller().Log}
			err := r.Run(t.Context(), Object{"tool", "/ctx/tool/bash.d"}, &HookEvent{Phase: "pre", Action: "tool", Run: runID, Step: 2, Tool: "bash"})
			var ran []string
			for _, x := range h.ran {
				ran = append(ran, x.Name)
				want := `{"abi":"cortexfs.hook/v1","phase":"pre","action":"tool","agent":"coder","run":"ctx-0123","step":2,"tool":"bash","status":""}` + "\n"
				if string(x.Stdin) != want || x.Timeout != HookTime || x.Limit != HookOutput || fmt.Sprint(x.Env) != "[PATH=/usr/bin:/bin CTX_HOOK_ABI=cortexfs.hook/v1]" || x.Phase != "pre.d" {
					t.Errorf("%+v", x)
				}
			}
			if !slices.Equal(ran, strings.Fields(strings.Trim(c.ran, "[]"))) {
				t.Errorf("%v", ran)
			}
			if (err == nil) != (c.code == "") || err != nil && codeOf(err) != c.code {
				t.Errorf("%v", err)
			}
			if (len(w.log) == 1) != (err != nil) || err != nil && (w.log[0].Type != "hook.pre" || w.log[0].Status != "denied") {
				t.Errorf("%+v", w.log)
			}
		})
	}
}

// TestHooksOfARun: a failing pre hook refuses its step or its call, a failing post
// hook marks the result; none of them is asked about a call that was refused.
func TestHooksOfARun(t *testing.T) {
	type phase struct{ phase, action string }
	for name, c := range map[string]struct {
		fail  phase
		types string
		text  string
	}{
		"pre step":  {phase{"pre", "step"}, "error:EACCES", "pre hook deny: exit 1"},
		"pre tool":  {phase{"pre", "tool"}, "tool_call message:tool message:assistant", "ERROR: EACCES pre hook deny: exit 1"},
		"post tool": {phase{"post", "tool"}, "tool_call message:tool message:assistant", "output of bash\\n[post hook deny: exit 1]"},
		"post step": {phase{"post", "step"}, "tool_call message:tool message:assistant", "output of bash"},
	} {
		w := newWorld(t)
		w.step = script([]string{toolLine("c1", "bash", `""`)}, []string{messageLine("done")})
		l := w.loop(0)
		var seen []string
		l.Calls.Hooks = hookFunc(func(o Object, e *HookEvent) error {
			seen = append(seen, fmt.Sprint(e.Phase, " ", e.Action, " ", e.Step, " ", o.Path, " ", e.Status))
			if (phase{e.Phase, e.Action}) == c.fail {
				return &RunError{Code: "EACCES", Message: e.Phase + " hook deny: exit 1"}
			}
			return nil
		})
		l.Do(t.Context())
		if got := w.types(); got != c.types {
			t.Errorf("%s: %s", name, got)
		}
		all := ""
		for _, e := range w.events {
			all += string(e)
		}
		if !strings.Contains(all, c.text) || (len(w.execs) == 1) != (c.fail.phase == "post") {
			t.Errorf("%s: %s", name, all)
		}
		if c.fail.phase == "post" && fmt.Sprint(seen) != "[pre step 0 /ctx/agent/coder.d  post step 0 /ctx/agent/coder.d ok pre tool 0 /ctx/tool/bash.d  post tool 0 /ctx/tool/bash.d ok pre step 1 /ctx/agent/coder.d  post step 1 /ctx/agent/coder.d ok]" {
			t.Errorf("%s: %v", name, seen)
		}
	}
	w := newWorld(t)
	w.own = ""
	c := w.caller()
	c.Hooks = hookFunc(func(Object, *HookEvent) error { t.Error("a hook ran"); return nil })
	if _, err := c.Call(t.Context(), call("c", "bash", `""`), 0); err != nil {
		t.Error(err)
	}
}

type hookFunc func(Object, *HookEvent) error

func (f hookFunc) Run(_ context.Context, o Object, e *HookEvent) error { return f(o, e) }
