package session

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// sends remembers which message id was sent with which payload, for as long as
// the session is there. One of 256 files has the id, by its hash: a look-up reads
// that file, so that nothing grows in memory.
type sends struct {
	dir  *dir
	part [256]bucket

	tmu  sync.Mutex
	temp map[string]binding // of temp sessions
}

type bucket struct {
	// mu is held from the look to the durable record: two sends of one id see
	// each other.
	mu sync.Mutex
	l  *fileLines
}

// binding is one line: what an id stands for.
type binding struct {
	ID     string `json:"id"`
	Key           // the session
	Digest string `json:"digest,omitempty"` // of session, scope, cwd and input
	Run    string `json:"run,omitempty"`
	At     int64  `json:"at"`             // events.jsonl was no shorter before the run's first event
	Void   bool   `json:"void,omitempty"` // the id is free again
}

func openSends(records *dir) (*sends, error) {
	d, err := records.sub("send", true)
	if err != nil {
		return nil, err
	}
	return &sends{dir: d, temp: map[string]binding{}}, nil
}

func (s *sends) close() {
	for i := range s.part {
		b := &s.part[i]
		b.mu.Lock()
		if b.l != nil {
			b.l.close()
			b.l = nil
		}
		b.mu.Unlock()
	}
	s.dir.close()
}

// bucket locks the file that has the id. The caller unlocks it.
func (s *sends) bucket(id string) (*bucket, error) {
	sum := sha256.Sum256([]byte(id))
	b := &s.part[sum[0]]
	b.mu.Lock()
	if b.l != nil && b.l.gone() {
		b.l.close()
		b.l = nil
	}
	if b.l == nil {
		l, _, _, err := s.dir.lines(hex.EncodeToString(sum[:1]) + ".jsonl")
		if err != nil {
			b.mu.Unlock()
			return nil, err
		}
		b.l = l
	}
	return b, nil
}

// find is the last binding of the id that is not void.
func (s *sends) find(b *bucket, id string) (binding, bool, error) {
	s.tmu.Lock()
	t, ok := s.temp[id]
	s.tmu.Unlock()
	if ok {
		return t, true, nil
	}
	var found binding
	err := each(b.l, 0, b.l.size(), func(line []byte, _ int64) error {
		var one binding
		if json.Unmarshal(line, &one) == nil && one.ID == id {
			found = one
		}
		return nil
	})
	return found, found.ID != "" && !found.Void, err
}

func (s *sends) add(b *bucket, one binding) error {
	if one.Scope == Temp {
		s.tmu.Lock()
		defer s.tmu.Unlock()
		if one.Void {
			delete(s.temp, one.ID)
		} else {
			s.temp[one.ID] = one
		}
		return nil
	}
	end, err := b.l.add(append(jsonl.Marshal(one), '\n'))
	if err != nil {
		return err
	}
	return b.l.sync(end)
}

// void frees an id that no run has come of.
func (s *sends) void(id string, k Key) error {
	b, err := s.bucket(id)
	if err != nil {
		return err
	}
	defer b.mu.Unlock()
	return s.add(b, binding{ID: id, Key: k, Void: true})
}

// forgetTemp drops what a temp session was sent.
func (s *sends) forgetTemp(k Key) {
	s.tmu.Lock()
	defer s.tmu.Unlock()
	for id, b := range s.temp {
		if b.Key == k {
			delete(s.temp, id)
		}
	}
}

// digest is what a repeated send is compared by.
func (m *Send) digest() string {
	sum := sha256.Sum256(jsonl.Marshal([]string{"cortexfs.send/v1", string(m.Key.Scope), m.Key.Space, m.Key.Name, m.Cwd, m.Input}))
	return hex.EncodeToString(sum[:])
}

var errOther = fault.Newf(fault.Invalid, "the id was sent before with another session, scope, cwd or input")

func (b *binding) same(m *Send) error {
	if b.Digest != m.digest() {
		return fault.E("send", m.ID, fault.Invalid, fmt.Errorf("%w", errOther))
	}
	return nil
}
