// Package policy is the language of who may do what (spec section 7) and the
// rows that decide whether an agent may execute a tool (spec section 8).
//
// A policy is a set of rules `allow SUBJECT CLASS:NAME PERMISSION` and nothing
// else: no deny, glob, priority, inheritance or variable. A rule matches by
// equality of all four parts; what no rule allows is denied, and one bad line
// voids the whole text. A subject is the label type of an agent.
//
// The package is pure: no I/O, no clock, no locks. A Set and a Request are
// values; Parse makes a Set that never changes and that any number of goroutines
// may ask. It does not know where texts come from, what a mount is or how a file
// is opened: the caller brings those facts in a Request and gets back which row
// refused and what is missing.
package policy

import (
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/text"
)

// Label is the security context of an agent (spec section 5). Type is the
// subject of policies; the other fields decide nothing. A bare type leaves them
// empty.
type Label struct{ User, Role, Type, Level string }

// ParseLabel reads `user:role:type:level` or a bare `type`, each field an object
// name. The error is a fault.Error of kind Invalid on line 1.
func ParseLabel(s string) (Label, error) {
	fields := strings.Split(s, ":")
	col := 1
	for _, f := range fields {
		if at, why := text.BadName(f, node.MaxName); why != "" {
			return Label{}, fault.Text(1, col+at-1, "label: %s", why)
		}
		col += len(f) + 1
	}
	switch len(fields) {
	case 1:
		return Label{Type: fields[0]}, nil
	case 4:
		return Label{User: fields[0], Role: fields[1], Type: fields[2], Level: fields[3]}, nil
	}
	return Label{}, fault.Text(1, 1, "label: %d fields, user:role:type:level or a bare type is needed", len(fields))
}

// LabelPrefix is nil unless no label begins with s.
func LabelPrefix(s string) error {
	fields := strings.Split(s, ":")
	if len(fields) > 4 {
		return fault.Text(1, 1, "label: %d fields, user:role:type:level or a bare type is needed", len(fields))
	}
	col := 1
	for i, f := range fields {
		judge := text.BadName
		if i == len(fields)-1 {
			judge = text.BadNamePrefix
		}
		if at, why := judge(f, node.MaxName); why != "" {
			return fault.Text(1, col+at-1, "label: %s", why)
		}
		col += len(f) + 1
	}
	return nil
}

// String is the text of the label: four fields, or the bare type.
func (l Label) String() string {
	if l.User == "" && l.Role == "" && l.Level == "" {
		return l.Type
	}
	return l.User + ":" + l.Role + ":" + l.Type + ":" + l.Level
}

// Class is the kind of object that a rule is about.
type Class string

// The classes of spec section 7.
const (
	Tool    Class = "tool"
	Model   Class = "model"
	Shared  Class = "shared"
	Session Class = "session"
	Mount   Class = "mount"
	Agent   Class = "agent"
	Network Class = "network"
)

// Permission is what a rule allows with an object.
type Permission string

// The permissions of spec section 7.
const (
	Execute Permission = "execute"
	Use     Permission = "use"
	Read    Permission = "read"
	Write   Permission = "write"
	Resume  Permission = "resume"
	Create  Permission = "create"
	Start   Permission = "start"
	Stop    Permission = "stop"
	Connect Permission = "connect"
)

// grammar is the table of spec section 7: for each class, in its order, the
// permissions and the form of its names.
var grammar = []struct {
	class Class
	perms []Permission
	name  nameForm
}{
	{Tool, []Permission{Execute}, objectName},
	{Model, []Permission{Use}, modelRef},
	{Shared, []Permission{Read, Write}, objectName},
	{Session, []Permission{Read, Write, Resume}, objectName},
	{Mount, []Permission{Read, Write}, objectName},
	{Agent, []Permission{Create, Start, Stop, Read, Write}, agentName},
	{Network, []Permission{Connect}, defaultOnly},
}

// Classes are all classes in the order of spec section 7.
func Classes() []Class {
	all := make([]Class, len(grammar))
	for i, g := range grammar {
		all[i] = g.class
	}
	return all
}

// Permissions are the permissions of a class; nil for an unknown one.
func Permissions(c Class) []Permission {
	for _, g := range grammar {
		if g.class == c {
			return append([]Permission(nil), g.perms...)
		}
	}
	return nil
}

// Rule is one line of a policy. Line is where it stood, from 1; 0 for a rule
// that was not parsed.
type Rule struct {
	Subject string
	Class   Class
	Name    string
	Perm    Permission
	Line    int
}

// String is the canonical text of the rule, without LF.
func (r Rule) String() string {
	return "allow " + r.Subject + " " + string(r.Class) + ":" + r.Name + " " + string(r.Perm)
}
