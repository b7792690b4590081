package run

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// Names of the launch ABI (spec section 14).
const (
	Schema        = "cortexfs.agent-invocation/v1"
	Launch        = "sdk-envelope-v1"
	LaunchFlag    = "--cortexfs-sdk-envelope-v1"
	Program       = "/run/cortexfs/agent-executable"
	ControlSocket = "/run/cortexfs/control.sock"
)

// Limits of an invocation, in bytes.
const (
	MaxInvocation = 1 << 20
	MaxContext    = 64 << 10 // history_messages, tool_context
	MaxContent    = 16 << 10 // of an observation
)

// Invocation is what a step is given.
type Invocation struct {
	Schema      string       `json:"schema"`
	Run         string       `json:"run"`
	Step        int          `json:"step"`
	Input       string       `json:"input"`
	History     string       `json:"history_messages"`
	ToolContext string       `json:"tool_context"`
	Observation *Observation `json:"observation"` // null on step 0
}

// Observation is what came of the tool call of the step before.
type Observation struct {
	ToolCallID string `json:"tool_call_id"`
	Name       string `json:"name"`
	Status     string `json:"status"` // ok or error
	Content    string `json:"content"`
	Truncated  bool   `json:"truncated"`
}

// Encode is the text of the invocation: one JSON object and one LF. TooBig when a
// part or the whole is over its limit.
func (v *Invocation) Encode() ([]byte, error) {
	for name, n := range map[string]int{"history_messages": len(v.History), "tool_context": len(v.ToolContext)} {
		if n > MaxContext {
			return nil, fault.Newf(fault.TooBig, "%s of %d bytes", name, n)
		}
	}
	if o := v.Observation; o != nil && len(o.Content) > MaxContent {
		return nil, fault.Newf(fault.TooBig, "observation of %d bytes", len(o.Content))
	}
	v.Schema = Schema
	b := append(jsonl.Marshal(v), '\n')
	if len(b) > MaxInvocation {
		return nil, fault.Newf(fault.TooBig, "invocation of %d bytes", len(b))
	}
	return b, nil
}

// ParseInvocation reads an invocation as an agent's program does: exactly these
// keys, all of them.
func ParseInvocation(b []byte) (*Invocation, error) {
	bad := func(format string, args ...any) (*Invocation, error) {
		return nil, fault.Newf(fault.Invalid, "invocation: "+format, args...)
	}
	if len(b) > MaxInvocation {
		return bad("%d bytes", len(b))
	}
	line, ok := strings.CutSuffix(string(b), "\n")
	if !ok || strings.ContainsRune(line, '\n') {
		return bad("not one line with its LF")
	}
	o, err := jsonl.Parse([]byte(line))
	if err != nil {
		return bad("%w", err)
	}
	keys := []string{"schema", "run", "step", "input", "history_messages", "tool_context", "observation"}
	for _, k := range keys {
		if _, ok := o.Get(k); !ok {
			return bad("%s is missing", k)
		}
	}
	if len(o) != len(keys) {
		return bad("it has an unknown key")
	}
	var v Invocation
	if err := json.Unmarshal([]byte(line), &v); err != nil {
		return bad("a key has the wrong type")
	}
	switch {
	case v.Schema != Schema:
		return bad("schema is not %s", Schema)
	case !node.IsName(v.Run) || v.Step < 0:
		return bad("bad run or step")
	case (v.Step == 0) != (v.Observation == nil):
		return bad("observation is null on step 0 and only there")
	}
	return &v, nil
}

// stepEnv is what a step's environment has beside the agent's.
func stepEnv(run string, step int) []string {
	return []string{"CTX_RUN_ID=" + run, "CTX_AGENT_LAUNCH=" + Launch, "CTX_AGENT_STEP=" + strconv.Itoa(step), "CTX_CONTROL_SOCKET=" + ControlSocket}
}

// toolEnv is what a tool's environment has beside the agent's.
func toolEnv(run, tool string, native bool) []string {
	mode := "cli"
	if native {
		mode = "native"
	}
	return []string{"CTX_RUN_ID=" + run, "CTX_TOOL=" + tool, "CTX_TOOL_MODE=" + mode}
}

// cutText is the longest beginning of s with at most n bytes that ends between
// two characters.
func cutText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// mark is what stands at the end of a text that was cut.
func mark(kept, of int, more bool) string {
	plus := ""
	if more {
		plus = " or more"
	}
	return fmt.Sprintf("\n[truncated: the first %d of %d bytes%s]", kept, of, plus)
}
