package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
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
			"run, and what is missing there is told.",
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

// readTexts reads control texts from a JSON object.
func (s *State) readTexts(file string, texts map[string]string) error {
	var b []byte
	var err error
	if file == "-" {
		b, err = io.ReadAll(io.LimitReader(s.In, 1<<20))
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return fault.FromOS("read", file, err)
	}
	if err := decodeTexts(b, texts); err != nil {
		return fault.E("read", file, fault.Invalid, err)
	}
	for name, text := range texts {
		e := control.Agent.Lookup(name)
		if e == nil || !e.Writable() {
			return fault.E("read", file, fault.Invalid, fmt.Errorf("%q is not a control of an agent that can be written; there are %s",
				name, strings.Join(writable(), " ")))
		}
		if err := e.Judge([]byte(text)); err != nil {
			return fault.At("check", file+": "+name, err)
		}
	}
	return nil
}

// decodeTexts reads a YAML or JSON mapping of strings. A scalar is taken as it is
// written (uid: 1000, approval: ask); a repeated key is an error.
func decodeTexts(b []byte, texts map[string]string) error {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return fmt.Errorf("neither YAML nor JSON: %w", err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return errors.New("expected a mapping of control names to texts")
	}
	pairs := doc.Content[0].Content
	for i := 0; i+1 < len(pairs); i += 2 {
		key, value := pairs[i], pairs[i+1]
		if key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode {
			return fmt.Errorf("line %d: %s: expected one text", value.Line, key.Value)
		}
		if _, twice := texts[key.Value]; twice {
			return fmt.Errorf("line %d: %s is there twice", key.Line, key.Value)
		}
		text := value.Value
		if value.Tag == "!!null" {
			text = ""
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		texts[key.Value] = text
	}
	return nil
}

func writable() []string {
	var names []string
	for _, e := range control.Agent.Entries() {
		if e.Writable() {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return names
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
