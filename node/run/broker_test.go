package run

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func question(id string) *Question {
	return &Question{Run: runID, ID: id, Name: "fs.write", Args: []string{"a", "b"}, Executable: strings.Repeat("ab", 32), Expires: time.Unix(1767225600, 0)}
}

func reply(run, id, decision string) []byte {
	return fmt.Appendf(nil, `{"op":"approve","run":"%s","id":"%s","decision":"%s"}`, run, id, decision)
}

func yes() bool { return true }

// next reads one frame of a handler and gives its type and what tells it apart.
func next(t *testing.T, h *Handler) string {
	t.Helper()
	b, err := h.Next(t.Context())
	if err != nil {
		return err.Error()
	}
	var f struct{ Type, Agent, ID, Code, Decision, Reason string }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	s := f.Type
	for _, x := range []string{f.Agent, f.ID, f.Code, f.Decision, f.Reason} {
		if x != "" {
			s += " " + x
		}
	}
	return s
}

func TestQuestionFrame(t *testing.T) {
	q := question("c1")
	q.Args = []string{"<a>", "b\"\n世"}
	want := `{"type":"approval_request","run":"ctx-0123","id":"c1","name":"fs.write","args":["<a>","b\"\n世"],"digest":"` + q.Digest() + `","executable":"` + q.Executable + `","expires":"2026-01-01T00:00:00Z"}`
	if got := string(q.frame()); got != want {
		t.Errorf("%s", got)
	}
	// The text as section 15 has it, written out.
	sum := sha256.Sum256([]byte(`["cortexfs.approval/v1","ctx-0123","c1","fs.write",["<a>","b\"\n世"],"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","` + q.Executable + `"]`))
	if got := q.Digest(); got != hex.EncodeToString(sum[:]) {
		t.Error(got)
	}
	seen := map[string]string{}
	for name, change := range map[string]func(q *Question){
		"run": func(q *Question) { q.Run = "ctx-9" }, "id": func(q *Question) { q.ID = "c9" }, "name": func(q *Question) { q.Name = "bash" },
		"args": func(q *Question) { q.Args = []string{"<a>,b"} }, "order": func(q *Question) { q.Args = []string{"b\"\n世", "<a>"} }, "none": func(q *Question) { q.Args = nil },
		"stdin": func(q *Question) { q.Stdin = []byte("x") }, "executable": func(q *Question) { q.Executable = strings.Repeat("cd", 32) }, "same": func(*Question) {},
	} {
		c := *q
		change(&c)
		if other, ok := seen[c.Digest()]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[c.Digest()] = name
	}
}

// TestAnswers: what each answer of the one handler does to its question.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		line   string
		allow  bool
		reason string
	}{
		"allow":            {string(reply(runID, "c1", "allow_once")), true, ByUser},
		"deny":             {string(reply(runID, "c1", "deny")), false, ByUser},
		"blanks":           {` { "decision" : "allow_once", "id":"c1","run":"` + runID + `","op":"approve" } `, true, ByUser},
		"other word":       {string(reply(runID, "c1", "allow")), false, Malformed},
		"always":           {string(reply(runID, "c1", "allow_always")), false, Malformed},
		"wrong run":        {string(reply("ctx-9", "c1", "allow_once")), false, Malformed},
		"wrong id":         {string(reply(runID, "c2", "allow_once")), false, Malformed},
		"extra key":        {`{"op":"approve","run":"` + runID + `","id":"c1","decision":"allow_once","always":true}`, false, Malformed},
		"missing key":      {`{"op":"approve","run":"` + runID + `","id":"c1"}`, false, Malformed},
		"other op":         {`{"op":"cancel","run":"` + runID + `","id":"c1","decision":"allow_once"}`, false, Malformed},
		"decision twice":   {`{"op":"approve","run":"` + runID + `","id":"c1","decision":"deny","decision":"allow_once"}`, false, Malformed},
		"case":             {`{"op":"approve","run":"` + runID + `","id":"c1","Decision":"allow_once"}`, false, Malformed},
		"bool":             {`{"op":"approve","run":"` + runID + `","id":"c1","decision":true}`, false, Malformed},
		"half":             {string(reply(runID, "c1", "allow_once")[:30]), false, Malformed},
		"text":             {"yes", false, Malformed},
		"empty":            {"", false, Malformed},
		"two in one frame": {string(reply(runID, "c1", "allow_once")) + string(reply(runID, "c1", "allow_once")), false, Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBroker(BrokerOptions{})
			h := b.Attach(runID, "uid 1000")
			defer h.Close()
			confirmed := 0
			got := make(chan Decision)
			go func() { got <- b.Ask(t.Context(), question("c1"), func() bool { confirmed++; return true }) }()
			if s := next(t, h); s != "approval_request c1" {
				t.Fatal(s)
			}
			h.Answer([]byte(c.line))
			d := <-got
			if d.Allow != c.allow || d.Reason != c.reason || d.By != "uid 1000" || (confirmed == 1) != c.allow {
				t.Errorf("%+v, confirmed %d times", d, confirmed)
			}
			if c.reason == Malformed {
				if s := next(t, h); s != "error EINVAL" {
					t.Error(s)
				}
			}
			word := map[bool]string{true: "allow_once", false: "deny"}[c.allow]
			if s := next(t, h); s != "approval_result c1 "+word+" "+c.reason {
				t.Error(s)
			}
			// The same again is too late and is told so.
			h.Answer(reply(runID, "c1", "allow_once"))
			if s := next(t, h); s != "error ENOENT" {
				t.Error(s)
			}
		})
	}
}

func TestNobodyToAsk(t *testing.T) {
	b := NewBroker(BrokerOptions{})
	if d := b.Ask(t.Context(), question("c1"), yes); d.Allow || d.Reason != NoHandler {
		t.Errorf("%+v", d)
	}
	other := b.Attach("ctx-other", "uid 1") // of another run
	defer other.Close()
	if d := b.Ask(t.Context(), question("c1"), yes); d.Allow || d.Reason != NoHandler {
		t.Errorf("%+v", d)
	}
	gone := b.Attach("", "uid 1")
	gone.Close()
	if d := b.Ask(t.Context(), question("c2"), yes); d.Allow || d.Reason != NoHandler {
		t.Errorf("%+v", d)
	}
	if s, err := gone.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("%s %v", s, err)
	}
}

// TestLargeQuestion: over 64 KiB is denied and shown to nobody; below it the
// exact bytes are there, however long a line or however many lines.
func TestLargeQuestion(t *testing.T) {
	b := NewBroker(BrokerOptions{})
	h := b.Attach("", "uid 1")
	defer h.Close()
	big := question("c1")
	big.Args = []string{strings.Repeat("x", MaxQuestion)}
	if d := b.Ask(t.Context(), big, yes); d.Allow || d.Reason != Malformed || !strings.Contains(d.Detail, "at most 65536") {
		t.Errorf("%+v", d)
	}
	if len(b.Open()) != 0 {
		t.Error("it is open")
	}
	for i, arg := range []string{strings.Repeat("x", 5000) + "; rm -rf /", strings.Repeat("\n", 500) + "tail", "safe\x1b[2K\x1b[1A\r\u202e\u200b", strings.Repeat("x", 60_000)} {
		q := question(fmt.Sprint("d", i))
		q.Args = []string{arg}
		done := make(chan Decision)
		go func() { done <- b.Ask(t.Context(), q, yes) }()
		frame, err := h.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var f struct{ Args []string }
		if err := json.Unmarshal(frame, &f); err != nil || f.Args[0] != arg {
			t.Errorf("%d: not the exact argument", i)
		}
		h.Answer(reply(runID, q.ID, "deny"))
		<-done
		next(t, h)
	}
}

// TestExpiry: the deadline of a frozen handler is on the monotonic clock, and a
// later answer is told that it is late.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBroker(BrokerOptions{})
		h := b.Attach("", "uid 1")
		began := time.Now()
		if d := b.Ask(t.Context(), question("c1"), yes); d.Allow || d.Reason != Expired || d.By != "timeout" {
			t.Errorf("%+v", d)
		}
		if d := time.Since(began); d != 300*time.Second {
			t.Error(d)
		}
		for _, want := range []string{"approval_request c1", "approval_result c1 deny expired"} {
			if s := next(t, h); s != want {
				t.Error(s)
			}
		}
		h.Answer(reply(runID, "c1", "allow_once"))
		if s := next(t, h); s != "error ENOENT" {
			t.Error(s)
		}
	})
}

// TestOldAnswer: an answer to a settled question never touches the one that is
// open now; a guessed id denies it.
func TestOldAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBroker(BrokerOptions{Deadline: time.Second})
		h := b.Attach("", "uid 1")
		b.Ask(t.Context(), question("c1"), yes) // expires
		got := make(chan Decision, 1)
		go func() { got <- b.Ask(t.Context(), question("c2"), yes) }()
		synctest.Wait()
		h.Answer(reply(runID, "c1", "allow_once"))
		h.Answer(reply(runID, "c1", "deny"))
		synctest.Wait()
		if len(got) != 0 {
			t.Fatalf("settled by an old answer: %+v", <-got)
		}
		h.Answer(reply(runID, "c2", "allow_once"))
		if d := <-got; !d.Allow {
			t.Errorf("%+v", d)
		}
		go func() { got <- b.Ask(t.Context(), question("c3"), yes) }()
		synctest.Wait()
		h.Answer(reply(runID, "guess", "allow_once"))
		if d := <-got; d.Allow || d.Reason != Malformed {
			t.Errorf("%+v", d)
		}
	})
}

// TestHandlerDies: the end of the last one who was asked is a refusal at once; of
// one of several it is nothing.
func TestHandlerDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBroker(BrokerOptions{})
		sender, watcher := b.Attach(runID, "uid 1"), b.Attach("", "uid 2")
		got := make(chan Decision, 1)
		began := time.Now()
		go func() { got <- b.Ask(t.Context(), question("c1"), yes) }()
		synctest.Wait()
		sender.Close()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("settled while one is left")
		}
		// One who comes later may answer, and counts.
		late := b.Attach("", "uid 3")
		if s := next(t, late); s != "approval_request c1" {
			t.Error(s)
		}
		watcher.Close()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("settled while one is left")
		}
		late.Close()
		if d := <-got; d.Allow || d.Reason != HandlerGone || time.Since(began) != 0 {
			t.Errorf("%+v", d)
		}
		late.Answer(reply(runID, "c1", "allow_once")) // of a dead connection: nothing
		late.Close()
	})
}

// TestForeignRun: a handler of one run neither sees nor settles another's.
func TestForeignRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBroker(BrokerOptions{})
		mine, other := b.Attach(runID, "uid 1"), b.Attach("ctx-other", "uid 1")
		got := make(chan Decision, 1)
		go func() { got <- b.Ask(t.Context(), question("c1"), yes) }()
		synctest.Wait()
		other.Answer(reply(runID, "c1", "allow_once"))
		other.Answer([]byte("x"))
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("settled by a stranger")
		}
		for range 2 {
			if s := next(t, other); s != "error EINVAL" {
				t.Error(s)
			}
		}
		mine.Answer(reply(runID, "c1", "deny"))
		if d := <-got; d.Reason != ByUser {
			t.Errorf("%+v", d)
		}
	})
}

func TestPolicyChangedWhileAsking(t *testing.T) {
	b := NewBroker(BrokerOptions{})
	h := b.Attach("", "uid 1")
	got := make(chan Decision)
	go func() { got <- b.Ask(t.Context(), question("c1"), func() bool { return false }) }()
	next(t, h)
	h.Answer(reply(runID, "c1", "allow_once"))
	if d := <-got; d.Allow || d.Reason != PolicyChanged {
		t.Errorf("%+v", d)
	}
	if s := next(t, h); s != "approval_result c1 deny policy-changed" {
		t.Error(s)
	}
}

func TestCancelWhileAsking(t *testing.T) {
	for _, answerFirst := range []bool{false, true} {
		b := NewBroker(BrokerOptions{})
		h := b.Attach("", "uid 1")
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan Decision)
		go func() { got <- b.Ask(ctx, question("c1"), func() bool { t.Error("confirmed"); return true }) }()
		next(t, h)
		cancel()
		if answerFirst {
			h.Answer(reply(runID, "c1", "allow_once")) // at the same moment: whoever is first, nothing runs
		}
		if d := <-got; d.Allow || d.Reason != Expired {
			t.Errorf("%+v", d)
		}
	}
}

// TestUpTheChain: a question without handlers of its own goes to the parent's,
// with the child's name, and on to the grandparent's.
func TestUpTheChain(t *testing.T) {
	top := NewBroker(BrokerOptions{Agent: "architect"})
	middle := NewBroker(BrokerOptions{Agent: "coder", Up: top})
	child := NewBroker(BrokerOptions{Agent: "helper", Up: middle})
	h := top.Attach("", "uid 1")
	got := make(chan Decision)
	go func() { got <- child.Ask(t.Context(), question("c1"), yes) }()
	if s := next(t, h); s != "approval_request helper c1" {
		t.Error(s)
	}
	h.Answer(reply(runID, "c1", "allow_once"))
	if d := <-got; !d.Allow {
		t.Errorf("%+v", d)
	}
	if s := next(t, h); s != "approval_result helper c1 allow_once user" {
		t.Error(s)
	}
	// Its own handlers come first.
	own := child.Attach("", "uid 1")
	go func() { got <- child.Ask(t.Context(), question("c2"), yes) }()
	if s := next(t, own); s != "approval_request c2" {
		t.Error(s)
	}
	if len(top.Open()) != 0 {
		t.Error("both were asked")
	}
	own.Answer(reply(runID, "c2", "deny"))
	<-got
	own.Close()
	h.Close()
	if d := child.Ask(t.Context(), question("c3"), yes); d.Reason != NoHandler {
		t.Errorf("%+v", d)
	}
}

// TestFrozenHandlerIsBounded: one who reads no more does not hold frames without
// end; it is gone after its queue is full.
func TestFrozenHandlerIsBounded(t *testing.T) {
	b := NewBroker(BrokerOptions{})
	frozen, live := b.Attach("", "frozen"), b.Attach("", "live")
	for i := range maxQueue {
		got := make(chan Decision)
		go func() { got <- b.Ask(t.Context(), question(fmt.Sprint("c", i)), yes) }()
		if s := next(t, live); !strings.HasPrefix(s, "approval_request") {
			t.Fatal(s)
		}
		live.Answer(reply(runID, fmt.Sprint("c", i), "allow_once"))
		if d := <-got; !d.Allow {
			t.Fatalf("%+v", d)
		}
		next(t, live)
	}
	b.mu.Lock()
	n, closed := len(frozen.queue), frozen.closed
	b.mu.Unlock()
	if n > maxQueue || !closed {
		t.Errorf("%d frames wait, closed %v", n, closed)
	}
	live.Close()
	if d := b.Ask(t.Context(), question("last"), yes); d.Reason != NoHandler {
		t.Errorf("%+v", d)
	}
}

// TestManyAnswers: with every kind of answer, end and cancel at once, each
// question has one outcome, the confirmation is asked at most once, and what was
// allowed was allowed by a valid answer.
func TestManyAnswers(t *testing.T) {
	for round := range 300 {
		b := NewBroker(BrokerOptions{Deadline: time.Duration(1+rand.IntN(2000)) * time.Microsecond})
		var confirms, valid atomic.Int32
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 4 {
			h := b.Attach(map[bool]string{true: runID, false: ""}[i%2 == 0], fmt.Sprint("h", i))
			wg.Go(func() {
				defer h.Close()
				for range 2 {
					if _, err := h.Next(ctx); err != nil {
						return
					}
					switch rand.IntN(6) {
					case 0:
						valid.Add(1)
						h.Answer(reply(runID, "c1", "allow_once"))
						h.Answer(reply(runID, "c1", "allow_once"))
					case 1:
						h.Answer(reply(runID, "c1", "deny"))
					case 2:
						h.Answer([]byte("{"))
					case 3:
						h.Close()
					case 4:
						cancel()
					}
				}
			})
		}
		d := b.Ask(ctx, question("c1"), func() bool { confirms.Add(1); return true })
		if d.Allow && (valid.Load() == 0 || confirms.Load() != 1) || confirms.Load() > 1 || d.Reason == "" {
			t.Fatalf("round %d: %+v, %d valid, %d confirmed", round, d, valid.Load(), confirms.Load())
		}
		if len(b.Open()) != 0 {
			t.Fatal("it is open still")
		}
		cancel()
		wg.Wait()
	}
}

func TestSettledMemoryIsBounded(t *testing.T) {
	b := NewBroker(BrokerOptions{})
	for i := range maxSettled + 500 {
		b.mu.Lock()
		b.settleLocked(&asked{q: question(fmt.Sprint("c", i)), done: make(chan struct{})}, Decision{})
		b.mu.Unlock()
	}
	if len(b.settled) != maxSettled || len(b.order) != maxSettled {
		t.Error(len(b.settled), len(b.order))
	}
}

func TestIsAnswer(t *testing.T) {
	for in, want := range map[string]bool{`{"op":"approve"}`: true, `{"op":"send"}`: false, `x`: false, `{"op":5}`: false} {
		if IsAnswer([]byte(in)) != want {
			t.Error(in)
		}
	}
}
