package manual_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/cli"
	"cortexfs/cmd/internal/daemon"
	"cortexfs/cmd/internal/manual"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// update rewrites what is generated: go test ./cmd/internal/manual -run TestGenerated -update
var update = flag.Bool("update", false, "rewrite generated documents")

// committed compares a generated text with the file that is committed.
func committed(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Errorf("%v; make docs", err)
		return
	}
	if d := cmp.Diff(string(got), want); d != "" {
		t.Errorf("%s is not what is generated; make docs (-committed +generated):\n%.2000s", path, d)
	}
}

// TestGeneratedPages: docs/man holds exactly the pages that the programs and the
// registry make.
func TestGeneratedPages(t *testing.T) {
	var pages []*manual.Page
	pages = append(append(pages, cli.Pages()...), daemon.Pages()...)
	var names []string
	for _, p := range pages {
		path := fmt.Sprintf("../../../docs/man/man%d/%s", p.Section, p.File())
		committed(t, path, p.Text())
		names = append(names, path)
	}
	have, err := filepath.Glob("../../../docs/man/man*/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range have {
		if !slices.Contains(names, f) {
			t.Errorf("%s: nothing makes this page", f)
		}
	}
	if _, err := exec.LookPath("man"); err != nil {
		t.Skip("no man(1): the pages were not rendered")
	}
	for _, f := range names {
		cmd := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", f)
		cmd.Env = append(os.Environ(), "MANROFFSEQ=", "MANWIDTH=100", "LC_ALL=C.UTF-8")
		var errs strings.Builder
		cmd.Stderr = &errs
		if err := cmd.Run(); err != nil || errs.Len() > 0 {
			t.Errorf("%s: %v\n%s", f, err, errs.String())
		}
	}
}

// TestGeneratedABI: the tables of docs/abi.md come from the registry.
func TestGeneratedABI(t *testing.T) {
	const path, mark = "../../../docs/abi.md", "<!-- generated below: make docs -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(text), mark)
	if !ok {
		t.Fatalf("%s has no mark %q", path, mark)
	}
	committed(t, path, head+mark+abiTables())
}

func abiTables() string {
	var b strings.Builder
	for _, s := range []struct {
		title string
		set   *control.Set
	}{{"Agent controls: `agent/NAME.d/`", control.Agent}, {"Tool controls: `tool/NAME.d/`", control.Tool}, {"Model controls: `model/PROVIDER/MODEL.d/`", control.Model}} {
		fmt.Fprintf(&b, "\n## %s\n\n| name | kind | mode | required | format | applies | what |\n|---|---|---|---|---|---|---|\n", s.title)
		for _, e := range s.set.Entries() {
			format := "–"
			if e.Format != nil {
				format = e.Format.Name()
			}
			required := "no"
			if e.Required {
				required = "yes"
			}
			applies := string(e.Applies)
			if applies == "" {
				applies = "–"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %04o | %s | %s | %s | %s |\n", e.Name, e.Kind, e.Mode, required,
				cell(format), applies, cell(strings.ReplaceAll(e.Doc, "\n", " ")))
		}
	}
	b.WriteString("\n## Errors\n\n| errno | kind |\n|---|---|\n")
	for _, k := range fault.Kinds() {
		fmt.Fprintf(&b, "| %s | %s |\n", unix.ErrnoName(k.Errno()), k)
	}
	b.WriteString("\n## `cortexfs.conf`\n\n| key | default | what |\n|---|---|---|\n")
	for _, s := range daemon.Settings() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Key, s.Default, cell(s.Doc))
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// TestDocumentsNameRealCommands: each line of a fenced block that calls ctx names
// a command that there is, with flags that it has.
func TestDocumentsNameRealCommands(t *testing.T) {
	files, err := filepath.Glob("../../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range append(files, "../../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		in := false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "```") {
				in = !in
				continue
			}
			if !in {
				continue
			}
			for _, part := range regexp.MustCompile(`&&|\|\||[|;]`).Split(strings.TrimPrefix(line, "$ "), -1) {
				words := strings.Fields(strings.Split(part, " #")[0])
				if len(words) < 2 || words[0] != "ctx" {
					continue
				}
				n++
				if err := commandExists(words[1:]); err != nil {
					t.Errorf("%s: %q: %v", file, part, err)
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d commands found", n)
	}
}

func commandExists(words []string) error {
	root := cli.Root(&cli.State{Out: io.Discard, Err: io.Discard, Getenv: os.Getenv})
	for i, w := range words {
		if strings.ContainsAny(w, "<>") {
			words = words[:i]
			break
		}
	}
	c, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	if c.HasSubCommands() && c != root && len(rest) > 0 && rest[0] != "--help" {
		return fmt.Errorf("%s has no command %q", c.CommandPath(), rest[0])
	}
	if err := c.ParseFlags(rest); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return c.ValidateArgs(c.Flags().Args())
}
