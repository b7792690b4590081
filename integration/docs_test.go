package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// blocks are the fenced blocks of a document that are marked sh.
func blocks(text string) string {
	var b strings.Builder
	in := false
	for line := range strings.Lines(text) {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == "```sh":
			in = true
		case strings.HasPrefix(trimmed, "```"):
			in = false
		case in:
			b.WriteString(line)
		}
	}
	return b.String()
}

// TestDocs executes the documents for people who begin: as root on a machine, as
// a plain user on a laptop, each on a private copy of this machine.
func TestDocs(t *testing.T) {
	needRootFUSE(t)
	needSandbox(t)
	for doc, as := range map[string]string{"operator.md": "root", "laptop.md": "user"} {
		t.Run(doc, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("..", "docs", doc))
			if err != nil {
				t.Fatal(err)
			}
			script := blocks(string(text))
			if strings.Count(script, "\n") < 8 {
				t.Fatalf("only %d lines to execute in %s", strings.Count(script, "\n"), doc)
			}
			file := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
				t.Fatal(err)
			}
			out := private(t, nil, "docs.sh", bin, as, file)
			if !strings.HasSuffix(out, "document done\n") {
				t.Errorf("%s did not get to its end:\n%s", doc, out)
			}
		})
	}
}
