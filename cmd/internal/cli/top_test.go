package cli

import (
	"os"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
)

func TestTopTable(t *testing.T) {
	rows := []topRow{
		{Ref: "agent/coder", State: "busy", PID: 4711, CPU: 12.34, RSS: 33 << 20, Procs: 5, Session: "default", Pending: "a1 fs.write"},
		{Ref: "agent/evil", State: "idle", PID: 1, Refused: "\x1b[2Jdeploy row 6"},
		{Ref: "agent/gone", State: "dead"},
	}
	text := topTable(rows, 1, 100)
	lines := strings.Split(text, "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[2], "> agent/evil") {
		t.Errorf("%q", text)
	}
	for _, want := range []string{"AGENT", "4711   12.3     33M     5 default      a1 fs.write", "refused: ", "dead            -      -       -     - -"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.ContainsRune(text, '\x1b') {
		t.Errorf("a control byte of data reaches the terminal: %q", text)
	}
	for l := range strings.Lines(topTable(rows, 0, 40)) {
		if n := len([]rune(strings.TrimSuffix(l, "\n"))); n > 40 {
			t.Errorf("%d columns: %q", n, l)
		}
	}
}

func press(m *top, keys ...string) tea.Cmd {
	var cmd tea.Cmd
	for _, k := range keys {
		cmd = m.key(k)
	}
	return cmd
}

func TestTopKeys(t *testing.T) {
	m := &top{rows: []topRow{{Ref: "agent/a", PID: 1}, {Ref: "agent/b", PID: 2}, {Ref: "agent/c"}}, width: 80, height: 24}
	press(m, "down")
	if m.chosen != "agent/b" {
		t.Errorf("chosen %q", m.chosen)
	}
	press(m, "down", "down")
	if m.chosen != "agent/b" {
		t.Errorf("dead ones are not shown, but %q is chosen", m.chosen)
	}
	press(m, "d", "down")
	if m.chosen != "agent/c" {
		t.Errorf("chosen %q", m.chosen)
	}
	press(m, "up", "up", "up")
	if m.chosen != "agent/a" {
		t.Errorf("chosen %q", m.chosen)
	}
	// A stop wants its y.
	if cmd := press(m, "s"); cmd != nil || m.asking != "agent/a" || !strings.Contains(m.draw(), "stop agent/a? y/n") {
		t.Errorf("asking %q", m.asking)
	}
	if cmd := press(m, "n"); cmd != nil || m.asking != "" {
		t.Error("n stops")
	}
	if cmd := press(m, "s", "y"); cmd == nil {
		t.Error("y does not stop")
	}
	for _, k := range []string{"w", "a", "o", "enter"} {
		if press(m, k) == nil {
			t.Errorf("%s does nothing", k)
		}
	}
	if cmd := press(m, "q"); cmd == nil {
		t.Error("q does not end")
	} else if _, quit := cmd().(tea.QuitMsg); !quit {
		t.Error("q does not end")
	}
}

func TestTopScrolls(t *testing.T) {
	m := &top{width: 80, height: 12}
	for i := range 100 {
		m.rows = append(m.rows, topRow{Ref: "agent/a" + string(rune('A'+i%26)) + strings.Repeat("x", i/26), PID: i + 1})
	}
	for range 70 {
		press(m, "down")
		text := m.draw()
		if n := strings.Count(text, "\n"); n > m.height || !strings.Contains(text, "> "+m.chosen) {
			t.Fatalf("%d lines of %d, chosen %s:\n%s", n, m.height, m.chosen, text)
		}
	}
}

func TestParseStat(t *testing.T) {
	cpu, pages := parseStat("12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 100 4096 77 18446744073709551615 0")
	if cpu != 2*time.Second || pages != 77 {
		t.Errorf("%v %d", cpu, pages)
	}
	for _, bad := range []string{"", "12 (x", "12 (x) S 1"} {
		if cpu, pages := parseStat(bad); cpu != 0 || pages != 0 {
			t.Errorf("%q: %v %d", bad, cpu, pages)
		}
	}
	if u := usageOf(os.Getpid()); u.N < 1 || u.RSS < 1<<20 {
		t.Errorf("this process: %+v", u)
	}
}
