package bwrap

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cortexfs/node/fault"
)

func TestArgs(t *testing.T) {
	o := Options{Root: "/tmp/root", Hostname: "coder", Env: []string{"A=b=c", "E="}, Cwd: "/w", TmpSize: 5, ShmSize: 4, Seccomp: 7, Status: 6, Command: []string{"/t", "--bind"}}
	args := o.Args()
	line := " " + strings.Join(args, " ") + " "
	for _, part := range []string{" --unshare-all --unshare-user --disable-userns ", " --new-session ", " --setenv A b=c ", " --setenv E  ", " --bind /tmp/root / ", " --size 5 --perms 1777 --tmpfs /tmp ", " --seccomp 7 ", " --chdir /w -- /t --bind "} {
		if !strings.Contains(line, part) {
			t.Errorf("%q is not in %q", part, line)
		}
	}
	if strings.Contains(line, "die-with-parent") {
		t.Error("agents outlive the daemon")
	}
	o.TmpSize = 0
	if args := o.Args(); slices.Contains(args, "/tmp") {
		t.Errorf("a /tmp of bwrap's: %q", args)
	}
	options, command := Split(args)
	if strings.Join(command, " ") != "-- /t --bind" || strings.Count(string(options), "\x00") != len(args)-len(command) {
		t.Errorf("Split: %q %q", options, command)
	}
}

func TestQuote(t *testing.T) {
	argv := []string{"a", "", "b c", "it's", "$x", "--", "é\n"}
	out, err := exec.Command("/bin/sh", "-c", "printf '%s|' "+Quote(argv)).Output()
	if err != nil || string(out) != strings.Join(argv, "|")+"|" {
		t.Errorf("%q %v", out, err)
	}
}

func TestReader(t *testing.T) {
	r := NewReader(strings.NewReader(`{ "child-pid": 12, "net-namespace": 5 }` + "\n" + `{ "exit-code": 3 }` + "\n"))
	one, err := r.Next()
	if err != nil || one.ChildPID != 12 || one.ExitCode != nil {
		t.Errorf("%+v %v", one, err)
	}
	two, err := r.Next()
	if err != nil || two.ExitCode == nil || *two.ExitCode != 3 {
		t.Errorf("%+v %v", two, err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	if _, err := NewReader(strings.NewReader("no json")).Next(); err == nil || err == io.EOF {
		t.Errorf("bad text: %v", err)
	}
	if _, err := NewReader(strings.NewReader(`{"child-pid": 1`)).Next(); err != io.EOF {
		t.Errorf("cut text: %v", err)
	}
}

// A program at bubblewrap's place that is not bubblewrap is found out before
// anything depends on it.
func TestProbe(t *testing.T) {
	path, err := Locate("")
	if err != nil {
		if strings.Contains(os.Getenv("CTX_REQUIRE"), "bwrap") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err := Probe(context.Background(), path, 2001, 2001); err != nil {
		t.Errorf("the real one: %v", err)
	}
	// Not below /tmp with its sticky bit alone: another uid executes it.
	dir, err := os.MkdirTemp("", "probe")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"quiet":  "#!/bin/sh\nexit 0\n",
		"fails":  "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n",
		"lies":   "#!/bin/sh\necho '{}' >&3\n",
		"binary": "\x7fELF\x01\x01\x01",
	} {
		fake := filepath.Join(dir, name)
		if err := os.WriteFile(fake, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := Probe(context.Background(), fake, 2001, 2001); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bad := range []string{"/nonexistent", dir, "relative"} {
		if _, err := Locate(bad); err == nil {
			t.Errorf("Locate(%q) found something", bad)
		}
	}
}

func TestExplain(t *testing.T) {
	if s := Explain("bwrap: setting up uid map: Permission denied\n", nil); !strings.Contains(s, "AppArmor") {
		t.Error(s)
	}
	if s := Explain("", errors.New("signal: killed")); !strings.Contains(s, "killed") {
		t.Error(s)
	}
}
