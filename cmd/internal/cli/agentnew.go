package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
)

// newFlags are what `ctx agent new` is told.
type newFlags struct {
	from, like, parent, label, model string
	tools, shared, mounts            []string
	temp                             bool
	owner                            int64
}

func agentNewCmd(s *State) *cobra.Command {
	var f newFlags
	c := &cobra.Command{
		Use: "new NAME [--from FILE] [--like A] [--parent P] [--label L] [--model M] [--tool T]... [--shared S:read|write]... " +
			"[--mount SRC TGT ro|rw]... [--temp]",
		Short: "make an agent",
		Long: "Make an agent with every control in its default. NAME is one of your own (home/UID/agent/NAME), for root a\n" +
			"system agent; agent/NAME and home/UID/agent/NAME say it exactly. --from reads controls from a YAML or\n" +
			"JSON mapping of control names to texts. --tool declares a tool and adds the agent's\n" +
			"own rule for it, and one for its shell tsh; the tools' policies must name the agent too before they may\n" +
			"run, and what is missing there is told. --parent makes it a child: it has at most what its parents have,\n" +
			"takes its ids from its parent and may run what its parent may; what is too much is refused (exit 13).\n" +
			"--temp removes it when it or its parent ends; its sessions stay.",
		Example: "  ctx agent new helper --tool fs.read --tool fs.list\n  ctx agent new reader --like coder --mount ~/docs /docs ro\n" +
			"  ctx agent new helper --from helper.yaml",
	}
	fl := c.Flags()
	fl.StringVar(&f.from, "from", "", "YAML or JSON file with control texts")
	fl.StringVar(&f.like, "like", "", "copy the controls of this agent")
	fl.StringVar(&f.parent, "parent", "", "parent agent")
	fl.StringVar(&f.label, "label", "", "label, or its type alone")
	fl.StringVar(&f.model, "model", "", "model reference")
	fl.StringArrayVar(&f.tools, "tool", nil, "tool to declare and allow")
	fl.StringArrayVar(&f.shared, "shared", nil, "SPACE:read or SPACE:write")
	fl.StringArrayVar(&f.mounts, "mount", nil, "SRC TGT ro|rw: three words")
	fl.BoolVar(&f.temp, "temp", false, "a temporary agent")
	fl.Int64Var(&f.owner, "owner", -1, "root: the uid that owns it")
	c.RunE = func(_ *cobra.Command, args []string) error {
		name, mounts, err := splitMounts(args, f.mounts)
		if err != nil {
			return err
		}
		return s.agentNew(name, mounts, f)
	}
	return c
}

func (s *State) agentNew(name string, mounts [][]string, f newFlags) error {
	texts := map[string]string{}
	if f.from != "" {
		if err := s.readTexts(f.from, texts); err != nil {
			return err
		}
	}
	q := &ctlproto.New{
		Agent: name, Like: f.like, Texts: texts, Parent: f.parent, Label: f.label, Model: f.model,
		Temp: f.temp, Tools: f.tools, Shared: f.shared, Mounts: mounts,
	}
	if f.owner >= 0 {
		if f.owner > node.MaxUint {
			return usagef("--owner %d is no uid", f.owner)
		}
		o := uint32(f.owner)
		q.Owner = &o
	}
	var made ctlproto.Agent
	t, err := s.ask(q, &made, nil)
	if err != nil {
		return err
	}
	return s.print(made, func(w io.Writer) {
		fmt.Fprintf(w, "%s/%s.d\n", node.Escape(t.root), node.Escape(made.Ref))
	})
}

func agentRmCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME",
		Short:   "remove a dead agent",
		Long:    "Remove the object of an agent that does not run. Its home and its sessions stay.",
		Example: "  ctx agent rm helper",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			var gone ctlproto.Agent
			if _, err := s.ask(&ctlproto.Rm{Agent: args[0]}, &gone, nil); err != nil {
				return err
			}
			return s.print(gone, func(w io.Writer) { fmt.Fprintf(w, "%s: removed\n", node.Escape(gone.Ref)) })
		},
	}
}
