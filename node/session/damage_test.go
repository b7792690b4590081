package session

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// TestTornTail: every way in which a file can end badly is moved aside and the
// session goes on.
func TestTornTail(t *testing.T) {
	for name, tail := range map[string]string{
		"half a line":    `{"id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","ts":`,
		"no LF":          `{"type":"done"}`,
		"zero bytes":     strings.Repeat("\x00", 5000),
		"zeros and LF":   strings.Repeat("\x00", 100) + "\n",
		"two bad lines":  "{\"a\":\n}\n",
		"long half line": `{"text":"` + strings.Repeat("x", 300_000),
		"blank line":     "\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			s := w.open()
			finish(t, begin(t, s, send("m1", "s", "one")), "x")
			s.Close()
			for _, file := range []string{"session/s/events.jsonl", "session/s/messages.jsonl"} {
				f, err := os.OpenFile(w.path(file), os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				f.WriteString(tail)
				f.Close()
			}
			s = w.open()
			finish(t, begin(t, s, send("m2", "s", "two")), "y")
			events := w.lines("session/s/events.jsonl")
			if len(events) != 4 || events[3]["seq"] != float64(4) {
				t.Errorf("%v", events)
			}
			if got := w.lines("session/s/messages.jsonl"); len(got) != 4 {
				t.Errorf("%v", got)
			}
			if got := read(t, w.path("session/s/events.jsonl.torn")); got != tail+"\n" {
				t.Errorf("torn: %.80q", got)
			}
			if len(w.notes) != 2 || w.notes[0].Type != "session.torn" {
				t.Errorf("%v", w.notes)
			}
		})
	}
}

// TestPlantedEntries: whatever an agent or its owner lays where a file of ours
// should be, nothing outside is read or written, and the session answers EIO.
func TestPlantedEntries(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	for name, plant := range map[string]func(w *world) error{
		"session is a link": func(w *world) error {
			os.MkdirAll(outside+".d", 0o700)
			return os.Symlink(outside+".d", w.path("session/s"))
		},
		"session is a file": func(w *world) error { return os.WriteFile(w.path("session/s"), nil, 0o600) },
		"messages is a link": func(w *world) error {
			return errors.Join(os.Mkdir(w.path("session/s"), 0o700), os.Symlink(outside, w.path("session/s/messages.jsonl")))
		},
		"events is a FIFO": func(w *world) error {
			return errors.Join(os.Mkdir(w.path("session/s"), 0o700), unix.Mkfifo(w.path("session/s/events.jsonl"), 0o600))
		},
		"events is a directory": func(w *world) error { return os.MkdirAll(w.path("session/s/events.jsonl"), 0o700) },
		"events has two names": func(w *world) error {
			return errors.Join(os.Mkdir(w.path("session/s"), 0o700), os.WriteFile(outside, []byte("secret"), 0o600),
				os.MkdirAll(w.path("x"), 0o700), os.WriteFile(w.path("x/f"), nil, 0o600), os.Link(w.path("x/f"), w.path("session/s/events.jsonl")))
		},
		"context is a link": func(w *world) error {
			return errors.Join(os.Mkdir(w.path("session/s"), 0o700), os.Symlink("/tmp", w.path("session/s/context")))
		},
		"torn is a link": func(w *world) error {
			return errors.Join(os.Mkdir(w.path("session/s"), 0o700), os.WriteFile(w.path("session/s/events.jsonl"), []byte("x"), 0o600),
				os.Symlink(outside, w.path("session/s/events.jsonl.torn")))
		},
		"state is a link": func(w *world) error {
			return errors.Join(os.Mkdir(w.path("session/s"), 0o700), os.Symlink(outside, w.path("session/s/state")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			os.WriteFile(outside, []byte("secret"), 0o600)
			if err := plant(w); err != nil {
				t.Fatal(err)
			}
			s := w.open()
			if _, _, err := s.Begin(send("m", "s", "x")); !fault.Is(err, fault.IO) {
				t.Errorf("%v", err)
			}
			if got := read(t, outside); got != "secret" {
				t.Errorf("outside: %q", got)
			}
			if got, _ := os.ReadDir(outside + ".d"); len(got) > 0 {
				t.Errorf("outside: %v", got)
			}
			finish(t, begin(t, s, send("m2", "other", "x")), "y") // the others go on
		})
	}
}

func TestIndexPlanted(t *testing.T) {
	w := newWorld(t)
	os.Symlink("/tmp", w.path("session/index"))
	if _, err := w.try(); !fault.Is(err, fault.IO) {
		t.Error(err)
	}
}

func TestFsyncFailure(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	r := begin(t, s, send("m1", "s", "x"))
	l := r.events.(*fileLines)
	l.mu.Lock()
	l.fsyncing = func(int) error { return unix.EIO }
	l.mu.Unlock()
	if err := r.Event([]byte(`{"type":"x"}`)); !fault.Is(err, fault.IO) {
		t.Error(err)
	}
	if err := r.Finish(OK, "x"); !fault.Is(err, fault.IO) {
		t.Error(err)
	}
	// The next send opens the files anew.
	finish(t, begin(t, s, send("m2", "s", "x")), "y")
}
