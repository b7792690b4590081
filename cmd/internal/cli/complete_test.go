package cli

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestPlaceholdersAreKnown: what completion makes of every command's usage line.
func TestPlaceholdersAreKnown(t *testing.T) {
	want := map[string][]string{
		"ctx agent start":  {"AGENT"},
		"ctx agent why":    {"AGENT", "TOOL"},
		"ctx agent exec":   {"AGENT", "CMD", "ARG..."},
		"ctx agent wait":   {"AGENT", "CHILD"},
		"ctx agent grant":  {"CHILD", "rule|group|mount|tool", "VALUE"},
		"ctx agent new":    {"NAME"},
		"ctx file help":    {"CONTROL"},
		"ctx file check":   {"FILE|-..."},
		"ctx set":          {"PATH", "VALUE"},
		"ctx cat":          {"PATH..."},
		"ctx which agent":  {"AGENT"},
		"ctx which tool":   {"TOOL"},
		"ctx bootstrap":    {"STORE"},
		"ctx policy check": {"FILE|AGENT|-..."},
		"ctx status":       nil,
	}
	walk(Root(&State{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}), func(c *cobra.Command) {
		if w, known := want[c.CommandPath()]; known {
			if got := placeholders(c); !slices.Equal(got, w) {
				t.Errorf("%s (%s): %q, want %q", c.CommandPath(), c.Use, got, w)
			}
			delete(want, c.CommandPath())
		}
	})
	for path := range want {
		t.Errorf("no command %s", path)
	}
}

func TestCompletion(t *testing.T) {
	for words, want := range map[string]string{
		"agent st":        "start",
		"file help ":      "agent/mount",
		"file list ":      "tool",
		"man ":            "cortexfs-agent",
		"agent start --g": "--git",
		"-o ":             "json",
	} {
		args := append([]string{"__complete"}, strings.Split(words, " ")...)
		code, out, _ := run(t, "", args...)
		found := false
		for line := range strings.Lines(out) {
			name, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			found = found || name == want
		}
		if code != 0 || !found {
			t.Errorf("%q: exit %d, no %s in %q", words, code, want, out)
		}
	}
}

// TestCompletionScripts: the shells themselves take the scripts.
func TestCompletionScripts(t *testing.T) {
	for shell, argv := range map[string][]string{
		"bash": {"bash", "-n"}, "zsh": {"zsh", "-n"}, "fish": {"fish", "--no-execute"},
	} {
		t.Run(shell, func(t *testing.T) {
			code, script, _ := run(t, "", "completion", shell)
			if code != 0 || len(script) < 1000 {
				t.Fatalf("exit %d, %d bytes", code, len(script))
			}
			if _, err := exec.LookPath(argv[0]); err != nil {
				t.Skipf("no %s here", shell)
			}
			file := t.TempDir() + "/ctx." + shell
			if err := writeFile(file, script); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(argv[0], append(argv[1:], file)...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }
