package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node/store"
)

func TestPackageCure(t *testing.T) {
	for text, want := range map[string]string{
		"ID=debian\nVERSION_ID=12\n":                    "sudo apt-get install -y fuse3",
		"NAME=x\nID=ubuntu\nID_LIKE=debian\n":           "sudo apt-get install -y fuse3",
		"ID=fedora\n":                                   "sudo dnf install -y fuse3",
		"ID=\"rocky\"\nID_LIKE=\"rhel fedora\"\n":       "sudo dnf install -y fuse3",
		"ID=arch\n":                                     "sudo pacman -S --noconfirm fuse3",
		"ID='opensuse-leap'\nID_LIKE='suse opensuse'\n": "sudo zypper install -y fuse3",
		"ID=alpine\n":                                   "sudo apk add fuse3",
		"ID=plan9\n":                                    "install the package fuse3",
		"":                                              "install the package fuse3",
	} {
		if got := (&State{UID: 1000}).packageCure("fuse3", text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := (&State{}).packageCure("fuse3", "ID=debian"); got != "apt-get install -y fuse3" {
		t.Errorf("root: %q", got)
	}
}

func TestDescribeBwrap(t *testing.T) {
	for said, cve := range map[string]bool{
		"bubblewrap 0.8.0": true, "bubblewrap 0.11.1": true, "bubblewrap 0.12.0": false, "bubblewrap 1.0": false, "what": false,
	} {
		if got := strings.Contains(describeBwrap("/usr/bin/bwrap", said), "CVE-"); got != cve {
			t.Errorf("%s: %v", said, got)
		}
	}
}

// TestDoctorNamesWhatIsBrokenInAStore: unknown, missing, half-written, wrongly
// owned, symlinked and device entries, each by its name, with a cure; the rest is
// healthy; nothing is changed.
func TestDoctorNamesWhatIsBrokenInAStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	st, err := store.Open(dir, store.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"good", "half", "bare"} {
		texts := map[string][]byte{"owner": []byte("0\n"), "abi": []byte("sdk-envelope-v1\n"), "label": []byte(name + "_t\n")}
		if name == "bare" {
			delete(texts, "abi")
		}
		if _, err := st.Create("agent/"+name+".d", texts); err != nil {
			t.Fatal(err)
		}
	}
	st.Close()
	at := func(p string) string { return filepath.Join(dir, "object", p) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.WriteFile(at("agent/half.d/mount"), []byte("/ctx\t/ctx\tro\tbi"), 0o600))
	check(os.WriteFile(at("agent/half.d/polciy"), []byte("x"), 0o600))
	check(os.Symlink("/etc/passwd", at("agent/good.d/env")))
	check(unix.Mkfifo(at("agent/good.d/system.md"), 0o600))
	want := map[string]string{
		"agent/half.d/mount:1":   "ctx edit",
		"agent/half.d/polciy":    "rm ",
		"agent/bare.d/abi":       "ctx set",
		"agent/good.d/env":       "rm ",
		"agent/good.d/system.md": "rm ",
	}
	if os.Geteuid() == 0 {
		check(os.Chown(at("agent/half.d/label"), 65534, 65534))
		want["agent/half.d/label"] = "chown 0 "
	}
	s := &State{UID: 4242, Getenv: func(string) string { return "" }}
	for _, f := range s.checkStore(dir) {
		cure, broken := want[f.What]
		switch {
		case broken && (f.State == "ok" || !strings.HasPrefix(f.Cure, cure)):
			t.Errorf("%+v", f)
		case !broken && f.State != "ok" && !strings.HasPrefix(f.What, "space of"):
			t.Errorf("not broken: %+v", f)
		}
		delete(want, f.What)
	}
	if len(want) > 0 {
		t.Errorf("not named: %v", want)
	}
	if target, err := os.Readlink(at("agent/good.d/env")); err != nil || target != "/etc/passwd" {
		t.Errorf("the store was changed: %q, %v", target, err)
	}
	check(os.Chmod(dir, 0o755))
	list := s.checkStore(dir)
	if len(list) != 1 || list[0].State != "invalid" || list[0].Cure != "chmod 700 "+dir {
		t.Errorf("open to others: %+v", list)
	}
}

func TestDoctorOutput(t *testing.T) {
	for _, flag := range []string{"--json", "-ojson"} {
		code, out, _ := run(t, "", "doctor", "--quick", flag)
		var list []finding
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%s: %v\n%s", flag, err, out)
		}
		// There is no tree at /nonexistent.
		if code != ctlproto.ExitUnavailable || !bad(list) {
			t.Errorf("%s: exit %d, %+v", flag, code, list)
		}
		for _, f := range list {
			if f.What == "" || f.State != "ok" && f.State != "missing" && f.State != "invalid" {
				t.Errorf("%+v", f)
			}
		}
	}
	_, out, _ := run(t, "", "doctor", "--quick")
	for line := range strings.Lines(out) {
		word, _, _ := strings.Cut(line, " ")
		if word != "ok" && word != "missing" && word != "invalid" && !strings.HasPrefix(line, "    cure: ") {
			t.Errorf("line %q", line)
		}
	}
}
