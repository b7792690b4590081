package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cortexfs/node/fault"
)

func TestFollowAfter(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	for i := range 5 {
		finish(t, begin(t, s, send(fmt.Sprint("m", i), "s", "x")), "y")
	}
	one, err := s.Get(private("s"), false)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Release()
	var ids []string
	last, err := one.Follow(t.Context(), "", false, func(l []byte) error {
		ids = append(ids, eventID(l))
		return nil
	})
	if err != nil || len(ids) != 10 || last != ids[9] {
		t.Fatal(ids, last, err)
	}
	for i, after := range ids {
		n := 0
		last, err := one.Follow(t.Context(), after, false, func([]byte) error { n++; return nil })
		if err != nil || n != 9-i || last != ids[9] {
			t.Errorf("after %d: %d events, last %s, %v", i, n, last, err)
		}
	}
	if _, err := one.Follow(t.Context(), "01ARZ3NDEKTSV4RRFFQ69G5FAV", false, nil); !fault.Is(err, fault.NotExist) {
		t.Error(err)
	}
	if _, err := s.Get(private("none"), false); !fault.Is(err, fault.NotExist) {
		t.Error(err)
	}
}

// TestStreamOrder: deltas come in their place between the stored events, to one
// who was there from the start and to one who comes later.
func TestStreamOrder(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	r := begin(t, s, send("m", "s", "x"))
	other := begin(t, s, send("n", "s", "x"))
	streams := make([][]string, 3)
	var wg sync.WaitGroup
	follow := func(i int) {
		p := r.Replay()
		wg.Go(func() {
			defer p.Release()
			if err := p.Stream(t.Context(), func(f []byte) error {
				var m struct{ Type, Text string }
				if err := json.Unmarshal(f, &m); err != nil {
					return err
				}
				streams[i] = append(streams[i], m.Type+m.Text)
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	follow(0)
	for i := range 4 {
		if i == 2 {
			follow(1)
		}
		if err := other.Live(t.Context(), []byte(`{"type":"delta","text":"foreign"}`)); err != nil {
			t.Fatal(err)
		}
		if err := r.Live(t.Context(), fmt.Appendf(nil, `{"type":"delta","text":"%d"}`, i)); err != nil {
			t.Fatal(err)
		}
		if err := r.Event([]byte(`{"type":"usage","run":"` + r.ID() + `"}`)); err != nil {
			t.Fatal(err)
		}
		if err := other.Event([]byte(`{"type":"usage","run":"` + other.ID() + `"}`)); err != nil {
			t.Fatal(err)
		}
	}
	follow(2)
	finish(t, r, "y")
	wg.Wait()
	want := "[start delta0 usage delta1 usage delta2 usage delta3 usage done]"
	for i, got := range streams {
		if fmt.Sprint(got) != want {
			t.Errorf("%d: %v", i, got)
		}
	}
	finish(t, other, "z")
}

// TestFrozenFollower: one who does not read holds a run up for a bounded time,
// and loses deltas but no event.
func TestFrozenFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Session{st: &Store{o: Options{Now: time.Now}}, messages: &memLines{}, events: &memLines{}}
		s.feed.init()
		frozen := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan int)
		go func() {
			stored := 0
			s.follow(ctx, &reader{}, true, func(_ []byte, live bool, _ int64) error {
				<-frozen
				if !live {
					stored++
				}
				return nil
			})
			done <- stored
		}()
		synctest.Wait()
		began := time.Now()
		for range 3 * maxLive {
			if err := s.feed.publish(ctx, live{at: s.events.size(), frame: []byte("x")}); err != nil {
				t.Fatal(err)
			}
		}
		if d := time.Since(began); d < stallTime || d > 2*stallTime {
			t.Errorf("held up for %v", d)
		}
		for range 3 {
			if _, err := s.event([]byte(`{"type":"usage"}`)); err != nil {
				t.Fatal(err)
			}
		}
		close(frozen)
		synctest.Wait()
		cancel()
		if n := <-done; n != 3 {
			t.Errorf("%d events", n)
		}
	})
}

func TestLiveEndsWithContext(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	r := begin(t, s, send("m", "s", "x"))
	p := r.Replay()
	stop := errors.New("gone")
	if err := p.Stream(t.Context(), func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Stream(ctx, func([]byte) error { cancel(); return nil }) }()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.Release()
	finish(t, r, "y")
}

func TestTurns(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	var runs []*Run
	for i := range 10 {
		runs = append(runs, begin(t, s, send(fmt.Sprint("m", i), "s", "x")))
	}
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := len(runs) - 1; i >= 0; i-- {
		wg.Go(func() {
			if i == 4 { // cancelled while it waits
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := runs[i].Wait(ctx); err == nil {
					t.Error("no error")
				}
			} else if err := runs[i].Wait(t.Context()); err != nil {
				t.Error(err)
			} else {
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
			}
			if err := runs[i].Finish(Cancelled, ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if fmt.Sprint(order) != "[0 1 2 3 5 6 7 8 9]" {
		t.Errorf("%v", order)
	}
	if s.ActiveRuns() != 0 {
		t.Error("runs are left")
	}
}

// TestManySends: 1,000 concurrent sends over 50 sessions lose and mix nothing;
// every tenth id is sent twice at the same time and taken once.
func TestManySends(t *testing.T) {
	w := newFastWorld(t)
	s := w.open()
	const sends, sessions = 1000, 50
	var wg sync.WaitGroup
	var replays sync.Map
	one := func(i int) {
		defer wg.Done()
		m := send(fmt.Sprintf("m%d", i), fmt.Sprintf("s%d", i%sessions), fmt.Sprintf("task %d", i))
		run, replay, err := s.Begin(m)
		if err != nil {
			t.Errorf("%d: %v", i, err)
			return
		}
		if replay == nil {
			replay = run.Replay()
			if err := run.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			if err := run.Event(fmt.Appendf(nil, `{"type":"message","run":"%s","role":"assistant","content":[{"type":"text","text":"answer %d"}]}`, run.ID(), i)); err != nil {
				t.Error(err)
			}
			finish(t, run, fmt.Sprint("answer ", i))
		} else {
			replays.Store(i, true)
		}
		defer replay.Release()
		n := 0
		if err := replay.Stream(t.Context(), func(f []byte) error {
			n++
			_, of := eventOf(f)
			if of != replay.RunID {
				t.Errorf("%d: frame of %s", i, of)
			}
			return nil
		}); err != nil || n != 3 {
			t.Errorf("%d: %d frames, %v", i, n, err)
		}
	}
	for i := range sends {
		wg.Add(1)
		go one(i)
		if i%10 == 0 {
			wg.Add(1)
			go one(i)
		}
	}
	wg.Wait()
	n := 0
	replays.Range(func(any, any) bool { n++; return true })
	if n != sends/10 {
		t.Errorf("%d replays", n)
	}
	for k := range sessions {
		dir := fmt.Sprintf("session/s%d/", k)
		answers, asked := map[string]string{}, map[string]string{}
		for _, m := range w.lines(dir + "messages.jsonl") {
			run := m["run"].(string)
			if m["role"] == "user" {
				asked[run] = m["content"].(string)
				continue
			}
			answers[run] = m["content"].([]any)[0].(map[string]any)["text"].(string)
		}
		if len(asked) != sends/sessions || len(answers) != sends/sessions {
			t.Errorf("%s: %d asked, %d answered", dir, len(asked), len(answers))
		}
		for run, q := range asked {
			var a, b int
			fmt.Sscanf(q, "task %d", &a)
			fmt.Sscanf(answers[run], "answer %d", &b)
			if a != b || a%sessions != k {
				t.Errorf("%s: %q has %q", dir, q, answers[run])
			}
		}
		for i, e := range w.lines(dir + "events.jsonl") {
			if e["seq"] != float64(i+1) {
				t.Fatalf("%s: event %d has number %v", dir, i+1, e["seq"])
			}
		}
		if got := read(t, w.path(dir, "state")); got != "done\n" {
			t.Errorf("%s: state %q", dir, got)
		}
	}
	if got := len(s.List()); got != sessions {
		t.Errorf("%d sessions in the index", got)
	}
}
