package cli

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/bootstrap"
	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

func bootstrapCmd(s *State) *cobra.Command {
	var check, dry bool
	var owner int64
	c := &cobra.Command{
		Use:   "bootstrap [--check|--dry-run] [--owner UID] [STORE]",
		Short: "make the reference agents and tools",
		Long: "Make the reference tree: the agents architect, coder and reviewer, and the core tools with their\n" +
			"policies. It asks the daemon of the mounted tree; with STORE it works on a store that no daemon serves.\n" +
			"An edited control is never overwritten. --dry-run says what would be done; --check too, and exits 1 if\n" +
			"anything would be.",
		Example: "  ctx bootstrap\n  ctx bootstrap --check\n  ctx bootstrap --owner 1000 /var/lib/cortexfs",
		Args:    argsN(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			who, err := s.bootstrapOwner(owner)
			if err != nil {
				return err
			}
			store := ""
			if len(args) == 1 {
				store = args[0]
			}
			changed, err := s.bootstrap(store, who, check || dry)
			if err == nil && check && changed {
				return exitError(ctlproto.ExitError)
			}
			return err
		},
	}
	c.Flags().BoolVar(&check, "check", false, "change nothing; exit 1 if something would change")
	c.Flags().BoolVar(&dry, "dry-run", false, "change nothing; exit 0")
	c.Flags().Int64Var(&owner, "owner", -1, "uid that owns the agents (default: you; under sudo the user who called it)")
	return c
}

// bootstrapOwner is who the reference agents belong to.
func (s *State) bootstrapOwner(flag int64) (uint32, error) {
	if flag >= 0 {
		if flag > node.MaxUint {
			return 0, usagef("--owner %d is no uid", flag)
		}
		return uint32(flag), nil
	}
	if s.UID == 0 {
		if uid, err := strconv.ParseUint(s.Getenv("SUDO_UID"), 10, 32); err == nil && uid <= node.MaxUint {
			return uint32(uid), nil
		}
	}
	return s.UID, nil
}

func (s *State) bootstrap(store string, owner uint32, dry bool) (changed bool, err error) {
	var lines []ctlproto.Line
	if store != "" {
		st, err := bootstrap.OpenStore(store, os.Geteuid() == 0)
		if err != nil {
			return false, err
		}
		defer st.Close()
		out, c, err := st.Run(bootstrap.Options{Owner: owner, DryRun: dry})
		for _, l := range out {
			lines = append(lines, ctlproto.Line{Text: l})
		}
		if err != nil {
			s.printLines(lines)
			return false, err
		}
		return c, s.printLines(lines)
	}
	var done ctlproto.Bootstrapped
	_, err = s.ask(&ctlproto.Bootstrap{Owner: &owner, DryRun: dry}, &done, collect(&lines))
	if perr := s.printLines(lines); err == nil {
		err = perr
	}
	if fault.Is(err, fault.Unavailable) {
		err = fmt.Errorf("%w\nor name the store: ctx bootstrap STORE", err)
	}
	return done.Changed, err
}

func (s *State) printLines(lines []ctlproto.Line) error {
	if s.json {
		texts := make([]string, len(lines))
		for i, l := range lines {
			texts[i] = l.Text
		}
		return s.print(map[string]any{"lines": texts}, nil)
	}
	return s.print(nil, func(w io.Writer) {
		for _, l := range lines {
			fmt.Fprintln(w, node.Escape(strings.TrimRight(l.Text, "\n")))
		}
	})
}
