package agent

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// foreignLabel says why uid may not write a label type into the agent k; "" if
// nothing speaks against it. A type belongs to one owner (spec section 7): to
// whom it is reserved, else to the owner of the agents that have it; one that a
// stranger's tool names would hand that tool to k. The types u<uid>.* are that
// user's from the start, so that root can name an agent in a tool's policy
// before its user makes it.
func (t *Table) foreignLabel(typ string, k Key, uid uint32) string {
	if owner, ok := t.LabelOwner(typ); ok {
		if owner != uid {
			return fmt.Sprintf("belongs to uid %d", owner)
		}
		return ""
	}
	namespace, inNamespace := userNamespace(typ)
	if inNamespace && namespace != uid {
		return fmt.Sprintf("belongs to uid %d", namespace)
	}
	for _, other := range t.loadLineage().byLabel[typ] {
		o, err := t.Lookup(other)
		if err != nil || other == k {
			continue
		}
		if c := o.Config(); c.Subject == typ && c.Owner != uid {
			return "is in use by an agent of another owner"
		}
	}
	if t.o.Subjects == nil || inNamespace {
		return ""
	}
	if path, ok := t.o.Subjects.NamedElsewhere(typ, uid); ok {
		return "is named in the policy of " + path + ", which you do not own"
	}
	return ""
}

// siblingLabel says why a child may not take a type: another agent has it, which is
// neither its parent nor below it. A child is a subject of its own or, asked for by
// name, its parent's; what root granted to others is not its own by their name.
func (t *Table) siblingLabel(typ string, k Key, c *Config) string {
	if c.Parent.Agent == "" {
		return ""
	}
	parent, ok := t.resolveParent(k, c.Parent.Agent)
	for _, other := range t.loadLineage().byLabel[typ] {
		if other == k || ok && other == parent {
			continue
		}
		if above, err := t.Ancestors(other); err == nil && slices.Contains(above, k) {
			continue
		}
		return "is another agent's, and this one is a child: a type of its own or its parent's"
	}
	return ""
}

// userNamespace reads the uid of a type u<uid>.NAME, the form of the default
// type of an agent in home/<uid>.
func userNamespace(typ string) (uint32, bool) {
	rest, ok := strings.CutPrefix(typ, "u")
	num, _, dot := strings.Cut(rest, ".")
	if !ok || !dot {
		return 0, false
	}
	uid, err := node.ParseUint(num)
	return uid, err == nil
}

// LabelOwner is the uid that a label type is reserved for: who first had it, as
// far as the table saw it written.
func (t *Table) LabelOwner(typ string) (uid uint32, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	uid, ok = t.labels[typ]
	return uid, ok
}

// FreeLabel ends the reservation of a label type; the caller has checked that
// root asks. NotExist when there is none. While an agent has the type, nobody
// else can take it all the same.
func (t *Table) FreeLabel(typ string) error {
	t.commit.Lock()
	defer t.commit.Unlock()
	if _, ok := t.LabelOwner(typ); !ok {
		return fault.Newf(fault.NotExist, "label type %s is not reserved", typ)
	}
	return t.changeLabels(func(m map[string]uint32) { delete(m, typ) })
}

// moveLabel lets a type go with the agent k, which root gives to another owner,
// unless other agents of the first one have it too. With t.commit held.
func (t *Table) moveLabel(typ string, k Key, from, to uint32) error {
	if owner, ok := t.LabelOwner(typ); !ok || owner != from || from == to {
		return nil
	}
	for _, other := range t.loadLineage().byLabel[typ] {
		if o, err := t.Lookup(other); err == nil && other != k && o.Config().Owner == from {
			return nil
		}
	}
	return t.changeLabels(func(m map[string]uint32) { m[typ] = to })
}

// reserveLabel keeps a type for an owner, unless it is somebody's already: what
// root writes for one owner takes nothing from another. With t.commit held.
func (t *Table) reserveLabel(typ string, owner uint32) error {
	if _, ok := t.LabelOwner(typ); ok || typ == "" {
		return nil
	}
	for _, k := range t.loadLineage().byLabel[typ] {
		if o, err := t.Lookup(k); err == nil && o.Config().Owner != owner {
			return nil
		}
	}
	return t.changeLabels(func(m map[string]uint32) { m[typ] = owner })
}

// warnSubject tells the log when the agent has a label type that belongs to
// another uid, which only root can have done: rules that are meant for one are
// good for the other then.
func (o *Object) warnSubject() {
	c := o.Config()
	if owner, ok := o.t.LabelOwner(c.Subject); ok && c.OwnerOK && owner != c.Owner {
		o.log.Add(Event{
			Type: "policy.subject", Object: c.Subject, Status: "warning",
			Reason: fmt.Sprintf("the label type belongs to uid %d, the agent to uid %d", owner, c.Owner),
		})
	}
}

// changeLabels makes the change durable before it is in force.
func (t *Table) changeLabels(edit func(map[string]uint32)) error {
	t.mu.RLock()
	next := maps.Clone(t.labels)
	t.mu.RUnlock()
	edit(next)
	var b bytes.Buffer
	for _, typ := range slices.Sorted(maps.Keys(next)) {
		fmt.Fprintf(&b, "%s %d\n", typ, next[typ])
	}
	if err := t.writeRecord(labelsRecord, b.Bytes()); err != nil {
		return err
	}
	t.mu.Lock()
	t.labels = next
	t.mu.Unlock()
	return nil
}

// parseLabels reads the record. A line that does not read is an error: guessing
// would give somebody's type away.
func parseLabels(text string) (map[string]uint32, error) {
	m := map[string]uint32{}
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if text == "" {
			break
		}
		typ, num, _ := strings.Cut(line, " ")
		uid, err := strconv.ParseUint(num, 10, 32)
		if err != nil || node.CheckName(typ) != nil {
			return nil, fault.Text(i+1, 1, "not `TYPE UID`")
		}
		m[typ] = uint32(uid)
	}
	return m, nil
}
