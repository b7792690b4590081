package session

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cortexfs/node/fault"
)

// world is an agent's session directory and its records, in a temp directory.
type world struct {
	t     *testing.T
	root  string
	notes []Note
	mu    sync.Mutex
	clock func() time.Time
}

func newWorld(t *testing.T) *world { return worldAt(t, t.TempDir()) }

// newFastWorld lies in memory where it can: thousands of fsyncs of a disk that
// others use too would be most of what such a test does.
func newFastWorld(t *testing.T) *world {
	root, err := os.MkdirTemp("/dev/shm", "session")
	if err != nil {
		return newWorld(t)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	return worldAt(t, root)
}

func worldAt(t *testing.T, root string) *world {
	w := &world{t: t, root: root}
	for _, d := range []string{"session", "records", "shared"} {
		if err := os.Mkdir(filepath.Join(w.root, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func openDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func (w *world) try() (*Store, error) {
	return Open(Options{
		Sessions: openDir(w.t, filepath.Join(w.root, "session")),
		Records:  openDir(w.t, filepath.Join(w.root, "records")),
		Shared: func(space string) (*os.File, error) {
			if space != "team" {
				return nil, fault.Newf(fault.Access, "no")
			}
			return os.Open(filepath.Join(w.root, "shared"))
		},
		Note: func(n Note) {
			w.mu.Lock()
			w.notes = append(w.notes, n)
			w.mu.Unlock()
		},
		Now: w.clock,
	})
}

func (w *world) open() *Store {
	w.t.Helper()
	s, err := w.try()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { s.Close() })
	return s
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.root}, parts...)...)
}

func (w *world) lines(parts ...string) []map[string]any {
	w.t.Helper()
	b, err := os.ReadFile(w.path(parts...))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []map[string]any
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		var m map[string]any
		if err := json.Unmarshal(sc.Bytes(), &m); err != nil {
			w.t.Fatalf("%v: %q", err, sc.Text())
		}
		out = append(out, m)
	}
	return out
}

func private(name string) Key { return Key{Scope: Private, Name: name} }

func send(id, session, input string) Send {
	return Send{ID: id, Key: private(session), Cwd: "/workspace", Input: input, Model: "main"}
}

func begin(t testing.TB, s *Store, m Send) *Run {
	t.Helper()
	run, replay, err := s.Begin(m)
	if err != nil || replay != nil {
		t.Fatalf("begin %s: %v %v", m.ID, replay, err)
	}
	return run
}

func finish(t testing.TB, r *Run, answer string) {
	t.Helper()
	if err := r.Message(fmt.Appendf(nil, `{"role":"assistant","content":[{"type":"text","text":%q}]}`, answer)); err != nil {
		t.Fatal(err)
	}
	if err := r.Finish(OK, answer); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSessionDirectory(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	m := send("m1", "default", "hello \u2028 <b>")
	m.Workspace = "/home/ada/work"
	r := begin(t, s, m)
	if got := read(t, w.path("session/default/state")); got != "active\n" {
		t.Errorf("state %q", got)
	}
	if err := r.Snapshot("AGENTS.md", []byte("none\n")); err != nil {
		t.Error(err)
	}
	if err := r.Snapshot("../x", nil); !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
	finish(t, r, "hi there")

	var names []string
	entries, _ := os.ReadDir(w.path("session/default"))
	for _, e := range entries {
		names = append(names, e.Name())
		info, _ := e.Info()
		if want := map[bool]os.FileMode{true: 0o700, false: 0o600}[e.IsDir()]; info.Mode().Perm() != want {
			t.Errorf("%s has mode %o", e.Name(), info.Mode().Perm())
		}
	}
	want := []string{"AGENTS.md", "context", "created_at", "cwd", "events.jsonl", "latest.md", "messages.jsonl", "meta.json", "state", "terminal", "updated_at"}
	if !slices.Equal(names, want) {
		t.Errorf("%v", names)
	}
	for name, text := range map[string]string{"state": "done\n", "cwd": "/workspace\n", "latest.md": "hi there\n"} {
		if got := read(t, w.path("session/default", name)); got != text {
			t.Errorf("%s: %q", name, got)
		}
	}
	messages := w.lines("session/default/messages.jsonl")
	if len(messages) != 2 || messages[0]["content"] != m.Input || messages[0]["role"] != "user" || messages[1]["run"] != r.ID() {
		t.Errorf("%v", messages)
	}
	events := w.lines("session/default/events.jsonl")
	if len(events) != 2 || events[0]["type"] != "start" || events[0]["message_id"] != "m1" || events[1]["status"] != "ok" {
		t.Errorf("%v", events)
	}
	for i, e := range events {
		if len(e["id"].(string)) != 26 || e["seq"] != float64(i+1) {
			t.Errorf("%v", e)
		}
		if _, err := time.Parse(time.RFC3339, e["ts"].(string)); err != nil {
			t.Error(err)
		}
	}
	if got := read(t, w.path("session/index/current")); got != "default\n" {
		t.Errorf("current %q", got)
	}
	if name, err := s.ByWorkspace("/home/ada/work"); name != "default" || err != nil {
		t.Error(name, err)
	}
	if _, err := s.ByWorkspace("/other"); !fault.Is(err, fault.NotExist) {
		t.Error(err)
	}
}

func TestIndexOrder(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	for i, name := range []string{"a", "b", "c", "a"} {
		finish(t, begin(t, s, send(fmt.Sprint("m", i), name, "x")), "y")
	}
	if got := read(t, w.path("session/index/list")); got != "a\nc\nb\n" {
		t.Errorf("%q", got)
	}
	s.Close()
	os.RemoveAll(w.path("session/c"))
	os.Mkdir(w.path("session/made-by-hand"), 0o700)
	if got := w.open().List(); !slices.Equal(got, []string{"a", "b", "made-by-hand"}) {
		t.Errorf("%v", got)
	}
}

func TestSendIsIdempotent(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	m := send("m1", "s", "task")
	finish(t, begin(t, s, m), "answer")
	before := read(t, w.path("session/s/events.jsonl"))

	check := func(s *Store) {
		t.Helper()
		run, replay, err := s.Begin(m)
		if err != nil || run != nil || replay == nil {
			t.Fatal(run, replay, err)
		}
		defer replay.Release()
		var frames []string
		if err := replay.Stream(context.Background(), func(f []byte) error {
			frames = append(frames, string(f))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want := []string{
			fmt.Sprintf(`{"type":"start","id":"m1","run":"%s","model":"main"}`, replay.RunID),
			fmt.Sprintf(`{"type":"done","run":"%s","status":"ok"}`, replay.RunID),
		}
		if !slices.Equal(frames, want) {
			t.Errorf("%v", frames)
		}
		for _, change := range []func(*Send){
			func(m *Send) { m.Input = "other" },
			func(m *Send) { m.Cwd = "/tmp" },
			func(m *Send) { m.Key.Name = "t" },
			func(m *Send) { m.Key.Scope = Temp },
			func(m *Send) { m.Key = Key{Scope: Shared, Space: "team", Name: "s"} },
		} {
			other := m
			change(&other)
			if run, replay, err := s.Begin(other); !fault.Is(err, fault.Invalid) {
				t.Errorf("%+v: %v %v %v", other, run, replay, err)
			}
		}
	}
	check(s)
	s.Close()
	check(w.open()) // also after a restart
	if got := read(t, w.path("session/s/events.jsonl")); got != before {
		t.Error("a replay wrote something")
	}
	if _, err := os.Stat(w.path("session/t")); err == nil {
		t.Error("a refused send made a session")
	}
}

func TestIdLivesAsLongAsTheSession(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	finish(t, begin(t, s, send("m1", "s", "one")), "x")
	os.RemoveAll(w.path("session/s"))
	finish(t, begin(t, s, send("m1", "s", "another")), "y")
	if got := w.lines("session/s/messages.jsonl"); len(got) != 2 || got[0]["content"] != "another" {
		t.Errorf("%v", got)
	}
}

func TestBadSends(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	good := send("m1", "s", "x")
	for name, change := range map[string]func(*Send){
		"empty id":      func(m *Send) { m.ID = "" },
		"id a path":     func(m *Send) { m.ID = "../x" },
		"index":         func(m *Send) { m.Key.Name = "index" },
		"dots":          func(m *Send) { m.Key.Name = ".." },
		"slash":         func(m *Send) { m.Key.Name = "a/b" },
		"scope":         func(m *Send) { m.Key.Scope = "public" },
		"no space":      func(m *Send) { m.Key.Scope = Shared },
		"private space": func(m *Send) { m.Key.Space = "team" },
		"nul":           func(m *Send) { m.Input = "a\x00" },
		"utf8":          func(m *Send) { m.Input = "\xff" },
		"relative cwd":  func(m *Send) { m.Cwd = "work" },
		"cwd":           func(m *Send) { m.Cwd = "/a/../b" },
		"cwd line":      func(m *Send) { m.Cwd = "/a\nb" },
	} {
		m := good
		change(&m)
		if _, _, err := s.Begin(m); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	big := good
	big.Input = strings.Repeat("x", MaxSend+1)
	if _, _, err := s.Begin(big); !fault.Is(err, fault.TooBig) {
		t.Error(err)
	}
	if _, _, err := s.Begin(Send{ID: "m", Key: Key{Scope: Shared, Space: "foreign", Name: "s"}}); !fault.Is(err, fault.Access) {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(w.path("session")); len(entries) != 1 {
		t.Errorf("%v", entries)
	}
}

func TestSharedAndTemp(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	m := Send{ID: "m1", Key: Key{Scope: Shared, Space: "team", Name: "plan"}, Input: "x"}
	finish(t, begin(t, s, m), "y")
	if got := w.lines("shared/plan/messages.jsonl"); len(got) != 2 {
		t.Errorf("%v", got)
	}
	tmp := Send{ID: "m2", Key: Key{Scope: Temp, Name: "plan"}, Input: "x"}
	r := begin(t, s, tmp)
	again := r.Replay()
	if err := r.InFlight("c1", "fs.read"); err != nil {
		t.Error(err)
	}
	finish(t, r, "y")
	n := 0
	if err := again.Stream(t.Context(), func([]byte) error { n++; return nil }); err != nil || n != 2 {
		t.Error(n, err)
	}
	again.Release()
	if _, replay, err := s.Begin(tmp); err != nil || replay == nil {
		t.Error(replay, err)
	} else {
		replay.Release()
	}
	if _, err := os.Stat(w.path("session/plan")); err == nil {
		t.Error("a temp session has files")
	}
	if strings.Contains(read(t, w.path("records/runs.jsonl")), r.ID()) {
		t.Error("a temp run is recorded")
	}
}

// TestClockGoesBack: ids and numbers order the events, not the clock.
func TestClockGoesBack(t *testing.T) {
	w := newWorld(t)
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	w.clock = func() time.Time { now = now.Add(-time.Hour); return now }
	s := w.open()
	for i := range 20 {
		finish(t, begin(t, s, send(fmt.Sprint("m", i), "s", "x")), "y")
	}
	s.Close()
	finish(t, begin(t, w.open(), send("last", "s", "x")), "y")
	prev := ""
	for i, e := range w.lines("session/s/events.jsonl") {
		if e["seq"] != float64(i+1) || e["id"].(string) <= prev {
			t.Fatalf("%v after %s", e, prev)
		}
		prev = e["id"].(string)
	}
}

func TestTail(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	var sizes []int
	for i := range 5 {
		finish(t, begin(t, s, send(fmt.Sprint("m", i), "s", strings.Repeat("x", i))), "y")
	}
	for line := range strings.Lines(read(t, w.path("session/s/messages.jsonl"))) {
		sizes = append(sizes, len(line))
	}
	one, err := s.Get(private("s"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Release()
	for limit := range 2000 {
		want, sum := 0, 0
		for i := len(sizes) - 1; i >= 0 && sum+sizes[i] <= limit; i-- {
			sum += sizes[i]
			want++
		}
		got, err := one.Tail(int64(limit))
		if err != nil || len(got) != want {
			t.Fatalf("limit %d: %d lines, want %d, %v", limit, len(got), want, err)
		}
	}
}
