package node

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Escape makes data safe to print on a terminal: C0 and C1 controls, DEL, the
// bidirectional controls, line and paragraph separators, zero-width characters
// and bytes that are not UTF-8 become visible escapes (spec sections 12 and 22).
// LF and TAB are escaped too: callers print data inside a line of their own.
func Escape(s string) string {
	clean := true
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] >= 0x7f {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\x` + hex2(s[0]))
		case r < 0x20 || r == 0x7f:
			switch r {
			case '\n':
				b.WriteString(`\n`)
			case '\r':
				b.WriteString(`\r`)
			case '\t':
				b.WriteString(`\t`)
			default:
				b.WriteString(`\x` + hex2(byte(r)))
			}
		case Deceptive(r):
			b.WriteString(`\u{` + strconv.FormatInt(int64(r), 16) + `}`)
		default:
			b.WriteString(s[:size])
		}
		s = s[size:]
	}
	return b.String()
}

// EscapeLines is Escape for a text of several lines: LF and TAB stay.
func EscapeLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		fields := strings.Split(l, "\t")
		for j, f := range fields {
			fields[j] = Escape(f)
		}
		lines[i] = strings.Join(fields, "\t")
	}
	return strings.Join(lines, "\n")
}

// Deceptive says whether r can make a line read as something else: C1 controls,
// bidirectional controls, separators, zero-width characters.
func Deceptive(r rune) bool {
	return IsC1(r) || IsBidi(r) ||
		r == 0x2028 || r == 0x2029 || (r >= 0x200b && r <= 0x200d) || r == 0x2060 || r == 0xfeff
}

// IsC1 says whether r is a C1 control.
func IsC1(r rune) bool { return r >= 0x80 && r <= 0x9f }

// IsBidi says whether r is a bidirectional control (UAX #9).
func IsBidi(r rune) bool {
	return r == 0x061c || r == 0x200e || r == 0x200f || (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069)
}

func hex2(c byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[c>>4], digits[c&15]})
}
