package tree

import (
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
)

// subject is what stands behind a `.d` directory: an agent, a tool or a model.
// The control nodes know no more of it than this.
type subject interface {
	// owner is who owns the directory and its controls.
	owner() (uid, gid uint32)
	// mayWrite answers Access unless w may change controls here.
	mayWrite(w agent.Writer) error
	// text is the effective text; origin is "durable" or "default".
	text(e *control.Entry) (text []byte, origin string, err error)
	// prefix judges the beginning of a text that w writes.
	prefix(e *control.Entry, text []byte, w agent.Writer) error
	// commit judges the whole text, makes it durable and in force, and tells the
	// log either way; it returns the generation of the new value.
	commit(e *control.Entry, text []byte, w agent.Writer) (uint64, error)
	// changed tells whoever derives something from a control; by is who changed it.
	changed(name string, by uint32)
	// rejected tells the log about a text that was refused before its commit.
	rejected(name string, w agent.Writer, err error)
	// event adds a line to the object's log, where it has one.
	event(typ, object, status, reason string, by uint32)
}

// agentSubject is an agent; package agent knows the rules.
type agentSubject struct {
	t *Tree
	o *agent.Object
}

func (s agentSubject) owner() (uid, gid uint32) { return s.t.ownerOf(s.o) }

// ownerOf is whose an agent's files are: its owner's, and while nobody knows the
// owner the daemon's, so that root can repair it.
func (t *Tree) ownerOf(o *agent.Object) (uid, gid uint32) {
	c := o.ControlObject()
	switch {
	case c.Owner == agent.NoID:
		return t.daemonIDs()
	case c.OwnerGID == agent.NoID:
		return c.Owner, t.primaryGID(c.Owner)
	}
	return c.Owner, c.OwnerGID
}

func (s agentSubject) mayWrite(w agent.Writer) error { return s.o.MayWrite(w) }

func (s agentSubject) text(e *control.Entry) ([]byte, string, error) { return s.o.Text(e.Name) }

func (s agentSubject) prefix(e *control.Entry, text []byte, w agent.Writer) error {
	if err := e.JudgePrefixFor(s.o.ControlObject(), text); err != nil {
		return err
	}
	return s.o.CheckPrefix(e, text, w)
}

func (s agentSubject) commit(e *control.Entry, text []byte, w agent.Writer) (uint64, error) {
	// As it was written: Commit adds the last LF, which some controls need.
	if err := e.JudgeFor(s.o.ControlObject(), text); err != nil {
		s.rejected(e.Name, w, err)
		return 0, err
	}
	return s.o.Commit(e, text, w)
}

func (s agentSubject) changed(name string, by uint32) {
	s.t.agentChanged(s.o.Key(), name, byUID(by))
}

func (s agentSubject) rejected(name string, w agent.Writer, err error) { s.o.Rejected(name, w, err) }

func (s agentSubject) event(typ, object, status, reason string, by uint32) {
	s.o.Log().Add(agent.Event{Type: typ, Object: object, Status: status, Reason: reason, By: byUID(by)})
}

// plainSubject is an object without cross-file rules: a tool or a model. It
// belongs to whom its directory belongs to.
type plainSubject struct {
	t     *Tree
	dir   string // in the store
	name  string // of the object
	set   *control.Set
	ids   func() (uid, gid uint32)
	onChg func()
	obj   *store.Object
}

func (s *plainSubject) owner() (uid, gid uint32) { return s.ids() }

func (s *plainSubject) mayWrite(w agent.Writer) error {
	uid, _ := s.ids()
	if w.Root || w.UID == uid {
		return nil
	}
	return fault.Newf(fault.Access, "only uid %d and root write here", uid)
}

func (s *plainSubject) control() control.Object {
	uid, gid := s.ids()
	return control.Object{Name: s.name, Owner: uid, OwnerGID: gid, Root: s.t.o.Root}
}

func (s *plainSubject) text(e *control.Entry) ([]byte, string, error) {
	if v, ok := s.obj.Snapshot().Values[e.Name]; ok {
		return v.Text, "durable", v.Err
	}
	return []byte(e.DefaultText(s.control())), "default", nil
}

func (s *plainSubject) prefix(e *control.Entry, text []byte, _ agent.Writer) error {
	return e.JudgePrefixFor(s.control(), text)
}

func (s *plainSubject) commit(e *control.Entry, text []byte, w agent.Writer) (uint64, error) {
	if err := e.JudgeFor(s.control(), text); err != nil {
		s.rejected(e.Name, w, err)
		return 0, err
	}
	if err := s.obj.Put(e.Name, control.Normalize(text)); err != nil {
		return 0, err
	}
	return s.obj.Snapshot().Values[e.Name].Gen, nil
}

func (s *plainSubject) changed(string, uint32) { s.onChg() }

// A tool or model has no log of its own yet: who asks why a text was refused finds
// it in user.cortexfs.error.
func (s *plainSubject) rejected(string, agent.Writer, error) {}

func (s *plainSubject) event(_, _, _, _ string, _ uint32) {}
