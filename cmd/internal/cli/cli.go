// Package cli is the ctx command (spec section 22): people's way to the tree.
//
// Ideas. What a file can say, ctx does through the file, with the caller's own
// rights, so that nothing is possible here that echo and cat cannot do; it adds
// reasons, checks and formats. What a file cannot say (start, stop, why, the
// terminal) it asks of the daemon over the control socket. And every byte that
// comes from data is escaped before it reaches a terminal.
//
// Each command is one constructor in one file, with its help and examples; a
// test walks the whole tree of them. Commands write to State's streams only.
package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

// State is what a command works with.
type State struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	UID      uint32
	Cwd      func() (string, error)

	json bool
}

// Main runs ctx with the process's own streams and returns the exit code.
func Main(args []string) int {
	return Run(&State{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Getenv: os.Getenv, UID: uint32(os.Getuid()), Cwd: os.Getwd,
	}, args)
}

// Run runs one command line and returns its exit code (spec section 23).
func Run(s *State, args []string) int {
	s.json = wantsJSON(args) // also for a line that is too wrong to be parsed
	root := Root(s)
	root.SetArgs(rewriteMounts(args))
	return s.report(root.Execute())
}

func wantsJSON(args []string) bool {
	for i, a := range args {
		switch a {
		case "--":
			return false
		case "-ojson", "--output=json", "-o=json":
			return true
		case "-o", "--output":
			return i+1 < len(args) && args[i+1] == "json"
		}
	}
	return false
}

// exitError is an exit code whose reason has been printed already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usageError is a wrong command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// report prints a failure and turns it into the exit code.
func (s *State) report(err error) int {
	var code exitError
	var usage usageError
	switch {
	case err == nil:
		return ctlproto.ExitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		s.fail("usage", "EINVAL", err, ctlproto.ExitUsage)
		return ctlproto.ExitUsage
	case strings.HasPrefix(err.Error(), "unknown command"):
		// cobra has no type for it.
		s.fail("usage", "EINVAL", err, ctlproto.ExitUsage)
		return ctlproto.ExitUsage
	}
	exit := ctlproto.ExitCode(err)
	s.fail("error", ctlproto.ErrorFrame(err).Code, err, exit)
	return exit
}

func (s *State) fail(typ, code string, err error, exit int) {
	if s.json {
		b, _ := json.Marshal(map[string]any{"type": typ, "code": code, "message": err.Error(), "exit": exit})
		fmt.Fprintln(s.Err, string(b))
		return
	}
	fmt.Fprintf(s.Err, "ctx: %s\n", node.EscapeLines(strings.TrimRight(err.Error(), "\n")))
	if typ == "usage" {
		fmt.Fprintln(s.Err, "try ctx --help")
	}
}

// note prints a remark for people, never part of the data.
func (s *State) note(format string, args ...any) {
	fmt.Fprintf(s.Err, "ctx: %s\n", node.Escape(fmt.Sprintf(format, args...)))
}

// print writes v as JSON with -o json, else what text makes of it.
func (s *State) print(v any, text func(w io.Writer)) error {
	if !s.json {
		text(s.Out)
		return nil
	}
	enc := json.NewEncoder(s.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Root makes the whole command tree.
func Root(s *State) *cobra.Command {
	var output string
	root := &cobra.Command{
		Use:   "ctx",
		Short: "agents, tools and their controls in a tree of files",
		Long: "ctx works on a CortexFS tree: agents, the tools they may run, and the files that control both.\n" +
			"CTX_ROOT selects the tree; without it /ctx is used if it is one, else ~/ctx.",
		Example:       "  ctx up\n  ctx bootstrap\n  ctx agent start coder\n  ctx agent why coder shell.exec",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			switch output {
			case "", "text":
			case "json":
				s.json = true
			default:
				return usagef("-o %s: the formats are text and json", output)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q", args[0])
			}
			return c.Help()
		},
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.PersistentFlags().StringVarP(&output, "output", "o", "", "format of data: text or json")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		statusCmd(s), versionCmd(s),
		lsCmd(s), catCmd(s), setCmd(s), appendCmd(s), editCmd(s), resetCmd(s),
		fileCmd(s), whichCmd(s), envCmd(s),
		doctorCmd(s), bootstrapCmd(s), reloadCmd(s), upCmd(s), downCmd(s),
		agentCmd(s), approvalsCmd(s), policyCmd(s), manCmd(s),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	_ = root.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return []string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp
	})
	s.complete(root)
	return root
}

// group makes a command that only has subcommands.
func group(use, short, long, example string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Example: example,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q for %q", args[0], c.CommandPath())
			}
			return c.Help()
		},
	}
	c.AddCommand(subs...)
	return c
}

// argsN wants between lo and hi arguments; hi < 0 is no limit.
func argsN(lo, hi int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < lo || hi >= 0 && len(args) > hi {
			return usagef("usage: %s", c.UseLine())
		}
		return nil
	}
}

// unavailable is an error with exit code 69.
func unavailable(format string, args ...any) error {
	return fault.Newf(fault.Unavailable, format, args...)
}
