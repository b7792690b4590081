package text

import (
	"errors"
	"strings"
	"testing"

	"cortexfs/node"
	"cortexfs/node/fault"
)

func TestCharacters(t *testing.T) {
	for _, c := range []struct {
		text  string
		chars Chars
		want  string // place, or empty for a good text
	}{
		{"", 0, ""},
		{"plain é 项目 \U0001f600\n\n", 0, ""},
		{"a\tb", Tab, ""},
		{"a\tb", 0, "1:2: TAB"},
		{"a\n\tb", 0, "2:1: TAB"},
		{"a\r\n", Tab | Loose, "1:2: carriage return"},
		{"a\n\x00", Tab | Loose, "2:1: NUL byte"},
		{"\x01", 0, "1:1: control byte 0x01"},
		{"\x1f", 0, "1:1: control byte 0x1f"},
		{"\x7f", Loose, "1:1: control byte 0x7f"},
		{"\u0080", 0, "1:1: C1 control character"},
		{"\u009f", 0, "1:1: C1 control character"},
		{"\u0085", Loose, ""},
		{"\u00a0", 0, ""},
		{"\u061c", 0, "1:1: bidi control character"},
		{"é\u200e", 0, "1:3: bidi control character"},
		{"\u200f", 0, "1:1: bidi control character"},
		{"\u202a\u202e", 0, "1:1: bidi control character"},
		{"\u2066", 0, "1:1: bidi control character"},
		{"\u2069", 0, "1:1: bidi control character"},
		{"\u202e", Loose, ""},
		{"\u200b\u2065\u206a", 0, ""},
		{"\ufeff", Loose, "1:1: byte order mark"},
		{"a\n\ufeff", 0, ""}, // a mark is one at the beginning only
		{"\xff", Loose, "1:1: not UTF-8"},
		{"\xc0\x80", 0, "1:1: not UTF-8"},         // overlong
		{"\xed\xa0\x80", 0, "1:1: not UTF-8"},     // surrogate
		{"\xf4\x90\x80\x80", 0, "1:1: not UTF-8"}, // over U+10FFFF
		{"\ufffd", 0, ""},
	} {
		got := ""
		var e *fault.Error
		if err := Check([]byte(c.text), c.chars); errors.As(err, &e) {
			got = e.Place()
		}
		if got != c.want {
			t.Errorf("Check(%q, %d) = %q, want %q", c.text, c.chars, got, c.want)
		}
		for i := 0; i <= len(c.text); i++ {
			if err := Prefix([]byte(c.text[:i]), c.chars); err != nil && c.want == "" {
				t.Errorf("Prefix(%q): %v", c.text[:i], err)
			}
		}
	}
}

func TestUnfinishedCharacters(t *testing.T) {
	for _, c := range []struct {
		text string
		ok   bool
	}{{"a\xe9", true}, {"\xe9\xa1", true}, {"\xf0\x9f\x98", true}, {"\xe9a", false}, {"\x80", false}, {"\xc0", false}, {"\xf5", false}, {"\xef\xbb", true}} {
		if err := Prefix([]byte(c.text), 0); (err == nil) != c.ok {
			t.Errorf("Prefix(%q): %v", c.text, err)
		}
		if Check([]byte(c.text), 0) == nil {
			t.Errorf("Check(%q) is nil", c.text)
		}
	}
}

// BadName and node.CheckName are one grammar in two forms.
func TestNamesAgree(t *testing.T) {
	for _, s := range []string{"", "a", "A9._+-", ".a", "-v", "_x", "a b", "a/b", "x.d", "x.sock", "x.dd", "d", ".d", "é", "a\x00", "a\n",
		strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("a", 62) + ".d", strings.Repeat("a", 300)} {
		_, why := BadName(s, node.MaxName)
		if (why == "") != node.IsName(s) {
			t.Errorf("%q: %q, CheckName says %v", s, why, node.CheckName(s))
		}
		for i := range s {
			if _, bad := BadNamePrefix(s[:i], node.MaxName); bad != "" && why == "" {
				t.Errorf("prefix %q of a name: %s", s[:i], bad)
			}
		}
	}
	if _, why := BadNamePrefix(strings.Repeat("a", 62)+".d", node.MaxName); why == "" {
		t.Error("a full name with a reserved end cannot become one")
	}
	if _, why := BadNamePrefix("x.d", node.MaxName); why != "" {
		t.Error("x.d can become x.data")
	}
}

func TestFirst(t *testing.T) {
	a, b := fault.Text(1, 9, "characters"), fault.Text(1, 2, "words")
	late := fault.Text(2, 1, "late")
	for _, c := range []struct{ chars, words, want error }{
		{nil, nil, nil}, {a, nil, a}, {nil, b, b}, {a, b, a}, {late, b, b}, {a, late, a},
	} {
		if got := First(c.chars, c.words); got != c.want {
			t.Errorf("First(%v, %v) = %v", c.chars, c.words, got)
		}
	}
}
