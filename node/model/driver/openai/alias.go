package openai

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"cortexfs/node"
	"cortexfs/node/model"
)

// maxAlias is the longest name that the API takes.
const maxAlias = 64

// Aliases is a reversible table between the real names of tools and names of
// letters, digits, _ and -. A name that is fine stays as it is and wins over any
// alias. Two names never share one: the second gets a digest of its own, and one
// that collides even so is left out. The table depends on the set of names only.
type Aliases struct {
	to, from map[string]string
	LeftOut  []string // names without an alias, sorted
}

// NewAliases makes the table. forms is model.NamesOpenAI or model.NamesAny.
func NewAliases(names []string, forms string) *Aliases {
	a := &Aliases{to: map[string]string{}, from: map[string]string{}}
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	var rest []string
	for _, name := range names {
		if forms == model.NamesAny || accepted(name) {
			a.add(name, name)
		} else {
			rest = append(rest, name)
		}
	}
	for _, name := range rest {
		if !a.add(name, replaced(name)) && !a.add(name, digested(name)) {
			a.LeftOut = append(a.LeftOut, name)
		}
	}
	return a
}

func (a *Aliases) add(name, alias string) bool {
	if _, taken := a.from[alias]; taken || !node.IsName(name) {
		return false
	}
	a.to[name], a.from[alias] = alias, name
	return true
}

// Alias is the name under which a tool travels; false: it was left out.
func (a *Aliases) Alias(name string) (string, bool) {
	s, ok := a.to[name]
	return s, ok
}

// Name is the real name of an alias; a name that is no alias is itself.
func (a *Aliases) Name(alias string) string {
	if s, ok := a.from[alias]; ok {
		return s
	}
	return alias
}

func accepted(name string) bool {
	return name != "" && len(name) <= maxAlias && replaced(name) == name
}

func replaced(name string) string {
	b := []byte(name)
	for i, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			b[i] = '_'
		}
	}
	return string(b[:min(len(b), maxAlias)])
}

func digested(name string) string {
	sum := sha256.Sum256([]byte(name))
	end := "_" + hex.EncodeToString(sum[:6])
	s := replaced(name)
	return s[:min(len(s), maxAlias-len(end))] + end
}
