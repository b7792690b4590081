package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const dist = "../cmd/cortexfs/dist"

// TestUnits: systemd-analyze finds nothing to say about any unit that we ship.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze here")
	}
	for _, kind := range []struct {
		name  string
		files []string
		flags []string
	}{
		{"system", []string{dist + "/systemd/system/cortexfs.service", dist + "/systemd/system/cortexfs-agent@.service", dist + "/examples/ctx.mount"}, nil},
		{"user", []string{dist + "/systemd/user/cortexfs.service"}, []string{"--user"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			dir := t.TempDir()
			argv := append(kind.flags, "verify", "--man=no")
			for _, f := range kind.files {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				// The programs are where this test has them.
				unit := strings.NewReplacer("/usr/bin/cortexfs ", bin+"/cortexfs ", "/usr/bin/ctx ", bin+"/ctx ").Replace(string(text))
				path := filepath.Join(dir, filepath.Base(f))
				if err := os.WriteFile(path, []byte(unit), 0o644); err != nil {
					t.Fatal(err)
				}
				argv = append(argv, strings.Replace(path, "@.service", "@coder.service", 1))
			}
			cmd := exec.Command(analyze, argv...)
			cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestBoot boots Debian's systemd with the package installed: what `make boot`
// does. It takes minutes where no system is cached, so it runs when asked for.
func TestBoot(t *testing.T) {
	if os.Getenv("CTX_BOOT") == "" {
		t.Skip("runs with CTX_BOOT=1, or as make boot")
	}
	out, err := exec.Command("make", "-C", "..", "boot").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
