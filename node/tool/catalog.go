// Package tool is the catalog of tools over the tiers of the tree: which
// executables count as tools, whose they are, and what their controls say (spec
// section 6).
//
// Ideas. A hit is a regular file with an execute bit in a tier; symlinks,
// directories and other files never are. The catalog derives everything from the
// store and remembers by the store's counters what it was derived from, so an
// answer is always of this moment and nobody has to tell it of a change. As long
// as nothing changed, Lookup reads no disk. The controls of a tool are read when
// somebody asks for them: ten thousand tools that nobody calls cost their names.
//
// Locks: each tier's mu is a leaf, held over no I/O.
//
// The package decides nothing about agents (package view does), and writes
// nothing.
package tool

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/store"
)

// maxMisses bounds the names that a tier remembers not to have: who asks for
// made-up names pays with a look at the disk for each.
const maxMisses = 4096

// System is the tier of the system's tools.
const System = "tool"

// Catalog is the tools of one store. All methods may be called at the same time.
type Catalog struct {
	st    *store.Store
	tiers sync.Map // tier directory → *tier

	named atomic.Pointer[named]

	mu   sync.Mutex
	subs map[int]func(tier, name string)
	next int
}

// tier is one directory of tools.
type tier struct {
	dir     string
	counter *store.Counter // of the directory

	mu     sync.RWMutex
	tools  map[string]entry
	misses int

	list atomic.Pointer[listing]
}

// entry is what was found under a name while the tier's counter said n.
type entry struct {
	n    uint64
	tool *Tool // nil: no hit
}

type listing struct {
	n     uint64
	tools []*Tool
}

// New makes the catalog of st. It reads nothing yet.
func New(st *store.Store) *Catalog {
	return &Catalog{st: st, subs: map[int]func(string, string){}}
}

// IsTier says whether dir has the form of a tier: "tool", "home/<uid>/tool" or
// "shared/<space>/tool".
func IsTier(dir string) bool {
	if dir == System {
		return true
	}
	first, rest, _ := strings.Cut(dir, "/")
	mid, last, _ := strings.Cut(rest, "/")
	if last != "tool" {
		return false
	}
	switch first {
	case "home":
		_, err := node.ParseUint(mid)
		return err == nil
	case "shared":
		return node.IsName(mid)
	}
	return false
}

// HomeOf is the uid of a tier home/<uid>/tool.
func HomeOf(dir string) (uid uint32, ok bool) {
	rest, ok := strings.CutPrefix(dir, "home/")
	num, ok2 := strings.CutSuffix(rest, "/tool")
	if !ok || !ok2 {
		return 0, false
	}
	uid, err := node.ParseUint(num)
	return uid, err == nil
}

// SpaceOf is the space of a tier shared/<space>/tool.
func SpaceOf(dir string) (space string, ok bool) {
	rest, ok := strings.CutPrefix(dir, "shared/")
	space, ok2 := strings.CutSuffix(rest, "/tool")
	return space, ok && ok2 && node.IsName(space)
}

func (c *Catalog) tier(dir string) *tier {
	if t, ok := c.tiers.Load(dir); ok {
		return t.(*tier)
	}
	if !IsTier(dir) {
		return nil
	}
	t, _ := c.tiers.LoadOrStore(dir, &tier{dir: dir, counter: c.st.Changes(dir), tools: map[string]entry{}})
	return t.(*tier)
}

// Lookup finds the tool as it is now; false when the name is no hit in the tier.
func (c *Catalog) Lookup(dir, name string) (*Tool, bool) {
	t := c.tier(dir)
	if t == nil || !node.IsName(name) {
		return nil, false
	}
	// The number first: what changes after it is found again by the next caller.
	n := t.counter.Load()
	t.mu.RLock()
	e, known := t.tools[name]
	t.mu.RUnlock()
	if !known || e.n != n {
		e = entry{n, c.find(t, name, e.tool)}
		t.keep(name, e)
	}
	return e.tool, e.tool != nil
}

// find looks at the disk. old is returned when it is still right, so that what
// was read of its controls is kept.
func (c *Catalog) find(t *tier, name string, old *Tool) *Tool {
	info, err := c.st.StatFile(t.dir + "/" + name)
	if err != nil || info.Attr.Mode&0o111 == 0 {
		return nil
	}
	if old != nil && old.Info == info {
		return old
	}
	made := &Tool{Tier: t.dir, Name: name, Info: info, st: c.st, dir: c.st.Changes(t.dir + "/" + name + ".d")}
	if old != nil {
		made.policy.Store(old.policy.Load())
	}
	return made
}

// keep remembers what was found, unless somebody found out later things already.
func (t *tier) keep(name string, e entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, known := t.tools[name]
	if known && old.n > e.n {
		return
	}
	if known && old.tool == nil {
		t.misses--
	}
	if e.tool == nil {
		if t.misses >= maxMisses {
			t.forgetMisses()
		}
		t.misses++
	}
	t.tools[name] = e
}

func (t *tier) forgetMisses() {
	for name, e := range t.tools {
		if e.tool == nil {
			delete(t.tools, name)
		}
	}
	t.misses = 0
}

// List is every tool of a tier, sorted by name. The slice is not to be changed.
// It reads the directory when something in it has changed.
func (c *Catalog) List(dir string) []*Tool {
	t := c.tier(dir)
	if t == nil {
		return nil
	}
	n := t.counter.Load()
	if l := t.list.Load(); l != nil && l.n == n {
		return l.tools
	}
	l := &listing{n: n}
	entries, _ := c.st.List(dir) // sorted; a tier that is not there has no tools
	for _, e := range entries {
		if !e.Type.IsRegular() {
			continue
		}
		if found, ok := c.Lookup(dir, e.Name); ok {
			l.tools = append(l.tools, found)
		}
	}
	l.tools = slices.Clip(l.tools)
	t.list.Store(l)
	return l.tools
}

// Tiers are the tiers that the store has, sorted. It reads directories.
func (c *Catalog) Tiers() []string {
	tiers := []string{System}
	for _, above := range []string{"home", "shared"} {
		entries, _ := c.st.List(above)
		for _, e := range entries {
			if dir := above + "/" + e.Name + "/tool"; e.Type.IsDir() && IsTier(dir) {
				tiers = append(tiers, dir)
			}
		}
	}
	slices.Sort(tiers)
	return tiers
}

// Gen is a number that moves when the tools of the tier may be others. Controls
// of tools do not move it.
func (c *Catalog) Gen(dir string) uint64 {
	t := c.tier(dir)
	if t == nil {
		return 0
	}
	return t.counter.Load()
}

// Subscribe calls fn at every Changed, until cancel. fn must not block.
func (c *Catalog) Subscribe(fn func(tier, name string)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.next
	c.next++
	c.subs[id] = fn
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subs, id)
	}
}

// Changed tells the subscribers that a tool or its controls changed, so that they
// can push it to their kernels. No answer of the catalog depends on it.
func (c *Catalog) Changed(tier, name string) {
	c.mu.Lock()
	fns := make([]func(string, string), 0, len(c.subs))
	for _, fn := range c.subs {
		fns = append(fns, fn)
	}
	c.mu.Unlock()
	for _, fn := range fns {
		fn(tier, name)
	}
}

// Open opens the executable of a tool that Lookup found, as it is now: NotExist
// or Access when it is no hit any more.
func (c *Catalog) Open(dir, name string) (*store.File, error) {
	f, err := c.st.OpenFile(dir + "/" + name)
	if err != nil {
		return nil, err
	}
	if f.Info().Attr.Mode&0o111 == 0 {
		f.Close()
		return nil, fault.Newf(fault.Access, "no execute bit")
	}
	return f, nil
}
