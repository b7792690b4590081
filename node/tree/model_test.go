package tree_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"

	"cortexfs/node/nodetest"
)

// modelHandle is what spec section 4 says of one open for writing, in a few
// lines: the reference for the real thing.
type modelHandle struct {
	fd             nodetest.FD
	text           string
	dirty, emptied bool
	failed         bool
	last           int // number of its last commit
	undo           string
}

type model struct {
	value  string
	commit int
}

// valid says what a policy of comments is.
func valid(text string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != '#' {
			return false
		}
	}
	return true
}

func (m *model) set(h *modelHandle) {
	if h.last == 0 || h.last != m.commit {
		h.undo = m.value
	}
	m.commit++
	m.value = h.text
	if m.value != "" && !strings.HasSuffix(m.value, "\n") {
		m.value += "\n"
	}
	h.last, h.dirty, h.emptied = m.commit, false, false
}

func (m *model) write(h *modelHandle, chunk string) bool {
	switch {
	case h.failed:
		return false
	case !valid(h.text + chunk):
		h.failed = true
		if h.last != 0 && h.last == m.commit {
			m.value = h.undo
			m.commit++
		}
		return false
	}
	h.text += chunk
	h.dirty, h.emptied = true, false
	return true
}

func (m *model) flush(h *modelHandle, fsync bool) bool {
	if h.failed {
		return false
	}
	if h.dirty || (fsync && h.emptied) {
		m.set(h)
	}
	return true
}

// Random interleavings of several writers of one control behave as the model:
// every read is a whole committed text, never a third one.
func TestDraftsAgainstModel(t *testing.T) {
	w := nodetest.New(t)
	c := root(w)
	must(t, c.Mkdir("/agent/a.d", 0o755))
	const path = "/agent/a.d/policy"
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for seed := range uint64(rounds) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		m := &model{commit: 1}
		must(t, c.Truncate(path, 0))
		var open []*modelHandle
		var trace []string
		say := func(h *modelHandle, what string, err error) {
			trace = append(trace, fmt.Sprintf("fd %d %s: %v", h.fd, what, err))
		}
		check := func(h *modelHandle, what string, err error, ok bool) {
			t.Helper()
			say(h, what, err)
			if (err == nil) != ok || (err != nil && err != syscall.EINVAL) {
				t.Fatalf("seed %d: %s, the model says %v", seed, strings.Join(trace, "\n"), ok)
			}
		}
		for range 40 {
			op := rnd.IntN(10)
			if len(open) == 0 || (op == 0 && len(open) < 3) {
				h := &modelHandle{text: m.value}
				flags := os.O_WRONLY | os.O_APPEND
				if rnd.IntN(2) == 0 {
					flags |= os.O_TRUNC
					h.text, h.emptied = "", true
				}
				var err error
				h.fd, err = c.Open(path, flags, 0)
				check(h, "open", err, true)
				open = append(open, h)
				continue
			}
			i := rnd.IntN(len(open))
			h := open[i]
			switch op {
			case 1, 2, 3, 4, 5:
				chunk := []string{"# a\n", "# b\n", "#", "# long\n# er\n", "\n", "zz\n"}[min(rnd.IntN(8), 5)]
				if chunk == "zz\n" && rnd.IntN(3) > 0 {
					chunk = "# a\n"
				}
				_, err := c.Write(h.fd, []byte(chunk))
				check(h, fmt.Sprintf("write %q", chunk), err, m.write(h, chunk))
			case 6:
				check(h, "fsync", c.Fsync(h.fd), m.flush(h, true))
			case 7:
				dup, err := c.Dup(h.fd)
				must(t, err)
				check(h, "close of a copy", c.Close(dup), m.flush(h, false))
			case 8:
				ok := !h.failed
				if ok {
					h.text, h.emptied, h.dirty = "", true, false
				}
				check(h, "ftruncate", c.Ftruncate(h.fd, 0), ok)
			default:
				ok := m.flush(h, false)
				check(h, "close", c.Close(h.fd), ok)
				if ok && h.emptied {
					m.set(h)
				}
				open = append(open[:i], open[i+1:]...)
			}
			if got, err := read(c, path); err != nil || got != m.value {
				t.Fatalf("seed %d: reads %q, %v; want %q after\n%s", seed, got, err, m.value, strings.Join(trace, "\n"))
			}
		}
		for _, h := range open {
			_ = c.Close(h.fd)
		}
	}
}
