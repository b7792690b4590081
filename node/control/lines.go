package control

import (
	"strings"

	"cortexfs/node/fault"
	"cortexfs/node/text"
)

// judge reads one text line by line and keeps what earlier lines said. A new one
// is made for every text.
type judge interface {
	line(n int, s string) error // a finished line, n from 1
	part(n int, s string) error // the beginning of a line, not empty
	end() error                 // the text is over
}

// lineFormat is a format that is judged line by line.
type lineFormat struct {
	name    string
	chars   text.Chars
	finalLF bool // the last line must end in LF
	new     func() judge
}

func (f *lineFormat) Name() string          { return f.name }
func (f *lineFormat) Check(b []byte) error  { return f.run(f.new(), b) }
func (f *lineFormat) Prefix(b []byte) error { return prefixRun(f.new(), f.chars, b) }

// run judges a whole text with j, which afterwards holds what the text says.
func (f *lineFormat) run(j judge, b []byte) error {
	words := text.Lines(b, j.line, j.line)
	if err := text.First(text.Check(b, f.chars), words); err != nil {
		return err
	}
	if f.finalLF && len(b) > 0 && b[len(b)-1] != '\n' {
		n := strings.Count(string(b), "\n") + 1
		return fault.Text(n, len(b)-strings.LastIndexByte(string(b), '\n'), "the last line does not end in a newline")
	}
	return j.end()
}

func prefixRun(j judge, c text.Chars, b []byte) error {
	return text.First(text.Prefix(b, c), text.Lines(b, j.line, j.part))
}

// valueFunc judges a word: whole (done), or its beginning. It answers the byte
// (from 1) and the reason; an empty reason means that the word is good.
type valueFunc func(s string, done bool) (col int, why string)

// single is the judge of a control with one value: one line, equal to its own
// trimmed form (spec section 3).
type single struct {
	value valueFunc
	empty bool // no value is a value too
	seen  bool
	got   string
}

func (j *single) line(n int, s string) error {
	switch {
	case j.seen && s == "":
		return fault.Text(n, 1, "a blank line after the value")
	case j.seen:
		return fault.Text(n, 1, "a second line: this control holds one value")
	case s == "" && j.empty:
	case s == "":
		return fault.Text(n, 1, "the value is empty")
	default:
		if err := padding(n, s, true); err != nil {
			return err
		}
		if col, why := j.value(s, true); why != "" {
			return fault.Text(n, col, "%s", why)
		}
	}
	j.seen, j.got = true, s
	return nil
}

func (j *single) part(n int, s string) error {
	if j.seen {
		return fault.Text(n, 1, "a second line: this control holds one value")
	}
	if err := padding(n, s, false); err != nil {
		return err
	}
	if col, why := j.value(s, false); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	return nil
}

func (j *single) end() error {
	if !j.seen && !j.empty {
		return fault.Text(1, 1, "the value is empty")
	}
	return nil
}

// padding refuses a line with blanks before it, and if it is done, after it.
func padding(n int, s string, done bool) error {
	if strings.TrimLeft(s, " \t\u00a0\u3000") != s || strings.TrimSpace(s) == "" {
		return fault.Text(n, 1, "blank before the value")
	}
	if t := strings.TrimSpace(s); done && t != s {
		return fault.Text(n, len(t)+1, "blank after the value")
	}
	return nil
}

// one makes the format of a single value.
func one(name string, value valueFunc) *lineFormat {
	return &lineFormat{name: name, new: func() judge { return &single{value: value} }}
}

// oneOrNone is one for a value that may be missing.
func oneOrNone(name string, value valueFunc) *lineFormat {
	return &lineFormat{name: name, new: func() judge { return &single{value: value, empty: true} }}
}

// value reads the single value of a text.
func value(f *lineFormat, b []byte) (string, error) {
	j := f.new().(*single)
	err := f.run(j, b)
	return j.got, err
}
