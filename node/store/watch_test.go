package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// watched opens the store and returns the reports of Watch.
func watched(t *testing.T, poll bool) (*Store, chan string) {
	t.Helper()
	s := newStore(t)
	if err := s.MkdirAll("tool"); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, s, "agent/a.d", map[string][]byte{"tools": []byte("x\n"), "label": []byte("a_t\n")})
	reports := make(chan string, 1000)
	if poll {
		t.Cleanup(func() { newWatcher = fsnotify.NewWatcher })
		newWatcher = func() (*fsnotify.Watcher, error) { return nil, unix.EMFILE }
	}
	if err := s.Watch(func(dir string) { reports <- dir }); err != nil {
		t.Fatal(err)
	}
	return s, reports
}

// expect waits for a report of dir; those of others in allowed may come too.
func expect(t *testing.T, reports chan string, dir string, allowed ...string) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case got := <-reports:
			if got == dir {
				return
			}
			ok := false
			for _, a := range allowed {
				ok = ok || a == got
			}
			if !ok {
				t.Errorf("report of %q, want %q", got, dir)
			}
		case <-limit:
			t.Fatalf("no report of %q", dir)
		}
	}
}

// none makes sure that nothing was reported up to now: a change that is reported
// comes behind everything before it.
func none(t *testing.T, s *Store, reports chan string) {
	t.Helper()
	mark := s.onDisk("tool/mark")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, reports, "tool")
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	expect(t, reports, "tool")
}

func TestWatch(t *testing.T) {
	for _, poll := range []bool{false, true} {
		t.Run(fmt.Sprintf("poll=%v", poll), func(t *testing.T) {
			s, reports := watched(t, poll)
			o, err := s.Object("agent/a.d")
			if err != nil {
				t.Fatal(err)
			}
			before := o.Snapshot()
			if err := os.WriteFile(s.onDisk("agent/a.d/tools"), []byte("x\ny\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			expect(t, reports, "agent/a.d", "tool", "agent")
			after := o.Snapshot()
			if text(o, "tools") != "x\ny\n" || after.Gen <= before.Gen ||
				after.Values["label"].Gen != before.Values["label"].Gen || string(before.Values["tools"].Text) != "x\n" {
				t.Errorf("before %v, after %v", before, after)
			}
			// Replaced by rename, as git does it; and by something that is no text.
			if err := os.WriteFile(s.onDisk("agent/a.d/tools.lock"), []byte("z\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(s.onDisk("agent/a.d/tools.lock"), s.onDisk("agent/a.d/tools")); err != nil {
				t.Fatal(err)
			}
			for text(o, "tools") != "z\n" {
				expect(t, reports, "agent/a.d", "tool", "agent")
			}
			if err := os.Remove(s.onDisk("agent/a.d/label")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/hostname", s.onDisk("agent/a.d/label")); err != nil {
				t.Fatal(err)
			}
			for o.Snapshot().Values["label"].Err == nil {
				expect(t, reports, "agent/a.d", "tool", "agent")
			}
			// A new object, then its removal.
			if err := os.MkdirAll(s.onDisk("agent/b.d"), 0o700); err != nil {
				t.Fatal(err)
			}
			expect(t, reports, "agent", "agent/a.d", "agent/b.d", "tool")
			if err := os.RemoveAll(s.onDisk("agent/a.d")); err != nil {
				t.Fatal(err)
			}
			for !o.Gone() {
				expect(t, reports, "agent/a.d", "agent", "agent/b.d", "tool")
			}
		})
	}
}

func TestWatchInside(t *testing.T) {
	s, reports := watched(t, false)
	// A tool that appears in pieces, in a tier that is new.
	if err := os.MkdirAll(s.onDisk("home/1000/tool"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect(t, reports, "home/1000/tool", "home", "home/1000", "")
	if err := os.WriteFile(s.onDisk("home/1000/tool/new"), []byte("#!"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect(t, reports, "home/1000/tool", "home", "home/1000", "")
	// Hooks and attributes belong to their object.
	if err := os.MkdirAll(s.onDisk("agent/a.d/hooks/pre.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect(t, reports, "agent/a.d", "home/1000/tool", "home", "home/1000", "")
	if err := os.WriteFile(s.onDisk("agent/a.d/.attr.exec"), []byte("1 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, reports, "agent/a.d", "home/1000/tool")
	// An object that moves is another object.
	o, err := s.Object("agent/a.d")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.onDisk("agent/a.d"), s.onDisk("agent/c.d")); err != nil {
		t.Fatal(err)
	}
	for !o.Gone() {
		expect(t, reports, "agent", "agent/a.d", "agent/c.d")
	}
	c, err := s.Object("agent/c.d")
	if err != nil || text(c, "tools") != "x\n" {
		t.Fatalf("the moved object: %v", err)
	}
	if err := os.WriteFile(s.onDisk("agent/c.d/tools"), []byte("y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text(c, "tools") != "y\n" {
		expect(t, reports, "agent/c.d", "agent", "agent/a.d")
	}
}

func TestOwnChangesDoNotEcho(t *testing.T) {
	s, reports := watched(t, false)
	o, err := s.Object("agent/a.d")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := o.Put("tools", fmt.Appendf(nil, "t%d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		o.Delete("label"), s.SetAttr(commitPath(t, s, "tool/x"), FileAttr{1, 1, 0o700}),
		s.RenameFile("tool/x", "tool/y"), s.RemoveFile("tool/y"), s.MkdirAll("home/1000/agent"),
		s.MkdirAll("agent/a.d/hooks/pre.d"), s.Symlink("model-main", "debug/echo"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	mustCreate(t, s, "home/1000/agent/b.d", map[string][]byte{"label": []byte("b_t\n")})
	commitPath(t, s, "home/1000/agent/b.d/exec")
	if err := s.Remove("home/1000/agent/b.d"); err != nil {
		t.Fatal(err)
	}
	gen := o.Snapshot().Gen
	none(t, s, reports)
	if o.Snapshot().Gen != gen {
		t.Error("our own changes were published twice")
	}
}

func commitPath(t *testing.T, s *Store, p string) string {
	t.Helper()
	commit(t, s, p, "#!/bin/true", FileAttr{7, 7, 0o755})
	return p
}

func TestReload(t *testing.T) {
	s, reports := watched(t, false)
	o, err := s.Object("agent/a.d")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		want := fmt.Sprintf("t%d\n", i)
		if err := os.WriteFile(s.onDisk("agent/a.d/tools"), []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
		if text(o, "tools") != want {
			t.Fatalf("after Reload: %q, want %q", text(o, "tools"), want)
		}
	}
	seen := map[string]bool{}
	for len(reports) > 0 {
		seen[<-reports] = true
	}
	for _, dir := range []string{"agent/a.d", "agent", "tool"} {
		if !seen[dir] {
			t.Errorf("%s was not reported: %v", dir, seen)
		}
	}
	s.Close()
	if err := s.Reload(); err == nil {
		t.Error("Reload after Close")
	}
}

// TestMovedStore: the store is held by descriptors, so its own path may change.
func TestMovedStore(t *testing.T) {
	s, reports := watched(t, false)
	elsewhere := filepath.Join(t.TempDir(), "moved")
	if err := os.Rename(s.path, elsewhere); err != nil {
		t.Fatal(err)
	}
	o, err := s.Object("agent/a.d")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Put("tools", []byte("ours\n")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(elsewhere, "object/agent/a.d/tools"), []byte("theirs\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text(o, "tools") != "theirs\n" {
		expect(t, reports, "agent/a.d")
	}
}
