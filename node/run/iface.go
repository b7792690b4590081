package run

import (
	"context"
	"io"
	"time"

	"cortexfs/node/agent"
	"cortexfs/node/model"
	"cortexfs/node/session"
	"cortexfs/policy"
)

// Recorder keeps what a run does. *session.Run is one.
type Recorder interface {
	// Event stores a frame; it is durable when Event returns.
	Event(frame []byte) error
	// Live gives a frame to those who listen now.
	Live(ctx context.Context, frame []byte) error
	// Message adds to the conversation, durably.
	Message(message []byte) error
	// Pending, InFlight and Settled are the stages of a call, durable, where the
	// agent cannot reach them.
	Pending(call, tool string) error
	InFlight(call, tool string) error
	Settled(call string) error
	// Finish ends the run.
	Finish(status, answer string) error
}

var _ Recorder = (*session.Run)(nil)

// Spawner starts processes inside the agent's sandbox.
type Spawner interface {
	// Step starts the agent's program for one step. ctx ends it: SIGTERM to its
	// process group, 2 s, SIGKILL.
	Step(ctx context.Context, s *Step) (Process, error)
	// Open opens the executable of a tool inside the sandbox without following
	// links, and holds it (row 8). A fact that is not OK is a refusal and has no
	// Executable; an error is a fault of ours. q is the request whose hit is to be
	// opened.
	Open(ctx context.Context, q *policy.Request) (Executable, policy.OpenFact, error)
}

// Step is one step of the agent's program.
type Step struct {
	Run    string
	Number int
	Stdin  []byte   // the invocation
	Env    []string // on top of the agent's environment
}

// Process is a step under way. Read is its standard output.
type Process interface {
	io.Reader
	// Wait returns when the process has ended; after Read has.
	Wait() (Exit, error)
}

// Exit is how a step has ended.
type Exit struct {
	Code   int    // 128+n for signal n
	Stderr []byte // at most 64 KiB
}

// Executable is the file that row 8 has opened. It stays the same file, whatever
// happens to its path.
type Executable interface {
	// Digest is the SHA-256 of its bytes in hex, as the daemon that serves the
	// file computes it.
	Digest() string
	// Same opens the path again and says whether that is the same file.
	Same(ctx context.Context) (policy.OpenFact, error)
	// Exec executes the held file, once. ctx ends it as Spawner.Step says, and
	// what it writes later is dropped.
	Exec(ctx context.Context, e *Exec) (*Output, error)
	// Close lets go of it.
	Close()
}

// Exec is one execution of a tool.
type Exec struct {
	Tool    string
	Words   []string // arguments
	Stdin   []byte   // nil: empty
	Env     []string // on top of the agent's environment
	Timeout time.Duration
	Limit   int // bytes kept of each of stdout and stderr
}

// Output is what came of an execution.
type Output struct {
	Code      int
	Errno     string // it could not be started: EACCES, ENOEXEC …
	Stdout    []byte
	Stderr    []byte
	Truncated bool // of either
	TimedOut  bool
}

// Gate states facts about the tools of the agent, as of now.
type Gate interface {
	// Request has the facts of rows 1–7 about a tool for a hosted call, and of row
	// 9 where the agent asks nobody (approval=auto).
	Request(tool string) *policy.Request
	// Schema is the text of the schema of the tool that the request has found.
	Schema(q *policy.Request) []byte
}

// Approver asks for one approval. *Broker is one.
type Approver interface {
	// Deadline is how long Ask waits at most.
	Deadline() time.Duration
	// Ask returns when the question is settled. confirm is called, once, after an
	// answer that allows, and decides whether it still may.
	Ask(ctx context.Context, q *Question, confirm func() bool) Decision
}

// Hooks runs the hooks of an object around an action. *HookRunner is one.
type Hooks interface {
	// Run runs those of one phase. The error of a pre hook refuses the action.
	Run(ctx context.Context, object Object, e *HookEvent) error
}

// Log takes the events of the agent's log.
type Log func(agent.Event)

// Models answers the model calls of a run.
type Models interface {
	// Call judges `model:<ref> use` afresh, asks the model and emits its frames.
	Call(ctx context.Context, run, ref string, r *model.Request, emit func(model.Frame) error) error
}

// HostTool is the effect of a tool that the host process has itself
// (agent.create …). It gets the arguments as they were judged.
type HostTool func(ctx context.Context, a *Args) *Output
