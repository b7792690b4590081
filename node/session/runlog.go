package session

import (
	"encoding/json"
	"sync"

	"cortexfs/node/jsonl"
)

// runLog is runs.jsonl among the records: which runs and calls are under way.
// It is what a restart goes by.
type runLog struct {
	l *fileLines

	mu   sync.Mutex // with entry's open counts; a leaf
	open int        // runs begun and not ended
}

// Stages of a call.
const (
	begun    = "begin"
	pending  = "pending"  // a question is open
	inFlight = "inflight" // about to be spawned: an effect is possible
	settled  = "settled"
	ended    = "end"
)

type runEntry struct {
	Op  string `json:"op"`
	Run string `json:"run"`
	ID  string `json:"id,omitempty"` // begin: the message
	Key
	Call string `json:"call,omitempty"`
	Tool string `json:"name,omitempty"`
}

// compactAt is the size from which an unneeded log is emptied.
const compactAt = 256 << 10

func openRunLog(records *dir) (*runLog, error) {
	l, _, _, err := records.lines("runs.jsonl")
	if err != nil {
		return nil, err
	}
	return &runLog{l: l}, nil
}

func (r *runLog) close() { r.l.close() }

// add returns when the entry is durable.
func (r *runLog) add(e runEntry) error {
	r.mu.Lock()
	if e.Op == begun {
		r.open++
	}
	end, err := r.l.add(append(jsonl.Marshal(e), '\n'))
	r.mu.Unlock()
	if err == nil {
		err = r.l.sync(end)
	}
	if err != nil && e.Op == begun {
		r.mu.Lock()
		r.open--
		r.mu.Unlock()
	}
	return err
}

// end records the end of a run, and empties the log when it was the last one.
func (r *runLog) end(run string) error {
	err := r.add(runEntry{Op: ended, Run: run})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	if r.open == 0 && err == nil && r.l.size() > compactAt {
		err = r.l.reset()
	}
	return err
}

// unfinished is a run that an earlier process left.
type unfinished struct {
	run   string
	id    string
	key   Key
	calls []openCall
}

type openCall struct{ id, tool, stage string }

// unfinished reads what was begun and not ended, in order.
func (r *runLog) unfinished() ([]*unfinished, error) {
	var order []*unfinished
	byRun := map[string]*unfinished{}
	err := each(r.l, 0, r.l.size(), func(line []byte, _ int64) error {
		var e runEntry
		if json.Unmarshal(line, &e) != nil {
			return nil
		}
		u := byRun[e.Run]
		switch {
		case e.Op == begun && u == nil:
			u = &unfinished{run: e.Run, id: e.ID, key: e.Key}
			byRun[e.Run] = u
			order = append(order, u)
		case u == nil:
		case e.Op == ended:
			delete(byRun, e.Run)
		default:
			u.note(e)
		}
		return nil
	})
	var out []*unfinished
	for _, u := range order {
		if byRun[u.run] == u {
			out = append(out, u)
		}
	}
	return out, err
}

func (u *unfinished) note(e runEntry) {
	for i := range u.calls {
		if u.calls[i].id == e.Call {
			u.calls[i].stage = e.Op
			return
		}
	}
	u.calls = append(u.calls, openCall{e.Call, e.Tool, e.Op})
}
