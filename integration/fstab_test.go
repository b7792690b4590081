package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// private runs a script in namespaces of its own (private.sh) and reports its
// FAIL lines. Nothing that it mounts or starts outlives it.
func private(t *testing.T, vars []string, script string, args ...string) string {
	t.Helper()
	needRootFUSE(t)
	var paths []string
	for _, name := range []string{"private.sh", script} {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	r := runProgram(t, who{}, vars, append([]string{"bash", paths[0], "bash", paths[1]}, args...)...)
	for line := range strings.Lines(r.out) {
		line = strings.TrimSpace(line)
		if why, ok := strings.CutPrefix(line, "SKIP "); ok {
			t.Skip(why)
		}
		if strings.HasPrefix(line, "FAIL") {
			t.Error(line)
		}
	}
	if r.code != 0 || t.Failed() {
		t.Fatalf("exit %d:\n%s", r.code, r.out)
	}
	return r.out
}

// rounds is how often a test repeats what a `make soak` repeats 200 times.
func rounds(few string) string {
	if n := os.Getenv("CTX_ROUNDS"); n != "" {
		return n
	}
	return few
}

// TestFstab goes through /etc/fstab, mount(8), umount(8), fusermount3 and crashes
// with each of the three ways in which mount(8) finds the daemon.
func TestFstab(t *testing.T) {
	for _, variant := range []string{"fuse3", "own", "cortexfs"} {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			n := rounds("5")
			out := private(t, nil, "fstab.sh", bin, variant, n)
			if !strings.Contains(out, "rounds "+n+"\n") {
				t.Errorf("it did not get to its end:\n%s", out)
			}
		})
	}
}
