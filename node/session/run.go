package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"unicode/utf8"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// MaxSend bounds the input of a send, in bytes: the frame of the socket does.
const MaxSend = 1 << 20

// Send is a message to the agent.
type Send struct {
	ID        string // the sender's, an object name: the key of idempotency
	Key       Key
	Cwd       string // in the sandbox; "" is the agent's
	Workspace string // path on the host, for index/by-cwd; may be empty
	Input     string
	Model     string // shown in start
}

// Check judges the fields that a stranger fills.
func (m *Send) Check() error {
	if err := node.CheckName(m.ID); err != nil {
		return fault.Newf(fault.Invalid, "id: %w", err)
	}
	if err := m.Key.Check(); err != nil {
		return err
	}
	switch {
	case len(m.Input) > MaxSend:
		return fault.Newf(fault.TooBig, "input of %d bytes", len(m.Input))
	case !utf8.ValidString(m.Input) || strings.IndexByte(m.Input, 0) >= 0:
		return fault.Newf(fault.Invalid, "input is not text")
	case m.Cwd != "" && (!path.IsAbs(m.Cwd) || path.Clean(m.Cwd) != m.Cwd || len(m.Cwd) > 4096 || strings.ContainsAny(m.Cwd, "\x00\n")):
		return fault.Newf(fault.Invalid, "cwd is not a plain absolute path")
	}
	return nil
}

// Run is a run under way, and its place in its session. Its methods are safe for
// concurrent use, but a run has one goroutine that calls Finish, last.
type Run struct {
	*Session
	id   string
	send string // id of the message
	at   int64

	once sync.Once
	err  error
}

// Begin takes a message: when it returns, the message and the run's start event
// are durable. replayed: the same message was taken before; run is nil then and
// Stream tells what came of it. The caller finishes the run, or releases the
// session of a replay.
func (s *Store) Begin(m Send) (run *Run, replay *Replay, err error) {
	if err := m.Check(); err != nil {
		return nil, nil, err
	}
	b, err := s.sends.bucket(m.ID)
	if err != nil {
		return nil, nil, err
	}
	run, replay, err = s.bind(b, &m)
	b.mu.Unlock()
	if err != nil || replay != nil {
		return nil, replay, err
	}
	if err := run.begin(&m); err != nil {
		// Nothing was acknowledged and nothing will run.
		s.sends.void(m.ID, m.Key)
		run.drop()
		return nil, nil, err
	}
	return run, nil, nil
}

// Replay is a message that was taken before.
type Replay struct {
	*Session
	RunID string
	at    int64
}

// bind looks the id up and, when it is new, binds it to the payload and to a new
// run. The bucket is locked.
func (s *Store) bind(b *bucket, m *Send) (*Run, *Replay, error) {
	old, found, err := s.sends.find(b, m.ID)
	if err != nil {
		return nil, nil, err
	}
	if found {
		replay, err := s.replay(&old, m)
		if err != nil || replay != nil {
			return nil, replay, err
		}
		// The session is gone, and with it what was promised about the id.
	}
	one, err := s.Get(m.Key, true)
	if err != nil {
		return nil, nil, err
	}
	run := &Run{Session: one, id: NewRunID(), send: m.ID, at: one.events.size()}
	if m.Key.Scope != Temp {
		if err := s.runs.add(runEntry{Op: begun, Run: run.id, ID: m.ID, Key: m.Key}); err != nil {
			one.Release()
			return nil, nil, err
		}
	}
	// From here on the run is under way; drop undoes that.
	one.mu.Lock()
	one.running++
	one.mu.Unlock()
	one.turn.join(run.id)
	s.mu.Lock()
	s.active[run.id] = run
	s.mu.Unlock()
	if err := s.sends.add(b, binding{ID: m.ID, Key: m.Key, Digest: m.digest(), Run: run.id, At: run.at}); err != nil {
		run.drop()
		return nil, nil, err
	}
	return run, nil, nil
}

// replay answers a known id; nil, nil when its session is gone.
func (s *Store) replay(old *binding, m *Send) (*Replay, error) {
	one, err := s.Get(old.Key, false)
	if fault.Is(err, fault.NotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Replay{Session: one, RunID: old.Run, at: old.At}
	if s.Active(old.Run) == nil && !one.has(old.Run, old.At) {
		one.Release()
		return nil, nil
	}
	if err := old.same(m); err != nil {
		one.Release()
		return nil, err
	}
	return r, nil
}

// has says whether the run's start event is stored, at or after a place.
func (s *Session) has(run string, at int64) bool {
	err := each(s.events, at, s.events.size(), func(line []byte, _ int64) error {
		if typ, of := eventOf(line); of == run && typ == "start" {
			return errStop
		}
		return nil
	})
	return errors.Is(err, errStop)
}

func eventOf(line []byte) (typ, run string) {
	var e struct{ Type, Run string }
	if json.Unmarshal(line, &e) != nil {
		return "", ""
	}
	return e.Type, e.Run
}

// begin writes what acknowledges the message.
func (r *Run) begin(m *Send) error {
	if err := r.derive(derived{"cwd", []byte(m.Cwd + "\n")}, derived{"state", []byte("active\n")}); err != nil {
		return err
	}
	err := r.message(jsonl.Object{
		{Key: "role", Value: jsonl.Marshal("user")}, {Key: "id", Value: jsonl.Marshal(m.ID)},
		{Key: "run", Value: jsonl.Marshal(r.id)}, {Key: "content", Value: jsonl.Marshal(m.Input)},
	})
	if err != nil {
		return err
	}
	start := struct {
		Type  string `json:"type"`
		ID    string `json:"id"`
		Run   string `json:"run"`
		Model string `json:"model,omitempty"`
	}{"start", m.ID, r.id, m.Model}
	if _, err := r.event(jsonl.Marshal(start)); err != nil {
		return err
	}
	if m.Key.Scope != Private {
		return nil
	}
	return r.st.index.touch(m.Key.Name, m.Workspace)
}

// drop takes a run back that never began.
func (r *Run) drop() {
	r.once.Do(func() {
		if r.key.Scope != Temp {
			r.st.runs.end(r.id)
		}
		r.leave()
	})
}

// leave ends the run in memory.
func (r *Run) leave() {
	r.mu.Lock()
	r.running--
	r.mu.Unlock()
	r.turn.leave(r.id)
	r.st.mu.Lock()
	delete(r.st.active, r.id)
	r.st.mu.Unlock()
	r.feed.wake()
	r.Release()
}

// ID is the run's id.
func (r *Run) ID() string { return r.id }

// MessageID is the id of the message that the run answers.
func (r *Run) MessageID() string { return r.send }

// Replay lets a further reader stream the run from its start. It holds the
// session; the caller releases it.
func (r *Run) Replay() *Replay {
	r.st.mu.Lock()
	r.st.useLocked(r.Session)
	r.st.mu.Unlock()
	return &Replay{Session: r.Session, RunID: r.id, at: r.at}
}

// Wait returns when the earlier runs of the session have finished.
func (r *Run) Wait(ctx context.Context) error { return r.turn.wait(ctx, r.id) }

// Event stores a frame of the run; it is durable, and on its way to followers,
// when Event returns.
func (r *Run) Event(frame []byte) error {
	_, err := r.event(frame)
	return err
}

// Live gives a frame to those who follow now; it is not stored. It waits for
// slow ones, within limits.
func (r *Run) Live(ctx context.Context, frame []byte) error {
	return r.feed.publish(ctx, live{at: r.events.size(), run: r.id, frame: frame})
}

// Message appends a message of the run to messages.jsonl: the JSON object with
// its role and content, without run.
func (r *Run) Message(message []byte) error {
	o, err := jsonl.Parse(message)
	if err != nil {
		return fault.Newf(fault.Invalid, "message: %w", err)
	}
	return r.message(append(o, jsonl.Field{Key: "run", Value: jsonl.Marshal(r.id)}))
}

// Pending records that the question about a call is open.
func (r *Run) Pending(call, tool string) error { return r.stage(pending, call, tool) }

// InFlight records, durably, that a call is about to be executed: after a crash
// from here on nobody knows whether it has had its effect.
func (r *Run) InFlight(call, tool string) error { return r.stage(inFlight, call, tool) }

// Settled records that what came of a call is stored.
func (r *Run) Settled(call string) error { return r.stage(settled, call, "") }

func (r *Run) stage(op, call, tool string) error {
	if r.key.Scope == Temp {
		return nil
	}
	return r.st.runs.add(runEntry{Op: op, Run: r.id, Call: call, Tool: tool})
}

// Snapshot keeps a text that the run was given: AGENTS.md or SKILLS.md.
func (r *Run) Snapshot(name string, text []byte) error {
	if name != "AGENTS.md" && name != "SKILLS.md" {
		return fault.Newf(fault.Invalid, "no snapshot is called %q", name)
	}
	return r.derive(derived{name, text})
}

// Statuses of a finished run.
const (
	OK        = "ok"
	Failed    = "error"
	Cancelled = "cancelled"
)

// Finish ends the run: the done event, latest.md when there is an answer, state.
// The session is released. Only the first call counts.
func (r *Run) Finish(status, answer string) error {
	r.once.Do(func() { r.err = r.finish(status, answer) })
	return r.err
}

func (r *Run) finish(status, answer string) error {
	defer r.leave()
	done := struct {
		Type   string `json:"type"`
		Run    string `json:"run"`
		Status string `json:"status"`
	}{"done", r.id, status}
	_, err := r.event(jsonl.Marshal(done))
	if err != nil {
		return err // the next Open ends it
	}
	if r.key.Scope != Temp {
		err = r.st.runs.end(r.id)
	}
	return errors.Join(err, r.close(status, answer))
}

// close writes the derived files of the end.
func (r *Run) close(status, answer string) error {
	state := word(status)
	r.mu.Lock()
	if r.running > 1 {
		state = "active"
	}
	r.mu.Unlock()
	files := []derived{{"state", []byte(state + "\n")}, {"updated_at", unix10(r.st.o.Now())}}
	if answer != "" {
		files = append(files, derived{"latest.md", []byte(strings.TrimSuffix(answer, "\n") + "\n")})
	}
	return r.derive(files...)
}

// word is the state of a session whose last run had this status.
func word(status string) string {
	if status == OK {
		return "done"
	}
	return status
}

// Stream gives fn the frames of the run, as the agent socket has them, from its
// start to its done, live ones included. It waits for a run that is still under
// way.
func (r *Replay) Stream(ctx context.Context, fn func(frame []byte) error) error {
	place := &reader{pos: r.at, run: r.RunID}
	for {
		// Asked before reading: a run that has left by now has stored its done.
		active := r.st.Active(r.RunID) != nil
		err := r.follow(ctx, place, false, func(line []byte, isLive bool, _ int64) error {
			return r.one(line, isLive, fn)
		})
		switch {
		case errors.Is(err, errStop):
			return nil
		case err != nil:
			return err
		case !active:
			return fault.E("send", "run "+r.RunID, fault.IO, fmt.Errorf("the session has no end of the run"))
		}
		if err := r.more(ctx, place); err != nil {
			return err
		}
	}
}

// more waits until the session has changed since place was up to date, or the
// run has left.
func (r *Replay) more(ctx context.Context, place *reader) error {
	f := &r.feed
	for {
		f.mu.Lock()
		changed, over := f.changed, f.over
		fresh := r.events.size() > place.pos || place.next < f.first+uint64(len(f.ring))
		f.mu.Unlock()
		switch {
		case fresh || r.st.Active(r.RunID) == nil:
			return nil
		case over:
			return fault.Newf(fault.Unavailable, "the session is closed")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *Replay) one(line []byte, isLive bool, fn func([]byte) error) error {
	if isLive {
		return fn(line)
	}
	typ, run := eventOf(line)
	if run != r.RunID {
		return nil
	}
	frame, err := ClientFrame(line)
	if err != nil {
		return err
	}
	if err := fn(frame); err != nil {
		return err
	}
	if typ == "done" {
		return errStop
	}
	return nil
}
