package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"cortexfs/node/fault"
)

func TestUnoctal(t *testing.T) {
	for in, want := range map[string]string{`/a`: "/a", `/a\040b`: "/a b", `/t\011x\134`: "/t\tx\\", `/cut\04`: `/cut\04`} {
		if got := unoctal(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestCheckApart(t *testing.T) {
	d := t.TempDir()
	for _, sub := range []string{"store/sub", "mp/sub", "other"} {
		if err := os.MkdirAll(filepath.Join(d, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(d, "link")
	if err := os.Symlink(filepath.Join(d, "mp"), link); err != nil {
		t.Fatal(err)
	}
	at := func(s string) string { return filepath.Join(d, s) }
	for _, c := range []struct {
		store, mp string
		ok        bool
	}{
		{"store", "mp", true},
		{"new/store", "mp", true},
		{"store", "store", false},
		{"mp/sub", "mp", false},
		{"mp/new/store", "mp", false},
		{"store", "store/sub", false},
		{"link/sub", "mp", false},
		{"link/new", "mp", false},
		{"storex", "store", true},
	} {
		err := checkApart(at(c.store), at(c.mp))
		if (err == nil) != c.ok || err != nil && !fault.Is(err, fault.Invalid) {
			t.Errorf("store %s, mount point %s: %v", c.store, c.mp, err)
		}
	}
}

func TestPrepareMountpoint(t *testing.T) {
	d, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mp, file := filepath.Join(d, "mp"), filepath.Join(d, "file")
	if err := os.Mkdir(mp, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(mp, filepath.Join(d, "link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{mp: mp, filepath.Join(d, "link"): mp, d + "/./mp/../mp": mp} {
		if got, err := prepareMountpoint(path); err != nil || got != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for path, kind := range map[string]fault.Kind{
		filepath.Join(d, "none"):   fault.NotExist,
		filepath.Join(d, "no/one"): fault.NotExist,
		file:                       fault.NotDir,
		"/proc":                    fault.Busy, // something else is mounted there
	} {
		if _, err := prepareMountpoint(path); !fault.Is(err, kind) {
			t.Errorf("%s: %v, want %v", path, err, kind)
		}
	}
}

func TestOwnDir(t *testing.T) {
	d := t.TempDir()
	made := filepath.Join(d, "made")
	if err := ownDir(made, 0o711); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(made); st.Mode().Perm() != 0o711 {
		t.Errorf("mode %v", st.Mode())
	}
	open := filepath.Join(d, "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := ownDir(open, 0o700); !fault.Is(err, fault.Perm) {
		t.Errorf("a directory that others can write: %v", err)
	}
	link := filepath.Join(d, "link")
	if err := os.Symlink(made, link); err != nil {
		t.Fatal(err)
	}
	if err := ownDir(link, 0o700); !fault.Is(err, fault.NotDir) {
		t.Errorf("a link: %v", err)
	}
}

func TestShortSocketNames(t *testing.T) {
	r := &runDir{path: "/run/cortexfs/0123456789abcdef"}
	long := "home.4294967294." + "a123456789012345678901234567890123456789012345678901234567890"
	p := r.socket(long, long)
	if len(p) > 107 {
		t.Errorf("%d bytes: %s", len(p), p)
	}
	if r.socket(long, "a") == r.socket(long+"b", "a") {
		t.Error("two agents share a socket")
	}
	if got := r.socket("system.0.coder", "default"); got != r.path+"/sock/system.0.coder/default.sock" {
		t.Errorf("plain name: %s", got)
	}
}

func TestSourceName(t *testing.T) {
	for store, want := range map[string]string{
		"/var/lib/cortexfs": "/var/lib/cortexfs", "/dev/shm/store": "cortexfs", "/development/store": "/development/store",
	} {
		if got := sourceName(store); got != want {
			t.Errorf("%s: %s", store, got)
		}
	}
}
