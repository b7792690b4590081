package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cortexfs/node"
)

type liveRuntime map[Key]int

func (l liveRuntime) Live(k Key) (node.State, int) {
	if pid := l[k]; pid != 0 {
		return node.Idle, pid
	}
	return node.Dead, 0
}

// flushAll writes what the log holds back, as if some seconds were over.
func flushAll(l *Log, seconds int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushLocked(time.Now().Add(time.Duration(seconds)*logPause), false)
}

func readAll(t *testing.T, open func() (*LogReader, error)) []byte {
	t.Helper()
	r, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := make([]byte, r.Size())
	if n, err := r.ReadAt(b, 0); n != len(b) {
		t.Fatalf("read %d of %d: %v", n, len(b), err)
	}
	return b
}

func readLog(t *testing.T, l *Log) []string {
	t.Helper()
	text := string(readAll(t, l.Open))
	if text == "" {
		return nil
	}
	if !strings.HasSuffix(text, "\n") {
		t.Fatalf("half a line: %q", text)
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

type line struct {
	TS, Type, Agent, Object, Status, Reason, By string
	Seq                                         uint64
	Count                                       int
}

func parseLines(t *testing.T, lines []string) []line {
	t.Helper()
	var out []line
	for _, l := range lines {
		var v line
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		if _, err := time.Parse(time.RFC3339, v.TS); err != nil {
			t.Error(err)
		}
		out = append(out, v)
	}
	return out
}

func TestRepeatsAreCounted(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	l := w.create(System("x"), 1000).Log()
	for i := range 1000 {
		l.Add(Event{Type: "tool.denied", Object: "fs.write", Status: "EACCES", Reason: fmt.Sprintf("row %d", 3+i%5)})
	}
	l.Add(Event{Type: "tool.denied", Object: "bash", Status: "EACCES", Reason: "row 6"})
	l.Add(Event{Type: "approval.result", Run: "r1", Object: "bash", Status: "ok"})
	l.Add(Event{Type: "approval.result", Run: "r2", Object: "bash", Status: "ok"})
	if got := parseLines(t, readLog(t, l)); len(got) != 5 {
		t.Fatalf("%d lines at once: %v", len(got), got)
	}
	flushAll(l, 2)
	got := parseLines(t, readLog(t, l))
	if len(got) != 6 || got[5].Count != 999 || got[5].Object != "fs.write" {
		t.Fatalf("%v", got)
	}
	for i, v := range got {
		if v.Seq != uint64(i+1) || v.Agent != "x" {
			t.Errorf("line %d: %+v", i, v)
		}
	}
	flushAll(l, 10)
	if l.file != nil || l.timer != nil {
		t.Error("an idle log keeps a file or a timer")
	}
}

func TestManyKindsShareALine(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	l := w.create(System("x"), 1000).Log()
	for i := range 20000 {
		l.Add(Event{Type: "tool.denied", Object: fmt.Sprintf("made-up-%d", i), Status: "ENOENT"})
	}
	flushAll(l, 2)
	got := parseLines(t, readLog(t, l))
	if len(got) > maxHeld+10 {
		t.Errorf("%d lines", len(got))
	}
	sum := 0
	for _, v := range got {
		if v.Type == "tool.denied" {
			sum += max(v.Count, 1)
		}
	}
	if sum != 20000 {
		t.Errorf("%d events are told, want 20000", sum)
	}
}

func TestLogEscapes(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	l := w.create(System("x"), 1000).Log()
	nasty := "a\"\\\x00\x1b]0;x\a\x7f\u0085\u202e\u2028\ufeff\xff\nend é漢"
	l.Add(Event{Type: "tool.call", Object: nasty, Status: "ok", Reason: strings.Repeat("é", 5000)})
	raw := readAll(t, l.Open)
	for _, c := range string(raw) {
		if c != '\n' && (c < 0x20 || c == 0x7f || node.Deceptive(c)) {
			t.Errorf("%q stands in the log", c)
		}
	}
	if bytes.Count(raw, []byte("\n")) != 2 {
		t.Errorf("%q", raw)
	}
	got := parseLines(t, readLog(t, l))[1]
	if want := strings.ToValidUTF8(nasty, "\ufffd"); got.Object != want {
		t.Errorf("reads back %q, want %q", got.Object, want)
	}
	if len(got.Reason) > maxField+8 || !strings.HasPrefix(got.Reason, "éé") {
		t.Errorf("reason of %d bytes", len(got.Reason))
	}
}

// TestRotation: whole lines in both generations, one row of numbers, and a reader
// keeps the generation that it opened.
func TestRotation(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	l := w.create(System("x"), 1000).Log()
	l.cap = 4096
	before, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	changed := l.Changed()
	n := 0
	for l.Size() == 0 || func() bool { r, _ := l.OpenOlder(); defer r.Close(); return r.Size() == 0 }() {
		n++
		l.Add(Event{Type: "tool.call", Object: fmt.Sprint(n), Status: "ok"})
		if n > 1000 {
			t.Fatal("never rotated")
		}
	}
	select {
	case <-changed:
	default:
		t.Error("followers were not told")
	}
	older := parseLines(t, strings.Split(strings.TrimSpace(string(readAll(t, l.OpenOlder))), "\n"))
	newer := parseLines(t, readLog(t, l))
	for i, v := range append(older, newer...) {
		if v.Seq != uint64(i+1) {
			t.Fatalf("line %d has number %d", i, v.Seq)
		}
	}
	now, err := l.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if before.Gen() == now.Gen() || before.Size() < 3000 || before.Size() > 4096 {
		t.Errorf("generations %d and %d, the older of %d bytes", before.Gen(), now.Gen(), before.Size())
	}
}

// TestTornLine: what a crash left half written is cut off, and numbers go on.
func TestTornLine(t *testing.T) {
	o := Options{Root: true}
	w := newWorld(t, o)
	l := w.create(System("x"), 1000).Log()
	l.Add(Event{Type: "tool.call", Object: "a", Status: "ok"})
	w.close()
	path := filepath.Join(w.dir, "state", "log", "system.0.x.log")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"ts":"20`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	w.open(o)
	obj, err := w.table.Lookup(System("x"))
	if err != nil {
		t.Fatal(err)
	}
	obj.Log().Add(Event{Type: "tool.call", Object: "b", Status: "ok"})
	got := parseLines(t, readLog(t, obj.Log()))
	if len(got) != 3 || got[2].Seq != 3 || got[2].Object != "b" {
		t.Errorf("%v", got)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
}

func TestUserFiles(t *testing.T) {
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(passwd, "root:x:0:0:root:/root:/bin/sh\n# note\nbad\nann:x:1000:1000::/home/ann:\nann2:x:1000:7::/:\nneg:x:-1:5::/:\n")
	write(group, "root:x:0:\nann:x:1000:\naudio:x:29:bob,ann\nempty:x:30:\nwheel:x:10:ann\n")
	db := UserFiles(passwd, group)
	if gid, ok := db.User(1000); !ok || gid != 1000 {
		t.Errorf("ann: %d %v", gid, ok)
	}
	if got := fmt.Sprint(db.Groups(1000)); got != "[1000 10 29]" {
		t.Errorf("ann's groups: %s", got)
	}
	if db.Groups(7) != nil || !db.Group(30) || db.Group(31) {
		t.Error("unknown ids")
	}
	write(group, "root:x:0:\naudio:x:29:\n")
	if got := fmt.Sprint(db.Groups(1000)); got != "[1000]" {
		t.Errorf("after the change: %s", got)
	}
	os.Remove(passwd)
	if _, ok := db.User(1000); ok {
		t.Error("a database that is gone still knows somebody")
	}
}
