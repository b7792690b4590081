package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy/attenuate"
)

// MaxBirths is how many children a tree of agents gets in BirthTime (spec section
// 17).
const (
	MaxBirths = 10
	BirthTime = time.Minute
)

// birth is a child that is about to be made.
type birth struct {
	child    bool
	top      Key // of its family
	standing Standing
	born     bool // it is to be recorded
}

// childTexts fills in what a child takes from its parent where nobody said
// otherwise (spec section 17): ids, isolation, and of defaults that would be more
// than the parent has, the part that it has. They are facts about the child, not
// texts of the parent.
func (t *Table) childTexts(k Key, owner uint32, texts map[string][]byte) error {
	p, err := control.ParseParent(texts["parent"])
	if err != nil || p.Agent == "" {
		return nil
	}
	parent, ok := t.resolveParent(k, p.Agent)
	if !ok {
		return fault.E("", k.TreeDir()+"/parent", fault.Invalid, fmt.Errorf("agent %s is unknown", p.Agent))
	}
	po, err := t.Lookup(parent)
	if err != nil {
		return err
	}
	pc := po.Config()
	set := func(name, text string) {
		if texts[name] == nil {
			texts[name] = []byte(text + "\n")
		}
	}
	for name, id := range map[string]uint32{"uid": pc.UID, "gid": pc.GID} {
		if id != NoID { // else neither of them starts before somebody writes it
			set(name, fmt.Sprint(id))
		}
	}
	if pc.Iso != "" {
		set("iso", pc.Iso)
	}
	if po.Approval() == "ask" {
		set("approval", "ask")
	}
	if texts["path"] == nil {
		all := defaultSearch(owner)
		kept := slices.DeleteFunc(slices.Clone(pc.Search), func(dir string) bool { return !slices.Contains(all, dir) })
		if len(kept) > 0 && !slices.Equal(kept, all) {
			set("path", strings.Join(kept, "\n"))
		}
	}
	if texts["mount"] == nil {
		if table, all := t.childTable(k, owner, po); !all {
			texts["mount"] = []byte(table)
		}
	}
	return nil
}

// childTable is the default table as far as the parent and all above it have what
// it shows; all: that is the whole of it.
func (t *Table) childTable(k Key, owner uint32, parent *Object) (table string, all bool) {
	c := &Config{Key: k, Owner: owner, OwnerOK: true}
	text := control.Agent.Lookup("mount").DefaultText(control.Object{Name: k.Name, Home: k.Home, Owner: owner, Root: t.o.Root})
	lines, err := control.ParseMount([]byte(text))
	f := parent.Family()
	if err != nil || f.Broken != nil {
		return text, true // told by whoever judges the child
	}
	above := append([]*attenuate.Agent{t.Bound(f.cfg)}, t.above(f)...)
	var b strings.Builder
	all = true
	for _, l := range lines {
		fits := func() bool {
			c.Mounts = []control.MountLine{l}
			return attenuate.CheckControl("mount", c.bound(), above, nil, true) == nil
		}
		if !fits() {
			all = false
			if l.RW = false; !fits() {
				continue
			}
		}
		b.WriteString(l.String() + "\n")
	}
	return b.String(), all
}

// bear judges the child that the texts make: nothing in which it is freer than an
// ancestor, and not more births than its family may have. An agent without a
// parent is judged by neither. With t.commit held.
func (t *Table) bear(k Key, o CreateOptions, texts map[string][]byte) (birth, error) {
	values := make(map[string]store.Value, len(texts))
	for name, text := range texts {
		values[name] = store.Value{Text: text}
	}
	c := t.build(k, &store.Snapshot{Values: values})
	if c.Parent.Agent == "" {
		return birth{}, nil
	}
	f := t.makeFamily(k, c)
	if f.Broken != nil {
		return birth{}, fault.E("", k.TreeDir()+"/parent", fault.Invalid, f.Broken)
	}
	if off := attenuate.Check(c.bound(), t.above(f), nil); off != nil {
		return birth{}, off.Fault(k.TreeDir() + "/" + off.Control)
	}
	if why := t.siblingLabel(c.Subject, k, c); why != "" && !o.Writer.Root {
		return birth{}, &fault.Error{Path: k.TreeDir() + "/label", Kind: fault.Perm, Line: 1, Col: 1, Err: fmt.Errorf("label type %s %s", c.Subject, why)}
	}
	parent := f.Above[0]
	b := birth{child: true, top: f.Above[len(f.Above)-1].Key, standing: standing(k, c, parent.Key)}
	// Who may write the same label into both may hand the parent's row 7 on; for an
	// agent of another owner root writes rules.
	b.born = o.Born && parent.OwnerOK && parent.Owner == o.Owner
	now := t.now()
	t.born[b.top] = slices.DeleteFunc(t.born[b.top], func(at time.Time) bool { return now.Sub(at) >= BirthTime })
	if len(t.born[b.top]) >= MaxBirths {
		return birth{}, fault.Newf(fault.Again, "the tree of agent %s got %d children within a minute", b.top.Name, MaxBirths)
	}
	return b, nil
}

// countBirth is called when the child is there.
func (t *Table) countBirth(b birth) {
	if b.child {
		t.born[b.top] = append(t.born[b.top], t.now())
	}
}

// recordBirth writes down who created whom, and drops what an earlier agent of
// that name left.
func (t *Table) recordBirth(k Key, b birth) error {
	if err := t.forget(about(k)); err != nil || !b.born {
		return err
	}
	return t.changeKin(func(r *kin) { r.births[k] = b.standing })
}

// capture refuses an agent of a home whose name would make it the parent of
// agents that have the system's agent of that name as theirs: an owner turns no
// parent, neither so. Root may.
func (t *Table) capture(k Key, w Writer) error {
	if !k.Home || w.Root {
		return nil
	}
	if kid, ok := t.homeChild(k); ok {
		return fault.Newf(fault.Perm, "it would take the place of agent/%s as the parent of %s", k.Name, kid)
	}
	return nil
}

// turned refuses the removal of an agent of a home by which its children would
// become children of the system's agent of that name.
func (t *Table) turned(k Key) error {
	if !k.Home {
		return nil
	}
	if _, err := t.Lookup(System(k.Name)); err != nil {
		return nil
	}
	if kid, ok := t.homeChild(k); ok {
		return fault.Newf(fault.Perm, "agent/%s would take its place as the parent of %s; remove that first", k.Name, kid)
	}
	return nil
}

// homeChild is an agent of k's home whose parent text has k's name.
func (t *Table) homeChild(k Key) (Key, bool) {
	for _, other := range t.List(true, k.UID) {
		if o, err := t.Lookup(other); err == nil && other != k && o.Config().Parent.Agent == k.Name {
			return other, true
		}
	}
	return Key{}, false
}
