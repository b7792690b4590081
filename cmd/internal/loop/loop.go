// Package loop is what runs inside a sandbox on our behalf: the reference agent
// loop, which is the program of an agent that has none of its own (Main), and the
// reader of rules and skills (PromptFiles).
//
// The loop is an ordinary sdk-envelope-v1 program (spec section 14) and has no
// right that another one would not have. It asks its model over the control
// socket and passes on what it says: the text as frames, a tool call as the last
// one. Each step is a process of its own; what was said in the run before is kept
// in the private /tmp, and nothing depends on it: without that file the model sees
// the last result only.
package loop

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
	"cortexfs/node/run"
)

// limits of what is read.
const (
	maxState  = 4 << 20
	maxFrame  = 1 << 20
	maxSchema = 64 << 10
	maxTools  = 256
)

// Main does one step: the envelope on stdin, frames on stdout. The error is told
// on stderr.
func Main(stdin io.Reader, stdout io.Writer) error {
	text, err := io.ReadAll(io.LimitReader(stdin, run.MaxInvocation+1))
	if err != nil {
		return err
	}
	v, err := run.ParseInvocation(text)
	if err != nil {
		return err
	}
	s := &step{v: v, out: bufio.NewWriter(stdout), messages: recall(v)}
	call, err := s.ask()
	if err != nil {
		return err
	}
	if call != nil {
		s.messages = append(s.messages, model.Message{Role: "assistant", Content: s.said.String(), ToolCalls: []model.ToolCall{*call}})
		remember(v.Run, s.messages)
		s.put(model.Frame{Type: "tool_call", ID: call.ID, Name: call.Name, Arguments: call.Arguments})
	} else {
		_ = os.Remove(statePath(v.Run))
	}
	return s.out.Flush()
}

// step is one step under way.
type step struct {
	v        *run.Invocation
	out      *bufio.Writer
	messages []model.Message
	said     strings.Builder
}

func (s *step) put(f model.Frame) {
	f.Run = s.v.Run
	s.out.Write(append(f.JSON(), '\n'))
	s.out.Flush()
}

// ask makes one model call and passes its frames on. call is what the model wants
// executed, if anything.
func (s *step) ask() (call *model.ToolCall, err error) {
	path := os.Getenv("CTX_CONTROL_SOCKET")
	if path == "" {
		path = run.ControlSocket
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	line := jsonl.Marshal(struct {
		Op       string          `json:"op"`
		Agent    string          `json:"agent"`
		Session  string          `json:"session"`
		Run      string          `json:"run"`
		ID       string          `json:"request_id"`
		Ref      string          `json:"ref"`
		Messages []model.Message `json:"messages"`
		Tools    []model.Tool    `json:"tools,omitempty"`
	}{"model", os.Getenv("CTX_AGENT"), os.Getenv("CTX_SESSION"), s.v.Run, "model-" + strconv.Itoa(s.v.Step), "", s.messages, declared()})
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(conn, 64<<10)
	var failure error
	for {
		line, err := readLine(in)
		if err != nil {
			return nil, fmt.Errorf("control socket: %w", err)
		}
		var f model.Frame
		if err := json.Unmarshal(line, &f); err != nil {
			return nil, errors.New("control socket: an answer that is no frame")
		}
		switch f.Type {
		case "start":
		case "done":
			return call, failure
		case "error":
			failure = fmt.Errorf("%s: %s", f.Code, f.Message)
			if f.Run == "" { // refused: no call was made, no done comes
				return nil, failure
			}
		case "tool_call":
			if call == nil { // one a step; the model asks for the next when it has the result
				call = &model.ToolCall{ID: s.callID(f.ID), Name: f.Name, Arguments: f.Arguments}
			}
		default:
			if f.Type == "message" {
				s.said.WriteString(f.Plain())
			}
			s.put(f)
		}
	}
}

// callID makes the id of a call one that no other step has: models begin anew with
// each answer.
func (s *step) callID(id string) string {
	if mine := fmt.Sprintf("s%d-%s", s.v.Step, id); node.IsName(mine) {
		return mine
	}
	return fmt.Sprintf("s%d", s.v.Step)
}

func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxFrame:
			return nil, errors.New("a line is too long")
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, err
		}
		return line[:len(line)-1], nil
	}
}

// ---- what was said before in the run

func statePath(run string) string { return "/tmp/.cortexfs-loop-" + run + ".json" }

// recall is the conversation of the run up to this step.
func recall(v *run.Invocation) []model.Message {
	first := []model.Message{{Role: "user", Content: v.Input}}
	o := v.Observation
	if o == nil {
		return first
	}
	result := model.Message{Role: "tool", ToolCallID: o.ToolCallID, Name: o.Name, Content: o.Content}
	var before []model.Message
	if b, err := readPlain(statePath(v.Run), maxState); err == nil && json.Unmarshal(b, &before) == nil && len(before) > 0 {
		return append(before, result)
	}
	return append(first, model.Message{Role: "assistant", ToolCalls: []model.ToolCall{{ID: o.ToolCallID, Name: o.Name, Arguments: json.RawMessage("{}")}}}, result)
}

func remember(run string, messages []model.Message) {
	b := jsonl.Marshal(messages)
	if len(b) > maxState {
		return
	}
	_ = os.Remove(statePath(run))
	f, err := os.OpenFile(statePath(run), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.Write(b)
}

// readPlain reads a regular file that is no link.
func readPlain(p string, max int64) ([]byte, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return io.ReadAll(io.LimitReader(f, max))
}

// ---- tools

// declared are the tools that the agent declares and sees, with their schemas.
func declared() []model.Tool {
	text, err := readPlain(filepath.Join(node.Root, "agent", os.Getenv("CTX_AGENT")+".d", "tools"), maxSchema)
	if err != nil {
		return nil
	}
	search := os.Getenv("CTX_PATH")
	if search == "" {
		search = node.Root + "/tool:" + os.Getenv("CTX_HOME") + "/tool"
	}
	var tools []model.Tool
	for name := range strings.Lines(string(text)) {
		name = strings.TrimSpace(name)
		if !node.IsName(name) || len(tools) == maxTools {
			continue
		}
		for _, dir := range filepath.SplitList(search) {
			if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
				continue
			}
			t := model.Tool{Name: name}
			if b, err := readPlain(filepath.Join(dir, name+".d", "description"), maxSchema); err == nil {
				t.Description = strings.TrimSpace(string(b))
			}
			if b, err := readPlain(filepath.Join(dir, name+".d", "schema"), maxSchema); err == nil && json.Valid(b) {
				t.Schema = b
			}
			tools = append(tools, t)
			break
		}
	}
	return tools
}
