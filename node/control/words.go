package control

import (
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/text"
	"cortexfs/policy"
)

// Formats of one value.
var (
	numberFormat  = one("number", number)
	nameFormat    = one("name", objectName)
	absPathFormat = one("path", func(s string, done bool) (int, string) { return absPath(s, done, false) })
	labelFormat   = one("label", label)
	modelFormat   = one("model reference", policy.ModelRefFault)
	parentFormat  = oneOrNone("parent", parent)
)

// number is a plain decimal 0…4294967294.
func number(s string, done bool) (int, string) {
	if s == "" && done {
		return 1, "number is missing"
	}
	n := uint64(0)
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return i + 1, "not a plain decimal number: digits only"
		}
		if i > 0 && s[0] == '0' {
			return 1, "number with a leading zero"
		}
		if n = n*10 + uint64(s[i]-'0'); n > node.MaxUint {
			return 1, "number is over 4294967294"
		}
	}
	return 0, ""
}

// numberIsLast says whether no digit can follow a good number.
func numberIsLast(n uint32) bool { return n == 0 || uint64(n)*10 > node.MaxUint }

// oneOf makes the judge of a fixed list of words.
func oneOf(words ...string) valueFunc {
	return func(s string, done bool) (int, string) {
		for _, w := range words {
			if s == w || !done && strings.HasPrefix(w, s) {
				return 0, ""
			}
		}
		if len(words) == 1 {
			return 1, "the only value is " + words[0]
		}
		return 1, "unknown value, one of " + strings.Join(words, " ")
	}
}

func objectName(s string, done bool) (int, string) { return nameUpTo(s, node.MaxName, done) }

func nameUpTo(s string, max int, done bool) (int, string) {
	if done {
		return text.BadName(s, max)
	}
	return text.BadNamePrefix(s, max)
}

// absPath is an absolute path without `.` and `..`, and if strict also without
// empty components.
func absPath(s string, done, strict bool) (int, string) {
	if s == "" {
		if done {
			return 1, "path is missing"
		}
		return 0, ""
	}
	if s[0] != '/' {
		return 1, "not an absolute path"
	}
	if s == "/" {
		return 0, ""
	}
	col := 2
	parts := strings.Split(s[1:], "/")
	for i, p := range parts {
		if i == len(parts)-1 && !done {
			break // it may still grow
		}
		switch {
		case p == "." || p == "..":
			return col, "path with a . or .. component"
		case p == "" && strict:
			return col, "path with an empty component"
		}
		col += len(p) + 1
	}
	return 0, ""
}

// label hands the text to policy, which owns the grammar.
func label(s string, done bool) (int, string) {
	var err error
	if done {
		_, err = policy.ParseLabel(s)
	} else {
		err = policy.LabelPrefix(s)
	}
	if e, ok := err.(*fault.Error); ok {
		return e.Col, e.Err.Error()
	}
	return 0, ""
}

// parentWords are the words of `parent` in their order.
var parentWords = []struct {
	key   string
	value valueFunc
}{
	{"agent:", func(s string, done bool) (int, string) { return nameUpTo(s, node.MaxAgentName, done) }},
	{"session:", sessionName},
	{"run:", objectName},
}

func sessionName(s string, done bool) (int, string) {
	if done && s == "index" {
		return 1, "session name index is reserved"
	}
	return objectName(s, done)
}

// parent is `agent:<name> [session:<name>] [run:<id>]`.
func parent(s string, done bool) (int, string) {
	words := strings.Split(s, " ")
	next, col := 0, 1
	for i, w := range words {
		last := i == len(words)-1
		k, at, why := parentWord(w, next, done || !last)
		switch {
		case why != "":
			return col + at - 1, why
		case i == 0 && k > 0:
			return col, "the first word is agent:<name>"
		}
		next = k + 1
		col += len(w) + 1
	}
	return 0, ""
}

// parentWord finds which of the words from next on w is (or can become).
func parentWord(w string, next int, done bool) (k, col int, why string) {
	for k := next; k < len(parentWords); k++ {
		p := parentWords[k]
		if rest, ok := strings.CutPrefix(w, p.key); ok {
			col, why := p.value(rest, done)
			if why != "" {
				why = p.key + " " + why
			}
			return k, len(p.key) + col, why
		}
		if !done && strings.HasPrefix(p.key, w) {
			return k, 0, ""
		}
		if next == 0 {
			break
		}
	}
	switch {
	case next == 0:
		return 0, 1, "the first word is agent:<name>"
	case w == "":
		return 0, 1, "words are separated by one space"
	}
	return 0, 1, "not agent:<name> [session:<name>] [run:<id>] in this order"
}
