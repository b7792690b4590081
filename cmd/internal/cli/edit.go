package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

func editCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:   "edit PATH",
		Short: "change a control file in an editor",
		Long: "Open a copy of a control file in $VISUAL, $EDITOR or vi. When the editor ends the text is checked and\n" +
			"written; a refused one is shown with its reason and can be edited again.",
		Example: "  ctx edit agent/coder.d/mount\n  EDITOR=nano ctx edit agent/coder.d/policy",
		Args:    argsN(1, 1),
		RunE:    func(_ *cobra.Command, args []string) error { return s.edit(args[0]) },
	}
}

func (s *State) edit(p string) error {
	t, err := s.tree()
	if err != nil {
		return err
	}
	rel, old, err := t.read(p)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ctx-edit-")
	if err != nil {
		return fault.FromOS("make a directory for the copy", "", err)
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, path.Base(rel))
	if err := os.WriteFile(tmp, old, 0o600); err != nil {
		return fault.FromOS("write", tmp, err)
	}
	answers := bufio.NewReader(s.In)
	for {
		if err := s.editor(tmp); err != nil {
			return err
		}
		text, err := os.ReadFile(tmp)
		if err != nil {
			return fault.FromOS("read", tmp, err)
		}
		if bytes.Equal(text, old) {
			s.note("%s: not changed", rel)
			return nil
		}
		err = t.write(rel, text, unix.O_TRUNC)
		if err == nil {
			return nil
		}
		fmt.Fprintf(s.Err, "ctx: %s\nedit again? [Y/n] ", node.Escape(err.Error()))
		answer, rerr := answers.ReadString('\n')
		if a := strings.ToLower(strings.TrimSpace(answer)); rerr != nil || a == "n" || a == "no" {
			return err
		}
	}
}

// editor runs the person's editor on a file; its value may hold arguments.
func (s *State) editor(file string) error {
	words := strings.Fields(s.Getenv("VISUAL"))
	if len(words) == 0 {
		words = strings.Fields(s.Getenv("EDITOR"))
	}
	if len(words) == 0 {
		words = []string{"vi"}
	}
	cmd := exec.Command(words[0], append(words[1:], file)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	if err := cmd.Run(); err != nil {
		return fault.Newf(fault.IO, "editor %s: %v", words[0], err)
	}
	return nil
}

func resetCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "reset PATH",
		Short:   "set a control file back to its default",
		Long:    "Write the default of a control file, as `ctx file help NAME` shows it. Required controls have none.",
		Example: "  ctx reset agent/coder.d/mount",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := s.tree()
			if err != nil {
				return err
			}
			rel, err := t.rel(args[0])
			if err != nil {
				return err
			}
			text, err := t.defaultOf(rel)
			if err != nil {
				return err
			}
			return t.write(rel, []byte(text), unix.O_TRUNC)
		},
	}
}

// defaultOf computes the default of a control from what the tree says about its
// object.
func (t *tree) defaultOf(rel string) (string, error) {
	set, entry := controlAt(rel)
	if entry == nil || entry.Kind != control.Durable {
		return "", fault.E("reset", rel, fault.Invalid, fmt.Errorf("not a control with a default"))
	}
	if entry.Default == nil && entry.Required {
		return "", fault.E("reset", rel, fault.Invalid, fmt.Errorf("%s is required and has no default", entry.Name))
	}
	dir := path.Dir(rel)
	o := control.Object{Name: strings.TrimSuffix(path.Base(dir), ".d"), Home: strings.HasPrefix(rel, "home/")}
	if set == control.Agent {
		_, text, err := t.read(path.Join(dir, "owner"))
		if err != nil {
			return "", err
		}
		owner, err := node.ParseUint(strings.TrimSuffix(string(text), "\n"))
		if err != nil {
			return "", fault.E("reset", rel, fault.Invalid, fmt.Errorf("its owner cannot be read: %w", err))
		}
		o.Owner = owner
		o.OwnerGID = primaryGID(owner)
	}
	o.Root = t.owner == 0
	return entry.DefaultText(o), nil
}

// controlAt says which control a path of the tree is, nil if none.
func controlAt(rel string) (*control.Set, *control.Entry) {
	dir, name := path.Dir(rel), path.Base(rel)
	set := setAt(dir)
	if set == nil {
		return nil, nil
	}
	return set, set.Lookup(name)
}

// setAt is the table of the object directory dir (…/NAME.d).
func setAt(dir string) *control.Set {
	if !strings.HasSuffix(dir, ".d") {
		return nil
	}
	switch parts := strings.Split(dir, "/"); {
	case len(parts) == 2 && parts[0] == "agent", len(parts) == 4 && parts[0] == "home" && parts[2] == "agent":
		return control.Agent
	case len(parts) == 2 && parts[0] == "tool",
		len(parts) == 4 && (parts[0] == "home" || parts[0] == "shared") && parts[2] == "tool":
		return control.Tool
	case len(parts) == 3 && parts[0] == "model", len(parts) == 5 && parts[0] == "home" && parts[2] == "model":
		return control.Model
	}
	return nil
}
