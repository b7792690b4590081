package policy

import (
	"iter"
	"slices"
)

// Set is a parsed policy. It never changes. A nil Set allows nothing.
type Set struct {
	rules []Rule
	index map[key]int // → line of the first rule that says so
}

// key is a rule without its place.
type key struct {
	subject, name string
	class         Class
	perm          Permission
}

// newSet makes the index once, so that a decision is one look into a map.
func newSet(rules []Rule) *Set {
	s := &Set{rules: rules, index: make(map[key]int, len(rules))}
	for _, r := range rules {
		k := key{r.Subject, r.Name, r.Class, r.Perm}
		if _, again := s.index[k]; !again {
			s.index[k] = r.Line
		}
	}
	return s
}

// Allows says whether a rule allows subject the permission on class:name, and on
// which line that rule stands. It does not allocate.
func (s *Set) Allows(subject string, c Class, name string, p Permission) (line int, ok bool) {
	if s == nil {
		return 0, false
	}
	line, ok = s.index[key{subject, name, c, p}]
	return line, ok
}

// Rules are all rules in the order of their lines. The slice is the caller's.
func (s *Set) Rules() []Rule {
	if s == nil {
		return nil
	}
	return slices.Clone(s.rules)
}

// Names are the names of class c on which subject has permission p, sorted,
// each once.
func (s *Set) Names(subject string, c Class, p Permission) []string {
	if s == nil {
		return nil
	}
	var names []string
	for _, r := range s.rules {
		if r.Subject == subject && r.Class == c && r.Perm == p {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Subjects are the subjects that rules name, sorted, each once.
func (s *Set) Subjects() []string {
	if s == nil {
		return nil
	}
	var all []string
	for _, r := range s.rules {
		all = append(all, r.Subject)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// About yields the rules of one subject in the order of their lines.
func (s *Set) About(subject string) iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		if s == nil || subject == "" {
			return
		}
		for _, r := range s.rules {
			if r.Subject == subject && !yield(r) {
				return
			}
		}
	}
}
