package agent

import (
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
	"cortexfs/policy/attenuate"
)

// Family is what stands above an agent at one moment: the ancestors that bound it
// (spec section 17), what root has granted beyond them, and which of them were the
// creators of whom. It is immutable.
type Family struct {
	// Above are the ancestors as they are now, nearest first.
	Above []*Config
	// Born[i]: the agent before Above[i], for 0 the agent itself, was created by
	// Above[i].
	Born []bool
	// Broken says why the ancestors are not known: the parent's text is a fault, it
	// names an agent that is not there, or the parents form a cycle. Such an agent
	// is allowed nothing. nil: they are.
	Broken error
	// Grants are root's grants that are in force; nil: none.
	Grants *attenuate.Grants

	cfg  *Config // of the agent itself
	kin  *kin
	seen []familySeen
	dirs []seen // tiers in which parents were looked up
}

// familySeen is an ancestor as it was found.
type familySeen struct {
	o *Object
	c *Config
}

// fresh says whether nothing that the family was made from has changed.
func (f *Family) fresh(t *Table, cfg *Config) bool {
	if f.cfg != cfg || f.kin != t.kin.Load() {
		return false
	}
	for _, s := range f.seen {
		if s.o.Gone() || s.o.Config() != s.c {
			return false
		}
	}
	for _, d := range f.dirs {
		if d.counter.Load() != d.n {
			return false
		}
	}
	return true
}

// Family is what stands above the agent now. Unchanged it costs a few loads; for
// an agent without a parent one.
func (o *Object) Family() *Family {
	cfg := o.Config()
	if f := o.family.Load(); f != nil && f.fresh(o.t, cfg) {
		return f
	}
	f := o.t.makeFamily(o.key, cfg)
	o.family.Store(f)
	return f
}

// makeFamily follows the parent texts up. Whatever changes while it looks is seen
// by fresh: the counters are read before what they count.
func (t *Table) makeFamily(k Key, cfg *Config) *Family {
	f := &Family{cfg: cfg, kin: t.kin.Load()}
	at, c := k, cfg
	for c.Parent.Agent != "" || !c.ParentOK {
		if !c.ParentOK {
			f.Broken = fault.Newf(fault.Invalid, "the parent of %s is unreadable", at)
			break
		}
		if at.Home {
			f.watch(t.st, at.Tier())
		}
		f.watch(t.st, Key{}.Tier())
		p, ok := t.resolveParent(at, c.Parent.Agent)
		if !ok {
			f.Broken = fault.Newf(fault.NotExist, "the parent of %s, agent %s, is not there", at, c.Parent.Agent)
			break
		}
		if p == k || f.has(p) {
			f.Broken = errCycle
			break
		}
		o, err := t.Lookup(p)
		if err != nil {
			f.Broken = fault.Newf(fault.NotExist, "the parent of %s, agent %s, is not there", at, c.Parent.Agent)
			break
		}
		pc := o.Config()
		f.Born = append(f.Born, f.kin.bornOf(at, c, p))
		f.Above, f.seen = append(f.Above, pc), append(f.seen, familySeen{o, pc})
		at, c = p, pc
	}
	if len(f.Above) > 0 {
		f.Grants = f.kin.inForce(k, cfg, f.Above[0].Key)
	}
	return f
}

func (f *Family) watch(st *store.Store, dir string) {
	c := st.Changes(dir)
	for _, d := range f.dirs {
		if d.counter == c {
			return
		}
	}
	f.dirs = append(f.dirs, seen{c, c.Load()})
}

func (f *Family) has(k Key) bool {
	for _, c := range f.Above {
		if c.Key == k {
			return true
		}
	}
	return false
}

// Bounded says whether anything stands above the agent.
func (f *Family) Bounded() bool { return len(f.Above) > 0 || f.Broken != nil }

// Includes says whether k is one of the ancestors.
func (f *Family) Includes(k Key) bool { return f.has(k) }

// Config is the agent's own, of the same moment.
func (f *Family) Config() *Config { return f.cfg }

// Allows is Family.Allows now.
func (o *Object) Allows(c policy.Class, name string, p policy.Permission) bool {
	return o.Family().Allows(c, name, p)
}

// Allows says whether the agent's own policy and that of every ancestor, each with
// its own subject, allow a permission; what root granted the agent needs no
// ancestor.
func (f *Family) Allows(c policy.Class, name string, p policy.Permission) bool {
	cfg := f.cfg
	if _, ok := cfg.Policy.Allows(cfg.Subject, c, name, p); !ok || f.Broken != nil {
		return false
	}
	if len(f.Above) == 0 || f.Grants.Rule(cfg.Subject, c, name, p) {
		return true
	}
	for _, a := range f.Above {
		if _, ok := a.Policy.Allows(a.Subject, c, name, p); !ok {
			return false
		}
	}
	return true
}

// Approval is the agent's approval and that of its ancestors: ask if one of them
// asks.
func (o *Object) Approval() string {
	f := o.Family()
	for _, c := range f.Above {
		if c.Approval != "auto" {
			return "ask"
		}
	}
	return f.cfg.Approval
}

// bound is the Config as package attenuate compares it.
func (c *Config) bound() *attenuate.Agent {
	return &attenuate.Agent{
		Name: c.Key.Name, Subject: c.Subject, Policy: c.Policy, Tools: c.Tools.Names,
		UID: c.UID, GID: c.GID, Groups: c.Groups, Iso: c.Iso, Path: c.Search, Mounts: Lines(c.Mounts),
		Home: c.StateDir(), Root: c.Root, Approval: c.Approval,
	}
}

// Lines are the lines of a table as package attenuate compares them.
func Lines(table []control.MountLine) []attenuate.Mount {
	all := make([]attenuate.Mount, len(table))
	for i, m := range table {
		all[i] = attenuate.Mount{
			Source: m.Source, Target: m.Target, RW: m.RW, Recursive: m.Recursive,
			NoSuid: m.NoSuid, NoDev: m.NoDev, NoExec: m.NoExec, Line: m.Line,
		}
	}
	return all
}

// Started is a Runtime that knows what a running agent sees beyond its table: the
// workspace and the lines that its start was given.
type Started interface {
	StartLines(k Key) []control.MountLine
}

// Bound is the agent as its children are compared with it: what it sees now, with
// what its start added while it runs.
func (t *Table) Bound(c *Config) *attenuate.Agent {
	a := c.bound()
	r := t.runtime.Load()
	if r == nil {
		return a
	}
	if s, ok := (*r).(Started); ok {
		for _, m := range Lines(s.StartLines(c.Key)) {
			m.Line = 0
			a.Mounts = append(a.Mounts, m)
		}
	}
	return a
}

// above are the ancestors of a family as package attenuate compares them.
func (t *Table) above(f *Family) []*attenuate.Agent {
	all := make([]*attenuate.Agent, len(f.Above))
	for i, c := range f.Above {
		all[i] = t.Bound(c)
	}
	return all
}

// nothing is an ancestor that has nothing: what bounds an agent whose parent is
// not known.
func nothing(c *Config) *attenuate.Agent {
	return &attenuate.Agent{Name: c.Parent.Agent, UID: c.UID, GID: c.GID, Iso: c.Iso, Root: "/", Approval: "ask"}
}

// Origins tells for each line of the agent's table, and each ancestor, through
// which line of that ancestor it is seen; nil for an agent without ancestors. A
// start holds the opened sources to it.
func (o *Object) Origins() ([][]attenuate.Origin, error) {
	f := o.Family()
	if f.Broken != nil {
		return nil, f.Broken
	}
	if len(f.Above) == 0 {
		return nil, nil
	}
	lines, off := attenuate.Lines(f.cfg.bound(), o.t.above(f), f.Grants)
	if off != nil {
		return nil, off.Fault(o.path("mount"))
	}
	return lines, nil
}
