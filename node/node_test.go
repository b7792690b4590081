package node

import (
	"strings"
	"testing"

	"cortexfs/node/fault"
)

func TestCheckName(t *testing.T) {
	for _, c := range []struct {
		name string
		kind fault.Kind
		ok   bool
	}{
		{"coder", 0, true}, {"a", 0, true}, {"9", 0, true}, {"fs.read", 0, true}, {"A_b+c-d.e", 0, true},
		{strings.Repeat("a", 64), 0, true}, {"x.", 0, true}, {"x.dd", 0, true}, {"index", 0, true},
		{"", fault.Invalid, false}, {".", fault.Invalid, false}, {"..", fault.Invalid, false},
		{".git", fault.Invalid, false}, {"-v", fault.Invalid, false}, {"_x", fault.Invalid, false},
		{"a/b", fault.Invalid, false}, {"a b", fault.Invalid, false}, {"a\x00", fault.Invalid, false},
		{"a\n", fault.Invalid, false}, {"é", fault.Invalid, false}, {"x.d", fault.Invalid, false},
		{"x.sock", fault.Invalid, false}, {strings.Repeat("a", 65), fault.Invalid, false},
		{strings.Repeat("a", 255), fault.Invalid, false}, {strings.Repeat("a", 256), fault.NameTooLong, false},
	} {
		err := CheckName(c.name)
		if (err == nil) != c.ok {
			t.Errorf("CheckName(%q) = %v, want ok=%v", c.name, err, c.ok)
		} else if err != nil && fault.KindOf(err) != c.kind {
			t.Errorf("CheckName(%q) is %v, want %v", c.name, fault.KindOf(err), c.kind)
		}
		if c.ok {
			for i := range c.name {
				if !IsNamePrefix(c.name[:i]) {
					t.Errorf("%q is not seen as a prefix of %q", c.name[:i], c.name)
				}
			}
		}
	}
	if CheckAgentName(strings.Repeat("a", 62)) != nil || CheckAgentName(strings.Repeat("a", 63)) == nil {
		t.Error("agent names are at most 62 bytes")
	}
}

func TestParseUint(t *testing.T) {
	for s, want := range map[string]uint32{"0": 0, "1": 1, "1000": 1000, "4294967294": 4294967294} {
		if got, err := ParseUint(s); err != nil || got != want {
			t.Errorf("ParseUint(%q) = %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "01000", "+1000", " 1000", "1000 ", "1e3", "-1", "4294967295", "4294967296",
		"99999999999999999999", "१०००", "0x10", "1_000", "00"} {
		if got, err := ParseUint(s); err == nil {
			t.Errorf("ParseUint(%q) = %d, want an error", s, got)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain text": "plain text", "日本 🚀": "日本 🚀", "a\x1b[2Jb": `a\x1b[2Jb`, "x\r\n\t": `x\r\n\t`,
		"\u202egnp": `\u{202e}gnp`, "\u009b31m": `\u{9b}31m`, "\xff": `\xff`, "\x7f": `\x7f`, "a\u200bb": `a\u{200b}b`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := EscapeLines("a\tb\x07\nc"), "a\tb\\x07\nc"; got != want {
		t.Errorf("EscapeLines = %q, want %q", got, want)
	}
}
