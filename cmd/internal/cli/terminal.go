package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/sandbox/term"
)

func agentWatchCmd(s *State) *cobra.Command {
	var raw bool
	var session string
	var once bool
	c := &cobra.Command{
		Use:   "watch NAME",
		Short: "look at an agent's terminal",
		Long: "Look at an agent's terminal. Nothing that you type reaches the agent: the serving side reads nothing.\n" +
			"Ctrl-\\ Ctrl-d or an interrupt leaves. --once prints the screen of now and ends.",
		Example: "  ctx agent watch coder\n  ctx agent watch coder --once",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			return s.terminal(&ctlproto.Watch{Agent: args[0], Session: session}, term.ClientOptions{Raw: raw}, once)
		},
	}
	c.Flags().StringVar(&session, "session", "", "session name")
	c.Flags().BoolVar(&raw, "raw", false, "pass everything through, also what can question your terminal")
	c.Flags().BoolVar(&once, "once", false, "print the current screen and end")
	return c
}

func agentAttachCmd(s *State) *cobra.Command {
	var raw bool
	var session, keys string
	c := &cobra.Command{
		Use:     "attach NAME",
		Short:   "type into an agent's terminal",
		Long:    "Join an agent's terminal, to read and write. Ctrl-\\ Ctrl-d detaches; the agent goes on.",
		Example: "  ctx agent attach coder\n  ctx agent attach coder --detach-keys ctrl-a,d",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			o := term.ClientOptions{Attach: true, Raw: raw}
			if keys != "" {
				k, err := term.ParseKeys(keys)
				if err != nil {
					return usageError{err}
				}
				o.Detach = k
			}
			return s.terminal(&ctlproto.Attach{Agent: args[0], Session: session}, o, false)
		},
	}
	c.Flags().StringVar(&session, "session", "", "session name")
	c.Flags().StringVar(&keys, "detach-keys", "", `keys that detach (default ctrl-\,ctrl-d)`)
	c.Flags().BoolVar(&raw, "raw", false, "pass everything through, also what can question your terminal")
	return c
}

// onceTime is how long `watch --once` collects the screen: it arrives in the
// first frames, at once.
const onceTime = 300 * time.Millisecond

// terminal asks the daemon for the socket and joins it.
func (s *State) terminal(q ctlproto.Request, o term.ClientOptions, once bool) error {
	var at ctlproto.Terminal
	if _, err := s.ask(q, &at, nil); err != nil {
		return err
	}
	in, _ := s.In.(*os.File)
	out, ok := s.Out.(*os.File)
	if !ok {
		return fault.Newf(fault.IO, "the terminal needs a file to print to")
	}
	o.Out = out
	if !once {
		o.In = in
	}
	o.Notice = func(text string) { fmt.Fprintln(s.Err, node.Escape(text)) }
	o.Server = func(uid uint32) bool { return uid == 0 || uid == s.UID || uid == at.Server }
	ctx := context.Background()
	if once {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, onceTime)
		defer cancel()
	}
	end, err := term.Run(ctx, at.Path, o)
	if err != nil {
		return err
	}
	if end.Detached && !once {
		o.Notice("detached; the agent goes on")
	}
	return nil
}

func agentExecCmd(s *State) *cobra.Command {
	var cwd string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "exec NAME -- CMD [ARG]...",
		Short: "run a command in an agent's sandbox, as the agent",
		Long: "Run a command in a running agent's sandbox, with its ids, environment and view. Output comes when the\n" +
			"command has ended, at most 64 KiB of each stream. The exit code is the command's.",
		Example: "  ctx agent exec coder -- ls -l /ctx/tool\n  ctx agent exec coder -- /ctx/tool/fs.list /workspace",
		Args:    argsN(2, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			return s.exec(&ctlproto.Exec{Agent: args[0], Argv: args[1:], CWD: cwd, TimeoutMS: timeout.Milliseconds()})
		},
	}
	c.Flags().StringVar(&cwd, "cwd", "", "directory inside")
	c.Flags().DurationVar(&timeout, "timeout", 0, "limit (default 120s, at most 600s)")
	return c
}

func (s *State) exec(q *ctlproto.Exec) error {
	var end ctlproto.Exited
	var stdout, stderr []byte
	_, err := s.ask(q, &end, func(f *ctlproto.Frame) error {
		if f.Type != "output" {
			return nil
		}
		if s.json {
			if f.Stream == "stderr" {
				stderr = append(stderr, f.Bytes...)
			} else {
				stdout = append(stdout, f.Bytes...)
			}
			return nil
		}
		w := s.Out
		if f.Stream == "stderr" {
			w = s.Err
		}
		b := f.Bytes
		if isTerminal(w) {
			b = []byte(node.EscapeLines(string(b)))
		}
		_, err := w.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	switch {
	case s.json:
		err = json.NewEncoder(s.Out).Encode(struct {
			ctlproto.Exited
			Stdout []byte `json:"stdout"`
			Stderr []byte `json:"stderr"`
		}{end, stdout, stderr})
	case end.Errno != "":
		s.note("%s: %s", q.Argv[0], end.Errno)
	case end.TimedOut:
		s.note("stopped: its time ran out")
	}
	if end.Truncated {
		s.note("output was cut at 64 KiB")
	}
	if err != nil {
		return err
	}
	if code := exitOfExec(end); code != 0 {
		return exitError(code)
	}
	return nil
}

// exitOfExec is the command's own code; one that could not be started exits as
// a shell would say it where section 23 has no word.
func exitOfExec(e ctlproto.Exited) int {
	switch {
	case e.Errno == "ENOENT":
		return 127
	case e.Errno == "EACCES" || e.Errno == "EPERM":
		return ctlproto.ExitPolicy
	case e.Errno != "":
		return 126
	case e.TimedOut:
		return ctlproto.ExitUnavailable
	}
	return e.Code & 0xff
}
