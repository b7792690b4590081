package session

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// Session is one open session.
type Session struct {
	st  *Store
	key Key
	dir *dir // nil: temp

	users            int  // Store.mu
	detached         bool // Store.mu; the Store has dropped it, its users have not
	messages, events lines

	// mu protects the fields below: an event's id, number and place in the file
	// are given out together.
	mu      sync.Mutex
	ids     ids
	seq     uint64
	running int // runs begun and not finished

	deriving sync.Mutex // writes of the derived files, one after another; a leaf
	derived  map[string][]byte
	feed     feed
	turn     turn
}

// Key is the session's name.
func (s *Session) Key() Key { return s.key }

// openFiles opens the two JSONL files and makes what a new session has.
func (s *Session) openFiles(create bool) error {
	s.dir.sweep()
	messages, _, moved, err := s.dir.lines("messages.jsonl")
	if err != nil {
		return err
	}
	s.messages = messages
	s.noteTorn(moved)
	events, last, moved, err := s.dir.lines("events.jsonl")
	if err != nil {
		return err
	}
	s.events = events
	s.noteTorn(moved)
	if last != nil {
		s.resumeIDs(last)
	}
	if create {
		return s.makeRest()
	}
	return nil
}

func (s *Session) noteTorn(moved *torn) {
	if moved != nil {
		s.st.o.Note(Note{Type: "session.torn", Session: s.key.String(), Status: "ok",
			Reason: fmt.Sprintf("%d bytes of %s moved to %s.torn", moved.bytes, moved.name, moved.name)})
	}
}

// resumeIDs goes on behind the last event of the file.
func (s *Session) resumeIDs(last []byte) {
	o, err := jsonl.Parse(last)
	if err != nil {
		return
	}
	if id, ok := o.String("id"); ok {
		s.ids.last, _ = ulid.ParseStrict(id)
	}
	if v, ok := o.Get("seq"); ok {
		s.seq, _ = strconv.ParseUint(string(v), 10, 64)
	}
}

// makeRest makes what is not there yet; a session that a crash left half made is
// completed so.
func (s *Session) makeRest() error {
	for _, name := range []string{"context", "terminal"} {
		d, err := s.dir.sub(name, true)
		if err != nil {
			return err
		}
		d.close()
	}
	now := s.st.o.Now()
	for _, f := range []struct {
		name string
		text []byte
	}{
		{"created_at", unix10(now)}, {"updated_at", unix10(now)}, {"latest.md", nil}, {"state", []byte("idle\n")}, {"cwd", nil},
		{"meta.json", append(jsonl.Marshal(map[string]string{"session": s.key.Name, "scope": string(s.key.Scope)}), '\n')},
	} {
		if _, err := s.dir.get(f.name, 1<<20); fault.Is(err, fault.NotExist) {
			if err := s.dir.put(f.name, f.text); err != nil {
				return err
			}
		} else if err != nil && !fault.Is(err, fault.TooBig) {
			return err
		}
	}
	return nil
}

// gone says that the session must be opened anew.
func (s *Session) gone() bool {
	for _, l := range []lines{s.messages, s.events} {
		if f, ok := l.(*fileLines); ok && f.gone() {
			return true
		}
	}
	return false
}

func (s *Session) closeFiles() {
	for _, l := range []lines{s.messages, s.events} {
		if l != nil {
			l.close()
		}
	}
	if s.dir != nil {
		s.dir.close()
	}
	s.feed.close()
}

// event appends one event and returns when it is durable. frame is a JSON object;
// its own "id", which a frame of the wire may have, is stored under another name,
// because every event has an id of its own.
func (s *Session) event(frame []byte) (id string, err error) {
	o, err := jsonl.Parse(frame)
	if err != nil {
		return "", fault.Newf(fault.Invalid, "event: %w", err)
	}
	rest := stored(o)
	s.mu.Lock()
	now := s.st.o.Now()
	id = s.ids.next(now).String()
	s.seq++
	line := jsonl.Object{
		{Key: "id", Value: jsonl.Marshal(id)},
		{Key: "ts", Value: jsonl.Marshal(now.UTC().Format("2006-01-02T15:04:05.000Z"))},
		{Key: "seq", Value: strconv.AppendUint(nil, s.seq, 10)},
	}
	line = append(line, rest...)
	end, err := s.events.add(append(line.Append(nil), '\n'))
	s.mu.Unlock()
	if err == nil {
		err = s.events.sync(end)
	}
	s.feed.wake()
	return id, err
}

// refKey is the name under which the own id of a frame is stored.
func refKey(typ string) string {
	if typ == "start" {
		return "message_id"
	}
	return "tool_call_id"
}

func stored(o jsonl.Object) jsonl.Object {
	typ, _ := o.String("type")
	out := make(jsonl.Object, 0, len(o))
	for _, f := range o {
		switch f.Key {
		case "ts", "seq":
			continue
		case "id":
			f.Key = refKey(typ)
		}
		out = append(out, f)
	}
	return out
}

// ClientFrame is a stored event as the frame of the agent socket that it was:
// without the event's own id, time and number.
func ClientFrame(line []byte) ([]byte, error) {
	o, err := jsonl.Parse(line)
	if err != nil {
		return nil, fault.Newf(fault.IO, "damaged event: %w", err)
	}
	typ, _ := o.String("type")
	out := make(jsonl.Object, 0, len(o))
	for _, f := range o {
		switch f.Key {
		case "id", "ts", "seq":
			continue
		case refKey(typ):
			f.Key = "id"
		}
		out = append(out, f)
	}
	return out.Append(nil), nil
}

// message appends a line to messages.jsonl and returns when it is durable.
func (s *Session) message(o jsonl.Object) error {
	o = append(slices.Clone(o), jsonl.Field{Key: "ts", Value: jsonl.Marshal(s.st.o.Now().UTC().Format(time.RFC3339))})
	end, err := s.messages.add(append(o.Append(nil), '\n'))
	if err != nil {
		return err
	}
	return s.messages.sync(end)
}

// derive writes small files; a temp session has none.
func (s *Session) derive(files ...derived) error {
	if s.dir == nil {
		return nil
	}
	s.deriving.Lock()
	defer s.deriving.Unlock()
	for _, f := range files {
		if old, ok := s.derived[f.name]; ok && bytes.Equal(old, f.text) {
			continue
		}
		delete(s.derived, f.name)
		if err := s.dir.put(f.name, f.text); err != nil {
			return err
		}
		if len(f.text) <= keepDerived {
			s.derived[f.name] = f.text
		}
	}
	return nil
}

// keepDerived is the largest text that is remembered, so as not to be written
// again.
const keepDerived = 256

type derived struct {
	name string
	text []byte
}
