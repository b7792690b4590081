package agent

import (
	"fmt"
	"strings"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/policy"
	"cortexfs/policy/attenuate"
)

// Hearer is a Runtime that hears of changes of what agents are allowed.
type Hearer interface {
	// Changed is called after a change is in force: of the agent's own texts or of
	// root's grants to it. by says who made it. It must not wait for anything.
	Changed(k Key, by string)
}

// Announce tells the runtime, if it listens, that what k is allowed may be
// something else now.
func (t *Table) Announce(k Key, by string) {
	r := t.runtime.Load()
	if r == nil {
		return
	}
	if h, ok := (*r).(Hearer); ok {
		h.Changed(k, by)
	}
}

// bounding are the controls in which a running agent is held to its ancestors: what
// it has in the kernel's hands.
var bounding = []string{"uid", "gid", "groups", "iso", "mount"}

// Taken compares what a running agent was started with, the texts of its controls
// and its owner then, with what it is given now by its own texts, its policy, its
// ancestors and root's grants: the mounts, ids and groups that were taken away
// since (spec sections 5 and 9). What it has been given in addition is none of
// them; nothing: it may go on.
func (o *Object) Taken(owner uint32, texts map[string]string) []attenuate.Loss {
	if o.Gone() {
		return []attenuate.Loss{{Control: "owner", What: "the object of the agent is gone"}}
	}
	f := o.Family()
	now := f.cfg
	was, lines := o.given(now, owner, texts)
	var all []attenuate.Loss
	if !now.OwnerOK || now.Owner != owner {
		all = append(all, attenuate.Loss{Control: "owner", Line: 1, What: fmt.Sprintf("it was uid %d's, and is no longer", owner)})
	}
	all = append(all, attenuate.Taken(was, now.bound())...)
	all = append(all, f.takenSpaces(lines)...)
	if f.Broken != nil {
		return append(all, attenuate.Loss{Control: "parent", Line: 1, What: f.Broken.Error()})
	}
	above := o.t.above(f)
	for _, name := range bounding {
		// A line that an ancestor puts over something waits for the next start, in
		// the ancestor as in the agent: so the text is not judged as a whole one.
		if off := attenuate.CheckControl(name, was, above, f.Grants, false); off != nil {
			all = append(all, attenuate.Loss{Control: name, Line: off.Line, What: fmt.Sprintf("agent %s, above it: %s", off.Ancestor, off.What)})
		}
	}
	return all
}

// given is the agent as the texts of its start made it. A text that was not kept
// or cannot be read counts as what is now: it takes nothing.
func (o *Object) given(now *Config, owner uint32, texts map[string]string) (*attenuate.Agent, []control.MountLine) {
	was := *now
	was.Owner = owner
	for _, name := range bounding {
		text, kept := texts[name]
		if !kept {
			continue
		}
		if next, ok := was.with(name, []byte(text)); ok {
			was = *next
		}
	}
	return was.bound(), was.Mounts
}

// takenSpaces are the shared spaces that the lines of a start handed over and that
// no rule gives any more. What of a space lies in the view the view itself decides.
func (f *Family) takenSpaces(lines []control.MountLine) []attenuate.Loss {
	var all []attenuate.Loss
	for _, l := range lines {
		space, ok := spaceOf(l.Source)
		if !ok {
			continue
		}
		for _, p := range []policy.Permission{policy.Read, policy.Write} {
			if p == policy.Write && !l.RW || f.Allows(policy.Shared, space, p) {
				continue
			}
			whose := "its policy lacks"
			if _, own := f.cfg.Policy.Allows(f.cfg.Subject, policy.Shared, space, p); own {
				whose = "an agent above it lacks the right of"
			}
			rule := policy.Rule{Subject: f.cfg.Subject, Class: policy.Shared, Name: space, Perm: p}
			all = append(all, attenuate.Loss{Control: "policy", What: fmt.Sprintf("%s `%s`, which the mount line for %q needs", whose, rule, l.Target)})
			break // write without read is one loss
		}
	}
	return all
}

// spaceOf is the shared space whose data a source hands over.
func spaceOf(source string) (space string, ok bool) {
	rest, ok := strings.CutPrefix(source, node.Root+"/shared/")
	if !ok {
		return "", false
	}
	space, in, deeper := strings.Cut(rest, "/")
	return space, !deeper || in == "data" || strings.HasPrefix(in, "data/")
}

// Text is the effective text of a durable control that the Config was made from;
// false: it cannot be read.
func (c *Config) Text(name string) (string, bool) {
	e := control.Agent.Lookup(name)
	if e == nil || e.Kind != control.Durable {
		return "", false
	}
	if v, ok := c.snap.Values[name]; ok {
		return string(v.Text), v.Err == nil
	}
	return string(control.Normalize([]byte(e.DefaultText(c.object)))), true
}
