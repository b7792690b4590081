// Package text judges the characters of a control text (spec section 3) and
// cuts it into lines. It is below both node/control and policy, which judge what
// the lines say.
//
// Its one idea is that every text can be judged in two ways: whole, and as the
// beginning of a text that is still being written (spec section 4.2). The second
// refuses only what no further byte can repair: an unfinished UTF-8 sequence at
// the end is fine, a wrong byte is not.
//
// Messages name what is wrong and the place, and never repeat the text: they are
// shown in an extended attribute and in a log (spec section 4.9).
package text

import (
	"bytes"
	"errors"
	"strings"
	"unicode/utf8"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// Chars says which characters a format takes beyond the plain ones.
type Chars uint8

// What a format may add.
const (
	Tab   Chars = 1 << iota // TAB
	Loose                   // C1 and bidi controls: the prompts
)

// Check judges the characters of a whole text: UTF-8 without a byte order mark,
// no control bytes but LF (and TAB with Tab), no C1 and bidi controls (save with
// Loose). The error is a fault.Error of kind Invalid with line and column.
func Check(b []byte, c Chars) error { return check(b, 0, 1, c, true) }

// Prefix judges the beginning of a text: nil unless no text that begins so can
// pass Check.
func Prefix(b []byte, c Chars) error { return check(b, 0, 1, c, false) }

// PrefixFrom is Prefix for a text whose bytes before from, the start of the given
// line, are known to be good.
func PrefixFrom(b []byte, from, line int, c Chars) error { return check(b, from, line, c, false) }

func check(b []byte, from, line int, c Chars, whole bool) error {
	if from == 0 && len(b) >= 3 && b[0] == 0xEF && b[1] == 0xBB && b[2] == 0xBF {
		return fault.Text(1, 1, "byte order mark")
	}
	start := from
	for i := from; i < len(b); {
		ch := b[i]
		if ch >= ' ' && ch < 0x7F {
			i++
			continue
		}
		if ch == '\n' {
			i++
			line, start = line+1, i
			continue
		}
		if ch < utf8.RuneSelf {
			if ch == '\t' && c&Tab != 0 {
				i++
				continue
			}
			return fault.Text(line, i-start+1, "%s", byteName(ch))
		}
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			if !whole && !utf8.FullRune(b[i:]) {
				return nil // the rest of the character may follow
			}
			return fault.Text(line, i-start+1, "not UTF-8")
		}
		if c&Loose == 0 {
			if why := refusedRune(r); why != "" {
				return fault.Text(line, i-start+1, "%s", why)
			}
		}
		i += n
	}
	return nil
}

func byteName(c byte) string {
	switch c {
	case 0:
		return "NUL byte"
	case '\r':
		return "carriage return"
	case '\t':
		return "TAB"
	case 0x7F:
		return "control byte 0x7f"
	}
	const hex = "0123456789abcdef"
	return "control byte 0x" + string([]byte{hex[c>>4], hex[c&15]})
}

// refusedRune names a C1 control or one that changes the direction of text: they
// make a line look like another one.
func refusedRune(r rune) string {
	switch {
	case r >= 0x80 && r <= 0x9F:
		return "C1 control character"
	case r == 0x061C, r == 0x200E, r == 0x200F, r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069:
		return "bidi control character"
	}
	return ""
}

// Lines calls line for every line that a LF ends, numbered from 1, and then, if
// the text does not end in one, last for the rest. The first error ends it.
func Lines(b []byte, line, last func(n int, s string) error) error {
	return LinesFrom(b, 1, line, last)
}

// LinesFrom is Lines for a rest whose first line has number n.
func LinesFrom(b []byte, n int, line, last func(n int, s string) error) error {
	for ; len(b) > 0; n++ {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			return last(n, string(b))
		}
		if err := line(n, string(b[:i])); err != nil {
			return err
		}
		b = b[i+1:]
	}
	return nil
}

// First is the error that stands on the earlier line: that of the characters, or
// that of the words. On one line it is the first, because a carriage return also
// makes the word before it a bad one, and only its own name helps.
func First(chars, words error) error {
	var c, w *fault.Error
	switch {
	case !errors.As(chars, &c):
		return words
	case !errors.As(words, &w) || c.Line <= w.Line:
		return chars
	}
	return words
}

// BadName says why s is no object name of at most max bytes, and at which byte
// (from 1); an empty reason means that it is one. It differs from node.CheckName
// in that the reason does not repeat the name.
func BadName(s string, max int) (col int, why string) {
	if s == "" {
		return 1, "name is missing"
	}
	if col, why := BadNamePrefix(s, max); why != "" {
		return col, why
	}
	if reservedEnd(s) {
		return 1, "a name does not end in .sock or .d"
	}
	return 0, ""
}

// BadNamePrefix is BadName for a name that may still grow.
func BadNamePrefix(s string, max int) (col int, why string) {
	for i := 0; i < len(s); i++ {
		if i == max {
			return i + 1, "name is too long"
		}
		if !node.IsNamePrefix(s[i:i+1]) && (i == 0 || !node.IsNamePrefix("a"+s[i:i+1])) {
			if i == 0 {
				return 1, "a name begins with a letter or a digit"
			}
			return i + 1, "a name has letters, digits and . _ + - only"
		}
	}
	if len(s) == max && reservedEnd(s) {
		return 1, "a name does not end in .sock or .d"
	}
	return 0, ""
}

func reservedEnd(s string) bool {
	return strings.HasSuffix(s, ".sock") || strings.HasSuffix(s, ".d")
}
