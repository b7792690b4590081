package cli

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

// maxTask bounds a task, in bytes: a frame of the agent's socket has to hold it.
const maxTask = 1<<20 - 4096

func interrupts() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 2)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	return c, func() { signal.Stop(c) }
}

func messageID() string {
	var b [12]byte
	rand.Read(b[:]) // never fails
	return "m-" + hex.EncodeToString(b[:])
}

func agentSendCmd(s *State) *cobra.Command {
	var q sending
	var approve []string
	c := &cobra.Command{
		Use:   "send NAME [TASK]...",
		Short: "give an agent a task and print its answer",
		Long: "Give a running agent a task: the words, or without any what comes on standard input. The answer is printed as\n" +
			"it comes; with -o json every frame. An interrupt cancels the run, a second one leaves it. The same --id with the\n" +
			"same task prints the stored answer and runs nothing. --approve TOOL answers yes to questions about that tool,\n" +
			"and no to all others; without it this command answers none.",
		Example: "  ctx agent send coder \"what does main.go do?\"\n  ctx agent send coder --approve fs.write --approve fs.replace < task.md",
		Args:    argsN(1, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := s.reach(args[0])
			if err != nil {
				return err
			}
			if q.Input, err = s.task(args[1:]); err != nil {
				return err
			}
			if q.ID == "" {
				q.ID = messageID()
			}
			var decide deciding
			if len(approve) > 0 {
				decide = func(f *frame) bool { return slices.Contains(approve, f.Name) }
			}
			stop, done := interrupts()
			defer done()
			return s.send(r, &q, decide, stop)
		},
	}
	f := c.Flags()
	f.StringVar(&q.Session, "session", "", "session name (default: default)")
	f.StringVar(&q.Scope, "scope", "", "private, shared or temp (default: private)")
	f.StringVar(&q.Cwd, "cwd", "", "directory inside (default: the agent's)")
	f.StringVar(&q.ID, "id", "", "the message's id (default: a new one)")
	f.StringArrayVar(&approve, "approve", nil, "TOOL whose calls are approved; repeatable")
	return c
}

// task is what the agent is to do.
func (s *State) task(words []string) (string, error) {
	text := strings.Join(words, " ")
	if len(words) == 0 {
		b, err := io.ReadAll(io.LimitReader(s.In, maxTask+1))
		if err != nil {
			return "", fault.FromOS("read", "standard input", err)
		}
		text = string(b)
	}
	switch {
	case len(text) > maxTask:
		return "", usagef("a task has at most %d bytes", maxTask)
	case strings.TrimSpace(text) == "":
		return "", usagef("there is no task: words, or a text on standard input")
	}
	return text, nil
}

func agentChatCmd(s *State) *cobra.Command {
	var session string
	c := &cobra.Command{
		Use:   "chat NAME",
		Short: "talk with an agent, one line at a time",
		Long: "Give an agent one task after another: each line is one. Where the agent asks for approvals, the question is\n" +
			"printed with every argument on a line of its own, and y allows that one call. An empty line or end of file leaves.",
		Example: "  ctx agent chat coder\n  ctx agent chat coder --session refactoring",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := s.reach(args[0])
			if err != nil {
				return err
			}
			in := bufio.NewReader(s.In)
			for {
				fmt.Fprintf(s.Err, "%s> ", node.Escape(r.st.Name))
				line, err := in.ReadString('\n')
				if line = strings.TrimSpace(line); line == "" {
					return nil
				}
				stop, done := interrupts()
				serr := s.send(r, &sending{ID: messageID(), Session: session, Input: line}, func(f *frame) bool { return s.question(in, f) }, stop)
				done()
				var code exitError
				if serr != nil && !errors.As(serr, &code) {
					s.fail("error", "", serr, 0)
				}
				if err != nil {
					return serr
				}
			}
		},
	}
	c.Flags().StringVar(&session, "session", "", "session name (default: default)")
	return c
}

// question asks about one call. Only a clear yes allows it.
func (s *State) question(in *bufio.Reader, f *frame) bool {
	who := ""
	if f.Agent != "" {
		who = f.Agent + ": "
	}
	fmt.Fprintf(s.Err, "%s%s wants to run, once:\n", node.Escape(who), node.Escape(f.Name))
	for _, a := range f.Args {
		fmt.Fprintf(s.Err, "  %s\n", node.Escape(a))
	}
	fmt.Fprintf(s.Err, "allow? [y/N] ")
	line, _ := in.ReadString('\n')
	return slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(line)))
}

func agentResumeCmd(s *State) *cobra.Command {
	var session, after string
	var follow bool
	c := &cobra.Command{
		Use:     "resume NAME",
		Short:   "print the events of a session",
		Long:    "Print the stored events of a session, one JSON object a line; after an event's id only what is newer. -f goes on\nwith what comes, until interrupted.",
		Example: "  ctx agent resume coder\n  ctx agent resume coder --session s1 --after 01J0000000000000000000000 -f",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := s.reach(args[0])
			if err != nil {
				return err
			}
			c, err := s.dial(r)
			if err != nil {
				return err
			}
			defer c.close()
			if err := c.write(map[string]any{"op": "resume", "session": session, "after": after, "follow": follow}); err != nil {
				return err
			}
			for {
				f, err := c.read()
				switch {
				case errors.Is(err, io.EOF):
					return unavailable("%s closed the connection", r.st.Ref)
				case err != nil:
					return err
				case f.Type == "end":
					return nil
				case f.Type == "error" && f.ID == "" && f.Run == "":
					return f.failure()
				}
				if _, err := s.Out.Write(f.line); err != nil {
					return err
				}
			}
		},
	}
	c.Flags().StringVar(&session, "session", "default", "session name")
	c.Flags().StringVar(&after, "after", "", "id of an event")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes")
	return c
}

func agentCancelCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "cancel NAME RUN",
		Short:   "cancel a run",
		Long:    "Cancel a run of an agent, whatever session it is in, and wait for its end. Its processes get SIGTERM and two seconds.",
		Example: "  ctx agent cancel coder ctx-0123456789abcdef0123456789abcdef",
		Args:    argsN(2, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := s.reach(args[0])
			if err != nil {
				return err
			}
			f, err := s.cancel(r, args[1])
			if err != nil {
				return err
			}
			return s.print(map[string]string{"run": args[1], "status": f.Status}, func(w io.Writer) {
				fmt.Fprintf(w, "%s: %s\n", node.Escape(args[1]), node.Escape(f.Status))
			})
		},
	}
}

func agentHistoryCmd(s *State) *cobra.Command {
	var session string
	c := &cobra.Command{
		Use:     "history NAME",
		Short:   "print the messages of a session",
		Long:    "Print what was said in a session, oldest first. -o json prints messages.jsonl as it is. The agent need not run.",
		Example: "  ctx agent history coder\n  ctx agent history coder --session refactoring",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := s.reach(args[0])
			if err != nil {
				return err
			}
			text, err := r.sessionFile(session, "messages.jsonl")
			if err != nil {
				return err
			}
			if s.json {
				_, err = s.Out.Write(text)
				return err
			}
			for line := range strings.Lines(string(text)) {
				var m frame
				if json.Unmarshal([]byte(line), &m) != nil {
					continue
				}
				who := m.Role
				if m.Name != "" {
					who += " " + m.Name
				}
				body := strings.ReplaceAll(strings.TrimRight(node.EscapeLines(plainText(m.Content)), "\n"), "\n", "\n  ")
				fmt.Fprintf(s.Out, "%s: %s\n", node.Escape(who), body)
			}
			return nil
		},
	}
	c.Flags().StringVar(&session, "session", "default", "session name")
	return c
}

func agentOutputCmd(s *State) *cobra.Command {
	var session string
	c := &cobra.Command{
		Use:     "output NAME",
		Short:   "print the last answer of a session",
		Long:    "Print latest.md of a session: the agent's last answer. The agent need not run.",
		Example: "  ctx agent output coder\n  ctx agent output coder --session refactoring",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := s.reach(args[0])
			if err != nil {
				return err
			}
			text, err := r.sessionFile(session, "latest.md")
			if err != nil {
				return err
			}
			if isTerminal(s.Out) {
				text = []byte(node.EscapeLines(string(text)))
			}
			_, err = s.Out.Write(text)
			return err
		},
	}
	c.Flags().StringVar(&session, "session", "default", "session name")
	return c
}

// settleTime is how long the questions of now take to arrive.
const settleTime = 500 * time.Millisecond

func approvalsCmd(s *State) *cobra.Command {
	var command string
	var list bool
	c := &cobra.Command{
		Use:   "approvals",
		Short: "answer the questions of all your agents",
		Long: "Wait for questions of your running agents and answer them: each is printed with every argument on a line of its\n" +
			"own, and y allows that one call. With --exec the command gets the question as one JSON line on standard input,\n" +
			"and its exit code 0 allows. --list prints what is pending and answers nothing. Agents that start later are not heard.",
		Example: "  ctx approvals\n  ctx approvals --list\n  ctx approvals --exec ./may-it",
		Args:    argsN(0, 0),
		RunE: func(_ *cobra.Command, _ []string) error {
			stop, done := interrupts()
			defer done()
			return s.approvals(command, list, stop)
		},
	}
	c.Flags().StringVar(&command, "exec", "", "program that decides")
	c.Flags().BoolVar(&list, "list", false, "print what is pending and end")
	return c
}

// asked is a question of one agent.
type asked struct {
	c *talk
	f *frame
}

func (s *State) approvals(command string, list bool, stop <-chan os.Signal) error {
	var all []ctlproto.PSItem
	if _, err := s.ask(&ctlproto.PS{}, nil, collect(&all)); err != nil {
		return err
	}
	questions := make(chan asked)
	over := make(chan struct{})
	defer close(over)
	var readers sync.WaitGroup
	n := 0
	for _, one := range all {
		if one.Hidden || one.PID == 0 {
			continue
		}
		r, err := s.reach(one.Ref)
		if err != nil {
			return err
		}
		c, err := s.dial(r)
		if err != nil {
			continue // ended meanwhile
		}
		defer c.close()
		if err := c.write(map[string]string{"op": "handle"}); err != nil {
			continue
		}
		n++
		readers.Go(func() { c.questions(r.st.Ref, questions, over) })
	}
	if n == 0 {
		return unavailable("none of your agents runs")
	}
	gone := make(chan struct{})
	go func() { readers.Wait(); close(gone) }()
	var enough <-chan time.Time
	if list {
		enough = time.After(settleTime)
	}
	in := bufio.NewReader(s.In)
	for {
		select {
		case q := <-questions:
			if list {
				s.listed(q.f)
				continue
			}
			answer := "deny"
			if s.decide(in, command, q.f) {
				answer = "allow_once"
			}
			if err := q.c.write(map[string]string{"op": "approve", "run": q.f.Run, "id": q.f.ID, "decision": answer}); err != nil {
				s.note("%v", err)
			}
		case <-enough:
			return nil
		case <-stop:
			return nil
		case <-gone:
			return nil
		}
	}
}

// questions passes the questions of one agent on.
func (c *talk) questions(ref string, to chan<- asked, over <-chan struct{}) {
	for {
		f, err := c.read()
		if err != nil {
			return
		}
		if f.Type != "approval_request" {
			continue
		}
		if f.Agent == "" {
			f.Agent = ref
		}
		select {
		case to <- asked{c, f}:
		case <-over:
			return
		}
	}
}

func (s *State) listed(f *frame) {
	if s.json {
		s.Out.Write(f.line)
		return
	}
	fmt.Fprintf(s.Out, "%s\t%s\t%s\t%s\texpires %s\n", node.Escape(f.Agent), node.Escape(f.Run), node.Escape(f.ID), node.Escape(f.Name), node.Escape(f.Expires))
	for _, a := range f.Args {
		fmt.Fprintf(s.Out, "  %s\n", node.Escape(a))
	}
}

func (s *State) decide(in *bufio.Reader, command string, f *frame) bool {
	if command == "" {
		return s.question(in, f)
	}
	cmd := exec.Command(command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(f.line)), s.Err, s.Err
	return cmd.Run() == nil
}
