package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/policy"
	"cortexfs/policy/attenuate"
)

// The records about families below STORE/state (spec section 17): who was created
// by whom, and what root granted beyond that. Both are kept outside the objects,
// so that nobody who writes an agent's controls writes them, and both name what
// they were made for: with another owner, label or parent they are void, for ever.
const (
	birthsRecord = "births" // JSON lines
	grantsRecord = "grants" // JSON lines
)

// Standing is what a record was made for.
type Standing struct {
	Agent  string `json:"agent"`  // Key.String
	Parent string `json:"parent"` // likewise
	Owner  uint32 `json:"owner"`
	Label  string `json:"label"`
}

func standing(k Key, c *Config, parent Key) Standing {
	return Standing{Agent: k.String(), Parent: parent.String(), Owner: c.Owner, Label: c.Label.String()}
}

// The kinds of grants.
const (
	GrantRule  = "rule"  // a rule of the child's subject
	GrantGroup = "group" // a gid
	GrantMount = "mount" // a line: source, target, mode
	GrantTool  = "tool"  // a tool: its declaration and the rule to execute it
)

// Grant is one thing that root has given to a child beyond what its parents have.
type Grant struct {
	N int `json:"n"` // never given twice
	Standing
	Kind   string    `json:"kind"`
	Value  string    `json:"value"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
}

// kin is both records; immutable.
type kin struct {
	births map[Key]Standing
	grants []Grant // by N
	next   int     // next N
}

// bornOf says whether k, as it is, was created by parent.
func (r *kin) bornOf(k Key, c *Config, parent Key) bool {
	b, ok := r.births[k]
	return ok && b == standing(k, c, parent)
}

// inForce are the grants of k that hold as it is; nil: none.
func (r *kin) inForce(k Key, c *Config, parent Key) *attenuate.Grants {
	var g *attenuate.Grants
	for i := range r.grants {
		if x := &r.grants[i]; x.Standing == standing(k, c, parent) {
			if g == nil {
				g = &attenuate.Grants{}
			}
			x.addTo(g)
		}
	}
	return g
}

// addTo adds what the grant says. A value that does not read grants nothing.
func (x *Grant) addTo(g *attenuate.Grants) {
	switch x.Kind {
	case GrantRule:
		if s, err := policy.Parse([]byte(x.Value)); err == nil {
			g.Rules = append(g.Rules, s.Rules()...)
		}
	case GrantGroup:
		if gid, err := control.ParseUint32([]byte(x.Value)); err == nil {
			g.Groups = append(g.Groups, gid)
		}
	case GrantTool:
		g.Tools = append(g.Tools, x.Value)
	case GrantMount:
		if lines, err := control.ParseMount([]byte(x.Value)); err == nil {
			g.Mounts = append(g.Mounts, Lines(lines)...)
		}
	}
}

// readKin takes over the records of earlier daemons. A line that does not read is
// an error: without it, somebody's child could lose what it has in silence.
func (t *Table) readKin() error {
	r := &kin{births: map[Key]Standing{}, next: 1}
	text, err := t.readRecord(birthsRecord)
	if err != nil {
		return err
	}
	err = eachJSON(text, func(line []byte) error {
		var b Standing
		if err := json.Unmarshal(line, &b); err != nil {
			return err
		}
		k, ok := ParseKey(b.Agent)
		if !ok {
			return fmt.Errorf("no agent's name")
		}
		r.births[k] = b
		return nil
	})
	if err != nil {
		return fault.At("read", "state/"+birthsRecord, err)
	}
	if text, err = t.readRecord(grantsRecord); err != nil {
		return err
	}
	err = eachJSON(text, func(line []byte) error {
		var g Grant
		if err := json.Unmarshal(line, &g); err != nil {
			return err
		}
		r.next = max(r.next, g.N+1)
		if g.Kind != "" { // the last line only says how far the numbers have come
			r.grants = append(r.grants, g)
		}
		return nil
	})
	t.kin.Store(r)
	return fault.At("read", "state/"+grantsRecord, err)
}

func eachJSON(text string, do func([]byte) error) error {
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if text == "" {
			break
		}
		if err := do([]byte(line)); err != nil {
			return fault.Text(i+1, 1, "%v", err)
		}
	}
	return nil
}

// changeKin makes a change durable before it is in force. With t.commit held.
func (t *Table) changeKin(edit func(*kin)) error {
	old := t.kin.Load()
	next := &kin{births: maps.Clone(old.births), grants: slices.Clone(old.grants), next: old.next}
	edit(next)
	var births, grants bytes.Buffer
	for _, k := range slices.SortedFunc(maps.Keys(next.births), Key.Compare) {
		writeJSON(&births, next.births[k])
	}
	for _, g := range next.grants {
		writeJSON(&grants, g)
	}
	if next.next > 1 {
		writeJSON(&grants, struct {
			N int `json:"n"`
		}{next.next - 1})
	}
	if !maps.Equal(old.births, next.births) {
		if err := t.writeRecord(birthsRecord, births.Bytes()); err != nil {
			return err
		}
	}
	if old.next != next.next || !slices.Equal(old.grants, next.grants) {
		if err := t.writeRecord(grantsRecord, grants.Bytes()); err != nil {
			return err
		}
	}
	t.kin.Store(next)
	return nil
}

func writeJSON(b *bytes.Buffer, v any) {
	line, _ := json.Marshal(v) // plain data
	b.Write(append(line, '\n'))
}

// forget drops every record about the agents that drop names. With t.commit held.
func (t *Table) forget(drop func(s Standing) bool) error {
	r := t.kin.Load()
	hit := slices.ContainsFunc(r.grants, func(g Grant) bool { return drop(g.Standing) })
	for _, b := range r.births {
		hit = hit || drop(b)
	}
	if !hit {
		return nil
	}
	return t.changeKin(func(r *kin) {
		maps.DeleteFunc(r.births, func(_ Key, b Standing) bool { return drop(b) })
		r.grants = slices.DeleteFunc(r.grants, func(g Grant) bool { return drop(g.Standing) })
	})
}

// about is for forget: the records of one agent.
func about(k Key) func(Standing) bool {
	name := k.String()
	return func(s Standing) bool { return s.Agent == name }
}

// aboutOrBelow also has those of whom it is the parent.
func aboutOrBelow(k Key) func(Standing) bool {
	name := k.String()
	return func(s Standing) bool { return s.Agent == name || s.Parent == name }
}
