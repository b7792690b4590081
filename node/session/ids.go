package session

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/oklog/ulid/v2"
)

// ids makes the ids of the events of one session: ULIDs that only grow, also
// when the clock goes back.
type ids struct{ last ulid.ULID }

func (g *ids) next(now time.Time) ulid.ULID {
	ms := min(max(ulid.Timestamp(now), 0), ulid.MaxTime())
	if ms > g.last.Time() {
		g.last = ulid.MustNew(ms, rand.Reader)
		return g.last
	}
	for i := len(g.last) - 1; i >= 0; i-- { // the next number of 128 bits
		g.last[i]++
		if g.last[i] != 0 {
			break
		}
	}
	return g.last
}

// NewRunID makes the id of a run: ctx- and 32 hex digits (interop A3).
func NewRunID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return "ctx-" + hex.EncodeToString(b[:])
}
