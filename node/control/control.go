// Package control is the registry of control files: every file that an agent, a
// tool or a model has in its `.d` directory is one literal in one table (spec
// sections 2, 5, 6 and 19).
//
// Ideas. The table is the documentation: the tree, the checks, `ctx file`, the
// man page, completion, tests and fuzzers all walk it, so a new control is one
// more literal. And a text is judged in two ways: Check judges a whole text,
// Prefix judges the beginning of one that is still being written and refuses it
// only when no further byte could make it good (spec section 4.2). Both come
// from the same line judges, so they cannot disagree.
//
// Everything here is immutable after start and safe for concurrent use; there are
// no locks. The package judges texts alone: who may write them, whether a uid
// belongs to the writer, whether a parent exists, and attenuation are judged
// where those facts are known (node/agent). It stores nothing and does no I/O.
//
// Errors are fault errors of kind Invalid with line and column, or TooBig. Their
// messages never repeat the refused text (spec section 4.9).
package control

import (
	"cortexfs/node"
	"cortexfs/node/fault"
)

// Format judges the texts of a control.
type Format interface {
	// Name is the word for the format in help texts.
	Name() string
	// Check judges a whole text. A missing last LF is accepted unless the
	// format needs it.
	Check(text []byte) error
	// Prefix judges the beginning of a text: nil unless no text that begins so
	// passes Check.
	Prefix(text []byte) error
}

// Kind is what an entry is.
type Kind uint8

// The kinds of entries.
const (
	Durable Kind = iota // a text in the store
	Live                // a text made at every read; never written
	Dir                 // a directory of executables with entries pre.d, post.d
	Exec                // an executable, streamed to the store
	ViewDir             // the live directory of spec section 9
)

func (k Kind) String() string {
	return [...]string{"durable", "live", "dir", "exec", "view"}[k]
}

// Applies is when a committed text is in force (spec section 5).
type Applies string

// The times of spec section 5.
const (
	NextCall  Applies = "next call"
	NextRun   Applies = "next run"
	NextStart Applies = "next start"
	AtOnce    Applies = "at once"
	Never     Applies = "never"
)

// Object is what the defaults of an object's controls depend on. The runtime ids
// of an owner 0 are no default: they come from a pool and are written when the
// object is made.
type Object struct {
	Name     string
	Home     bool   // of home/<uid>, not of the system tier
	Owner    uint32 // uid that owns the object
	OwnerGID uint32 // the owner's primary gid
	Root     bool   // the daemon runs as root
	Groups   []uint32
	// Groups are the supplementary groups that a user's daemon cannot drop; a
	// root daemon leaves them empty.
}

// Example is a text and the kind of its refusal.
type Example struct {
	Text string
	Kind fault.Kind
}

// Entry is one control. It is not to be changed.
type Entry struct {
	Name     string
	Format   Format // nil unless Durable or Live
	Kind     Kind
	Mode     uint32 // permission bits
	Required bool   // an object without it in the store does not start
	FinalLF  bool   // a missing last LF is an error, not added
	Optional bool   // not there until written: not listed, no default
	Only     string // exists for the object of this name only
	Default  func(Object) string
	Applies  Applies
	Grants   bool // may influence a decision; false: no decision may read it
	Doc      string
	Long     string
	Good     []string
	Bad      []Example
}

// DefaultText is the text that the control has when the store has none.
func (e *Entry) DefaultText(o Object) string {
	if e.Default == nil {
		return ""
	}
	return e.Default(o)
}

// Writable says whether a person may ever change the entry's text.
func (e *Entry) Writable() bool { return e.Kind == Durable }

// Judge judges a whole text, size included: over 64 KiB with its last LF is
// TooBig, a bad text Invalid, a control without text Perm.
func (e *Entry) Judge(text []byte) error { return e.judge(e.Format, text) }

// JudgeFor is Judge for the text of a known object: lines of `env` that repeat
// what the runtime sets for it are good then.
func (e *Entry) JudgeFor(o Object, text []byte) error { return e.judge(e.formatFor(o), text) }

func (e *Entry) judge(f Format, text []byte) error {
	if err := e.writable(f, text); err != nil {
		return err
	}
	return f.Check(text)
}

// JudgePrefix judges the beginning of a text: nil unless no text that begins so
// passes Judge.
func (e *Entry) JudgePrefix(text []byte) error { return e.judgePrefix(e.Format, text) }

// JudgePrefixFor is JudgePrefix for the text of a known object.
func (e *Entry) JudgePrefixFor(o Object, text []byte) error {
	return e.judgePrefix(e.formatFor(o), text)
}

func (e *Entry) judgePrefix(f Format, text []byte) error {
	if err := e.writable(f, text); err != nil {
		return err
	}
	return f.Prefix(text)
}

// writable judges all but what the text says.
func (e *Entry) writable(f Format, text []byte) error {
	if e.Kind != Durable || f == nil {
		return fault.Newf(fault.Perm, "%s is not written", e.Name)
	}
	if size(text) > node.MaxText {
		return fault.Newf(fault.TooBig, "text is over %d bytes", node.MaxText)
	}
	return nil
}

// size is the length of the normalized text.
func size(text []byte) int {
	if n := len(text); n > 0 && text[n-1] != '\n' {
		return n + 1
	}
	return len(text)
}

// formatFor is the entry's format, made for the object where that matters.
func (e *Entry) formatFor(o Object) Format {
	if f, ok := e.Format.(interface{ For(Object) Format }); ok {
		return f.For(o)
	}
	return e.Format
}

// Normalize is the text that is committed for a valid one: with a last LF, where
// the text is not empty. The argument is not changed.
func Normalize(text []byte) []byte {
	if len(text) == 0 || text[len(text)-1] == '\n' {
		return text
	}
	return append(text[:len(text):len(text)], '\n')
}

// Set is the table of one kind of object, in the order in which it is explained.
type Set struct {
	entries []*Entry
	byName  map[string]*Entry
}

// Lookup is the entry of that name, or nil.
func (s *Set) Lookup(name string) *Entry { return s.byName[name] }

// Entries are all entries in order. The slice is the caller's.
func (s *Set) Entries() []*Entry { return append([]*Entry(nil), s.entries...) }

// newSet makes a table; a repeated name is a mistake in this package.
func newSet(entries ...*Entry) *Set {
	s := &Set{byName: map[string]*Entry{}}
	for _, e := range entries {
		if s.byName[e.Name] != nil {
			panic("control: entry " + e.Name + " twice")
		}
		s.byName[e.Name] = e
		s.entries = append(s.entries, e)
	}
	return s
}
