package agent

import (
	"slices"

	"cortexfs/node/fault"
)

// Limits of a family (spec section 17).
const (
	MaxChildren = 16
	MaxDepth    = 4  // agents above one, at most
	MaxFamily   = 64 // agents below the top of one tree
)

// lineage is who descends from whom, as long as no agent comes, goes or gets
// another text. The parent texts are all there is; this is only their index.
type lineage struct {
	names    *names
	texts    uint64
	configs  []*Config // in the order of names; nil for an agent that went away
	objects  []*Object
	parent   map[Key]Key
	children map[Key][]Key
	byLabel  map[string][]Key
	byOwner  map[uint32]int
	ids      map[uint32]bool // uids and gids of agents of owner 0
}

// loadLineage looks at every agent's Config again when any text of the store has
// changed; where no agent's has, that is all.
func (t *Table) loadLineage() *lineage {
	texts, names := t.st.TextChanges(), t.loadNames()
	old := t.lineage.Load()
	if old != nil && old.names == names && old.texts == texts {
		return old
	}
	if old != nil && old.names == names && old.unchanged() {
		l := *old
		l.texts = texts
		t.lineage.Store(&l)
		return &l
	}
	l := &lineage{
		names: names, texts: texts, parent: map[Key]Key{}, children: map[Key][]Key{}, byLabel: map[string][]Key{},
		byOwner: map[uint32]int{}, ids: map[uint32]bool{},
	}
	for _, k := range names.keys {
		o, err := t.Lookup(k)
		if err != nil {
			o = nil
		}
		l.add(t, k, o)
	}
	t.lineage.Store(l)
	return l
}

// unchanged says whether every agent is the one it was, with the texts it had.
func (l *lineage) unchanged() bool {
	for i, o := range l.objects {
		if o == nil || o.Gone() || o.Config() != l.configs[i] {
			return false
		}
	}
	return true
}

func (l *lineage) add(t *Table, k Key, o *Object) {
	l.objects = append(l.objects, o)
	if o == nil {
		l.configs = append(l.configs, nil)
		return
	}
	c := o.Config()
	l.configs = append(l.configs, c)
	l.byOwner[c.Owner]++
	if c.Subject != "" {
		l.byLabel[c.Subject] = append(l.byLabel[c.Subject], k)
	}
	l.ids[c.UID], l.ids[c.GID] = true, true
	if c.Parent.Agent == "" {
		return
	}
	if p, ok := t.resolveParent(k, c.Parent.Agent); ok {
		l.parent[k] = p
		l.children[p] = append(l.children[p], k)
	}
}

// resolveParent is the agent that a parent text of k means: in k's own home
// first, then a system agent. A system agent's parent is a system agent.
func (t *Table) resolveParent(k Key, name string) (Key, bool) {
	if k.Home {
		p := InHome(k.UID, name)
		if _, err := t.Lookup(p); err == nil {
			return p, true
		}
	}
	p := System(name)
	_, err := t.Lookup(p)
	return p, err == nil
}

// Children are the agents whose parent text names k, sorted. The slice is not to
// be changed.
func (t *Table) Children(k Key) []Key { return t.loadLineage().children[k] }

// Parent is the agent that k's parent text names; false when it names none that
// there is.
func (t *Table) Parent(k Key) (Key, bool) {
	p, ok := t.loadLineage().parent[k]
	return p, ok
}

// Ancestors are the agents above k, nearest first. A cycle, which only an edit
// of the store behind the daemon's back can make, is Invalid.
func (t *Table) Ancestors(k Key) ([]Key, error) {
	l := t.loadLineage()
	var above []Key
	for at := k; ; {
		p, ok := l.parent[at]
		if !ok {
			return above, nil
		}
		if p == k || slices.Contains(above, p) {
			return above, fault.E("lineage", k.TreeDir()+"/parent", fault.Invalid, errCycle)
		}
		above = append(above, p)
		at = p
	}
}

var errCycle = fault.Newf(fault.Invalid, "the parents form a cycle")

// Descendants are all agents below k, deepest first; k itself is not among them,
// also in a cycle.
func (t *Table) Descendants(k Key) []Key {
	l := t.loadLineage()
	seen := map[Key]bool{k: true}
	var all []Key
	level := []Key{k}
	for len(level) > 0 {
		var next []Key
		for _, p := range level {
			for _, c := range l.children[p] {
				if !seen[c] {
					seen[c] = true
					next = append(next, c)
				}
			}
		}
		all = append(all, next...)
		level = next
	}
	slices.Reverse(all)
	return all
}

// familyLimit refuses a birth below parent that the family has no room for:
// Again (spec section 17). above are the ancestors of parent.
func (t *Table) familyLimit(k, parent Key, above []Key) error {
	top := parent
	if len(above) > 0 {
		top = above[len(above)-1]
	}
	below := t.Descendants(k)
	switch {
	case len(t.Children(parent)) >= MaxChildren:
		return fault.Newf(fault.Again, "agent %s has %d children", parent.Name, MaxChildren)
	case len(above)+1+t.height(k) > MaxDepth:
		return fault.Newf(fault.Again, "the tree of agents would be deeper than %d", MaxDepth)
	case len(t.Descendants(top))+1+len(below) > MaxFamily:
		return fault.Newf(fault.Again, "the tree of agent %s has %d agents below it", top.Name, MaxFamily)
	}
	return nil
}

// height is the number of generations below k.
func (t *Table) height(k Key) int {
	high := 0
	for _, d := range t.Descendants(k) {
		above, err := t.Ancestors(d)
		if err == nil {
			high = max(high, slices.Index(above, k)+1)
		}
	}
	return high
}
