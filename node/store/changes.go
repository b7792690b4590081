package store

import (
	"path"
	"sync"
	"sync/atomic"
)

// Counter counts the changes of the names in one directory, and of the attributes
// of the executables in it. It moves after a change can be seen and before the
// call that made it returns: who loads it, then looks, and later finds the same
// number has seen the present state. It may move without a change.
type Counter struct{ n atomic.Uint64 }

// Load is the present number.
func (c *Counter) Load() uint64 { return c.n.Load() }

// counters of one store. texts counts what Objects publish.
type counters struct {
	texts atomic.Uint64
	dirs  sync.Map // directory → *Counter
}

// Changes is the counter of a directory below object/, which need not exist. The
// same directory has the same counter for ever.
func (s *Store) Changes(dir string) *Counter {
	if c, ok := s.counters.dirs.Load(dir); ok {
		return c.(*Counter)
	}
	c, _ := s.counters.dirs.LoadOrStore(dir, new(Counter))
	return c.(*Counter)
}

// TextChanges counts, in the way of a Counter, what the store's Objects publish,
// all together. (Gen is given out before its value is published.)
func (s *Store) TextChanges() uint64 { return s.counters.texts.Load() }

// bump moves the counters that a change at p concerns: of its directory, and of
// p where that is one itself.
func (s *Store) bump(p string) {
	for _, dir := range [...]string{path.Dir(p), p} {
		if c, ok := s.counters.dirs.Load(dir); ok {
			c.(*Counter).n.Add(1)
		}
	}
}
