package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/policy"
)

// maxReason bounds the reason of a grant, in bytes.
const maxReason = 512

// maxGrants bounds the grants of one agent.
const maxGrants = 256

// Grant gives a child something that its parents do not have (spec section 17):
// the caller has checked that root asks. It lifts the comparison with the parents
// for exactly that; the child's own controls have to say it too, and row 7 asks
// the tool's policy as ever. It holds for this child and not for its children, until
// owner, label or parent change. Errors: Invalid (kind, value, no reason, an agent
// without parent), Exist, Again.
func (o *Object) Grant(kind, value, reason, by string) (Grant, error) {
	g, err := o.grant(kind, value, reason, by)
	if err != nil {
		return Grant{}, fault.At("grant", o.key.String(), err)
	}
	o.log.Add(Event{Type: "grant", Object: g.Kind + " " + g.Value, Status: "ok", Reason: g.Reason, By: g.By})
	return g, nil
}

func (o *Object) grant(kind, value, reason, by string) (Grant, error) {
	reason = strings.TrimSpace(reason)
	if reason == "" || len(reason) > maxReason || !utf8.ValidString(reason) {
		return Grant{}, fault.Newf(fault.Invalid, "a grant needs a reason of at most %d bytes", maxReason)
	}
	o.t.commit.Lock()
	defer o.t.commit.Unlock()
	c := o.Config()
	parent, ok := o.t.resolveParent(o.key, c.Parent.Agent)
	if c.Parent.Agent == "" || !ok {
		return Grant{}, fault.Newf(fault.Invalid, "it has no parent that bounds it: what it may do, its own controls say")
	}
	value, err := grantValue(kind, value, c)
	if err != nil {
		return Grant{}, err
	}
	g := Grant{
		Standing: standing(o.key, c, parent), Kind: kind, Value: value, Reason: reason, By: by,
		At: time.Now().UTC().Truncate(time.Second),
	}
	n := 0
	for _, old := range o.t.kin.Load().grants {
		if old.Standing == g.Standing && old.Kind == kind && old.Value == value {
			return Grant{}, fault.E("", "", fault.Exist, fmt.Errorf("grant %d says so already", old.N))
		}
		if old.Agent == g.Agent {
			n++
		}
	}
	if n >= maxGrants {
		return Grant{}, fault.Newf(fault.Again, "it has %d grants", n)
	}
	err = o.t.changeKin(func(r *kin) {
		g.N = r.next
		r.next++
		r.grants = append(r.grants, g)
	})
	return g, err
}

// grantValue is the canonical form of a value.
func grantValue(kind, value string, c *Config) (string, error) {
	switch kind {
	case GrantRule:
		s, err := policy.Parse([]byte(value))
		if err != nil || len(s.Rules()) != 1 {
			return "", fault.Newf(fault.Invalid, "not one rule: allow SUBJECT CLASS:NAME PERMISSION")
		}
		r := s.Rules()[0]
		if r.Subject != c.Subject {
			return "", fault.Newf(fault.Invalid, "the rule is about %s, the agent's subject is %s", r.Subject, c.Subject)
		}
		return r.String(), nil
	case GrantGroup:
		gid, err := node.ParseUint(value)
		if err != nil || gid == 0 {
			return "", fault.Newf(fault.Invalid, "not a gid that an agent can have")
		}
		return fmt.Sprint(gid), nil
	case GrantTool:
		if err := node.CheckName(value); err != nil {
			return "", err
		}
		return value, nil
	case GrantMount:
		return grantMount(value)
	}
	return "", fault.Newf(fault.Invalid, "a grant is a rule, a group, a mount or a tool")
}

// grantMount reads a line of the mount table, or its first three words separated
// by blanks.
func grantMount(value string) (string, error) {
	line := strings.TrimSuffix(value, "\n")
	if !strings.Contains(line, "\t") {
		f := strings.Fields(line)
		if len(f) != 3 {
			return "", fault.Newf(fault.Invalid, "not a mount: SOURCE TARGET ro|rw")
		}
		line = strings.Join(f, "\t") + "\trbind,nosuid,nodev"
	}
	lines, err := control.ParseMount([]byte(line + "\n"))
	if err != nil {
		return "", err
	}
	if len(lines) != 1 {
		return "", fault.Newf(fault.Invalid, "not one mount line")
	}
	return lines[0].String(), nil
}

// Revoke takes a grant back; NotExist. The caller has checked that root asks. From
// then on the next decision goes without it.
func (o *Object) Revoke(n int, by string) (Grant, error) {
	o.t.commit.Lock()
	defer o.t.commit.Unlock()
	i := slices.IndexFunc(o.t.kin.Load().grants, func(g Grant) bool { return g.N == n && g.Agent == o.key.String() })
	if i < 0 {
		return Grant{}, fault.E("revoke", o.key.String(), fault.NotExist, fmt.Errorf("it has no grant %d", n))
	}
	g := o.t.kin.Load().grants[i]
	if err := o.t.changeKin(func(r *kin) { r.grants = slices.Delete(r.grants, i, i+1) }); err != nil {
		return Grant{}, fault.At("revoke", o.key.String(), err)
	}
	o.log.Add(Event{Type: "grant", Object: g.Kind + " " + g.Value, Status: "revoked", By: by})
	return g, nil
}

// Grants are the agent's grants, oldest first; void tells for each whether it
// holds no longer because the store was edited behind the daemon's back.
func (o *Object) Grants() (list []Grant, void []bool) {
	c := o.Config()
	parent, ok := o.t.resolveParent(o.key, c.Parent.Agent)
	for _, g := range o.t.kin.Load().grants {
		if g.Agent == o.key.String() {
			list = append(list, g)
			void = append(void, !ok || g.Standing != standing(o.key, c, parent))
		}
	}
	return list, void
}
