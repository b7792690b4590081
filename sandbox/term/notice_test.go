package term

import (
	"strings"
	"testing"
)

// TestNotice: clients and the screen have the line, also in the middle of a
// sequence, and nothing in it acts; the program's side gets no byte.
func TestNotice(t *testing.T) {
	pty := newPTY(true)
	h := NewHub(pty, Size{Rows: 10, Cols: 80})
	for _, half := range []string{"prompt$ ", "\x1b]0;title", "\x1b[3"} {
		h.Output([]byte(half))
		h.Notice("it stops\x1b[2J\nin 5 s")
	}
	h.End(0)
	text := h.Text()
	if n := strings.Count(text, "[cortexfs] it stops"); n != 3 {
		t.Errorf("%d notices on\n%s", n, text)
	}
	if !strings.Contains(text, "prompt$") {
		t.Errorf("a notice acts:\n%s", text)
	}
	pty.mu.Lock()
	defer pty.mu.Unlock()
	if len(pty.got) > 0 {
		t.Errorf("the program got %q", pty.got)
	}
}
