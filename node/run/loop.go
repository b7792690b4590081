package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"cortexfs/node/agent"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
	"cortexfs/node/session"
)

// DefaultSteps is CTX_AGENT_STEPS where the agent does not set it.
const DefaultSteps = 64

// Loop is one run of an agent.
type Loop struct {
	Calls *Caller // with the names, Spawn, Hooks, Record and Log of the run
	Input string
	Steps int           // largest step number; 0: DefaultSteps
	Time  time.Duration // of the whole run; 0: no limit
	// Prepare gives history_messages and tool_context of a step, as of now.
	Prepare func(ctx context.Context) (history, tools string, err error)

	answer strings.Builder // text of the messages of the last step that had one
}

var errRunTime = errors.New("max_run_seconds")

// Do makes the run and finishes it: status is ok, error or cancelled, and exactly
// one done is recorded. When ctx ends it returns after what was running has
// ended.
func (l *Loop) Do(ctx context.Context) (status string) {
	outer := ctx
	if l.Time > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, l.Time, errRunTime)
		defer cancel()
	}
	err := l.guarded(ctx)
	switch {
	case err == nil:
		status = session.OK
	case outer.Err() != nil:
		status = session.Cancelled
	default:
		status = session.Failed
		if errors.Is(context.Cause(ctx), errRunTime) {
			err = &RunError{Code: "ETIMEDOUT", Message: fmt.Sprintf("the run took over %v", l.Time)}
		}
		l.failed(toRunError(err))
	}
	answer := ""
	if status == session.OK {
		answer = l.answer.String()
	}
	if err := l.Calls.Record.Finish(status, answer); err != nil {
		l.log("EIO", err.Error())
	}
	return status
}

// failed records the terminal error.
func (l *Loop) failed(r *RunError) {
	l.log(r.Code, r.Error())
	if err := l.Calls.Record.Event(r.frame(l.Calls.Run)); err != nil {
		l.log("EIO", err.Error())
	}
}

func (l *Loop) log(code, reason string) {
	l.Calls.event(agent.Event{Type: "run.error", Status: "error", Object: code, Reason: reason})
}

// guarded keeps a mistake of ours within its run.
func (l *Loop) guarded(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			l.log("EIO", fmt.Sprintf("panic: %v\n%s", p, debug.Stack()))
			err = &RunError{Code: "EIO", Message: "internal fault"}
		}
	}()
	return l.steps(ctx)
}

func (l *Loop) steps(ctx context.Context) error {
	last := l.Steps
	if last <= 0 {
		last = DefaultSteps
	}
	var seen *Observation
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		call, err := l.step(ctx, n, seen)
		if err != nil || call == nil {
			return err
		}
		if n == last {
			return &RunError{Code: "EIO", Message: "tool loop limit", Detail: fmt.Sprintf("a tool call on step %d, the last one", n)}
		}
		if seen, err = l.Calls.Call(ctx, call, n); err != nil {
			return err
		}
	}
}

// step runs the agent's program once, with its hooks.
func (l *Loop) step(ctx context.Context, n int, seen *Observation) (*ToolCall, error) {
	if err := l.hooks(ctx, "pre", n, ""); err != nil {
		return nil, err
	}
	call, err := l.program(ctx, n, seen)
	status := "ok"
	if err != nil {
		status = "error"
	}
	if ctx.Err() == nil {
		l.hooks(ctx, "post", n, status) // logged by the runner; the step is over
	}
	return call, err
}

func (l *Loop) hooks(ctx context.Context, phase string, n int, status string) error {
	if l.Calls.Hooks == nil {
		return nil
	}
	return l.Calls.Hooks.Run(ctx, Object{"agent", l.Calls.AgentDir}, &HookEvent{Phase: phase, Action: "step", Run: l.Calls.Run, Step: n, Status: status})
}

// program gives the program its invocation and takes its frames. A call is
// forwarded only after the program has exited with 0.
func (l *Loop) program(ctx context.Context, n int, seen *Observation) (*ToolCall, error) {
	history, tools, err := l.Prepare(ctx)
	if err != nil {
		return nil, err
	}
	stdin, err := (&Invocation{Run: l.Calls.Run, Step: n, Input: l.Input, History: history, ToolContext: tools, Observation: seen}).Encode()
	if err != nil {
		return nil, &RunError{Code: "EMSGSIZE", Message: err.Error()}
	}
	inner, stop := context.WithCancel(ctx)
	defer stop()
	p, err := l.Calls.Spawn.Step(inner, &Step{Run: l.Calls.Run, Number: n, Stdin: stdin, Env: stepEnv(l.Calls.Run, n)})
	if err != nil {
		return nil, err
	}
	call, bad := l.frames(ctx, p)
	if bad != nil {
		stop() // the program has nothing more to say
	}
	exit, err := p.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case bad != nil:
		return nil, bad
	case err != nil:
		return nil, err
	case exit.Code != 0:
		what := fmt.Sprintf("the agent's program ended with exit %d", exit.Code)
		if call != nil {
			what += " after its tool call"
		}
		return nil, &RunError{Code: "EIO", Message: what, Detail: firstLine(exit.Stderr)}
	}
	if call != nil {
		if err := l.Calls.Claim(call.ID); err != nil {
			return nil, err
		}
	}
	return call, nil
}

// frames records what a step says. Text that it only streamed is kept as its
// message, so that the session has it.
func (l *Loop) frames(ctx context.Context, p io.Reader) (*ToolCall, error) {
	d := NewDecoder(p, l.Calls.Run)
	var streamed strings.Builder
	var call *ToolCall
	said := false
	for {
		f, err := d.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = ctx.Err() // what comes after a cancel is not recorded
		}
		if err != nil {
			return nil, err
		}
		switch f.Type {
		case "delta":
			streamed.WriteString(f.Text)
			err = l.Calls.Record.Live(ctx, f.JSON)
		case "reasoning_delta":
			err = l.Calls.Record.Live(ctx, f.JSON)
		case "message":
			if !said {
				l.answer.Reset()
			}
			said = true
			err = l.message(f.Text, f.JSON)
		case "tool_call":
			call = f.Call
			err = l.Calls.Record.Event(f.JSON)
		default:
			err = l.Calls.Record.Event(f.JSON)
		}
		if err != nil {
			return nil, err
		}
	}
	if !said && streamed.Len() > 0 {
		l.answer.Reset()
		frame := model.Text("message", streamed.String())
		frame.Run = l.Calls.Run
		if err := l.message(streamed.String(), frame.JSON()); err != nil {
			return nil, err
		}
	}
	return call, nil
}

func (l *Loop) message(text string, frame []byte) error {
	if l.answer.Len() > 0 {
		l.answer.WriteString("\n")
	}
	l.answer.WriteString(text)
	if err := l.Calls.Record.Event(frame); err != nil {
		return err
	}
	return l.Calls.Record.Message(jsonl.Marshal(struct {
		Role    string       `json:"role"`
		Content []model.Part `json:"content"`
	}{"assistant", []model.Part{{Type: "text", Text: text}}}))
}
