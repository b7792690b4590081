// Package wire is the protocol between ctxagent (host) and ctxterm (inside a
// sandbox) on one SOCK_STREAM socket pair.
//
// A frame is a type byte, a 32-bit big-endian length and data. Each type has its
// own largest length, its direction and its place in the order; whatever breaks
// one of the three is a Violation, and a violation by the guest ends the agent:
// nothing from inside is believed, and nothing carries a descriptor.
//
//	host                               guest
//	 ◄── hello{version} ─────────────── first frame
//	 ─── start{program,args,size} ────►
//	 ◄── started{errno,step} ────────── the session program runs, or why not
//	 ─── input (against credit) ──────►
//	 ◄── credit n ───────────────────── n bytes of input were taken, or dropped
//	 ─── size, flush ─────────────────►
//	 ◄── output ──────────────────────
//	 ─── run{id,argv,…}, kill id ─────►
//	 ◄── opened id ──────────────────── a held program is open and is not run yet
//	 ─── go{id,args,…} ──────────────► run what is open
//	 ─── feed id, bytes ──────────────► standard input; without bytes its end
//	 ◄── data{id,stream,bytes}, done{id,code,…}
//	 ─── terminate{grace} ────────────►
//	 ◄── found{path} ──────────────── a repository appeared in a writable directory
//	 ◄── exit{code} ─────────────────── the session program ended; last frame
//
// Input is bounded by a window: at most Window bytes are between the host's
// Input and the program's read, so that the host never waits in a write and the
// guest never has to store more. Output needs no window: the host always reads.
//
// The package does no policy, starts no process and knows no terminal.
package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"cortexfs/node/fault"
)

// Version of the protocol; both sides come from one build.
const Version = 1

// Sizes in bytes.
const (
	Window     = 64 << 10 // input on its way
	MaxData    = 32 << 10 // of one input, output or data frame
	MaxControl = 1 << 20  // of one JSON frame from the host
	MaxFeed    = 2 << 20  // standard input of one command, all of it
	maxReply   = 4 << 10  // of one JSON frame from the guest
	header     = 5
)

// Kind is the type byte of a frame.
type Kind byte

// The frames, guest to host in lower case.
const (
	Hello   Kind = 'h'
	Started Kind = 's'
	Output  Kind = 'o'
	Credit  Kind = 'c'
	Data    Kind = 'd'
	Done    Kind = 'r'
	Opened  Kind = 'p'
	Found   Kind = 'f'
	Exit    Kind = 'x'

	Start     Kind = 'S'
	Input     Kind = 'I'
	Size      Kind = 'W'
	Flush     Kind = 'F'
	Run       Kind = 'R'
	Kill      Kind = 'K'
	Go        Kind = 'G'
	Feed      Kind = 'N'
	Terminate Kind = 'T'
)

// limits is the range of lengths of each frame, by direction.
var fromGuest = map[Kind][2]int{
	Hello: {2, maxReply}, Started: {2, maxReply}, Output: {1, MaxData}, Credit: {4, 4},
	Data: {6, 5 + MaxData}, Done: {2, maxReply}, Opened: {4, 4}, Found: {2, maxReply}, Exit: {2, maxReply},
}

var fromHost = map[Kind][2]int{
	Start: {2, MaxControl}, Input: {1, MaxData}, Size: {4, 4}, Flush: {0, 0},
	Run: {2, MaxControl}, Kill: {4, 4}, Go: {2, MaxControl}, Feed: {4, 4 + MaxData}, Terminate: {4, 4},
}

// HelloMsg is the guest's first frame.
type HelloMsg struct {
	Version int `json:"version"`
	Pid     int `json:"pid"` // its pid inside; 1 when it is the sandbox's init
}

// StartMsg says which session program to run.
type StartMsg struct {
	Version int      `json:"version"`
	Program string   `json:"program"` // absolute, opened without following a link
	Args    []string `json:"args,omitempty"`
	Rows    uint16   `json:"rows"`
	Cols    uint16   `json:"cols"`
}

// StartedMsg says what came of it; Errno 0 is success.
type StartedMsg struct {
	Errno int    `json:"errno"`
	Step  string `json:"step,omitempty"` // what failed: "open", "exec", "pty" …
}

// ExitMsg ends a session.
type ExitMsg struct {
	Code int `json:"code"` // 128+n for signal n
}

// FoundMsg tells of a repository that was not there at the start.
type FoundMsg struct {
	Path string `json:"path"` // inside
}

// RunMsg asks for one command.
type RunMsg struct {
	ID      uint32   `json:"id"`
	Argv    []string `json:"argv"`
	Cwd     string   `json:"cwd,omitempty"`
	Timeout int64    `json:"timeout_ms"`
	Limit   int      `json:"limit"` // bytes kept of each output stream

	Env   []string `json:"env,omitempty"`   // KEY=VALUE: after the sandbox's own, or alone with Bare
	Bare  bool     `json:"bare,omitempty"`  // nothing of the sandbox's environment
	Stdin bool     `json:"stdin,omitempty"` // fed by the host; else /dev/null
	// Exact: Argv[0] is an absolute path that is opened without following a link
	// at its end, and what is executed is that open file (spec section 8, row 8).
	Exact bool `json:"exact,omitempty"`
	// Held, with Exact: say that it is open, and wait for Go, which says the rest.
	Held bool `json:"held,omitempty"`
}

// GoMsg lets a held program run.
type GoMsg struct {
	ID      uint32   `json:"id"`
	Args    []string `json:"args,omitempty"` // after Argv[0]
	Env     []string `json:"env,omitempty"`
	Stdin   bool     `json:"stdin,omitempty"`
	Timeout int64    `json:"timeout_ms"`
	Limit   int      `json:"limit"`
}

// DoneMsg says how a command ended.
type DoneMsg struct {
	ID        uint32 `json:"id"`
	Code      int    `json:"code"`
	Errno     int    `json:"errno,omitempty"` // it could not be started
	Truncated bool   `json:"truncated,omitempty"`
	TimedOut  bool   `json:"timed_out,omitempty"`
}

// ErrViolation is in the chain of every error that the other side's breach of
// the protocol caused.
var ErrViolation = errors.New("protocol violation")

func violation(format string, args ...any) error {
	return fault.E("wire", "", fault.Invalid, fmt.Errorf("%w: %s", ErrViolation, fmt.Sprintf(format, args...)))
}

// readFrame reads one frame whose type and length are in limits. The data is
// valid until the next call with the same buffer.
func readFrame(r io.Reader, limits map[Kind][2]int, buf []byte) (Kind, []byte, error) {
	var h [header]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	kind, n := Kind(h[0]), binary.BigEndian.Uint32(h[1:])
	lim, ok := limits[kind]
	if !ok {
		return 0, nil, violation("frame type %#02x", h[0])
	}
	if int64(n) < int64(lim[0]) || int64(n) > int64(lim[1]) {
		return 0, nil, violation("frame %q of %d bytes", kind, n)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, buf, nil
}

// decode reads one JSON object strictly.
func decode(kind Kind, data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return violation("frame %q: %v", kind, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return violation("frame %q: data after the object", kind)
	}
	return nil
}

func frame(kind Kind, data []byte) []byte {
	b := make([]byte, 0, header+len(data))
	b = append(b, byte(kind))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func frameJSON(kind Kind, msg any) []byte {
	data, err := json.Marshal(msg)
	if err != nil {
		panic("wire: " + err.Error()) // our own plain structures
	}
	return frame(kind, data)
}

func u32(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
