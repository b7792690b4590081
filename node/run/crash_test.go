package run

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cortexfs/node/session"
	"cortexfs/policy"
)

// TestMain lets the test binary be the host process that is killed.
func TestMain(m *testing.M) {
	if root := os.Getenv("RUN_CRASH"); root != "" {
		crashChild(root)
		return
	}
	os.Exit(m.Run())
}

const (
	crashSends   = 120
	crashWorkers = 6
)

// crashChild sends the same messages as every process before it, in an order of
// its own, and makes the runs that come of them. A tool's effect is a line in a
// file. It prints done when all have an outcome.
func crashChild(root string) {
	open := func(name string) *os.File {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			panic(err)
		}
		return f
	}
	store, err := session.Open(session.Options{Sessions: open("session"), Records: open("records")})
	if err != nil {
		fmt.Println("FAIL", err)
		return
	}
	effects, err := os.OpenFile(filepath.Join(root, "effects"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		fmt.Println("FAIL", err)
		return
	}
	fmt.Println("up")
	todo := make(chan int)
	var wg sync.WaitGroup
	for range crashWorkers {
		wg.Go(func() {
			for i := range todo {
				if err := crashRun(store, effects, i); err != nil {
					fmt.Println("FAIL", err)
				}
			}
		})
	}
	for _, i := range rand.Perm(crashSends) {
		todo <- i
	}
	close(todo)
	wg.Wait()
	fmt.Println("done")
}

func crashRun(store *session.Store, effects *os.File, i int) error {
	run, replay, err := store.Begin(session.Send{ID: fmt.Sprint("m", i), Key: session.Key{Scope: session.Private, Name: fmt.Sprint("s", i%4)}, Input: fmt.Sprint("task ", i)})
	if err != nil {
		return err
	}
	if replay != nil {
		defer replay.Release()
		return replay.Stream(context.Background(), func([]byte) error { return nil })
	}
	if err := run.Wait(context.Background()); err != nil {
		return err
	}
	b := NewBroker(BrokerOptions{})
	h := b.Attach(run.ID(), "uid 1")
	go func() {
		for {
			frame, err := h.Next(context.Background())
			if err != nil {
				return
			}
			var q struct{ Type, Run, ID string }
			if json.Unmarshal(frame, &q) == nil && q.Type == "approval_request" {
				h.Answer(reply(q.Run, q.ID, "allow_once"))
			}
		}
	}()
	defer h.Close()
	s := &crashSpawner{effects: effects, send: fmt.Sprint("m", i), run: run.ID()}
	l := &Loop{Input: "task", Prepare: func(context.Context) (string, string, error) { return "", "", nil },
		Calls: &Caller{Agent: "coder", Session: "s", Run: run.ID(), Gate: s, Spawn: s, Approver: b, Record: run}}
	if status := l.Do(context.Background()); status != session.OK {
		return fmt.Errorf("%s: %s", run.MessageID(), status)
	}
	return nil
}

// crashSpawner is an agent that calls two tools and ends.
type crashSpawner struct {
	effects   *os.File
	send, run string
}

func (s *crashSpawner) Request(tool string) *policy.Request {
	set, _ := policy.Parse([]byte("allow t tool:write execute\n"))
	return &policy.Request{Tool: tool, Hosted: true, Declared: true, Hit: &policy.Hit{Path: "/ctx/tool/write", Mode: 0o755, Search: true}, UID: 1, GID: 1,
		Mount: &policy.MountFact{Line: 1}, Subject: "t", AgentPolicy: set, ToolPolicy: set}
}

func (s *crashSpawner) Schema(*policy.Request) []byte { return nil }

func (s *crashSpawner) Step(_ context.Context, step *Step) (Process, error) {
	text := fmt.Sprintf(`{"type":"tool_call","run":"%s","id":"c%d","name":"write","arguments":"x"}`, s.run, step.Number)
	if step.Number == 2 {
		text = fmt.Sprintf(`{"type":"message","run":"%s","role":"assistant","content":[{"type":"text","text":"all done"}]}`, s.run)
	}
	exit := make(chan Exit, 1)
	exit <- Exit{}
	return process{strings.NewReader(text + "\n"), exit}, nil
}

func (s *crashSpawner) Open(context.Context, *policy.Request) (Executable, policy.OpenFact, error) {
	return crashExe{s}, policy.OpenFact{OK: true}, nil
}

type crashExe struct{ *crashSpawner }

func (crashExe) Digest() string                                { return "00" }
func (crashExe) Same(context.Context) (policy.OpenFact, error) { return policy.OpenFact{OK: true}, nil }
func (crashExe) Close()                                        {}

func (x crashExe) Exec(_ context.Context, e *Exec) (*Output, error) {
	if _, err := fmt.Fprintf(x.effects, "%s %s\n", x.send, x.run); err != nil {
		return nil, err
	}
	time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond) // a tool takes time after its effect too
	return &Output{Stdout: []byte("written")}, nil
}

// TestKillDuringCalls: with kill -9 at random moments, and every message sent
// again and again, no message makes two runs that have effects, no call has two,
// and a call whose result nobody has seen is reported as unknown.
func TestKillDuringCalls(t *testing.T) {
	root, err := os.MkdirTemp("/dev/shm", "run") // thousands of fsyncs
	if err != nil {
		root = t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for _, d := range []string{"session", "records"} {
		if err := os.Mkdir(filepath.Join(root, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	kills, finished := 0, false
	for round := 0; !finished && round < 60; round++ {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "RUN_CRASH="+root)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(out)
		if line, err := r.ReadString('\n'); err != nil || line != "up\n" {
			t.Fatalf("round %d: %q %v", round, line, err)
		}
		if round < 14 {
			kills++
			time.AfterFunc(time.Duration(rand.IntN(12_000))*time.Microsecond, func() { cmd.Process.Kill() })
		}
		rest, _ := io.ReadAll(r)
		cmd.Wait()
		if bytes.Contains(rest, []byte("FAIL")) {
			t.Errorf("round %d: %s", round, rest)
		}
		finished = round >= 14 && bytes.Contains(rest, []byte("done"))
	}
	if !finished {
		t.Fatal("it was never done")
	}
	checkEffects(t, root)
	t.Logf("%d kills", kills)
}

// checkEffects compares the effects with what the sessions say.
func checkEffects(t *testing.T, root string) {
	b, err := os.ReadFile(filepath.Join(root, "effects"))
	if err != nil {
		t.Fatal(err)
	}
	effects := map[string]int{} // run → effects
	runs := map[string]string{} // message → run with effects
	for _, line := range strings.Fields(strings.ReplaceAll(string(b), " ", ":")) {
		send, run, _ := strings.Cut(line, ":")
		effects[run]++
		if other := runs[send]; other != "" && other != run {
			t.Errorf("%s had effects in two runs", send)
		}
		runs[send] = run
	}
	results, unknown, ends, ok := map[string]int{}, map[string]int{}, map[string]int{}, 0
	for i := range 4 {
		b, err := os.ReadFile(filepath.Join(root, fmt.Sprintf("session/s%d/events.jsonl", i)))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(b) {
			var e struct {
				Type, Run, Role, Status string
				Content                 json.RawMessage
			}
			if err := json.Unmarshal(line, &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			switch {
			case e.Type == "message" && e.Role == "tool" && bytes.Contains(e.Content, []byte("unknown, not repeated")):
				unknown[e.Run]++
			case e.Type == "message" && e.Role == "tool":
				results[e.Run]++
			case e.Type == "done":
				ends[e.Run]++
				if e.Status == "ok" {
					ok++
				}
			}
		}
	}
	interrupted := 0
	for run, n := range effects {
		if n > results[run]+unknown[run] || n > 2 || unknown[run] > 1 {
			t.Errorf("run %s: %d effects, %d results, %d unknown", run, n, results[run], unknown[run])
		}
		if ends[run] != 1 {
			t.Errorf("run %s has %d ends", run, ends[run])
		}
		interrupted += unknown[run]
	}
	if ok+len(ends) == 0 || len(runs) == 0 {
		t.Error("nothing ran")
	}
	t.Logf("%d messages with effects, %d runs ended, %d ok, %d calls unknown", len(runs), len(ends), ok, interrupted)
}
