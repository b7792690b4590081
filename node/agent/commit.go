package agent

import (
	"fmt"

	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// Commit puts a whole text in force: judged by its format and by Check, made
// durable, published, and told to the log, in this order. gen is the generation
// of the new value, for undoing it by Store().PutIf. The old value stays in
// force on every error; a refusal is told to the log too.
func (o *Object) Commit(e *control.Entry, text []byte, w Writer) (gen uint64, err error) {
	// Judged as it was written: a list without its last LF may be half a list, and
	// what is added here would hide that.
	if err := e.JudgeFor(o.ControlObject(), text); err != nil {
		err = fault.At("write", o.path(e.Name), err)
		o.Rejected(e.Name, w, err)
		return 0, err
	}
	text = control.Normalize(text)
	err = o.ordered(e, func() error {
		if err := o.Check(e, text, w); err != nil {
			return err
		}
		if err := o.keepLabel(e, text); err != nil {
			return err
		}
		return o.st.Put(e.Name, text)
	})
	if err != nil {
		o.Rejected(e.Name, w, err)
		return 0, err
	}
	o.changed(e.Name, w)
	if e.Name == "label" {
		o.warnSubject()
	}
	return o.st.Snapshot().Values[e.Name].Gen, nil
}

// keepLabel writes down whose the label type is before a new label or owner is in
// force: a crash between the two leaves a reservation too many, for root to free,
// never a type that is nobody's. What root granted, and whose creature the agent
// is, is void as soon as owner, label or parent is another.
func (o *Object) keepLabel(e *control.Entry, text []byte) error {
	c := o.Config()
	if c.differs(e.Name, text) {
		if err := o.t.forget(about(o.key)); err != nil {
			return err
		}
	}
	switch e.Name {
	case "label":
		if label, err := control.ParseLabel(text); err == nil && c.OwnerOK {
			return o.t.reserveLabel(label.Type, c.Owner)
		}
	case "owner":
		if owner, err := control.ParseUint32(text); err == nil && c.OwnerOK && !o.key.Home {
			return o.t.moveLabel(c.Subject, o.key, c.Owner, owner)
		}
	}
	return nil
}

// differs says whether a text makes another owner, label or parent.
func (c *Config) differs(name string, text []byte) bool {
	switch name {
	case "label":
		label, err := control.ParseLabel(text)
		return err != nil || label != c.Label
	case "owner":
		owner, err := control.ParseUint32(text)
		return err != nil || owner != c.Owner
	case "parent":
		p, err := control.ParseParent(text)
		return err != nil || !c.ParentOK || p.Agent != c.Parent.Agent
	}
	return false
}

// Reset puts the default of a control in force.
func (o *Object) Reset(e *control.Entry, w Writer) error {
	err := o.ordered(e, func() error {
		if err := o.CheckReset(e, w); err != nil {
			return err
		}
		if o.Config().differs(e.Name, nil) {
			if err := o.t.forget(about(o.key)); err != nil {
				return err
			}
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
