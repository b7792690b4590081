package policy

import (
	"fmt"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/text"
)

// Parse reads a policy (spec section 7). The empty text is the policy that
// allows nothing. One bad line voids the whole text: the error is a fault.Error
// of kind Invalid with line and column. A last LF is optional.
func Parse(b []byte) (*Set, error) {
	var rules []Rule
	line := func(n int, s string) error {
		r, skip, err := parseLine(n, s)
		if err == nil && !skip {
			rules = append(rules, r)
		}
		return err
	}
	if err := text.First(text.Check(b, text.Tab), text.Lines(b, line, line)); err != nil {
		return nil, err
	}
	return newSet(rules), nil
}

// Prefix judges the beginning of a policy that is still being written: nil
// unless no policy begins so (spec section 4.2).
func Prefix(b []byte) error {
	words := text.Lines(b, CheckLine, LinePrefix)
	return text.First(text.Prefix(b, text.Tab), words)
}

// word is a word of a line and its column, from 1.
type word struct {
	s   string
	col int
}

// split cuts a line at spaces and TABs.
func split(s string) []word {
	var all []word
	start := -1
	for i := 0; i <= len(s); i++ {
		switch {
		case i == len(s) || blank(s[i]):
			if start >= 0 {
				all = append(all, word{s[start:i], start + 1})
			}
			start = -1
		case start < 0:
			start = i
		}
	}
	return all
}

func blank(c byte) bool { return c == ' ' || c == '\t' }

// parseLine reads one finished line; skip is true for a blank one and a comment.
func parseLine(n int, s string) (r Rule, skip bool, err error) {
	if s == "" || s[0] == '#' {
		return Rule{}, true, nil
	}
	if err := LinePrefix(n, s); err != nil {
		return Rule{}, false, err
	}
	if blank(s[len(s)-1]) {
		return Rule{}, false, fault.Text(n, len(s), "blank after the last word")
	}
	w := split(s)
	if len(w) != 4 {
		return Rule{}, false, fault.Text(n, len(s)+1, "%d words, a rule is `allow SUBJECT CLASS:NAME PERMISSION`", len(w))
	}
	for i, judge := range wordJudges {
		if col, why := judge(w, true); why != "" {
			return Rule{}, false, fault.Text(n, w[i].col+col-1, "%s", why)
		}
	}
	class, name, _ := strings.Cut(w[2].s, ":")
	return Rule{Subject: w[1].s, Class: Class(class), Name: name, Perm: Permission(w[3].s), Line: n}, false, nil
}

// CheckLine judges one finished line, number n, without its LF and apart from its
// characters, which package text judges.
func CheckLine(n int, s string) error {
	_, _, err := parseLine(n, s)
	return err
}

// LinePrefix judges the beginning of a line likewise: every word that a blank
// ends, and what there is of the last one.
func LinePrefix(n int, s string) error {
	if s == "" || s[0] == '#' {
		return nil
	}
	if blank(s[0]) {
		return fault.Text(n, 1, "blank before the first word")
	}
	w := split(s)
	if len(w) > 4 {
		return fault.Text(n, w[4].col, "more than four words")
	}
	if len(w) == 4 && blank(s[len(s)-1]) {
		// nothing may follow the last word, not even a blank
		return fault.Text(n, w[3].col+len(w[3].s), "blank after the last word")
	}
	for i := range w {
		done := i < len(w)-1 || blank(s[len(s)-1])
		if col, why := wordJudges[i](w, done); why != "" {
			return fault.Text(n, w[i].col+col-1, "%s", why)
		}
	}
	return nil
}

// wordJudges judge the four words of a rule, whole (done) or their beginnings.
var wordJudges = [4]func(w []word, done bool) (col int, why string){
	func(w []word, done bool) (int, string) {
		if s := w[0].s; s == "allow" || !done && strings.HasPrefix("allow", s) {
			return 0, ""
		}
		return 1, "a rule begins with allow"
	},
	func(w []word, done bool) (int, string) {
		col, why := badName(w[1].s, node.MaxName, done)
		if why != "" {
			why = "subject: " + why
		}
		return col, why
	},
	func(w []word, done bool) (int, string) { return badObject(w[2].s, done) },
	func(w []word, done bool) (int, string) { return badPerm(w[2].s, w[3].s, done) },
}

func badName(s string, max int, done bool) (int, string) {
	if done {
		return text.BadName(s, max)
	}
	return text.BadNamePrefix(s, max)
}

// badObject judges CLASS:NAME.
func badObject(s string, done bool) (int, string) {
	class, name, cut := strings.Cut(s, ":")
	for _, g := range grammar {
		switch {
		case string(g.class) == class && cut:
			col, why := g.name(name, done)
			if why != "" {
				why = class + ": " + why
			}
			return len(class) + 1 + col, why
		case !cut && !done && strings.HasPrefix(string(g.class), class):
			return 0, ""
		case !cut && string(g.class) == class:
			return len(class) + 1, "a class is followed by : and a name"
		}
	}
	return 1, "unknown class, one of " + joinClasses()
}

// badPerm judges the permission against its class.
func badPerm(object, s string, done bool) (int, string) {
	class, _, _ := strings.Cut(object, ":")
	perms := Permissions(Class(class))
	for _, p := range perms {
		if string(p) == s || !done && strings.HasPrefix(string(p), s) {
			return 0, ""
		}
	}
	return 1, fmt.Sprintf("unknown permission of class %s, one of %s", class, joinPerms(perms))
}

func joinClasses() string {
	var all []string
	for _, g := range grammar {
		all = append(all, string(g.class))
	}
	return strings.Join(all, " ")
}

func joinPerms(perms []Permission) string {
	var all []string
	for _, p := range perms {
		all = append(all, string(p))
	}
	return strings.Join(all, " ")
}

// nameForm judges the NAME of a class, whole (done) or its beginning.
type nameForm func(s string, done bool) (col int, why string)

func objectName(s string, done bool) (int, string) { return badName(s, node.MaxName, done) }
func agentName(s string, done bool) (int, string)  { return badName(s, node.MaxAgentName, done) }

// modelRef is `provider/model` or an alias.
func modelRef(s string, done bool) (int, string) {
	provider, model, cut := strings.Cut(s, "/")
	if !cut {
		return badName(s, node.MaxName, done)
	}
	if col, why := text.BadName(provider, node.MaxName); why != "" {
		return col, why
	}
	col, why := badName(model, node.MaxName, done)
	return len(provider) + 1 + col, why
}

// ModelRefFault says why s is no model reference (`provider/model` or an alias),
// or with done false why none begins so, and at which byte (from 1). An empty
// reason means that it is one.
func ModelRefFault(s string, done bool) (col int, why string) { return modelRef(s, done) }

func defaultOnly(s string, done bool) (int, string) {
	if s == "default" || !done && strings.HasPrefix("default", s) {
		return 0, ""
	}
	return 1, "the only name is default"
}
