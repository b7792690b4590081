package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// talk is a connection to an agent's socket.
type talk struct {
	conn *net.UnixConn
	in   *bufio.Reader
}

// maxTalk bounds one frame of an agent, in bytes.
const maxTalk = 4 << 20

// reached is an agent that a person wants to talk to.
type reached struct {
	t  *tree
	st ctlproto.Described
}

// reach finds an agent; it need not run.
func (s *State) reach(name string) (*reached, error) {
	r := &reached{}
	var err error
	r.t, err = s.ask(&ctlproto.Status{Agent: name}, &r.st, nil)
	if err == nil && r.st.Hidden {
		err = fault.E("agent", r.st.Ref, fault.Access, errors.New("only its owner and root may do that"))
	}
	return r, err
}

// dial connects to the agent's socket and checks who listens there before a byte
// is sent: root, the daemon of the tree, or the caller. A dead agent is not
// started: Unavailable, with the command that would.
func (s *State) dial(r *reached) (*talk, error) {
	link := r.t.path(r.st.Ref + ".sock")
	target, err := os.Readlink(link)
	if errors.Is(err, os.ErrNotExist) {
		return nil, unavailable("%s does not run; start it: ctx agent start %s", r.st.Ref, r.st.Name)
	}
	if err != nil {
		return nil, fault.FromOS("read", link, err)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: target, Net: "unix"})
	if err != nil {
		return nil, unavailable("%s does not answer: %v", r.st.Ref, err)
	}
	cred, err := ctlproto.PeerCred(conn)
	if err == nil && cred.Uid != 0 && cred.Uid != r.t.owner && cred.Uid != s.UID {
		err = fault.E("connect", target, fault.Access, fmt.Errorf("the server there runs as uid %d", cred.Uid))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &talk{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}, nil
}

func (c *talk) close() { c.conn.Close() }

func (c *talk) write(v any) error {
	_, err := c.conn.Write(append(jsonl.Marshal(v), '\n'))
	if err != nil {
		return fault.Newf(fault.Unavailable, "the agent closed the connection: %w", err)
	}
	return nil
}

// frame is one of an agent's frames as a client needs it.
type frame struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Run       string          `json:"run"`
	Agent     string          `json:"agent"`
	Text      string          `json:"text"`
	Role      string          `json:"role"`
	Name      string          `json:"name"`
	Status    string          `json:"status"`
	Decision  string          `json:"decision"`
	Reason    string          `json:"reason"`
	Code      string          `json:"code"`
	Message   string          `json:"message"`
	Detail    string          `json:"detail"`
	Last      string          `json:"last"`
	Expires   string          `json:"expires"`
	Args      []string        `json:"args"`
	Arguments json.RawMessage `json:"arguments"`
	Content   json.RawMessage `json:"content"`
	line      []byte
}

// read is the next frame; io.EOF when the agent has closed.
func (c *talk) read() (*frame, error) {
	var line []byte
	for {
		part, err := c.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxTalk:
			return nil, fault.Newf(fault.IO, "a frame of over %d bytes", maxTalk)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, io.EOF
		}
		break
	}
	f := &frame{line: line}
	if err := json.Unmarshal(line, f); err != nil {
		return nil, fault.Newf(fault.IO, "the agent's answer is no frame")
	}
	return f, nil
}

// failure is an error frame as an error with its exit code.
func (f *frame) failure() error {
	exit := ctlproto.ExitError
	switch f.Code {
	case "EINVAL", "EMSGSIZE", "EFBIG":
		exit = ctlproto.ExitUsage
	case "EACCES", "EPERM":
		exit = ctlproto.ExitPolicy
	case "EHOSTDOWN", "ECONNREFUSED":
		exit = ctlproto.ExitUnavailable
	}
	text := f.Message
	if f.Detail != "" {
		text += ": " + f.Detail
	}
	return &ctlproto.RemoteError{Code: f.Code, Message: f.Code + ": " + text, Exit: exit}
}

// plainText is the text of a content: of its parts, and of results in them.
func plainText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct{ Text, Content string }
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var all []string
	for _, p := range parts {
		all = append(all, p.Text+p.Content)
	}
	return strings.Join(all, "\n")
}

// request is what is sent.
type sending struct {
	Op        string `json:"op"`
	ID        string `json:"id,omitempty"`
	Session   string `json:"session,omitempty"`
	Scope     string `json:"scope,omitempty"`
	Cwd       string `json:"cwd,omitempty"`
	Workspace string `json:"workspace,omitempty"`
	Input     string `json:"input"`
}

// printer shows the frames of a run to a person, or as they are with -o json.
type printer struct {
	s        *State
	streamed strings.Builder // deltas since the last message
}

func (p *printer) out(text string) {
	if isTerminal(p.s.Out) {
		text = node.EscapeLines(text)
	}
	io.WriteString(p.s.Out, text)
}

// show prints a frame.
func (p *printer) show(f *frame) {
	if p.s.json {
		p.s.Out.Write(f.line)
		return
	}
	switch f.Type {
	case "delta":
		p.streamed.WriteString(f.Text)
		p.out(f.Text)
	case "message":
		text := plainText(f.Content)
		if f.Role == "tool" {
			if strings.HasPrefix(text, "ERROR: ") {
				first, _, _ := strings.Cut(text, "\n")
				p.s.note("%s: %s", f.Name, first)
			}
			return
		}
		if p.streamed.Len() > 0 && p.streamed.String() == text {
			text = ""
		}
		p.streamed.Reset()
		p.out(text + "\n")
	case "tool_call":
		p.s.note("calls %s %s", f.Name, f.Arguments)
	case "approval_result":
		p.s.note("%s: %s (%s)", f.Name, f.Decision, f.Reason)
	}
}

// deciding says whether a call may be executed, once.
type deciding func(f *frame) bool

// send gives the agent a task and shows what comes of it. Without decide the
// connection answers no questions. cancel, when it closes, cancels the run.
func (s *State) send(r *reached, q *sending, decide deciding, cancel <-chan os.Signal) error {
	c, err := s.dial(r)
	if err != nil {
		return err
	}
	defer c.close()
	q.Op = "send"
	if err := c.write(q); err != nil {
		return err
	}
	if decide == nil {
		_ = c.conn.CloseWrite()
	}
	p := &printer{s: s}
	var failure error
	started := make(chan string, 1)
	ended := make(chan struct{})
	defer close(ended)
	go s.cancelOn(r, cancel, started, ended)
	for {
		f, err := c.read()
		if errors.Is(err, io.EOF) {
			return unavailable("%s closed the connection before the end; the run may go on: ctx agent resume %s", r.st.Ref, r.st.Name)
		}
		if err != nil {
			return err
		}
		p.show(f)
		switch f.Type {
		case "start":
			select {
			case started <- f.Run:
			default:
			}
		case "approval_request":
			if decide == nil {
				continue
			}
			answer := "deny"
			if decide(f) {
				answer = "allow_once"
			}
			if err := c.write(map[string]string{"op": "approve", "run": f.Run, "id": f.ID, "decision": answer}); err != nil {
				return err
			}
		case "error":
			if f.Run == "" {
				return f.failure()
			}
			failure = f.failure()
		case "done":
			switch {
			case f.Status == "cancelled":
				s.note("cancelled")
				return exitError(ctlproto.ExitCancelled)
			case failure != nil:
				return failure
			case f.Status != "ok":
				return fault.Newf(fault.IO, "the run ended with %s", f.Status)
			}
			return nil
		}
	}
}

// cancelOn turns the first interrupt into a cancel of the run and leaves at the
// second.
func (s *State) cancelOn(r *reached, signals <-chan os.Signal, started <-chan string, ended <-chan struct{}) {
	run := ""
	for n := 0; ; {
		select {
		case run = <-started:
		case <-signals:
			if n++; n > 1 || run == "" {
				os.Exit(ctlproto.ExitCancelled)
			}
			go s.cancel(r, run)
		case <-ended:
			return
		}
	}
}

func (s *State) cancel(r *reached, run string) (*frame, error) {
	c, err := s.dial(r)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := c.write(map[string]string{"op": "cancel", "id": run}); err != nil {
		return nil, err
	}
	f, err := c.read()
	if err == nil && f.Type == "error" {
		err = f.failure()
	}
	return f, err
}

// sessionFile reads a file of a session of the agent.
func (r *reached) sessionFile(session, name string) ([]byte, error) {
	if err := node.CheckName(session); err != nil {
		return nil, usagef("%q is no session name", session)
	}
	rel := path.Join("home", strconv.FormatUint(uint64(r.st.Owner), 10), "agent", r.st.Name, "session", session, name)
	f, err := r.t.open(rel, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	return b, fault.FromOS("read", rel, err)
}

// AgentMain is what executing agent/NAME of a tree does: it gives the agent a
// task, from the arguments or standard input. exe is the path of the program; ok
// is false when that is no agent of a tree.
func AgentMain(exe string, args []string) (code int, ok bool) {
	dir := filepath.Dir(exe)
	if filepath.Base(dir) != "agent" || !node.IsName(filepath.Base(exe)) {
		return 0, false
	}
	root, name := filepath.Dir(dir), "agent/"+filepath.Base(exe)
	if rest, uid := filepath.Dir(root), filepath.Base(root); filepath.Base(rest) == "home" {
		root, name = filepath.Dir(rest), path.Join("home", uid, name)
	}
	if _, err := openTree(root); err != nil {
		return 0, false
	}
	getenv := func(key string) string {
		if key == "CTX_ROOT" {
			return root
		}
		return os.Getenv(key)
	}
	s := &State{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: getenv, UID: uint32(os.Getuid()), Cwd: os.Getwd}
	argv := []string{"agent", "send", name}
	if len(args) > 0 {
		argv = append(append(argv, "--"), args...)
	}
	return Run(s, argv), true
}
