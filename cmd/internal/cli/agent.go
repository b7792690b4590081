package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

func agentCmd(s *State) *cobra.Command {
	return group("agent", "agents: make, start, look at, ask why",
		"Work with agents. NAME is looked up in your own home first, then among the system's agents; agent/NAME\n"+
			"names the system's. Only an agent's owner and root may start, stop, watch or attach to it.",
		"  ctx agent new helper --tool fs.read\n  ctx agent start coder\n  ctx agent watch coder\n  ctx agent why coder shell.exec",
		agentNewCmd(s), agentRmCmd(s), agentStartCmd(s), agentStopCmd(s), agentRestartCmd(s),
		agentStatusCmd(s), agentPSCmd(s), agentTopCmd(s), agentEnvCmd(s), agentViewCmd(s), agentWhyCmd(s), agentLogCmd(s),
		agentWatchCmd(s), agentAttachCmd(s), agentExecCmd(s), agentWaitCmd(s), agentChildrenCmd(s), agentGrantCmd(s),
		agentSendCmd(s), agentChatCmd(s), agentResumeCmd(s), agentCancelCmd(s), agentHistoryCmd(s), agentOutputCmd(s))
}

func agentStartCmd(s *State) *cobra.Command {
	var q ctlproto.Start
	var cwd string
	c := &cobra.Command{
		Use:   "start NAME [--session S] [--cwd DIR] [--mount SRC TGT ro|rw]... [--no-default-workspace] [--git rw] [--dry-run]",
		Short: "start an agent in its sandbox",
		Long: "Start an agent in its sandbox. The current directory becomes its /workspace, writable, unless --cwd names\n" +
			"another, --no-default-workspace is given, or the agent's table has a /workspace line. .git directories of\n" +
			"writable sources are read-only unless --git rw is given. Starting an agent that runs joins it.",
		Example: "  ctx agent start coder\n  ctx agent start coder --cwd ~/src/thing --mount ~/notes /notes ro\n" +
			"  ctx agent start coder --dry-run",
	}
	f := c.Flags()
	f.StringVar(&q.Session, "session", "", "session name (default: default)")
	f.StringVar(&cwd, "cwd", "", "directory to hand over as /workspace instead of the current one")
	f.BoolVar(&q.NoWorkspace, "no-default-workspace", false, "an empty /workspace")
	f.StringVar(&q.Git, "git", "", "rw leaves .git writable")
	f.BoolVar(&q.AllowHome, "allow-home", false, "read-only lines may be a home directory")
	f.BoolVar(&q.DryRun, "dry-run", false, "print what would be done")
	// --mount takes three words, which no flag library knows: its two later words
	// arrive as arguments in order.
	var sources []string
	f.StringArrayVar(&sources, "mount", nil, "SRC TGT ro|rw: one more mount, three words")
	c.RunE = func(_ *cobra.Command, args []string) error {
		name, mounts, err := splitMounts(args, sources)
		if err != nil {
			return err
		}
		q.Agent, q.Mounts = name, mounts
		if q.Git != "" && q.Git != "rw" {
			return usagef("--git takes rw")
		}
		if q.CWD, err = s.workspace(cwd, q.NoWorkspace); err != nil {
			return err
		}
		return s.start(&q)
	}
	return c
}

// rewriteMounts turns `--mount SRC TGT MODE` into `--mount SRC --mount TGT
// --mount MODE`, before flags are parsed, so that the words stay together.
func rewriteMounts(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(out, args[i:]...)
		}
		if args[i] != "--mount" || i+3 >= len(args) {
			out = append(out, args[i])
			continue
		}
		for _, w := range args[i+1 : i+4] {
			out = append(out, "--mount", w)
		}
		i += 3
	}
	return out
}

// splitMounts groups the words of --mount by three.
func splitMounts(args, words []string) (name string, mounts [][]string, err error) {
	if len(args) != 1 {
		return "", nil, usagef("start takes one agent; --mount takes three words: SRC TGT ro|rw")
	}
	if len(words)%3 != 0 {
		return "", nil, usagef("--mount takes three words: SRC TGT ro|rw")
	}
	for i := 0; i < len(words); i += 3 {
		src, tgt, mode := words[i], words[i+1], words[i+2]
		if mode != "ro" && mode != "rw" {
			return "", nil, usagef("--mount %s %s %s: the mode is ro or rw", src, tgt, mode)
		}
		if src, err = filepath.Abs(src); err != nil {
			return "", nil, err
		}
		mounts = append(mounts, []string{src, tgt, mode})
	}
	return args[0], mounts, nil
}

// workspace is the host directory to hand over, as a path: descriptors are not
// taken by the daemon.
func (s *State) workspace(cwd string, none bool) (string, error) {
	if none {
		if cwd != "" {
			return "", usagef("--cwd and --no-default-workspace exclude each other")
		}
		return "", nil
	}
	dir, err := s.Cwd()
	if err != nil {
		return "", fault.Newf(fault.NotExist, "the current directory is gone; use --cwd or --no-default-workspace")
	}
	if cwd == "" {
		return dir, nil
	}
	if filepath.IsAbs(cwd) {
		return filepath.Clean(cwd), nil
	}
	return filepath.Join(dir, cwd), nil
}

func (s *State) start(q *ctlproto.Start) error {
	var st ctlproto.Started
	t, err := s.ask(q, &st, nil)
	if err != nil {
		return err
	}
	return s.print(st, func(w io.Writer) {
		if st.Plan != nil {
			formatDryRun(w, *st.Plan)
			return
		}
		formatStarted(w, t.root, st)
	})
}

func agentStopCmd(s *State) *cobra.Command {
	var grace time.Duration
	c := &cobra.Command{
		Use:     "stop NAME [--grace D]",
		Short:   "stop an agent",
		Long:    "Stop an agent: SIGTERM to every process inside, a grace of 1 s, then SIGKILL. A dead agent stays dead (exit 0).",
		Example: "  ctx agent stop coder\n  ctx agent stop coder --grace 10s",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			var st ctlproto.Stopped
			if _, err := s.ask(&ctlproto.Stop{Agent: args[0], GraceMS: int(grace.Milliseconds())}, &st, nil); err != nil {
				return err
			}
			return s.print(st, func(w io.Writer) {
				if st.Was == string(node.Dead) {
					fmt.Fprintf(w, "%s: was not running\n", node.Escape(st.Ref))
					return
				}
				fmt.Fprintf(w, "%s: stopped\n", node.Escape(st.Ref))
			})
		},
	}
	c.Flags().DurationVar(&grace, "grace", 0, "time between SIGTERM and SIGKILL (default 1s)")
	return c
}

func agentRestartCmd(s *State) *cobra.Command {
	var grace time.Duration
	c := &cobra.Command{
		Use:     "restart NAME [--grace D]",
		Short:   "stop an agent and start it where it ran",
		Long:    "Stop an agent and start it again with the session, workspace and mounts that it ran with.",
		Example: "  ctx agent restart coder",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			var st ctlproto.Started
			t, err := s.ask(&ctlproto.Restart{Agent: args[0], GraceMS: int(grace.Milliseconds())}, &st, nil)
			if err != nil {
				return err
			}
			return s.print(st, func(w io.Writer) { formatStarted(w, t.root, st) })
		},
	}
	c.Flags().DurationVar(&grace, "grace", 0, "time between SIGTERM and SIGKILL (default 1s)")
	return c
}

func agentStatusCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "status NAME",
		Short:   "state and facts of an agent",
		Long:    "Print the agent's state, then its facts one a line: - for what is absent. restart= names controls that were changed since the start.",
		Example: "  ctx agent status coder\n  ctx agent status coder | head -1",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			var st ctlproto.Described
			if _, err := s.ask(&ctlproto.Status{Agent: args[0]}, &st, nil); err != nil {
				return err
			}
			return s.print(st, func(w io.Writer) { formatStatus(w, st) })
		},
	}
}

func agentPSCmd(s *State) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "ps",
		Short:   "the forest of agents",
		Long:    "List the agents that you may know of, children below their parents.",
		Example: "  ctx agent ps\n  ctx agent ps -o json",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			list := []ctlproto.PSItem{}
			if _, err := s.ask(&ctlproto.PS{All: all}, nil, collect(&list)); err != nil {
				return err
			}
			return s.print(list, func(w io.Writer) { formatPS(w, list) })
		},
	}
	c.Flags().BoolVarP(&all, "all", "a", false, "root: agents of every user's home too")
	return c
}

func agentEnvCmd(s *State) *cobra.Command {
	var session string
	c := &cobra.Command{
		Use:     "env NAME",
		Short:   "the environment of an agent",
		Long:    "Print the whole environment that the agent's processes start with; nothing else reaches them.",
		Example: "  ctx agent env coder",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			list := []ctlproto.EnvItem{}
			if _, err := s.ask(&ctlproto.Env{Agent: args[0], Session: session}, nil, collect(&list)); err != nil {
				return err
			}
			return s.print(list, func(w io.Writer) {
				for _, e := range list {
					fmt.Fprintf(w, "%s=%s\n", node.Escape(e.Key), node.Escape(e.Value))
				}
			})
		},
	}
	c.Flags().StringVar(&session, "session", "", "session name (default: the running one's, else default)")
	return c
}

func agentViewCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "view NAME",
		Short:   "what an agent sees",
		Long:    "List what the agent sees now: the tools that pass every rule, and its mounts. The same as files: agent/NAME.d/view/.",
		Example: "  ctx agent view coder\n  ctx ls agent/coder.d/view/tool",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			list := []ctlproto.ViewItem{}
			if _, err := s.ask(&ctlproto.View{Agent: args[0]}, nil, collect(&list)); err != nil {
				return err
			}
			return s.print(list, func(w io.Writer) { formatView(w, list) })
		},
	}
}

func agentWhyCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:   "why AGENT TOOL",
		Short: "why an agent may, or may not, execute a tool",
		Long: "Print every rule of the authority table for one tool: what decided it, file and line, and the exact rule\n" +
			"that is missing. Exit 0 if the tool is allowed, 13 if not.",
		Example: "  ctx agent why coder shell.exec",
		Args:    argsN(2, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			var rows []ctlproto.WhyRow
			var v ctlproto.WhyVerdict
			if _, err := s.ask(&ctlproto.Why{Agent: args[0], Tool: args[1]}, &v, collect(&rows)); err != nil {
				return err
			}
			err := s.print(struct {
				ctlproto.WhyVerdict
				Rows []ctlproto.WhyRow `json:"rows"`
			}{v, rows}, func(w io.Writer) { formatWhy(w, rows, v) })
			if err == nil && !v.Allowed {
				return exitError(ctlproto.ExitPolicy)
			}
			return err
		},
	}
}

func agentWaitCmd(s *State) *cobra.Command {
	var state, session string
	timeout := time.Duration(-1)
	c := &cobra.Command{
		Use:   "wait NAME [CHILD] [--state S] [--session S] [--timeout D]",
		Short: "block until an agent is in a state, or a child has done its work",
		Long: "Block, without polling, until the agent is in a state (start ready busy idle stopping dead). Exit 69 when the time\n" +
			"runs out. With CHILD block until what the agent has handed to that child is done, and print the result: exit 0\n" +
			"done, 1 error, 130 cancelled, 69 when it is still at work. --timeout 0 asks without waiting.",
		Example: "  ctx agent wait coder --state dead --timeout 10s\n  ctx agent wait architect reviewer --timeout 5m",
		Args:    argsN(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 2 {
				if state != "" {
					return usagef("wait for a state, or for a child")
				}
				return s.waitChild(args[0], args[1], session, timeout)
			}
			if state == "" {
				return usagef("wait needs --state, or a child")
			}
			ms := int64(-1)
			if timeout >= 0 {
				ms = timeout.Milliseconds()
			}
			var v ctlproto.Waited
			if _, err := s.ask(&ctlproto.Wait{Agent: args[0], State: state, TimeoutMS: ms}, &v, nil); err != nil {
				return err
			}
			if err := s.print(v, func(w io.Writer) { fmt.Fprintln(w, node.Escape(v.State)) }); err != nil {
				return err
			}
			if !v.Reached {
				return exitError(ctlproto.ExitUnavailable)
			}
			return nil
		},
	}
	c.Flags().StringVar(&state, "state", "", "state to wait for")
	c.Flags().StringVar(&session, "session", "", "session of the parent (default: the newest with that child)")
	c.Flags().DurationVar(&timeout, "timeout", -1, "how long; 0 asks without waiting")
	return c
}
