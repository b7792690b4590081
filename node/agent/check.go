package agent

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// Writer is who asks for a change: the ids of the OPEN, with the groups of that
// moment, the primary one among them or in GID. Root is root as spec section 1
// means it: uid 0, in a user's daemon also that user.
type Writer struct {
	UID, GID uint32
	Groups   []uint32
	Root     bool
}

// In says whether the writer is a member of the group.
func (w Writer) In(gid uint32) bool { return gid == w.GID || slices.Contains(w.Groups, gid) }

// MayWrite is nil for root and for the owner; others get Access (spec 4.8).
func (o *Object) MayWrite(w Writer) error {
	return fault.At("write", o.key.TreeDir(), o.Config().mayWrite(w))
}

func (c *Config) mayWrite(w Writer) error {
	switch {
	case w.Root || c.OwnerOK && c.Owner == w.UID:
		return nil
	case !c.OwnerOK:
		return fault.Newf(fault.Access, "its owner is unknown, only root may write")
	}
	return fault.Newf(fault.Access, "belongs to uid %d", c.Owner)
}

// Check judges a whole text that is valid for its control by who writes it (spec
// 4.8): Access for a stranger, Perm where a non-root owner would gain what they
// lack, where a child would be freer than an ancestor and for host id 0, Invalid
// for a parent that cannot be, Again for too many children. The error carries path and line. A text equal to the one in
// force changes nothing and is nobody's gain: it passes.
func (o *Object) Check(e *control.Entry, text []byte, w Writer) error {
	return o.check(e, text, w, true)
}

func (o *Object) check(e *control.Entry, text []byte, w Writer, whole bool) error {
	c := o.Config()
	err := c.mayWrite(w)
	if err == nil {
		err = o.t.limits(o.key, c, e.Name, text, w)
	}
	if err == nil {
		err = o.t.boundLimit(o.key, c, e.Name, text, whole)
	}
	return fault.At("write", o.path(e.Name), err)
}

// CheckPrefix is Check for a text that is still being written: it judges the
// lines that a LF ends and leaves the rest for later (spec 4.2).
func (o *Object) CheckPrefix(e *control.Entry, text []byte, w Writer) error {
	whole := text[:bytes.LastIndexByte(text, '\n')+1]
	if len(whole) == 0 {
		return fault.At("write", o.path(e.Name), o.Config().mayWrite(w))
	}
	return o.check(e, whole, w, false)
}

// CheckReset is Check for going back to the default: Invalid for a required
// control, which has none.
func (o *Object) CheckReset(e *control.Entry, w Writer) error {
	if e.Required || e.Kind != control.Durable {
		return fault.E("reset", o.path(e.Name), fault.Invalid, fmt.Errorf("is required and has no default"))
	}
	return o.Check(e, []byte(e.DefaultText(o.ControlObject())), w)
}

// limits are the cross-file rules of spec 4.8 for one text. c is the agent as it
// is now; for one that is being made it has an owner and nothing else. Texts
// that do not parse are left to the control's format.
func (t *Table) limits(k Key, c *Config, name string, text []byte, w Writer) error {
	switch name {
	case "owner":
		owner, err := control.ParseUint32(text)
		if err == nil && !w.Root && !(c.OwnerOK && owner == c.Owner) {
			return lineFault(fault.Perm, 1, "only root changes the owner")
		}
	case "uid":
		uid, err := control.ParseUint32(text)
		switch {
		case err != nil:
		case uid == 0:
			return lineFault(fault.Perm, 1, "no agent runs with host uid 0")
		case !w.Root && uid != w.UID:
			return lineFault(fault.Perm, 1, "uid %d is not your own (%d)", uid, w.UID)
		}
	case "gid":
		gid, err := control.ParseUint32(text)
		if err == nil {
			return groupLimit(1, gid, w)
		}
	case "groups":
		for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
			gid, err := node.ParseUint(line)
			if err != nil {
				continue
			}
			if err := groupLimit(i+1, gid, w); err != nil {
				return err
			}
		}
	case "label":
		return t.labelLimit(k, c, text, w)
	case "parent":
		return t.parentLimit(k, c, text, w)
	}
	return nil
}

func lineFault(kind fault.Kind, line int, format string, args ...any) error {
	return &fault.Error{Kind: kind, Line: line, Col: 1, Err: fmt.Errorf(format, args...)}
}

func groupLimit(line int, gid uint32, w Writer) error {
	switch {
	case gid == 0:
		return lineFault(fault.Perm, line, "no agent runs with host gid 0")
	case !w.Root && !w.In(gid):
		return lineFault(fault.Perm, line, "you are not in group %d", gid)
	}
	return nil
}

// labelLimit keeps a label type with one owner (spec section 7).
func (t *Table) labelLimit(k Key, c *Config, text []byte, w Writer) error {
	label, err := control.ParseLabel(text)
	if err != nil || w.Root || label.Type == c.Subject && c.Subject != "" {
		return nil
	}
	why := t.foreignLabel(label.Type, k, w.UID)
	if why == "" {
		why = t.siblingLabel(label.Type, k, c)
	}
	if why != "" {
		return lineFault(fault.Perm, 1, "label type %s %s", label.Type, why)
	}
	return nil
}

// parentLimit: an unset parent may be set by the owner to an agent of the same
// owner, a set one is root's to change; never itself, a descendant or an agent
// that is not there (spec sections 4.8 and 17).
func (t *Table) parentLimit(k Key, c *Config, text []byte, w Writer) error {
	p, err := control.ParseParent(text)
	if err != nil || c.ParentOK && p == c.Parent {
		return nil
	}
	if !w.Root && (!c.ParentOK || c.Parent.Agent != "") {
		return lineFault(fault.Perm, 1, "only root changes a parent that is set")
	}
	if p.Agent == "" {
		return nil
	}
	parent, ok := t.resolveParent(k, p.Agent)
	switch {
	case ok && parent == k:
		return lineFault(fault.Invalid, 1, "an agent is not its own parent")
	case !ok:
		return lineFault(fault.Invalid, 1, "agent %s is unknown", p.Agent)
	}
	above, err := t.Ancestors(parent)
	if err != nil || slices.Contains(above, k) {
		return lineFault(fault.Invalid, 1, "agent %s descends from this one", p.Agent)
	}
	if po, err := t.Lookup(parent); err != nil {
		return lineFault(fault.Invalid, 1, "agent %s is unknown", p.Agent)
	} else if pc := po.Config(); !w.Root && !(pc.OwnerOK && pc.Owner == c.Owner) {
		return lineFault(fault.Perm, 1, "agent %s belongs to another owner", p.Agent)
	}
	if err := t.familyLimit(k, parent, above); err != nil || c.snap == nil {
		return err // an agent that is being made is compared when all of it is known
	}
	return t.adoptLimit(k, c, p)
}
