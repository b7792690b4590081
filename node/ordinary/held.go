package ordinary

import (
	"sync"

	"golang.org/x/sys/unix"

	"cortexfs/node/vnode"
)

type span struct {
	typ        int16
	start, end uint64 // inclusive
}

func (f *lockFile) conflicts(l vnode.Lock) bool {
	for _, s := range f.held {
		if s.start <= l.End && l.Start <= s.end && (s.typ == unix.F_WRLCK || l.Type == unix.F_WRLCK) {
			return true
		}
	}
	return false
}

// note keeps held equal to what the kernel holds for this owner: the new range
// replaces what it covers.
func (f *lockFile) note(l vnode.Lock) {
	var kept []span
	for _, s := range f.held {
		if s.start > l.End || l.Start > s.end {
			kept = append(kept, s)
			continue
		}
		if s.start < l.Start {
			kept = append(kept, span{s.typ, s.start, l.Start - 1})
		}
		if s.end > l.End {
			kept = append(kept, span{s.typ, l.End + 1, s.end})
		}
	}
	if l.Type != unix.F_UNLCK {
		kept = append(kept, span{l.Type, l.Start, l.End})
		f.pid = l.PID
	}
	f.held = kept
}

// waitGraph says which owner waits for which, over all files.
type waitGraph struct {
	mu sync.Mutex
	on map[lockOwner]lockOwner
}

// enter notes that o waits for holder; false when holder waits for o already.
func (g *waitGraph) enter(o, holder lockOwner) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for at, steps := holder, 0; steps <= len(g.on); steps++ {
		if at == o {
			return false
		}
		next, waits := g.on[at]
		if !waits {
			break
		}
		at = next
	}
	if g.on == nil {
		g.on = map[lockOwner]lockOwner{}
	}
	g.on[o] = holder
	return true
}

func (g *waitGraph) leave(o lockOwner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.on, o)
}
