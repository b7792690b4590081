package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/manual"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// Pages are the manual pages that ctx knows: its commands and the control files.
func Pages() []*manual.Page {
	pages := manual.Commands(Root(&State{Out: io.Discard, Err: io.Discard}))
	const rules = "A control changes only by a valid text: a write of anything else fails with EINVAL and the old value stays in force.\n" +
		"The reason is in the extended attribute user.cortexfs.error, and ctx file check says it without writing.\n" +
		"Only the owner and root may write. \"Applies\" says when a change is in force."
	return append(pages,
		manual.Controls("agent", control.Agent, "/ctx/agent/NAME.d", "The directory NAME.d of an agent holds what it may see and do, one file each.\n"+rules),
		manual.Controls("tool", control.Tool, "/ctx/tool/NAME.d", "The directory NAME.d beside a tool's executable describes it and says who may execute it.\n"+rules),
		manual.Controls("model", control.Model, "/ctx/model/PROVIDER/MODEL.d", "The directory MODEL.d beside a model's executable describes it and says who may use it.\n"+rules))
}

func manCmd(s *State) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "man [PAGE]",
		Short: "manual pages of commands and control files",
		Long: "Show a manual page: of ctx, of a group of commands (agent), or of the control files of agents, tools and\n" +
			"models (cortexfs-agent). On a terminal it is shown by man(1); otherwise its source is printed. --dir writes\n" +
			"all pages into a directory.",
		Example: "  ctx man\n  ctx man agent\n  ctx man cortexfs-agent\n  ctx man --dir /usr/local/share/man",
		Args:    argsN(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			if dir != "" {
				return writePages(dir)
			}
			name := "ctx"
			if len(args) > 0 {
				name = args[0]
			}
			for _, p := range Pages() {
				if p.Name == name || p.Name == "ctx-"+name || p.File() == name {
					return s.show(p)
				}
			}
			return usagef("no page is called %q; the pages are %s", name, strings.Join(pageNames(), " "))
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "write every page to `DIR`/man1, DIR/man5")
	c.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return pageNames(), cobra.ShellCompDirectiveNoFileComp
	}
	return c
}

func pageNames() []string {
	var names []string
	for _, p := range Pages() {
		names = append(names, p.Name)
	}
	return names
}

func writePages(dir string) error {
	for _, p := range Pages() {
		d := filepath.Join(dir, fmt.Sprintf("man%d", p.Section))
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fault.FromOS("make", d, err)
		}
		if err := os.WriteFile(filepath.Join(d, p.File()), []byte(p.Text()), 0o644); err != nil {
			return fault.FromOS("write", p.File(), err)
		}
	}
	return nil
}

// show gives the page to man(1) on a terminal, its source to everything else.
func (s *State) show(p *manual.Page) error {
	if !isTerminal(s.Out) {
		_, err := io.WriteString(s.Out, p.Text())
		return err
	}
	cmd := exec.Command("man", "-l", "-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(p.Text()), s.Out, s.Err
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		_, err = io.WriteString(s.Out, p.Text())
	}
	return err
}
