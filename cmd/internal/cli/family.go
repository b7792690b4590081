package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
)

func agentGrantCmd(s *State) *cobra.Command {
	var q ctlproto.Grant
	c := &cobra.Command{
		Use:   "grant [CHILD] [rule|group|mount|tool] [VALUE] [--reason TEXT] [--revoke N] [--list]",
		Short: "let a child have what its parents have not",
		Long: "A child has at most what its parents have. Root alone lets one have more: a rule of its policy, a group, a\n" +
			"mount line, or a tool (its declaration and the rule to execute it). A grant adds nothing by itself: the\n" +
			"child's own controls have to say it, and the tool's policy has to name the child. It holds for that child\n" +
			"and not for its children, and is void when owner, label or parent changes. It is logged with its reason.\n" +
			"A mount is SOURCE TARGET ro|rw in one word. --revoke takes a grant back by its number; --list lists them.",
		Example: "  ctx agent grant coder tool fs.write --reason 'the planner delegates the writing'\n" +
			"  ctx agent grant coder mount '/srv/data /data ro' --reason 'test data'\n" +
			"  ctx agent grant coder --revoke 3\n  ctx agent grant --list",
	}
	f := c.Flags()
	f.StringVar(&q.Reason, "reason", "", "why; kept with the grant and logged")
	f.IntVar(&q.Revoke, "revoke", 0, "take the grant of this number back")
	f.BoolVar(&q.List, "list", false, "list the grants, of one agent or of all")
	c.RunE = func(_ *cobra.Command, args []string) error {
		switch {
		case q.List && q.Revoke == 0 && len(args) <= 1:
			if len(args) == 1 {
				q.Agent = args[0]
			}
			list := []ctlproto.Granted{}
			if _, err := s.ask(&q, nil, collect(&list)); err != nil {
				return err
			}
			return s.print(list, func(w io.Writer) { formatGrants(w, list) })
		case q.Revoke > 0 && !q.List && len(args) == 1:
			q.Agent = args[0]
		case q.Revoke == 0 && !q.List && len(args) == 3:
			q.Agent, q.Kind, q.Value = args[0], args[1], args[2]
			if strings.TrimSpace(q.Reason) == "" {
				return usagef("a grant needs --reason TEXT")
			}
		default:
			return usagef("grant takes CHILD rule|group|mount|tool VALUE --reason TEXT, or CHILD --revoke N, or --list [CHILD]")
		}
		var g ctlproto.Granted
		if _, err := s.ask(&q, &g, nil); err != nil {
			return err
		}
		return s.print(g, func(w io.Writer) {
			if q.Revoke > 0 {
				fmt.Fprintf(w, "%s: grant %d is revoked: %s %s\n", node.Escape(g.Ref), g.N, node.Escape(g.Kind), node.Escape(g.Value))
				return
			}
			fmt.Fprintf(w, "%s: grant %d: %s %s\n", node.Escape(g.Ref), g.N, node.Escape(g.Kind), node.Escape(g.Value))
		})
	}
	return c
}

// formatGrants writes one grant a line.
func formatGrants(w io.Writer, list []ctlproto.Granted) {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, g := range list {
		void := ""
		if g.Void {
			void = "void"
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", g.N, node.Escape(g.Ref), node.Escape(g.Kind), node.Escape(g.Value), node.Escape(g.At),
			node.Escape(g.By), void, node.Escape(g.Reason))
	}
	tw.Flush()
	writeTrimmed(w, table.String())
}

func agentChildrenCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:   "children NAME",
		Short: "the children of an agent and what they do for it",
		Long: "List the children of an agent, one a line, with TABs between: child, status of its channel (pending active\n" +
			"done error cancelled), agent, its session, the parent's session and run, model, life, role, the agent's\n" +
			"state, the parent's pid, its own pid; - for what is absent.",
		Example: "  ctx agent children architect\n  ctx agent children architect -o json",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			list := []ctlproto.Child{}
			if _, err := s.ask(&ctlproto.Children{Agent: args[0]}, nil, collect(&list)); err != nil {
				return err
			}
			return s.print(list, func(w io.Writer) {
				for _, c := range list {
					fmt.Fprintln(w, childLine(c))
				}
			})
		},
	}
}

// childLine has the twelve columns of interop A17. No agent has a role here.
func childLine(c ctlproto.Child) string {
	pid := func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	cols := []string{c.Name, c.Channel, c.Ref, c.Session, c.Parent, c.Run, c.Model, c.Life, "", c.State, pid(c.PPID), pid(c.PID)}
	for i := range cols {
		cols[i] = orDash(node.Escape(cols[i]))
	}
	return strings.Join(cols, "\t")
}

// waitChild waits for what an agent has handed to a child; the exit code says how
// it ended.
func (s *State) waitChild(parent, child, session string, timeout time.Duration) error {
	ms := int64(-1)
	if timeout >= 0 {
		ms = timeout.Milliseconds()
	}
	var res ctlproto.ChildResult
	if _, err := s.ask(&ctlproto.Wait{Agent: parent, Child: child, Session: session, TimeoutMS: ms}, &res, nil); err != nil {
		return err
	}
	err := s.print(res, func(w io.Writer) {
		cols := []string{res.Name, res.Channel, res.Ref, res.Session, res.Model, res.Life, ""}
		for i := range cols {
			cols[i] = orDash(node.Escape(cols[i]))
		}
		fmt.Fprintln(w, strings.Join(cols, "\t"))
		if res.Result != "" {
			fmt.Fprintln(w, node.EscapeLines(strings.TrimRight(res.Result, "\n")))
		}
	})
	if err != nil {
		return err
	}
	switch res.Channel {
	case "done":
		return nil
	case "error":
		return exitError(ctlproto.ExitError)
	case "cancelled":
		return exitError(ctlproto.ExitCancelled)
	}
	return exitError(ctlproto.ExitUnavailable)
}
