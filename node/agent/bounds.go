package agent

import (
	"fmt"

	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/policy"
	"cortexfs/policy/attenuate"
)

// with is the Config that the agent would have with one text changed; only what
// package attenuate compares is filled in. false: the text decides nothing there,
// or does not parse, which its format tells better.
func (c *Config) with(name string, text []byte) (*Config, bool) {
	next := *c
	var err error
	switch name {
	case "uid":
		next.UID, err = control.ParseUint32(text)
	case "gid":
		next.GID, err = control.ParseUint32(text)
	case "groups":
		next.Groups, err = control.ParseGroups(text)
	case "iso":
		next.Iso, err = control.ParseWord(text)
	case "root":
		next.Root, err = control.ParseWord(text)
	case "path":
		next.Path, err = control.ParsePath(text)
		next.Search = next.Path
		if len(next.Path) == 0 {
			next.Search = defaultSearch(c.Owner)
		}
	case "mount":
		next.Mounts, err = control.ParseMount(text)
	case "tools":
		next.Tools, err = control.ParseTools(text)
	case "policy":
		next.Policy, err = policy.Parse(text)
	case "approval":
		next.Approval, err = control.ParseWord(text)
	case "label":
		next.Label, err = control.ParseLabel(text)
		next.Subject = next.Label.Type
	default:
		return nil, false
	}
	return &next, err == nil
}

// boundLimit refuses a text that would make a child freer than an ancestor (spec
// section 17): Perm, naming the first offender, whoever writes. A text that takes
// away from what the agent has now passes always: a right must be revocable when
// the parent has lost another one since. whole is false for a text that is still
// being written.
func (t *Table) boundLimit(k Key, c *Config, name string, text []byte, whole bool) error {
	if c.Parent.Agent == "" && c.ParentOK {
		return nil
	}
	next, ok := c.with(name, text)
	if !ok {
		return nil
	}
	f := t.makeFamily(k, c)
	above := t.above(f)
	if f.Broken != nil {
		above = append(above, nothing(c))
	}
	off := attenuate.CheckControl(name, next.bound(), above, f.Grants, whole)
	if off == nil || attenuate.CheckControl(name, next.bound(), []*attenuate.Agent{c.bound()}, nil, whole) == nil {
		return nil
	}
	e := off.Fault("")
	if f.Broken != nil && len(above) == len(f.Above)+1 && off.Ancestor == above[len(f.Above)].Name {
		e.Err = fmt.Errorf("%w, so nothing is allowed to it", f.Broken)
	}
	if off.Control != name { // a label is judged by what the rules say with it
		e.Line, e.Col = 1, 1
	}
	return e
}

// adoptLimit is boundLimit for all that an agent is, when it gets a parent.
func (t *Table) adoptLimit(k Key, c *Config, p control.Parent) error {
	next := *c
	next.Parent, next.ParentOK = p, true
	f := t.makeFamily(k, &next)
	if f.Broken != nil {
		return &fault.Error{Kind: fault.Invalid, Line: 1, Col: 1, Err: f.Broken}
	}
	off := attenuate.Check(next.bound(), t.above(f), f.Grants)
	if off == nil {
		return nil
	}
	return &fault.Error{Kind: fault.Perm, Line: 1, Col: 1, Err: fmt.Errorf("its %s: %w", off.Control, off)}
}

// boundFaults are what ends a start of a child: a parent that is not known, or the
// first thing in which it is freer than an ancestor.
func (o *Object) boundFaults(c *Config) []*fault.Error {
	f := o.t.makeFamily(o.key, c)
	if f.Broken != nil {
		kind := fault.KindOf(f.Broken)
		return []*fault.Error{{Path: o.path("parent"), Kind: kind, Line: 1, Col: 1, Err: f.Broken}}
	}
	if len(f.Above) == 0 {
		return nil
	}
	if off := attenuate.Check(c.bound(), o.t.above(f), f.Grants); off != nil {
		return []*fault.Error{off.Fault(o.path(off.Control))}
	}
	return nil
}
