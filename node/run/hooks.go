package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// Limits of hooks (spec section 6).
const (
	MaxHooks   = 32
	HookTime   = 2 * time.Second
	HookOutput = 16 << 10
	HookABI    = "cortexfs.hook/v1"
)

// Object is what has hooks: the agent, or a tool that was found.
type Object struct {
	Kind string // agent or tool
	Path string // its .d in the tree
}

// HookEvent is what a hook is told: metadata only.
type HookEvent struct {
	ABI    string `json:"abi"`
	Phase  string `json:"phase"`  // pre or post
	Action string `json:"action"` // step or tool
	Agent  string `json:"agent"`
	Run    string `json:"run"`
	Step   int    `json:"step"`
	Tool   string `json:"tool"`
	Status string `json:"status"` // post: ok or error
}

// HookSpawner finds and runs the hooks of an object inside the sandbox.
type HookSpawner interface {
	// Names are the entries of hooks/PHASE.d, in any order; a missing directory
	// has none.
	Names(ctx context.Context, object Object, phase string) ([]string, error)
	// Run executes one: opened without following links, a regular executable, own
	// process group, environment PATH and CTX_HOOK_ABI. Access or Loop: it cannot
	// be executed.
	Run(ctx context.Context, h *Hook) (*Output, error)
}

// Hook is one execution of a hook.
type Hook struct {
	Object  Object
	Phase   string
	Name    string
	Stdin   []byte // one JSON line
	Env     []string
	Timeout time.Duration
	Limit   int // bytes of output together; more is a failure
}

// HookRunner runs hooks in order. The zero Log is nobody's.
type HookRunner struct {
	Spawn   HookSpawner
	Agent   string
	Session string
	Log     Log
}

var _ Hooks = (*HookRunner)(nil)

// Run implements Hooks. The first failure ends the phase.
func (r *HookRunner) Run(ctx context.Context, object Object, e *HookEvent) error {
	names, err := r.Spawn.Names(ctx, object, e.Phase+".d")
	if err != nil {
		return r.failed(e, object, "", fault.At("list", object.Path+"/hooks", err))
	}
	if len(names) > MaxHooks {
		return r.failed(e, object, "", &hookError{code: "E2BIG", text: fmt.Sprintf("%d hooks, at most %d", len(names), MaxHooks)})
	}
	names = slices.Clone(names)
	slices.Sort(names)
	e.ABI, e.Agent = HookABI, r.Agent
	line := append(jsonl.Marshal(e), '\n')
	for _, name := range names {
		if !node.IsName(name) {
			return r.failed(e, object, "", fault.Newf(fault.Invalid, "a hook's name is an object name"))
		}
		out, err := r.Spawn.Run(ctx, &Hook{Object: object, Phase: e.Phase + ".d", Name: name, Stdin: line,
			Env: []string{"PATH=/usr/bin:/bin", "CTX_HOOK_ABI=" + HookABI}, Timeout: HookTime, Limit: HookOutput})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			err = out.verdict()
		}
		if err != nil {
			return r.failed(e, object, name, err)
		}
	}
	return nil
}

// verdict is what a hook's output means.
func (o *Output) verdict() error {
	switch {
	case o.Errno != "":
		return fault.Newf(fault.Access, "it cannot be executed: %s", o.Errno)
	case o.TimedOut:
		return fault.Newf(fault.TimedOut, "over %v", HookTime)
	case o.Truncated || len(o.Stdout)+len(o.Stderr) > HookOutput:
		return &hookError{code: "EOVERFLOW", text: fmt.Sprintf("over %d bytes of output", HookOutput)}
	case o.Code != 0:
		return fault.Newf(fault.Access, "exit %d", o.Code)
	}
	return nil
}

// hookError is a failure whose errno no Kind has.
type hookError struct{ code, text string }

func (e *hookError) Error() string { return e.text }

func (r *HookRunner) failed(e *HookEvent, object Object, name string, err error) error {
	if r.Log != nil {
		status := "denied"
		if e.Phase == "post" {
			status = "error"
		}
		r.Log(agent.Event{Type: "hook." + e.Phase, Session: r.Session, Run: e.Run, Object: object.Path + "/hooks/" + e.Phase + ".d/" + name,
			Status: status, Reason: err.Error(), By: "hook"})
	}
	what := e.Phase + " hook"
	if name != "" {
		what += " " + name
	}
	return &RunError{Code: codeOf(err), Message: what + ": " + err.Error()}
}
