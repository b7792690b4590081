package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

func fileCmd(s *State) *cobra.Command {
	return group("file", "control files: what they are and whether a text is good",
		"Everything about control files as such. These commands read the registry of controls only: they need\n"+
			"no mounted tree and write nothing.",
		"  ctx file list\n  ctx file help mount\n  ctx file check coder.d/policy",
		fileCheckCmd(s), fileListCmd(s), fileHelpCmd(s), fileTypeCmd(s))
}

// tables are the sets of controls by the word that people use.
func tables() []struct {
	word string
	set  *control.Set
} {
	return []struct {
		word string
		set  *control.Set
	}{{"agent", control.Agent}, {"tool", control.Tool}, {"model", control.Model}}
}

// find looks a control up: NAME, or agent/NAME, tool/NAME, model/NAME where the
// name alone is ambiguous (the agent's wins).
func find(name string) (word string, e *control.Entry) {
	if w, rest, ok := strings.Cut(name, "/"); ok {
		for _, t := range tables() {
			if t.word == w && t.set != nil {
				return w, t.set.Lookup(rest)
			}
		}
	}
	for _, t := range tables() {
		if t.set == nil {
			continue
		}
		if e := t.set.Lookup(name); e != nil {
			return t.word, e
		}
	}
	return "", nil
}

func fileCheckCmd(s *State) *cobra.Command {
	var as string
	c := &cobra.Command{
		Use:   "check [--as CONTROL] [FILE|-]...",
		Short: "judge texts without writing them",
		Long: "Judge texts as the tree would, without writing them, and say line, column and reason. The control is\n" +
			"known from the file's name; --as names it otherwise, and must for standard input. What depends on the\n" +
			"object or the writer (who may own what) is judged at the write only.",
		Example: "  ctx file check agent/coder.d/mount\n  ctx file check --as policy - < draft\n  ctx file check --as tool/schema schema.json",
		Args:    argsN(0, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"-"}
			}
			return s.fileCheck(args, as)
		},
	}
	c.Flags().StringVar(&as, "as", "", "control whose text it is, e.g. mount or tool/policy")
	return c
}

// checked is one judged text.
type checked struct {
	File    string `json:"file"`
	Control string `json:"control"`
	OK      bool   `json:"ok"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Why     string `json:"why,omitempty"`
}

func (s *State) fileCheck(files []string, as string) error {
	var list []checked
	bad := false
	for _, f := range files {
		got, err := s.checkOne(f, as)
		if err != nil {
			return err
		}
		bad = bad || !got.OK
		list = append(list, got)
	}
	err := s.print(list, func(w io.Writer) {
		for _, c := range list {
			switch {
			case c.OK:
				fmt.Fprintf(w, "%s: ok\n", node.Escape(c.File))
			case c.Line > 0:
				fmt.Fprintf(w, "%s:%d:%d: %s\n", node.Escape(c.File), c.Line, c.Column, node.Escape(c.Why))
			default:
				fmt.Fprintf(w, "%s: %s\n", node.Escape(c.File), node.Escape(c.Why))
			}
		}
	})
	if err == nil && bad {
		return exitError(ctlproto.ExitUsage)
	}
	return err
}

func (s *State) checkOne(file, as string) (checked, error) {
	name := as
	if name == "" && file == "-" {
		return checked{}, usagef("standard input has no name: say which control it is with --as")
	}
	if name == "" {
		name = nameOf(file)
	}
	word, e := find(name)
	if e == nil {
		return checked{}, usagef("%s: no control is called %q; see `ctx file list`, or use --as", file, name)
	}
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(s.In, node.MaxText+2))
	} else {
		var f *os.File
		if f, err = os.Open(file); err == nil {
			text, err = io.ReadAll(io.LimitReader(f, node.MaxText+2))
			f.Close()
		}
	}
	if err != nil {
		return checked{}, fault.FromOS("read", file, err)
	}
	c := checked{File: file, Control: word + "/" + e.Name, OK: true}
	if err := e.Judge(text); err != nil {
		c.OK, c.Why = false, err.Error()
		var fe *fault.Error
		if errors.As(err, &fe) {
			c.Line, c.Column = fe.Line, fe.Col
			bare := *fe
			bare.Line = 0
			c.Why = bare.Place()
		}
	}
	return c, nil
}

// nameOf guesses the control from a path: its own table by the directory, the
// base name otherwise, without a suffix that backups and drafts carry.
func nameOf(file string) string {
	base := filepath.Base(file)
	dir := path.Base(path.Dir(path.Dir(filepath.ToSlash(file))))
	switch dir {
	case "tool", "model", "agent":
		return dir + "/" + base
	}
	return base
}

func fileListCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "list [agent|tool|model]",
		Short:   "list the control files",
		Long:    "List every control file with kind, mode and when a change applies.",
		Example: "  ctx file list\n  ctx file list tool -o json",
		Args:    argsN(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			want := ""
			if len(args) == 1 {
				want = args[0]
			}
			var list []entryInfo
			for _, t := range tables() {
				if t.set == nil || want != "" && want != t.word {
					continue
				}
				for _, e := range t.set.Entries() {
					list = append(list, infoOf(t.word, e))
				}
			}
			if len(list) == 0 {
				return usagef("no such table %q: agent, tool, model", want)
			}
			return s.print(list, func(w io.Writer) {
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				fmt.Fprintln(tw, "NAME\tKIND\tMODE\tREQUIRED\tAPPLIES\tFORMAT\tWHAT")
				for _, e := range list {
					fmt.Fprintf(tw, "%s/%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Table, e.Name, e.Kind, e.Mode,
						map[bool]string{true: "yes", false: "-"}[e.Required], orDash(e.Applies), orDash(e.Format), e.Doc)
				}
				tw.Flush()
			})
		},
	}
}

// entryInfo is a control in JSON, for SDKs too.
type entryInfo struct {
	Table    string   `json:"table"`
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Mode     string   `json:"mode"`
	Required bool     `json:"required"`
	FinalLF  bool     `json:"final_lf"`
	Applies  string   `json:"applies,omitempty"`
	Format   string   `json:"format,omitempty"`
	Grants   bool     `json:"grants"`
	Doc      string   `json:"doc"`
	Long     string   `json:"long,omitempty"`
	Good     []string `json:"good,omitempty"`
	Bad      []string `json:"bad,omitempty"`
}

func infoOf(table string, e *control.Entry) entryInfo {
	i := entryInfo{
		Table: table, Name: e.Name, Kind: e.Kind.String(), Mode: fmt.Sprintf("%04o", e.Mode),
		Required: e.Required, FinalLF: e.FinalLF, Applies: string(e.Applies), Grants: e.Grants,
		Doc: e.Doc, Long: e.Long, Good: e.Good,
	}
	if e.Format != nil {
		i.Format = e.Format.Name()
	}
	for _, b := range e.Bad {
		i.Bad = append(i.Bad, b.Text)
	}
	return i
}

func fileHelpCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "help CONTROL",
		Short:   "explain one control file",
		Long:    "Explain one control file: its format, default, when a change applies, good and bad texts.",
		Example: "  ctx file help mount\n  ctx file help tool/policy",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			word, e := find(args[0])
			if e == nil {
				return usagef("no control is called %q; see `ctx file list`", args[0])
			}
			return s.print(infoOf(word, e), func(w io.Writer) { writeHelp(w, word, e) })
		},
	}
}

func writeHelp(w io.Writer, word string, e *control.Entry) {
	fmt.Fprintf(w, "%s/%s - %s\n", word, e.Name, e.Doc)
	if e.Long != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimRight(e.Long, "\n"))
	}
	fmt.Fprintf(w, "\nkind      %s\nmode      %04o\n", e.Kind, e.Mode)
	if e.Format != nil {
		fmt.Fprintf(w, "format    %s\n", e.Format.Name())
	}
	if e.Kind == control.Durable {
		fmt.Fprintf(w, "required  %s\n", map[bool]string{true: "yes", false: "no"}[e.Required])
		fmt.Fprintf(w, "final LF  %s\n", map[bool]string{true: "required", false: "added where it is missing"}[e.FinalLF])
	}
	if e.Applies != "" {
		fmt.Fprintf(w, "applies   %s\n", e.Applies)
	}
	fmt.Fprintf(w, "grants    %s\n", map[bool]string{true: "yes: decisions read it", false: "no: no decision reads it"}[e.Grants])
	for i, g := range e.Good {
		if i == 0 {
			fmt.Fprintln(w, "\ngood texts:")
		}
		fmt.Fprintf(w, "  %s\n", node.Escape(g))
	}
	for i, b := range e.Bad {
		if i == 0 {
			fmt.Fprintln(w, "\nrefused texts:")
		}
		text := node.Escape(b.Text)
		if len(text) > 60 {
			text = fmt.Sprintf("%s… (%d bytes)", text[:48], len(b.Text))
		}
		fmt.Fprintf(w, "  %-40s %s\n", text, b.Kind)
	}
}

func fileTypeCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "type PATH...",
		Short:   "say what files of the tree are",
		Long:    "Print kind, origin and generation of files of the tree, as its attributes tell them.",
		Example: "  ctx file type agent/coder.d/mount tool/fs.read",
		Args:    argsN(1, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := s.tree()
			if err != nil {
				return err
			}
			type typed struct {
				Path       string `json:"path"`
				Kind       string `json:"kind"`
				Origin     string `json:"origin,omitempty"`
				Generation string `json:"generation,omitempty"`
			}
			var list []typed
			for _, a := range args {
				rel, err := t.rel(a)
				if err != nil {
					return err
				}
				kind, err := xattr(t.path(rel), xattrKind)
				if err != nil {
					return fault.FromOS("type", rel, err)
				}
				origin, _ := xattr(t.path(rel), "user.cortexfs.origin")
				gen, _ := xattr(t.path(rel), "user.cortexfs.generation")
				list = append(list, typed{rel, kind, origin, gen})
			}
			return s.print(list, func(w io.Writer) {
				for _, e := range list {
					fmt.Fprintf(w, "%s: %s origin=%s generation=%s\n", node.Escape(e.Path), node.Escape(e.Kind),
						orDash(node.Escape(e.Origin)), orDash(node.Escape(e.Generation)))
				}
			})
		},
	}
}
