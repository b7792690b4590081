package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cortexfs/node"
	"cortexfs/node/fault"
)

func TestBadTexts(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"allow coder_t tool:fs.read execute\r\n", "1:35: carriage return"},
		{"# c\nallow\n", "2:6: 1 words, a rule is `allow SUBJECT CLASS:NAME PERMISSION`"},
		{"deny a_t tool:x execute\n", "1:1: a rule begins with allow"},
		{"allow a_t tool:x execute x\n", "1:26: more than four words"},
		{" allow a_t tool:x execute\n", "1:1: blank before the first word"},
		{"allow a_t tool:x execute \n", "1:25: blank after the last word"},
		{"allow a_t tool:x \n", "1:17: blank after the last word"},
		{" \n", "1:1: blank before the first word"},
		{"allow a_t files:x read\n", "1:11: unknown class, one of tool model shared session mount agent network"},
		{"allow a_t tool:x read\n", "1:18: unknown permission of class tool, one of execute"},
		{"allow a_t shared:x resume\n", "1:20: unknown permission of class shared, one of read write"},
		{"allow a_t tool:x* execute\n", "1:17: tool: a name has letters, digits and . _ + - only"},
		{"allow a_t tool: execute\n", "1:16: tool: name is missing"},
		{"allow a_t tool execute\n", "1:15: a class is followed by : and a name"},
		{"allow .a tool:x execute\n", "1:7: subject: a name begins with a letter or a digit"},
		{"allow a_t network:lan connect\n", "1:19: network: the only name is default"},
		{"allow a_t model:a/b/c use\n", "1:20: model: a name has letters, digits and . _ + - only"},
		{"allow a_t agent:" + strings.Repeat("a", 63) + " read\n", "1:79: agent: name is too long"},
		{"\ufeff# x\n", "1:1: byte order mark"},
		{"# \x00\n", "1:3: NUL byte"},
		{"# \x1b\n", "1:3: control byte 0x1b"},
		{"# \x7f\n", "1:3: control byte 0x7f"},
		{"# \u0085\n", "1:3: C1 control character"},
		{"# \u202e\n", "1:3: bidi control character"},
		{"# \xff\n", "1:3: not UTF-8"},
		{"# \xc3", "1:3: not UTF-8"},
	} {
		_, err := Parse([]byte(c.text))
		var e *fault.Error
		if !errors.As(err, &e) || e.Kind != fault.Invalid || e.Place() != c.want {
			t.Errorf("Parse(%q) = %v, want %s", c.text, err, c.want)
		}
	}
}

// Every line must be read one way only; a bad one voids the whole text.
func TestParse(t *testing.T) {
	s := mustParse(t, "# c\n\nallow a_t \t tool:x\texecute\nallow b_t model:p/m use\nallow a_t tool:x execute")
	want := []Rule{
		{"a_t", Tool, "x", Execute, 3},
		{"b_t", Model, "p/m", Use, 4},
		{"a_t", Tool, "x", Execute, 5},
	}
	if got := s.Rules(); !slices.Equal(got, want) {
		t.Errorf("rules %v", got)
	}
	if line, ok := s.Allows("a_t", Tool, "x", Execute); line != 3 || !ok {
		t.Errorf("a repeated rule is found on line %d, want the first", line)
	}
	for _, q := range []Rule{{"b_t", Tool, "x", Execute, 0}, {"a_t", Model, "x", Execute, 0}, {"a_t", Tool, "y", Execute, 0}, {"a_t", Tool, "x", Use, 0}, {"A_t", Tool, "x", Execute, 0}} {
		if _, ok := s.Allows(q.Subject, q.Class, q.Name, q.Perm); ok {
			t.Errorf("%v is allowed", q)
		}
	}
	if got := s.Subjects(); !slices.Equal(got, []string{"a_t", "b_t"}) {
		t.Errorf("subjects %v", got)
	}
	if got := s.Names("a_t", Tool, Execute); !slices.Equal(got, []string{"x"}) {
		t.Errorf("names %v", got)
	}
}

func TestNilSetAllowsNothing(t *testing.T) {
	var s *Set
	if _, ok := s.Allows("a_t", Tool, "x", Execute); ok || s.Rules() != nil || s.Names("a_t", Tool, Execute) != nil || s.Subjects() != nil {
		t.Error("a nil set says something")
	}
}

func TestLabels(t *testing.T) {
	for _, c := range []struct {
		text string
		want Label
		bad  bool
	}{
		{"user_u:agent_r:coder_t:s0", Label{"user_u", "agent_r", "coder_t", "s0"}, false},
		{"coder_t", Label{Type: "coder_t"}, false},
		{"", Label{}, true},
		{"a:b:c", Label{}, true},
		{"a:b", Label{}, true},
		{"a:b:c:d:e", Label{}, true},
		{"a::c:d", Label{}, true},
		{"a:b:c:", Label{}, true},
		{"a:b:c.d:e", Label{}, true},
		{"a b", Label{}, true},
	} {
		got, err := ParseLabel(c.text)
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("ParseLabel(%q) = %v, %v", c.text, got, err)
		}
		if err == nil && got.String() != c.text {
			t.Errorf("label %q prints as %q", c.text, got)
		}
		if err == nil {
			for i := range c.text {
				if err := LabelPrefix(c.text[:i]); err != nil {
					t.Errorf("LabelPrefix(%q): %v", c.text[:i], err)
				}
			}
		}
	}
	for _, s := range []string{":", "a::", "a:b:c:d:", "a:b:x.d:", "-"} {
		if LabelPrefix(s) == nil {
			t.Errorf("LabelPrefix(%q) sees a label coming", s)
		}
	}
}

var genName = rapid.Custom(func(t *rapid.T) string {
	s := rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._+-]{0,9}`).Draw(t, "name")
	if !node.IsName(s) {
		return "x"
	}
	return s
})

var genRule = rapid.Custom(func(t *rapid.T) Rule {
	g := rapid.SampledFrom(grammar).Draw(t, "class")
	r := Rule{Subject: genName.Draw(t, "subject"), Class: g.class, Perm: rapid.SampledFrom(g.perms).Draw(t, "perm"), Name: genName.Draw(t, "object")}
	switch {
	case g.class == Network:
		r.Name = "default"
	case g.class == Model && rapid.Bool().Draw(t, "full"):
		r.Name += "/" + genName.Draw(t, "model")
	}
	return r
})

// genText is a valid policy and its rules.
func genText(t *rapid.T) (string, []Rule) {
	var b strings.Builder
	var rules []Rule
	n := rapid.IntRange(0, 6).Draw(t, "lines")
	for i := 1; i <= n; i++ {
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			b.WriteString(rapid.SampledFrom([]string{"", "#", "# é 项目", "#\tx  "}).Draw(t, "comment"))
		default:
			r := genRule.Draw(t, "rule")
			r.Line = i
			rules = append(rules, r)
			gap := rapid.SampledFrom([]string{" ", "  ", "\t", " \t "})
			fmt.Fprintf(&b, "allow%s%s%s%s:%s%s%s", gap.Draw(t, "g"), r.Subject, gap.Draw(t, "g"), r.Class, r.Name, gap.Draw(t, "g"), r.Perm)
		}
		if i < n || rapid.Bool().Draw(t, "lf") {
			b.WriteByte('\n')
		}
	}
	return b.String(), rules
}

// What is written is what is read, no prefix of it is refused, and the canonical
// text says the same.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, rules := genText(t)
		s, err := Parse([]byte(text))
		if err != nil {
			t.Fatalf("Parse(%q): %v", text, err)
		}
		if !slices.Equal(s.Rules(), rules) {
			t.Fatalf("%q reads as %v, want %v", text, s.Rules(), rules)
		}
		for i := 0; i <= len(text); i++ {
			if err := Prefix([]byte(text[:i])); err != nil {
				t.Fatalf("Prefix(%q) of a valid text: %v", text[:i], err)
			}
		}
		var canon strings.Builder
		for _, r := range rules {
			if line, ok := s.Allows(r.Subject, r.Class, r.Name, r.Perm); !ok || line > r.Line {
				t.Fatalf("%v of line %d: %d %v", r, r.Line, line, ok)
			}
			canon.WriteString(r.String() + "\n")
		}
		again, err := Parse([]byte(canon.String()))
		if err != nil || len(again.Rules()) != len(rules) {
			t.Fatalf("canonical text %q: %v", canon.String(), err)
		}
	})
}

// A rule that the text does not have is not allowed: no rule implies another.
func TestNoRuleImpliesAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text, rules := genText(t)
		s, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		q := genRule.Draw(t, "question")
		want := slices.ContainsFunc(rules, func(r Rule) bool { r.Line = 0; return r == q })
		if _, ok := s.Allows(q.Subject, q.Class, q.Name, q.Perm); ok != want {
			t.Fatalf("%v in %q: %v", q, text, ok)
		}
	})
}

func FuzzPolicy(f *testing.F) {
	for _, s := range []string{"", "\n", "#", "allow", "allow a_t tool:x execute\n", "allow a_t model:p/m use\r\n", "allow a_t network:default connect",
		"allow a_t  agent:b\tread\n\n# é\n", "\ufeff", "allow a_t tool:x execute \n", "allow a_t tool:x.d execute\n", "# \u202e"} {
		f.Add([]byte(s), []byte("x execute\n"))
	}
	f.Fuzz(func(t *testing.T, text, more []byte) {
		s, err := Parse(text)
		if err == nil {
			for _, r := range s.Rules() {
				if one, err := Parse([]byte(r.String())); err != nil || len(one.Rules()) != 1 {
					t.Fatalf("rule %q does not read back: %v", r, err)
				}
			}
		} else if s != nil {
			t.Fatal("a bad text left a set")
		}
		for i := 0; i <= len(text); i++ {
			bad := Prefix(text[:i])
			if bad != nil && err == nil {
				t.Fatalf("%q is valid but its prefix of %d bytes is refused: %v", text, i, bad)
			}
			if bad != nil {
				if _, err := Parse(append(text[:i:i], more...)); err == nil {
					t.Fatalf("prefix %q is refused, yet %q makes it valid", text[:i], more)
				}
			}
		}
	})
}

// bigSet has n rules of which the last is the one that is asked for.
func bigSet(t testing.TB, n int) *Set {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "allow agent%d_t tool:tool.%d execute\n", i%7, i)
	}
	b.WriteString(ruleText + "\n")
	return mustParse(t, b.String())
}

func TestAllowsAllocatesNothing(t *testing.T) {
	s := bigSet(t, 1000)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := s.Allows("coder_t", Tool, "fs.read", Execute); !ok {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAllows(b *testing.B) {
	for _, n := range []int{1, 1000} {
		s := bigSet(b, n)
		b.Run(fmt.Sprintf("rules=%d", n+1), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Allows("coder_t", Tool, "fs.read", Execute)
			}
		})
	}
}
