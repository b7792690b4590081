package cli

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node/fault"
)

var update = flag.Bool("update", false, "rewrite golden files")

// run runs a command line away from any tree.
func run(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	s := &State{
		In: strings.NewReader(stdin), Out: &out, Err: &errs, UID: 4242,
		Getenv: func(k string) string { return map[string]string{"CTX_ROOT": "/nonexistent/tree"}[k] },
		Cwd:    func() (string, error) { return "/work/dir", nil },
	}
	code = Run(s, args)
	return code, out.String(), errs.String()
}

func walk(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		walk(sub, f)
	}
}

// TestEveryCommandExplainsItself: help, usage and an example that begins with
// the command itself.
func TestEveryCommandExplainsItself(t *testing.T) {
	n := 0
	walk(Root(&State{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}), func(c *cobra.Command) {
		path := c.CommandPath()
		if strings.HasPrefix(path, "ctx completion") || strings.HasPrefix(path, "ctx help") {
			return // cobra's own
		}
		n++
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short help %q", path, c.Short)
		}
		if c.Long == "" {
			t.Errorf("%s has no long help", path)
		}
		if c.Example == "" {
			t.Errorf("%s has no example", path)
		}
		for _, l := range strings.Split(c.Example, "\n") {
			if !strings.HasPrefix(l, "  ") || !strings.Contains(l, "ctx") {
				t.Errorf("%s: example %q", path, l)
			}
		}
		if !strings.Contains(c.Example, path) && c.HasParent() {
			t.Errorf("%s: no example shows the command itself", path)
		}
		if c.RunE == nil {
			t.Errorf("%s does nothing", path)
		}
		for _, l := range strings.Split(c.Long, "\n") {
			if len([]rune(l)) > 140 {
				t.Errorf("%s: help line of %d columns", path, len([]rune(l)))
			}
		}
	})
	if n < 35 {
		t.Errorf("only %d commands", n)
	}
}

// TestSpecCommands holds the command tree and spec section 22 together, as far
// as it is built.
func TestSpecCommands(t *testing.T) {
	want := []string{
		"status", "version", "ls", "cat", "set", "append", "edit", "reset", "file check", "file list", "file help", "file type",
		"which agent", "which tool", "env", "doctor", "bootstrap", "up", "down", "reload", "policy check", "completion", "man",
		"agent new", "agent start", "agent stop", "agent restart", "agent status", "agent ps", "agent env", "agent view",
		"agent why", "agent log", "agent watch", "agent attach", "agent exec", "agent wait", "agent rm",
		"agent send", "agent chat", "agent resume", "agent cancel", "agent history", "agent output", "approvals",
	}
	have := map[string]bool{}
	walk(Root(&State{}), func(c *cobra.Command) { have[strings.TrimPrefix(c.CommandPath(), "ctx ")] = true })
	for _, w := range want {
		if !have[w] {
			t.Errorf("no command %q", w)
		}
	}
}

func TestUsageErrorsExit2(t *testing.T) {
	for _, args := range [][]string{
		{"nope"}, {"agent", "nope"}, {"file", "nope"}, {"--nope"}, {"agent", "start", "--nope", "a"}, {"agent", "status"},
		{"agent", "status", "a", "b"}, {"cat"}, {"set", "a"}, {"-o", "xml", "status"}, {"agent", "wait", "a"},
		{"agent", "start", "a", "--mount", "/a", "/b"}, {"agent", "start", "a", "--mount", "/a", "/b", "rx"},
		{"agent", "start", "a", "--git", "ro"}, {"agent", "start", "a", "--cwd", "x", "--no-default-workspace"},
		{"file", "check", "-"}, {"file", "check", "--as", "nope", "-"}, {"file", "help", "nope"}, {"file", "list", "nope"},
		{"agent", "attach", "a", "--detach-keys", "meta-x"}, {"bootstrap", "--owner", "4294967295"},
	} {
		code, _, stderr := run(t, "", args...)
		if code != ctlproto.ExitUsage || !strings.HasPrefix(stderr, "ctx: ") {
			t.Errorf("%q: exit %d, %q", args, code, stderr)
		}
	}
}

func TestNoTreeExits69(t *testing.T) {
	for _, args := range [][]string{
		{"status"}, {"ls"}, {"cat", "status"}, {"set", "a", "b"}, {"agent", "ps"}, {"agent", "start", "coder"}, {"down"}, {"reload"}, {"bootstrap"},
	} {
		code, _, stderr := run(t, "", args...)
		if code != ctlproto.ExitUnavailable || !strings.Contains(stderr, "/nonexistent/tree") {
			t.Errorf("%q: exit %d, %q", args, code, stderr)
		}
	}
}

func TestMountWords(t *testing.T) {
	got := rewriteMounts([]string{"agent", "start", "--mount", "/a b", "/t", "ro", "coder", "--mount", "-x", "/u", "rw", "--", "--mount", "1", "2", "3"})
	want := []string{"agent", "start", "--mount", "/a b", "--mount", "/t", "--mount", "ro", "coder", "--mount", "-x", "--mount", "/u", "--mount", "rw", "--", "--mount", "1", "2", "3"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	name, mounts, err := splitMounts([]string{"coder"}, []string{"/a", "/t", "ro", "/b", "/u", "rw"})
	if err != nil || name != "coder" || !reflect.DeepEqual(mounts, [][]string{{"/a", "/t", "ro"}, {"/b", "/u", "rw"}}) {
		t.Errorf("%q %q %v", name, mounts, err)
	}
}

func TestFileCheck(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "approval"), filepath.Join(dir, "mount")
	for f, text := range map[string]string{good: "ask\n", bad: "/a\t/b\trx\t-\n"} {
		if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, _ := run(t, "", "file", "check", good); code != 0 || out != good+": ok\n" {
		t.Errorf("good: exit %d, %q", code, out)
	}
	code, out, _ := run(t, "", "file", "check", good, bad)
	if code != ctlproto.ExitUsage || !strings.Contains(out, bad+":1:") {
		t.Errorf("bad: exit %d, %q", code, out)
	}
	if code, out, _ := run(t, "allow a_t tool:x execute\n", "file", "check", "--as", "policy"); code != 0 || out != "-: ok\n" {
		t.Errorf("stdin: exit %d, %q", code, out)
	}
	if code, out, _ := run(t, "maybe\x1b[31m\n", "file", "check", "--as", "approval", "-"); code != 2 || strings.Contains(out, "\x1b") {
		t.Errorf("escape: exit %d, %q", code, out)
	}
	if code, out, _ := run(t, "deny\n", "-o", "json", "file", "check", "--as", "policy"); code != 2 || !strings.Contains(out, `"line": 1`) {
		t.Errorf("json: exit %d, %q", code, out)
	}
}

// TestFileHelpOfEveryControl walks the registry.
func TestFileHelpOfEveryControl(t *testing.T) {
	for _, tab := range tables() {
		for _, e := range tab.set.Entries() {
			code, out, stderr := run(t, "", "file", "help", tab.word+"/"+e.Name)
			if code != 0 || !strings.HasPrefix(out, tab.word+"/"+e.Name+" - ") {
				t.Errorf("%s/%s: exit %d, %q, %q", tab.word, e.Name, code, out, stderr)
			}
			for _, good := range e.Good {
				if strings.HasPrefix(e.Kind.String(), "durable") {
					if code, out, _ := run(t, good, "file", "check", "--as", tab.word+"/"+e.Name); code != 0 {
						t.Errorf("%s/%s: good text %q: exit %d, %q", tab.word, e.Name, good, code, out)
					}
				}
			}
		}
	}
}

func TestPolicyCheck(t *testing.T) {
	if code, out, _ := run(t, "# c\nallow a_t tool:x execute\n", "policy", "check", "-"); code != 0 || out != "-:2: allow a_t tool:x execute\n" {
		t.Errorf("exit %d, %q", code, out)
	}
	if code, out, _ := run(t, "", "policy", "check", "-"); code != 0 || !strings.Contains(out, "everything is denied") {
		t.Errorf("empty: exit %d, %q", code, out)
	}
	if code, out, _ := run(t, "deny all\n", "policy", "check", "-"); code != 2 || !strings.Contains(out, "1:1") {
		t.Errorf("bad: exit %d, %q", code, out)
	}
}

func TestReportCodes(t *testing.T) {
	var errs bytes.Buffer
	s := &State{Out: &bytes.Buffer{}, Err: &errs}
	for want, err := range map[int]error{
		0: nil, 1: fault.Newf(fault.Busy, "x"), 2: fault.Newf(fault.Invalid, "x"), 13: fault.Newf(fault.Access, "x"),
		69: fault.Newf(fault.Unavailable, "x"), 130: fault.Newf(fault.Interrupted, "x"), 70: &ctlproto.RemoteError{Code: "EIO", Exit: 70}, 5: exitError(5),
	} {
		if got := s.report(err); got != want {
			t.Errorf("%v: exit %d, want %d", err, got, want)
		}
	}
	errs.Reset()
	s.report(errors.New("evil \x1b[2J\u202e name"))
	if strings.ContainsAny(errs.String(), "\x1b\u202e") {
		t.Errorf("an error reaches the terminal unescaped: %q", errs.String())
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{"/ctx/tool": "/ctx/tool", "a b": "'a b'", "it's": `'it'\''s'`, "": "''", "$x": "'$x'"} {
		if got := shellQuote(in); got != want {
			t.Errorf("%q: %s", in, got)
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got), rewrite with -update:\n%s", name, d)
	}
}
