package agent

import (
	"fmt"
	"path"

	"cortexfs/node/fault"
)

// StartFaults is everything that ends a start of the agent (spec 10.1 step 1),
// judged by the texts and the account database of this moment: the faults of its
// Config, ids and groups that its owner has no longer, a label type that is
// somebody else's, a parent that is not there, and the first thing in which a child
// is freer than an ancestor.
func (o *Object) StartFaults() []*fault.Error {
	c := o.t.build(o.key, o.st.Snapshot())
	// The start that follows goes by what was judged here, defaults that come
	// from the account database included.
	o.config.Store(c)
	faults := append([]*fault.Error(nil), c.Faults...)
	add := func(name string, kind fault.Kind, line int, format string, args ...any) {
		faults = append(faults, &fault.Error{
			Path: o.path(name), Kind: kind, Line: line, Col: min(line, 1), Err: fmt.Errorf(format, args...),
		})
	}
	if !c.OwnerOK {
		return faults
	}
	if o.t.o.Root && c.Owner != 0 {
		o.ownerLimits(c, add)
	}
	if !o.t.o.Root {
		o.t.keptGroups(c, add)
	}
	if owner, ok := o.t.LabelOwner(c.Subject); ok && owner != c.Owner && c.Owner != 0 {
		add("label", fault.Perm, 1, "label type %s belongs to uid %d", c.Subject, owner)
	}
	return append(faults, o.boundFaults(c)...)
}

// ownerLimits are the limits of spec 4.8 on the values as they are, for an owner
// who is not root. A uid of the pool can only have come from root: with it the
// agent stands on its own feet.
func (o *Object) ownerLimits(c *Config, add func(string, fault.Kind, int, string, ...any)) {
	pool := c.UID >= o.t.o.PoolFirst && c.UID <= o.t.o.PoolLast
	if c.UID != NoID && c.UID != c.Owner && !pool {
		add("uid", fault.Perm, 1, "uid %d is not the owner's (%d)", c.UID, c.Owner)
	}
	primary, known := o.t.o.Users.User(c.Owner)
	w := Writer{UID: c.Owner, GID: primary, Groups: o.t.o.Users.Groups(c.Owner)}
	if !known {
		w.GID = NoID
	}
	if c.GID != NoID && !w.In(c.GID) && !(pool && c.GID == c.UID) {
		add("gid", fault.Perm, 1, "the owner, uid %d, is not in group %d", c.Owner, c.GID)
	}
	for i, g := range c.Groups {
		if !w.In(g) {
			add("groups", fault.Perm, i+1, "the owner, uid %d, is not in group %d", c.Owner, g)
		}
	}
}

// keptGroups refuses a `groups` that leaves out a group which a user's daemon
// holds and cannot drop (spec 10.2): Unavailable, exit 69.
func (t *Table) keptGroups(c *Config, add func(string, fault.Kind, int, string, ...any)) {
	w := Writer{GID: c.GID, Groups: c.Groups}
	for _, g := range t.o.DaemonGroups {
		if g != t.o.DaemonGID && !w.In(g) {
			add("groups", fault.Unavailable, 0, "the daemon holds group %d and cannot drop it for the agent", g)
		}
	}
}

// StoreChanged tells the logs about texts that somebody has written into the
// store past the daemon and that are invalid (spec 4.10). dir is what the store's
// watcher reports; no decision depends on this call.
func (t *Table) StoreChanged(dir string) {
	k, ok := ParseKey(dir)
	if !ok {
		return
	}
	o, err := t.Lookup(k)
	if err != nil {
		return
	}
	for _, f := range o.Config().Faults {
		o.log.Add(Event{Type: "store.invalid", Object: path.Base(f.Path), Status: "error", Reason: f.Place()})
	}
}
