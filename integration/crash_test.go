package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestCrash: kill -9 of the daemon under random writes, mounted again through
// fstab. Every acknowledged write is there, nothing is half, one mount, and the
// running agent is the same and sees a live tree.
func TestCrash(t *testing.T) {
	needSandbox(t)
	needRootFUSE(t)
	script, err := filepath.Abs("crash.py")
	if err != nil {
		t.Fatal(err)
	}
	shell, err := filepath.Abs("private.sh")
	if err != nil {
		t.Fatal(err)
	}
	n := rounds("10")
	r := runProgram(t, who{}, nil, "bash", shell, "python3", script, bin, n)
	if r.code != 0 || strings.Contains(r.out, "FAIL") || !strings.Contains(r.out, "rounds "+n+" ") {
		t.Errorf("exit %d:\n%.4000s", r.code, r.out)
	}
	t.Logf("%.200s", r.out)
}
