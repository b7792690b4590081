package agent

import (
	"fmt"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// CreateOptions say who makes an agent, for whom, and what differs from the
// defaults.
type CreateOptions struct {
	Writer Writer
	Owner  uint32            // a system agent's owner; in a home it is the path's uid
	Texts  map[string][]byte // judged like writes by Writer
	// Born: the parent that Texts name is its creator, so that row 7 follows the
	// parent's (spec section 17). Without it the agent is one that has a parent.
	Born bool
}

// Create makes an agent with owner, label and abi written and, for owner 0 of a
// root daemon, ids of its own (spec sections 4.8, 10.2 and 17). Errors: Invalid
// (name, text), Access (somebody else's home), Perm (an owner that the writer is
// not, limits of spec 4.8, more than its parent has), Exist, Again (too many agents
// of this owner, too large or too fast a family), NoSpace.
func (t *Table) Create(k Key, o CreateOptions) (*Object, error) {
	obj, err := t.create(k, o)
	if err != nil {
		return nil, fault.At("create", k.TreeDir(), err)
	}
	obj.log.begin()
	obj.log.Add(Event{Type: "control.changed", Object: "object", Status: "ok", Reason: "created", By: fmt.Sprintf("uid %d", o.Writer.UID)})
	obj.warnSubject()
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
	if err := t.capture(k, o.Writer); err != nil {
		return nil, err
	}
	if other, ok := t.twin(k, o.Owner); ok && !o.Writer.Root {
		return nil, fault.E("", "", fault.Exist, fmt.Errorf("%s has its state directory", other))
	}
	texts, label, err := t.firstTexts(k, o)
	if err != nil {
		return nil, err
	}
	birth, err := t.bear(k, o, texts)
	if err != nil {
		return nil, err
	}
	if err := t.reserveLabel(label, o.Owner); err != nil {
		return nil, err
	}
	// What is written down before the object is made and for one that never comes to
	// be is dropped by the next of that name.
	if err := t.recordBirth(k, birth); err != nil {
		return nil, err
	}
	if _, err := t.st.Create(k.StoreDir(), texts); err != nil {
		return nil, err
	}
	t.countBirth(birth)
	return t.Lookup(k)
}

// twin is the agent of the other tier that has the same owner and name, and so the
// same state directory: a second agent would read the sessions of the first and
// write its files, whatever their labels are. Root may make one all the same.
func (t *Table) twin(k Key, owner uint32) (Key, bool) {
	if !k.Home {
		other := InHome(owner, k.Name)
		_, err := t.Lookup(other)
		return other, err == nil
	}
	other := System(k.Name)
	o, err := t.Lookup(other)
	if err != nil {
		return other, false
	}
	c := o.Config()
	return other, c.OwnerOK && c.Owner == owner
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
	if err := t.childTexts(k, o.Owner, texts); err != nil {
		return nil, "", err
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
	if err := t.turned(k); err != nil {
		return fault.At("remove", k.TreeDir(), err)
	}
	// Its type stays its owner's although nobody has it any more.
	if c := o.Config(); c.OwnerOK {
		if err := t.reserveLabel(c.Subject, c.Owner); err != nil {
			return err
		}
	}
	// Nobody who comes later under this name has its rights, nor its children's.
	if err := t.forget(aboutOrBelow(k)); err != nil {
		return fault.At("remove", k.TreeDir(), err)
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
