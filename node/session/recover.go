package session

import (
	"errors"
	"fmt"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// recover ends the runs that an earlier process has left. Nothing of them is done
// again: what is not known to be over is said to be unknown.
func (s *Store) recover() error {
	left, err := s.runs.unfinished()
	if err != nil {
		return err
	}
	for _, u := range left {
		if err := s.recoverRun(u); err != nil {
			// One damaged session does not keep the agent from its others. Its run
			// is not done again either: its id stays bound.
			s.o.Note(Note{Type: "session.interrupted", Session: u.key.String(), Run: u.run, Status: Failed, Reason: err.Error()})
		}
	}
	return s.runs.l.reset()
}

func (s *Store) recoverRun(u *unfinished) error {
	one, err := s.Get(u.key, false)
	if fault.Is(err, fault.NotExist) || fault.Is(err, fault.Invalid) {
		return nil // its session was removed
	}
	if err != nil {
		return err
	}
	defer one.Release()
	started, message, finished, err := one.traces(u.run)
	switch {
	case err != nil:
		return err
	case finished:
		return nil
	case !started && !message:
		return s.sends.void(u.id, u.key) // never acknowledged: the id is free
	}
	if !started {
		if _, err := one.event(fmt.Appendf(nil, `{"type":"start","id":%s,"run":%s}`, jsonl.Marshal(u.id), jsonl.Marshal(u.run))); err != nil {
			return err
		}
	}
	if err := one.settle(u); err != nil {
		return err
	}
	const why = "the host process ended during the run"
	for _, frame := range []map[string]any{
		{"type": "error", "run": u.run, "code": "EINTR", "message": why},
		{"type": "done", "run": u.run, "status": Failed},
	} {
		if _, err := one.event(jsonl.Marshal(frame)); err != nil {
			return err
		}
	}
	s.o.Note(Note{Type: "session.interrupted", Session: u.key.String(), Run: u.run, Status: Failed, Reason: why})
	return one.derive(derived{"state", []byte("error\n")}, derived{"updated_at", unix10(s.o.Now())})
}

// traces says what is stored of a run.
func (s *Session) traces(run string) (started, message, finished bool, err error) {
	err = each(s.events, 0, s.events.size(), func(line []byte, _ int64) error {
		if typ, of := eventOf(line); of == run {
			started = started || typ == "start"
			finished = finished || typ == "done"
		}
		return nil
	})
	if err != nil || started {
		return started, true, finished, err
	}
	err = each(s.messages, 0, s.messages.size(), func(line []byte, _ int64) error {
		if _, of := eventOf(line); of == run {
			message = true
			return errStop
		}
		return nil
	})
	if errors.Is(err, errStop) {
		err = nil
	}
	return started, message, finished, err
}

// settle says what is known of the calls that were open.
func (s *Session) settle(u *unfinished) error {
	for _, c := range u.calls {
		switch c.stage {
		case pending:
			if _, err := s.event(jsonl.Marshal(map[string]string{"type": "approval_result", "run": u.run, "id": c.id,
				"name": c.tool, "decision": "deny", "reason": "handler-gone"})); err != nil {
				return err
			}
			s.unknown(u, c, "approval.result", "denied", "the host process ended while asking")
		case inFlight:
			text := "ERROR: unknown, not repeated"
			part := map[string]any{"type": "tool_result", "tool_call_id": c.id, "content": text}
			if _, err := s.event(jsonl.Marshal(map[string]any{"type": "message", "run": u.run, "role": "tool", "name": c.tool,
				"content": []any{part}})); err != nil {
				return err
			}
			err := s.message(jsonl.Object{
				{Key: "role", Value: jsonl.Marshal("tool")}, {Key: "run", Value: jsonl.Marshal(u.run)},
				{Key: "name", Value: jsonl.Marshal(c.tool)}, {Key: "content", Value: jsonl.Marshal([]any{part})},
			})
			if err != nil {
				return err
			}
			s.unknown(u, c, "tool.call", "unknown", "unknown, not repeated")
		}
	}
	return nil
}

func (s *Session) unknown(u *unfinished, c openCall, typ, status, why string) {
	s.st.o.Note(Note{Type: typ, Session: u.key.String(), Run: u.run, Object: c.tool, Status: status, Reason: why})
}
