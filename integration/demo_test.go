package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDemo runs what `make demo` runs, as root and as a plain user: the promise of
// the README, step by step. The script fails when a refusal does not come.
func TestDemo(t *testing.T) {
	needRootFUSE(t)
	needSandbox(t)
	script, err := filepath.Abs("demo.sh")
	if err != nil {
		t.Fatal(err)
	}
	asUser, err := filepath.Abs("asuser.sh")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	before, _ := filepath.Glob("/run/cortexfs-user.*")
	for name, argv := range map[string][]string{
		"root": {"bash", script, bin},
		// The script goes in by -s: a clone in root's home is not a user's to read.
		"user": {"bash", "-c", `exec "$0" bash -s "$1" < "$2"`, asUser, bin, script},
	} {
		t.Run(name, func(t *testing.T) {
			r := runProgram(t, who{}, []string{"HOME=" + home}, argv...)
			if r.code != 0 || !strings.Contains(r.out, "== 16.") || !strings.HasSuffix(r.out, "done\n") {
				t.Errorf("exit %d:\n%s", r.code, r.out)
			}
			for _, want := range []string{
				"write error: Invalid argument", "Hello from the project.", "missing in /ctx/agent/coder.d/policy: allow coder_t tool:fs.read execute",
				"coder> fs.list /workspace", "ctx agent grant CHILD tool deploy", "child.cancel",
				"Greetings from the project.", "ERROR: EACCES row 9 (approval): user", "tool fs.read: Hello from the project.", `"decision":"allow_once"`,
			} {
				if !strings.Contains(r.out, want) {
					t.Errorf("the demo does not show %q:\n%s", want, r.out)
				}
			}
		})
	}
	if after, _ := filepath.Glob("/run/cortexfs-user.*"); len(after) > len(before) {
		t.Errorf("left behind: %v, before %v", after, before)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}
