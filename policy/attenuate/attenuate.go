// Package attenuate says whether one agent is at most as free as another: is
// child ⊆ parent? (spec section 17). It looks at what decides: rules, declared
// tools, ids and groups, isolation, search path, mount table, root, approval.
//
// Two ideas. The relation is one of inclusion and nothing else: it is reflexive
// and transitive, so that a chain of parents can be checked pair by pair, and what
// it lets pass never reaches what the parent does not. And a mount table is
// compared by what can be seen through it, not line by line: a child's source has
// to be the source of a line of the parent, or lie below one at a place that no
// other line of the parent covers; what the parent's table covers below has to be
// covered in the child too.
//
// Paths are compared as they are written, by component. What a path leads to on
// the host, through symlinks or mounts of the host, no text can say: Lines tells
// for each line of the child below which source of the parent it has to lie when
// it is opened, and the start holds it to that.
//
// What belongs to an agent by its name stands for the same of its parent: the
// child's own home for the parent's own home, its subject for the parent's
// subject.
//
// The package is pure: no I/O, no clock, no locks. All errors are *Offence, the
// first in the order of Controls, the nearest ancestor first.
package attenuate

import (
	"fmt"
	"slices"
	"strings"

	"cortexfs/node/fault"
	"cortexfs/policy"
)

// Isolation words, from the weakest; uid and userns cannot be compared.
const isoShared = "shared"

// Agent is what of an agent decides, in effect: defaults are filled in.
type Agent struct {
	Name     string // for messages
	Subject  string // label type
	Policy   *policy.Set
	Tools    []string // declared, in order: one a line
	UID, GID uint32
	Groups   []uint32 // in order: one a line
	Iso      string
	Path     []string // search path
	Mounts   []Mount
	Home     string // own state directory as a mount source: /ctx/home/<owner>/agent/<name>
	Root     string // control root
	Approval string // auto or ask
}

// DefaultRoot is the root that the agent has when none is written.
func (a *Agent) DefaultRoot() string { return a.Home + "/root" }

// Mount is one line of a mount table. Line is where it stood, from 1; 0 for one
// that was not written there (the workspace of a start).
type Mount struct {
	Source, Target        string
	RW                    bool
	Recursive             bool // rbind
	NoSuid, NoDev, NoExec bool
	Line                  int
}

// Grants are what root has given to the child beyond its parents (ctx agent
// grant). Each lifts the comparison for exactly what it names.
type Grants struct {
	Rules  []policy.Rule // with the child's subject
	Groups []uint32
	Tools  []string // declaration, and the rule tool:T execute
	Mounts []Mount  // the line with this source and target, at most in this mode
}

// Rule says whether a rule of subject is granted.
func (g *Grants) Rule(subject string, c policy.Class, name string, p policy.Permission) bool {
	if g == nil {
		return false
	}
	if c == policy.Tool && p == policy.Execute && g.Tool(name) {
		return true
	}
	return slices.ContainsFunc(g.Rules, func(r policy.Rule) bool {
		return r.Subject == subject && r.Class == c && r.Name == name && r.Perm == p
	})
}

// Tool says whether a tool is granted.
func (g *Grants) Tool(name string) bool { return g != nil && slices.Contains(g.Tools, name) }

// mount is the granted line with the source and target of m.
func (g *Grants) mount(m Mount) (Mount, bool) {
	if g == nil {
		return Mount{}, false
	}
	i := slices.IndexFunc(g.Mounts, func(l Mount) bool { return l.Source == m.Source && l.Target == m.Target })
	if i < 0 {
		return Mount{}, false
	}
	return g.Mounts[i], true
}

// Offence is the first thing in which a child is freer than an ancestor.
type Offence struct {
	Control  string // of the child
	Line     int    // of that control, from 1; 0 where no line says it
	Ancestor string // name of the agent that has less
	What     string // what is too much
	Grant    string // the words after `ctx agent grant CHILD` that would allow it; "" where none can
}

// Error tells who has less, and how a person can give it all the same. It does
// not repeat the text that was refused.
func (o *Offence) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "more than agent %s has: %s", o.Ancestor, o.What)
	if o.Grant != "" {
		fmt.Fprintf(&b, "; a child has at most what its parents have, save by the supervisor's grant: as root, ctx agent grant CHILD %s --reason TEXT", o.Grant)
	}
	return b.String()
}

// Fault is the offence as an error of the child's control: Perm.
func (o *Offence) Fault(path string) *fault.Error {
	return &fault.Error{Path: path, Kind: fault.Perm, Line: o.Line, Col: min(o.Line, 1), Err: o}
}

// pair is one comparison: a child with one of its ancestors.
type pair struct {
	child, parent *Agent
	between       []*Agent // the ancestors nearer than parent
	grants        *Grants
	whole         bool // false: the child's text is still being written, what a later line can mend is no offence
}

// judges are the comparisons in the order in which they are made.
var judges = []struct {
	control string
	judge   func(*pair) *Offence
}{
	{"uid", (*pair).uid}, {"gid", (*pair).gid}, {"groups", (*pair).groups}, {"iso", (*pair).iso}, {"root", (*pair).root},
	{"path", (*pair).path}, {"mount", (*pair).mounts}, {"tools", (*pair).tools}, {"policy", (*pair).rules}, {"approval", (*pair).approval},
}

// Controls are the controls that are compared, in order.
func Controls() []string {
	names := make([]string, len(judges))
	for i, j := range judges {
		names[i] = j.control
	}
	return names
}

// Check compares a child with all its ancestors, nearest first. nil: it has at
// most what each of them has, and what g grants.
func Check(child *Agent, above []*Agent, g *Grants) *Offence {
	for _, j := range judges {
		for i, p := range above {
			if o := j.judge(&pair{child, p, above[:i], g, true}); o != nil {
				return o
			}
		}
	}
	return nil
}

// CheckControl is Check for what one control says. whole is false for a text that
// is still being written: only what no later line can mend is an offence.
func CheckControl(control string, child *Agent, above []*Agent, g *Grants, whole bool) *Offence {
	for _, j := range judges {
		// The rules are compared with the subject replaced, so a label is a text
		// about them too.
		if j.control != control && !(control == "label" && j.control == "policy") {
			continue
		}
		for i, p := range above {
			if o := j.judge(&pair{child, p, above[:i], g, whole}); o != nil {
				return o
			}
		}
	}
	return nil
}

// offence is about a control of the child.
func (c *pair) offence(control string, line int, format string, args ...any) *Offence {
	return &Offence{Control: control, Line: line, Ancestor: c.parent.Name, What: fmt.Sprintf(format, args...)}
}

func (c *pair) uid() *Offence {
	if c.child.UID == c.parent.UID {
		return nil
	}
	return c.offence("uid", 1, "a child's uid is its parent's, %d", c.parent.UID)
}

func (c *pair) gid() *Offence {
	if c.child.GID == c.parent.GID {
		return nil
	}
	return c.offence("gid", 1, "a child's gid is its parent's, %d", c.parent.GID)
}

func (c *pair) groups() *Offence {
	for i, gid := range c.child.Groups {
		if slices.Contains(c.parent.Groups, gid) || c.grants != nil && slices.Contains(c.grants.Groups, gid) {
			continue
		}
		o := c.offence("groups", i+1, "it is not in group %d", gid)
		o.Grant = fmt.Sprintf("group %d", gid)
		return o
	}
	return nil
}

func (c *pair) iso() *Offence {
	if c.child.Iso == c.parent.Iso || c.parent.Iso == isoShared {
		return nil
	}
	return c.offence("iso", 1, "it is isolated by iso=%s, and a child no less", c.parent.Iso)
}

// path holds when the child's search path is the parent's with directories left
// out: nothing is searched that the parent does not search, and nothing earlier.
func (c *pair) path() *Offence {
	next := 0
	for _, dir := range c.child.Path {
		i := slices.Index(c.parent.Path[next:], dir)
		switch {
		case i >= 0:
			next += i + 1
		case slices.Contains(c.parent.Path, dir):
			return c.offence("path", 1, "it searches its directories in another order")
		default:
			return c.offence("path", 1, "it searches no tools in %q", dir)
		}
	}
	return nil
}

func (c *pair) tools() *Offence {
	for i, t := range c.child.Tools {
		if slices.Contains(c.parent.Tools, t) || c.grants.Tool(t) {
			continue
		}
		o := c.offence("tools", i+1, "it does not declare the tool %s", t)
		o.Grant = "tool " + t
		return o
	}
	return nil
}

// rules compares the rules that the child's subject can use. Rules about others
// grant nothing and are no offence; they are compared when the label changes.
func (c *pair) rules() *Offence {
	for r := range c.child.Policy.About(c.child.Subject) {
		if _, ok := c.parent.Policy.Allows(c.parent.Subject, r.Class, r.Name, r.Perm); ok {
			continue
		}
		if c.grants.Rule(r.Subject, r.Class, r.Name, r.Perm) {
			continue
		}
		lacks := policy.Rule{Subject: c.parent.Subject, Class: r.Class, Name: r.Name, Perm: r.Perm}
		o := c.offence("policy", r.Line, "its policy lacks `%s`", lacks)
		if c.parent.Subject == "" {
			o.What = "it has no label type, so no rule is about it"
		}
		o.Grant = "rule '" + r.String() + "'"
		if r.Class == policy.Tool {
			o.Grant = "tool " + r.Name
		}
		return o
	}
	return nil
}

func (c *pair) approval() *Offence {
	if c.parent.Approval != "ask" || c.child.Approval == "ask" {
		return nil
	}
	return c.offence("approval", 1, "its calls are approved one by one (approval=ask)")
}
