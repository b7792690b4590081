// Package node is the glossary of the tree: names, references, life-cycle words
// and fixed paths (spec sections 2, 3 and 11). It parses and prints them and
// holds no logic beyond that; everything below node/ and fs/ speaks in these
// terms.
package node

import (
	"strconv"
	"strings"

	"cortexfs/node/fault"
)

// Limits of spec section 3.
const (
	MaxName      = 64        // bytes of an object name
	MaxAgentName = 62        // so that <name>_t is an object name too
	MaxText      = 64 << 10  // bytes of a control text
	MaxUint      = 1<<32 - 2 // largest number in a control; 2^32-1 is "no id"
)

// Root is where agents see the tree, and how control texts spell it wherever it
// is mounted.
const Root = "/ctx"

// CheckName says whether s is an object name: 1–64 bytes of
// [A-Za-z0-9][A-Za-z0-9._+-]* not ending in .sock or .d. A name over 255 bytes
// is NameTooLong, any other bad one Invalid.
func CheckName(s string) error {
	if len(s) > 255 {
		return fault.Newf(fault.NameTooLong, "name of %d bytes", len(s))
	}
	if s == "" {
		return fault.Newf(fault.Invalid, "empty name")
	}
	if len(s) > MaxName {
		return fault.Newf(fault.Invalid, "name of %d bytes, at most %d are allowed", len(s), MaxName)
	}
	for i := 0; i < len(s); i++ {
		if !nameByte(s[i], i == 0) {
			return fault.Newf(fault.Invalid, "%q is not an object name: byte %d", s, i+1)
		}
	}
	if strings.HasSuffix(s, ".sock") || strings.HasSuffix(s, ".d") {
		return fault.Newf(fault.Invalid, "%q: an object name does not end in .sock or .d", s)
	}
	return nil
}

// IsName is CheckName as a question.
func IsName(s string) bool { return CheckName(s) == nil }

// CheckAgentName is CheckName with the shorter limit of agents.
func CheckAgentName(s string) error {
	if err := CheckName(s); err != nil {
		return err
	}
	if len(s) > MaxAgentName {
		return fault.Newf(fault.Invalid, "agent name of %d bytes, at most %d are allowed", len(s), MaxAgentName)
	}
	return nil
}

// IsNamePrefix says whether s can still grow into an object name.
func IsNamePrefix(s string) bool {
	if len(s) > MaxName {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !nameByte(s[i], i == 0) {
			return false
		}
	}
	return true
}

func nameByte(c byte, first bool) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	case c == '.', c == '_', c == '+', c == '-':
		return !first
	}
	return false
}

// ParseUint reads a number of a control: decimal digits without sign or leading
// zero, 0…4294967294.
func ParseUint(s string) (uint32, error) {
	if s == "" {
		return 0, fault.Newf(fault.Invalid, "empty number")
	}
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, fault.Newf(fault.Invalid, "%q is not a plain decimal number", s)
		}
	}
	if len(s) > 1 && s[0] == '0' {
		return 0, fault.Newf(fault.Invalid, "%q has a leading zero", s)
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > MaxUint {
		return 0, fault.Newf(fault.Invalid, "%s is over %d", s, uint32(MaxUint))
	}
	return uint32(n), nil
}

// State is a word of the agent's life cycle (spec section 11).
type State string

// The states, in order: start → ready → busy ⇄ idle → stopping → dead.
const (
	Start    State = "start"
	Ready    State = "ready"
	Busy     State = "busy"
	Idle     State = "idle"
	Stopping State = "stopping"
	Dead     State = "dead"
)

// Alive says whether an agent in this state has a host process.
func (s State) Alive() bool { return s != Dead && s != "" }
