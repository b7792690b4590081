package agentd

import (
	"encoding/json"
	"time"

	"cortexfs/node"
)

// Proc names a process so that a reused pid is noticed.
type Proc struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"` // field 22 of /proc/PID/stat, clock ticks since boot
}

// Sandbox is what the daemon hands over once bwrap runs.
type Sandbox struct {
	Bwrap Proc `json:"bwrap"`          // the outer bwrap: its death ends the agent
	Init  Proc `json:"init,omitempty"` // the pid namespace's init as the host sees it
}

// Event is one step of an agent's life. The first event of a connection is the
// current state.
type Event struct {
	State  node.State `json:"state"`
	Pid    int        `json:"pid"`              // of the host process
	Reason string     `json:"reason,omitempty"` // why it stops or is dead; no secrets, control bytes escaped
	// Refused is set in a dead (or stopping) event when the session program
	// could not be opened or executed inside: the errno, e.g. EACCES.
	Refused string `json:"refused,omitempty"`
	// Exit is the session program's exit code (128+n for signal n), once known.
	Exit *int `json:"exit,omitempty"`
	// Git are repositories that appeared at the top of writable directories, as
	// paths inside; at most maxFound.
	Git []string `json:"git,omitempty"`
}

// RunRequest is a command to run inside, as the agent.
type RunRequest struct {
	Argv    []string      `json:"argv"`              // 1–64 words of at most 8 KiB; a bare name is searched in PATH inside
	Cwd     string        `json:"cwd,omitempty"`     // absolute, inside; empty: ctxterm's
	Timeout time.Duration `json:"timeout,omitempty"` // 0: 120 s; at most 600 s
}

// RunResult is what came of it. Output is what the sandbox says: data, not
// evidence.
type RunResult struct {
	Code      int    `json:"code"`                // exit code; 128+n for signal n
	Stdout    []byte `json:"stdout"`              // at most 64 KiB
	Stderr    []byte `json:"stderr"`              // at most 64 KiB
	Truncated bool   `json:"truncated,omitempty"` // more was written than is here
	TimedOut  bool   `json:"timed_out,omitempty"`
	Errno     string `json:"errno,omitempty"` // could not be started: ENOENT, EACCES …; Code is then -1
}

// request and answer are the lines of ctl.sock.
type request struct {
	ID      uint64      `json:"id"`
	Op      string      `json:"op"` // stop, run, sandbox, state, notice, told
	GraceMS int64       `json:"grace_ms,omitempty"`
	Run     *RunRequest `json:"run,omitempty"`
	Sandbox *Sandbox    `json:"sandbox,omitempty"`
	Text    string      `json:"text,omitempty"` // of notice

	// Of told, the answer to a question of the host process.
	Data  json.RawMessage `json:"data,omitempty"`
	Code  string          `json:"code,omitempty"`
	Error string          `json:"error,omitempty"`
}

type answer struct {
	ID    uint64     `json:"id,omitempty"`    // 0: an event
	Event *Event     `json:"event,omitempty"` // with ID 0, or the answer of stop and state
	Ask   *question  `json:"ask,omitempty"`   // with ID 0
	Run   *RunResult `json:"run,omitempty"`
	Code  string     `json:"code,omitempty"` // errno name of a refusal
	Error string     `json:"error,omitempty"`
}
