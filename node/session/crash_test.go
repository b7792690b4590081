package session

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if root := os.Getenv("SESSION_CRASH"); root != "" {
		crashChild(root, os.Getenv("SESSION_ROUND"))
		return
	}
	os.Exit(m.Run())
}

// crashChild takes messages as fast as it can, prints the id of each when it is
// acknowledged, and never ends by itself.
func crashChild(root, round string) {
	open := func(name string) *os.File {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			panic(err)
		}
		return f
	}
	s, err := Open(Options{Sessions: open("session"), Records: open("records")})
	if err != nil {
		fmt.Println("FAIL", err)
		return
	}
	var out sync.Mutex
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("r%s.%d.%d", round, worker, i)
				run, _, err := s.Begin(Send{ID: id, Key: Key{Scope: Private, Name: fmt.Sprint("s", i%3)}, Input: "task " + id})
				if err != nil {
					fmt.Println("FAIL", err)
					return
				}
				out.Lock()
				fmt.Println(id, run.ID())
				out.Unlock()
				run.InFlight("call", "tool")
				run.Event(fmt.Appendf(nil, `{"type":"usage","run":"%s"}`, run.ID()))
				if i%2 == 0 {
					run.Settled("call")
				}
				run.Finish(OK, "done")
			}
		})
	}
	wg.Wait()
}

// TestKill: kill -9 at random moments loses no acknowledged message, doubles
// none, and every run that was begun has exactly one end after the restart.
func TestKill(t *testing.T) {
	w := newFastWorld(t)
	acked := map[string]string{} // message → run
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "SESSION_CRASH="+w.root, fmt.Sprint("SESSION_ROUND=", round))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := 1 + rand.IntN(60)
		killed := false
		for sc := bufio.NewScanner(out); sc.Scan(); {
			id, run, _ := strings.Cut(sc.Text(), " ")
			if id == "FAIL" {
				t.Error(sc.Text())
				break
			}
			acked[id] = run
			if after--; after == 0 && !killed {
				killed = true
				time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
	}
	s := w.open()
	messages, starts, ends := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range 3 {
		dir := fmt.Sprintf("session/s%d/", i)
		if _, err := os.Stat(w.path(dir)); err != nil {
			continue
		}
		one, err := s.Get(private(fmt.Sprint("s", i)), false) // moves torn ends aside
		if err != nil {
			t.Fatal(err)
		}
		one.Release()
		for _, m := range w.lines(dir + "messages.jsonl") {
			if m["role"] == "user" {
				messages[m["id"].(string)]++
			}
		}
		for k, e := range w.lines(dir + "events.jsonl") {
			if e["seq"] != float64(k+1) {
				t.Fatalf("%s: event %d has number %v", dir, k+1, e["seq"])
			}
			switch e["type"] {
			case "start":
				starts[e["run"].(string)]++
			case "done":
				ends[e["run"].(string)]++
			}
		}
	}
	for id, run := range acked {
		if messages[id] != 1 || starts[run] != 1 || ends[run] != 1 {
			t.Errorf("%s: %d messages, %d starts, %d ends", id, messages[id], starts[run], ends[run])
		}
	}
	for run, n := range ends {
		if n != 1 || starts[run] != 1 {
			t.Errorf("run %s: %d starts, %d ends", run, starts[run], n)
		}
	}
	if len(acked) < 100 {
		t.Errorf("only %d messages were acknowledged", len(acked))
	}
}

// TestRecovery: what a restart says of each stage of a run.
func TestRecovery(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	asking, flying, over := begin(t, s, send("m1", "s", "a")), begin(t, s, send("m2", "s", "b")), begin(t, s, send("m3", "s", "c"))
	for _, err := range []error{
		asking.Pending("c1", "fs.read"),
		flying.Pending("c2", "fs.write"), flying.InFlight("c2", "fs.write"), flying.InFlight("c3", "fs.list"), flying.Settled("c3"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	finish(t, over, "fine")
	// A run whose id was bound and which wrote nothing: its id is free again.
	if err := s.runs.add(runEntry{Op: begun, Run: "ctx-0", ID: "m4", Key: private("s")}); err != nil {
		t.Fatal(err)
	}
	b, err := s.sends.bucket("m4")
	if err != nil {
		t.Fatal(err)
	}
	lost := send("m4", "s", "d")
	if err := s.sends.add(b, binding{ID: "m4", Key: lost.Key, Digest: lost.digest(), Run: "ctx-0"}); err != nil {
		t.Fatal(err)
	}
	b.mu.Unlock()
	// No Close: the process is gone.
	before := len(w.lines("session/s/events.jsonl"))
	again := w.open()
	got := map[string][]string{}
	for _, e := range w.lines("session/s/events.jsonl")[before:] {
		got[e["run"].(string)] = append(got[e["run"].(string)], fmt.Sprintf("%v %v %v %v %v", e["type"], e["status"], e["decision"], e["reason"], e["content"]))
	}
	for run, want := range map[string]string{
		asking.ID(): "[approval_result <nil> deny handler-gone <nil> error <nil> <nil> <nil> <nil> done error <nil> <nil> <nil>]",
		flying.ID(): "[message <nil> <nil> <nil> [map[content:ERROR: unknown, not repeated tool_call_id:c2 type:tool_result]] error <nil> <nil> <nil> <nil> done error <nil> <nil> <nil>]",
	} {
		if fmt.Sprint(got[run]) != want {
			t.Errorf("%v", got[run])
		}
	}
	if len(got) != 2 {
		t.Errorf("%v", got)
	}
	if r := begin(t, again, lost); r != nil {
		finish(t, r, "now")
	}
	if _, replay, err := again.Begin(send("m1", "s", "a")); err != nil || replay == nil {
		t.Fatal(err)
	} else {
		var last string
		if err := replay.Stream(t.Context(), func(f []byte) error { last = string(f); return nil }); err != nil || !strings.Contains(last, `"done"`) {
			t.Error(last, err)
		}
		replay.Release()
	}
	// A second restart adds nothing.
	n := len(w.lines("session/s/events.jsonl"))
	again.Close()
	w.open()
	if got := len(w.lines("session/s/events.jsonl")); got != n {
		t.Errorf("%d events, then %d", n, got)
	}
}

func TestRunLogStaysSmall(t *testing.T) {
	w := newWorld(t)
	s := w.open()
	for i := range 3 {
		r := begin(t, s, send(fmt.Sprint("m", i), "s", "x"))
		for k := range compactAt / 50 {
			if _, err := s.runs.l.add(fmt.Appendf(nil, `{"op":"settled","run":"%s","call":"%d","name":"some.tool.name"}`+"\n", r.ID(), k)); err != nil {
				t.Fatal(err)
			}
		}
		finish(t, r, "y")
		if info, err := os.Stat(w.path("records/runs.jsonl")); err != nil || info.Size() > 0 {
			t.Error(info.Size(), err)
		}
	}
}
