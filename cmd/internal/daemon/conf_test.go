package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cortexfs/node/fault"
)

func TestConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cortexfs.conf")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if c, err := ReadConf(path); err != nil || c != DefaultConf() {
		t.Errorf("no file: %+v, %v", c, err)
	}
	write("# limits\n\nmax_running = 3\n stop_seconds=20\nopen_seconds=7\nstop_grace_seconds=0\nnotice_seconds=2", 0o644)
	want := Conf{MaxRunning: 3, StopBound: 20 * time.Second, OpenBound: 7 * time.Second, Notice: 2 * time.Second}
	if c, err := ReadConf(path); err != nil || c != want {
		t.Errorf("%+v, %v; want %+v", c, err, want)
	}
	for text, word := range map[string]string{
		"max_runing=3":                 `unknown key "max_runing"`,
		"\nmax_running":                "KEY=VALUE",
		"max_running=0":                "max_running",
		"max_running=03":               "max_running",
		"max_running=many":             "max_running",
		"max_running=1\nmax_running=2": "twice",
		"stop_seconds=1s":              "stop_seconds",
		"=1":                           "unknown key",
		strings.Repeat("#x\n", 30<<10): "bytes",
	} {
		write(text, 0o644)
		c, err := ReadConf(path)
		if err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), path) || c != DefaultConf() {
			t.Errorf("%.30q: %+v, %v", text, c, err)
		}
	}
	write("\n\nx=1", 0o644)
	if _, err := ReadConf(path); err == nil || !strings.Contains(err.Error(), ":3") {
		t.Errorf("no line in %v", err)
	}
	write("max_running=3", 0o666)
	if _, err := ReadConf(path); !fault.Is(err, fault.Perm) || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("writable by all: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConf(path); err == nil {
		t.Error("a directory is no configuration")
	}
}

// TestSettingsDefaults: each default, written out, reads as itself.
func TestSettingsDefaults(t *testing.T) {
	c := Conf{}
	var text strings.Builder
	for _, s := range Settings() {
		if s.Doc == "" {
			t.Errorf("%s has no documentation", s.Key)
		}
		text.WriteString(s.Key + "=" + s.Default + "\n")
	}
	if err := c.parse(text.String()); err != nil || c != DefaultConf() {
		t.Errorf("%+v, %v", c, err)
	}
}
