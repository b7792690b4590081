package agent

import (
	"fmt"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// Commit puts a whole text in force: judged by its format and by Check, made
// durable, published, and told to the log, in this order. gen is the generation
// of the new value, for undoing it by Store().PutIf. The old value stays in
// force on every error; a refusal is told to the log too.
func (o *Object) Commit(e *control.Entry, text []byte, w Writer) (gen uint64, err error) {
	text = control.Normalize(text)
	if err := e.JudgeFor(o.ControlObject(), text); err != nil {
		err = fault.At("write", o.path(e.Name), err)
		o.Rejected(e.Name, w, err)
		return 0, err
	}
	err = o.ordered(e, func() error {
		if err := o.Check(e, text, w); err != nil {
			return err
		}
		// Reserved first: a crash between the two leaves a reservation too many
		// for root to free, never a type that is nobody's.
		if label, err := control.ParseLabel(text); e.Name == "label" && err == nil {
			if err := o.t.reserveLabel(label.Type, o.Config().Owner); err != nil {
				return err
			}
		}
		return o.st.Put(e.Name, text)
	})
	if err != nil {
		o.Rejected(e.Name, w, err)
		return 0, err
	}
	o.changed(e.Name, w)
	return o.st.Snapshot().Values[e.Name].Gen, nil
}

// Reset puts the default of a control in force.
func (o *Object) Reset(e *control.Entry, w Writer) error {
	err := o.ordered(e, func() error {
		if err := o.CheckReset(e, w); err != nil {
			return err
		}
		return o.st.Delete(e.Name)
	})
	if err != nil {
		o.Rejected(e.Name, w, err)
		return err
	}
	o.changed(e.Name, w)
	return nil
}

// ordered runs the check and the write of the controls whose check looks at
// other agents one after another; two owners could take the same label type else,
// two agents become each other's parents.
func (o *Object) ordered(e *control.Entry, do func() error) error {
	switch e.Name {
	case "label", "parent", "owner", "uid", "gid":
		o.t.commit.Lock()
		defer o.t.commit.Unlock()
	}
	return do()
}

func (o *Object) changed(name string, w Writer) {
	o.log.Add(Event{Type: "control.changed", Object: name, Status: "ok", By: fmt.Sprintf("uid %d", w.UID)})
}

// Rejected tells the log that a text was refused, with the place of the mistake
// and never the text (spec 4.9).
func (o *Object) Rejected(name string, w Writer, err error) {
	o.log.Add(Event{
		Type: "control.rejected", Object: name, Status: "error",
		Reason: asFault(o.path(name), err).Place(), By: fmt.Sprintf("uid %d", w.UID),
	})
}

// StartFaults is everything that ends a start of the agent (spec 10.1 step 1),
// judged by the texts and the account database of this moment: the faults of its
// Config, ids and groups that its owner has no longer, a label type that is
// somebody else's, a lineage that does not end.
func (o *Object) StartFaults() []*fault.Error {
	c := o.t.build(o.key, o.st.Snapshot())
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
	if _, err := o.t.Ancestors(o.key); err != nil {
		add("parent", fault.Invalid, 1, "the parents form a cycle")
	}
	return faults
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

// CreateOptions say who makes an agent, for whom, and what differs from the
// defaults.
type CreateOptions struct {
	Writer Writer
	Owner  uint32            // a system agent's owner; in a home it is the path's uid
	Texts  map[string][]byte // judged like writes by Writer
}

// Create makes an agent with owner, label and abi written and, for owner 0 of a
// root daemon, ids of its own (spec sections 4.8, 10.2 and 17). Errors: Invalid
// (name, text), Access (somebody else's home), Perm (an owner that the writer is
// not, limits of spec 4.8), Exist, Again (too many agents of this owner), NoSpace.
func (t *Table) Create(k Key, o CreateOptions) (*Object, error) {
	obj, err := t.create(k, o)
	if err != nil {
		return nil, fault.At("create", k.TreeDir(), err)
	}
	obj.log.begin()
	obj.log.Add(Event{Type: "control.changed", Object: "object", Status: "ok", Reason: "created", By: fmt.Sprintf("uid %d", o.Writer.UID)})
	return obj, nil
}

func (t *Table) create(k Key, o CreateOptions) (*Object, error) {
	if err := node.CheckAgentName(k.Name); err != nil {
		return nil, err
	}
	if k.Home {
		o.Owner = k.UID
	}
	if !o.Writer.Root && o.Owner != o.Writer.UID {
		if k.Home {
			return nil, fault.Newf(fault.Access, "home of uid %d", k.UID)
		}
		return nil, fault.Newf(fault.Perm, "only root makes an agent of another owner")
	}
	t.commit.Lock()
	defer t.commit.Unlock()
	if _, err := t.Lookup(k); err == nil {
		return nil, fault.E("", "", fault.Exist, nil)
	}
	if n := t.loadLineage().byOwner[o.Owner]; n >= t.o.PerUID && !(t.o.Root && o.Writer.UID == 0) {
		return nil, fault.Newf(fault.Again, "uid %d has %d agents", o.Owner, n)
	}
	texts, label, err := t.firstTexts(k, o)
	if err != nil {
		return nil, err
	}
	if err := t.reserveLabel(label, o.Owner); err != nil {
		return nil, err
	}
	if _, err := t.st.Create(k.StoreDir(), texts); err != nil {
		return nil, err
	}
	return t.Lookup(k)
}

// firstTexts are the texts that a new agent gets, and its label type.
func (t *Table) firstTexts(k Key, o CreateOptions) (map[string][]byte, string, error) {
	c := &Config{Key: k, Owner: o.Owner, OwnerOK: true, ParentOK: true}
	c.object = control.Object{Name: k.Name, Home: k.Home, Owner: o.Owner, OwnerGID: NoID, Root: t.o.Root}
	if gid, ok := t.primaryGID(o.Owner); ok {
		c.object.OwnerGID = gid
	}
	texts := map[string][]byte{}
	for name, text := range o.Texts {
		e := control.Agent.Lookup(name)
		if e == nil || e.Kind != control.Durable {
			return nil, "", fault.E("", k.TreeDir()+"/"+name, fault.Invalid, fmt.Errorf("is no control that can be written"))
		}
		if name == "owner" {
			continue // an option of its own
		}
		text = control.Normalize(text)
		err := e.JudgeFor(c.object, text)
		if err == nil {
			err = t.limits(k, c, name, text, o.Writer)
		}
		if err != nil {
			return nil, "", fault.At("", k.TreeDir()+"/"+name, err)
		}
		texts[name] = text
	}
	for _, name := range []string{"label", "abi"} {
		if texts[name] == nil {
			texts[name] = firstText(name, c.object)
		}
	}
	texts["owner"] = fmt.Appendf(nil, "%d\n", o.Owner)
	if err := t.limits(k, c, "label", texts["label"], o.Writer); err != nil {
		return nil, "", fault.At("", k.TreeDir()+"/label", err)
	}
	label, err := control.ParseLabel(texts["label"])
	if err != nil {
		return nil, "", err
	}
	if t.o.Root && o.Owner == 0 {
		if err := t.poolTexts(texts); err != nil {
			return nil, "", err
		}
	}
	return texts, label.Type, nil
}

// firstText is what is written for a required control that nobody gave.
func firstText(name string, o control.Object) []byte {
	e := control.Agent.Lookup(name)
	if text := e.DefaultText(o); text != "" {
		return control.Normalize([]byte(text))
	}
	return control.Normalize([]byte(e.Good[0]))
}

// poolTexts gives an agent of owner 0 ids that nobody else has.
func (t *Table) poolTexts(texts map[string][]byte) error {
	if texts["uid"] != nil && texts["gid"] != nil {
		return nil
	}
	id, err := t.takePoolUID()
	if err != nil {
		return err
	}
	for _, name := range []string{"uid", "gid"} {
		if texts[name] == nil {
			texts[name] = fmt.Appendf(nil, "%d\n", id)
		}
	}
	return nil
}

// Remove removes a dead agent's object; its log and its state directory stay.
// Busy while it lives, NotExist.
func (t *Table) Remove(k Key) error {
	t.commit.Lock()
	defer t.commit.Unlock()
	o, err := t.Lookup(k)
	if err != nil {
		return fault.At("remove", k.TreeDir(), err)
	}
	if state, pid := t.Live(k); state.Alive() {
		return fault.E("remove", k.TreeDir(), fault.Busy, fmt.Errorf("the agent is %s, pid %d", state, pid))
	}
	// Its type stays its owner's although nobody has it any more.
	if c := o.Config(); c.OwnerOK {
		if err := t.reserveLabel(c.Subject, c.Owner); err != nil {
			return err
		}
	}
	if err := t.st.Remove(k.StoreDir()); err != nil {
		return fault.At("remove", k.TreeDir(), err)
	}
	t.mu.Lock()
	if t.objects[k] == o {
		delete(t.objects, k)
	}
	t.mu.Unlock()
	o.log.close()
	return nil
}
