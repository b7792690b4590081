package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/text"
)

// durable are the entries that have a text of their own to judge, by name.
func durable() map[string]*Entry {
	all := map[string]*Entry{}
	for _, s := range sets {
		for _, e := range s.set.Entries() {
			if e.Kind == Durable {
				all[s.name+"/"+e.Name] = e
			}
		}
	}
	return all
}

func names(m map[string]*Entry) []string {
	var all []string
	for n := range m {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// prefixes fails unless every prefix of a valid text may become valid.
func prefixes(t *rapid.T, f Format, b []byte) {
	if err := f.Check(b); err != nil {
		t.Fatalf("the generator made a bad text %q: %v", b, err)
	}
	for i := 0; i <= len(b); i++ {
		if err := f.Prefix(b[:i]); err != nil {
			t.Fatalf("prefix %q of the valid %q: %v", b[:i], b, err)
		}
	}
}

var (
	drawName = rapid.Custom(func(t *rapid.T) string {
		s := rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._+-]{0,11}`).Draw(t, "name")
		if !node.IsName(s) || s == Reserved || s == "index" {
			return "n"
		}
		return s
	})
	drawPath = rapid.Custom(func(t *rapid.T) string {
		return "/" + strings.Join(rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z ]{0,2}[a-zé.]?[a-z]`), 1, 4, rapid.ID[string]).Draw(t, "path"), "/")
	})
)

// lines joins distinct things to a text; the last LF is left to chance unless
// the format needs it.
func lines(t *rapid.T, all []string, finalLF bool) []byte {
	s := strings.Join(all, "\n")
	if len(all) > 0 && (finalLF || rapid.Bool().Draw(t, "lf")) {
		s += "\n"
	}
	return []byte(s)
}

// generators of valid texts for the formats that have a grammar of their own.
var generators = map[string]func(t *rapid.T) []byte{
	"agent/groups": func(t *rapid.T) []byte {
		ids := rapid.SliceOfDistinct(rapid.Uint32Range(0, node.MaxUint), rapid.ID[uint32]).Draw(t, "ids")
		var all []string
		for _, id := range ids {
			all = append(all, utoa(id))
		}
		return lines(t, all, false)
	},
	"agent/label": func(t *rapid.T) []byte {
		n := rapid.SampledFrom([]int{1, 4}).Draw(t, "fields")
		return lines(t, []string{strings.Join(rapid.SliceOfN(drawName, n, n).Draw(t, "label"), ":")}, false)
	},
	"agent/parent": func(t *rapid.T) []byte {
		p := Parent{Agent: drawName.Draw(t, "agent")}
		if rapid.Bool().Draw(t, "s") {
			p.Session = drawName.Draw(t, "session")
		}
		if rapid.Bool().Draw(t, "r") {
			p.Run = drawName.Draw(t, "run")
		}
		b := lines(t, []string{p.String()}, false)
		if got, err := ParseParent(b); err != nil || got != p {
			t.Fatalf("%q reads as %+v, %v", b, got, err)
		}
		return b
	},
	"agent/root":  func(t *rapid.T) []byte { return lines(t, []string{drawPath.Draw(t, "path")}, false) },
	"agent/env":   genEnv,
	"agent/mount": genMount,
	"agent/path": func(t *rapid.T) []byte {
		var b strings.Builder
		dirs := rapid.SliceOfDistinct(drawPath, func(s string) string { return s }).Draw(t, "dirs")
		for _, d := range dirs {
			b.WriteString(d + rapid.SampledFrom([]string{"\n", ":", "::", ":\n", "\n\n"}).Draw(t, "sep"))
		}
		if got, err := ParsePath([]byte(b.String())); err != nil || !slices.Equal(got, dirs) {
			t.Fatalf("%q reads as %q, %v", b.String(), got, err)
		}
		return []byte(b.String())
	},
	"agent/model": func(t *rapid.T) []byte {
		n := rapid.IntRange(1, 2).Draw(t, "parts")
		return lines(t, []string{strings.Join(rapid.SliceOfN(drawName, n, n).Draw(t, "ref"), "/")}, false)
	},
	"agent/tools": func(t *rapid.T) []byte {
		all := rapid.SliceOfDistinct(drawName, rapid.ID[string]).Draw(t, "tools")
		b := lines(t, all, true)
		if got, err := ParseTools(b); err != nil || !slices.Equal(got.Names, all) {
			t.Fatalf("%q reads as %q, %v", b, got.Names, err)
		} else if len(all) > 0 && got.Line(all[len(all)-1]) != len(all) {
			t.Fatalf("line of the last tool is %d of %d", got.Line(all[len(all)-1]), len(all))
		}
		return b
	},
	"agent/meta.json":  func(t *rapid.T) []byte { return genJSON(t, 3) },
	"agent/policy":     genPolicy,
	"agent/system.md":  func(t *rapid.T) []byte { return genFree(t, text.Tab|text.Loose) },
	"tool/description": func(t *rapid.T) []byte { return genFree(t, text.Tab) },
	"agent/approval": func(t *rapid.T) []byte {
		return lines(t, []string{rapid.SampledFrom([]string{"auto", "ask"}).Draw(t, "a")}, false)
	},
	"agent/uid": func(t *rapid.T) []byte {
		return lines(t, []string{utoa(rapid.Uint32Range(0, node.MaxUint).Draw(t, "n"))}, false)
	},
}

func genEnv(t *rapid.T) []byte {
	var all []string
	var want []EnvVar
	for _, k := range rapid.SliceOfDistinct(rapid.StringMatching(`[a-z_][a-zA-Z0-9_]{0,8}`), rapid.ID[string]).Draw(t, "keys") {
		if rapid.IntRange(0, 4).Draw(t, "blank") == 0 {
			all = append(all, "")
		}
		v := rapid.StringMatching(`[ -~é项]{0,9}`).Draw(t, "value")
		all = append(all, k+"="+v)
		want = append(want, EnvVar{k, v, len(all)})
	}
	if rapid.Bool().Draw(t, "steps") {
		v := fmt.Sprint(rapid.IntRange(1, 255).Draw(t, "n"))
		all = append(all, "CTX_AGENT_STEPS="+v)
		want = append(want, EnvVar{"CTX_AGENT_STEPS", v, len(all)})
	}
	b := lines(t, all, false)
	if got, err := ParseEnv(b); err != nil || !slices.Equal(got, want) {
		t.Fatalf("%q reads as %v, %v", b, got, err)
	}
	return b
}

func genMount(t *rapid.T) []byte {
	var all []string
	var want []MountLine
	targets := rapid.SliceOfDistinct(drawPath, rapid.ID[string]).Draw(t, "targets")
	for _, target := range targets {
		target = "/t" + target
		m := MountLine{Source: drawPath.Draw(t, "source"), Target: target, RW: rapid.Bool().Draw(t, "rw"), Bind: true}
		opts := rapid.Permutation(mountOptions).Draw(t, "opts")[:rapid.IntRange(0, 5).Draw(t, "n")]
		if i := slices.Index(opts, "bind"); i >= 0 && slices.Contains(opts, "rbind") {
			opts = slices.Delete(slices.Clone(opts), i, i+1)
		}
		m.Recursive, m.NoSuid = slices.Contains(opts, "rbind"), slices.Contains(opts, "nosuid")
		m.NoDev, m.NoExec = slices.Contains(opts, "nodev"), slices.Contains(opts, "noexec")
		m.Bind = !m.Recursive
		words := "-"
		if len(opts) > 0 {
			words = strings.Join(opts, ",")
		}
		mode := map[bool]string{true: "rw", false: "ro"}[m.RW]
		if rapid.IntRange(0, 4).Draw(t, "blank") == 0 {
			all = append(all, "")
		}
		all = append(all, m.Source+"\t"+m.Target+"\t"+mode+"\t"+words)
		m.Line = len(all)
		want = append(want, m)
		// the canonical line says the same
		again, err := ParseMount([]byte(m.String()))
		if err != nil || len(again) != 1 {
			t.Fatalf("%q: %v", m, err)
		}
		if again[0].Line = m.Line; again[0] != m {
			t.Fatalf("%q reads as %+v, want %+v", m, again[0], m)
		}
	}
	b := lines(t, all, false)
	if got, err := ParseMount(b); err != nil || !slices.Equal(got, want) {
		t.Fatalf("%q reads as %+v, %v", b, got, err)
	}
	return b
}

func genPolicy(t *rapid.T) []byte {
	gap := rapid.SampledFrom([]string{" ", "\t", "  "})
	var all []string
	for i := rapid.IntRange(0, 5).Draw(t, "rules"); i > 0; i-- {
		all = append(all, rapid.SampledFrom([]string{"", "# é", "allow"}).Draw(t, "line"))
		if last := &all[len(all)-1]; *last == "allow" {
			object := rapid.SampledFrom([]string{"tool:%s execute", "model:p/%s use", "model:%s use", "session:%s resume", "agent:%s start", "shared:%s write"})
			words := strings.Fields(fmt.Sprintf(object.Draw(t, "object"), drawName.Draw(t, "name")))
			*last += gap.Draw(t, "gap") + drawName.Draw(t, "subject") + gap.Draw(t, "gap") + words[0] + gap.Draw(t, "gap") + words[1]
		}
	}
	return lines(t, all, false)
}

func genFree(t *rapid.T, c text.Chars) []byte {
	s := rapid.StringOf(rapid.RuneFrom([]rune("ab \n\té项\U0001f600\u202e\u0085\u200f"))).Draw(t, "text")
	if c&text.Loose == 0 {
		s = strings.Map(func(r rune) rune {
			if strings.ContainsRune("\u202e\u0085\u200f", r) {
				return -1
			}
			return r
		}, s)
	}
	return []byte(s)
}

// genJSON is an object with odd blanks, escapes and numbers.
func genJSON(t *rapid.T, depth int) []byte {
	ws := rapid.SampledFrom([]string{"", "", " ", "\n", "\t "})
	str := rapid.SampledFrom([]string{`""`, `"a"`, `"é项\ud83d\ude00"`, `"\u00e9\\\"\/\b\f\n\r\t"`, `"\ud800"`, `"x y"`})
	atom := rapid.SampledFrom([]string{"0", "-0", "1", "-12", "1.5", "0.25", "1e5", "-0E-2", "12.5e+10", "true", "false", "null", `""`, `"\u0041b"`})
	var value func(depth int) string
	list := func(open, end string, item func() string) string {
		s := open + ws.Draw(t, "ws")
		for i, n := 0, rapid.IntRange(0, 3).Draw(t, "n"); i < n; i++ {
			if i > 0 {
				s += "," + ws.Draw(t, "ws")
			}
			s += item() + ws.Draw(t, "ws")
		}
		return s + end
	}
	object := func(depth int) string {
		return list("{", "}", func() string {
			return str.Draw(t, "key") + ws.Draw(t, "ws") + ":" + ws.Draw(t, "ws") + value(depth-1)
		})
	}
	value = func(depth int) string {
		switch k := rapid.IntRange(0, 4).Draw(t, "kind"); {
		case k == 0 && depth > 0:
			return object(depth)
		case k == 1 && depth > 0:
			return list("[", "]", func() string { return value(depth - 1) })
		case k == 2:
			return str.Draw(t, "string")
		}
		return atom.Draw(t, "atom")
	}
	return []byte(ws.Draw(t, "ws") + object(depth) + ws.Draw(t, "ws"))
}

func TestPrefixesOfGeneratedTexts(t *testing.T) {
	entries := durable()
	for name, gen := range generators {
		t.Run(name, func(t *testing.T) {
			e := entries[name]
			if e == nil {
				t.Fatal("no such entry")
			}
			rapid.Check(t, func(t *rapid.T) { prefixes(t, e.Format, gen(t)) })
		})
	}
}

// tails are what may follow a text: endings of every good example.
func tails(e *Entry) [][]byte {
	all := [][]byte{nil, []byte("\n"), []byte("x\n"), []byte("0\n"), []byte("x=1\n"), []byte("x\tro\t-\n"), []byte("/x\tro\t-\n")}
	for _, good := range e.Good {
		for i := range good {
			all = append(all, []byte(good[i:]), []byte("x"+good[i:]))
		}
	}
	return all
}

// soundPrefix fails if a text that Prefix refuses becomes valid with a tail.
func soundPrefix(t testing.TB, e *Entry, b []byte, tails [][]byte) {
	t.Helper()
	if e.Format.Prefix(b) == nil {
		return
	}
	for _, tail := range tails {
		if e.Format.Check(slices.Concat(b, tail)) == nil {
			t.Fatalf("Prefix refuses %q, yet %q makes it valid", b, tail)
		}
	}
}

// Wherever a good or bad example is cut, Prefix says no only if no tail helps,
// and yes only if one does: nothing impossible passes.
func TestPrefixIsExactOnExamples(t *testing.T) {
	for name, e := range durable() {
		t.Run(name, func(t *testing.T) {
			more := tails(e)
			texts := slices.Clone(e.Good)
			for _, b := range e.Bad {
				texts = append(texts, b.Text)
			}
			for _, s := range texts {
				for i := 0; i <= len(s); i++ {
					b := []byte(s[:i])
					soundPrefix(t, e, b, more)
					if e.Format.Prefix(b) == nil && !completable(e, b, more) {
						t.Errorf("Prefix takes %q, yet nothing was found that makes it valid", b)
					}
				}
			}
		})
	}
}

func completable(e *Entry, b []byte, tails [][]byte) bool {
	heads := [][]byte{b}
	if i := len(b) - 1; i >= 0 && b[i] >= utf8.RuneSelf && !utf8.Valid(b) {
		for _, rest := range []string{"\xa9", "\x81\x81", "\xa1", "\xbe"} { // end an unfinished character
			heads = append(heads, slices.Concat(b, []byte(rest)))
		}
	}
	for _, h := range heads {
		if f, isJSON := e.Format.(*jsonFormat); isJSON {
			tail, ok := finish(f, h)
			// a keyword with a value of the wrong form is judged when all is there
			if ok && (f.object != nil || f.Check(slices.Concat(h, tail)) == nil) {
				return true
			}
		}
		for _, tail := range tails {
			if e.Format.Check(slices.Concat(h, tail)) == nil {
				return true
			}
		}
	}
	return false
}

// finish closes what is open in b.
func finish(f *jsonFormat, b []byte) ([]byte, bool) {
	s := scanner{maxDepth: f.depth}
	if _, why := s.feed(b, 0); why != "" {
		return nil, false
	}
	var tail []byte
	add := func(t string) {
		tail = append(tail, t...)
		if _, why := s.feed([]byte(t), 0); why != "" {
			panic("finish: " + why)
		}
	}
	for s.state != sEnd {
		switch s.state {
		case sStart:
			add("{")
		case sKeyOrClose:
			add("}")
		case sKey, sString:
			add(`"`)
		case sColon:
			add(":")
		case sValue, sMinus, sPoint, sExp, sExpSign:
			add("1")
		case sValueOrEnd:
			add("]")
		case sEscape:
			add("n")
		case sHex:
			add("0")
		case sLiteral:
			add(s.rest)
		default: // after a value, or a number that may end
			add(map[byte]string{'{': "}", '[': "]"}[s.stack[len(s.stack)-1]])
		}
	}
	return tail, true
}

// Whatever bytes the scanner takes can be continued to an object, and a whole
// text is good if encoding/json says so.
func TestJSONAgrees(t *testing.T) {
	alphabet := rapid.SampledFrom([]string{"{", "}", "[", "]", ":", ",", `"`, `\`, "u", "0", "1", "9", "-", "+", ".", "e", "E", "true", "false", "null", "t", "a", " ", "\n", "é", "\t", `"a":`, "{}", "[1,", `\u12`})
	rapid.Check(t, func(t *rapid.T) {
		b := []byte(strings.Join(rapid.SliceOf(alphabet).Draw(t, "parts"), ""))
		if rapid.Bool().Draw(t, "object") {
			b = append([]byte("{"), b...)
		}
		agree(t, b)
	})
}

type fataler interface{ Fatalf(string, ...any) }

func agree(t fataler, b []byte) {
	good := json.Valid(b) && bytes.HasPrefix(bytes.TrimLeft(b, " \t\r\n"), []byte("{")) && text.Check(b, text.Tab) == nil
	if err := objectFormat.Check(b); (err == nil) != good {
		t.Fatalf("%q: Check says %v, encoding/json %v", b, err, good)
	}
	s := scanner{maxDepth: maxJSONDepth}
	if _, why := s.feed(b, 0); why == "" {
		tail, ok := finish(objectFormat, b)
		if !ok || !json.Valid(slices.Concat(b, tail)) {
			t.Fatalf("%q is taken, but with %q it is no JSON", b, tail)
		}
	}
}

func TestJSONDepth(t *testing.T) {
	deep := func(n int) []byte {
		return []byte(`{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + "}")
	}
	for _, c := range []struct {
		f    Format
		n    int
		good bool
	}{{objectFormat, maxJSONDepth, true}, {objectFormat, maxJSONDepth + 1, false}, {objectFormat, 30000, false}, {schemaFormat, maxSchemaDepth, true}, {schemaFormat, maxSchemaDepth + 1, false}} {
		if err := c.f.Check(deep(c.n)); (err == nil) != c.good {
			t.Errorf("%s of depth %d: %v", c.f.Name(), c.n, err)
		}
		if err := c.f.Prefix(deep(c.n)[:c.n+4]); (err == nil) != c.good {
			t.Errorf("beginning of a %s of depth %d: %v", c.f.Name(), c.n, err)
		}
	}
}

// FuzzControls runs every format over the text: nothing panics, Prefix refuses no
// prefix of a valid text and nothing that a tail repairs, and the typed parsers
// agree with Check.
func FuzzControls(f *testing.F) {
	entries := durable()
	for i, n := range names(entries) {
		for _, good := range entries[n].Good {
			f.Add(byte(i), []byte(good), []byte("x\n"))
		}
		for _, b := range entries[n].Bad {
			f.Add(byte(i), []byte(b.Text), []byte("\n"))
		}
	}
	all := names(entries)
	f.Fuzz(func(t *testing.T, which byte, b, tail []byte) {
		if len(b) > 4096 {
			return
		}
		e := entries[all[int(which)%len(all)]]
		err := e.Format.Check(b)
		if err != nil && !fault.Is(err, fault.Invalid) {
			t.Fatalf("kind of %v", err)
		}
		for i := 0; i <= len(b); i++ {
			bad := e.Format.Prefix(b[:i])
			if bad != nil && err == nil {
				t.Fatalf("prefix %q of the valid %q: %v", b[:i], b, bad)
			}
			if bad != nil {
				soundPrefix(t, e, b[:i], [][]byte{tail, b[i:], nil})
				break
			}
		}
		if err == nil && !e.FinalLF {
			if err := e.Format.Check(Normalize(b)); err != nil {
				t.Fatalf("%q is valid, what is committed is not: %v", b, err)
			}
		}
		parsersAgree(t, b)
		agree(t, b)
	})
}

func parsersAgree(t fataler, b []byte) {
	for name, parse := range map[string]func([]byte) error{
		"owner":  func(b []byte) error { _, err := ParseUint32(b); return err },
		"groups": func(b []byte) error { _, err := ParseGroups(b); return err },
		"parent": func(b []byte) error { _, err := ParseParent(b); return err },
		"env":    func(b []byte) error { _, err := ParseEnv(b, "CTX_ROOT=/ctx"); return err },
		"path":   func(b []byte) error { _, err := ParsePath(b); return err },
		"mount":  func(b []byte) error { _, err := ParseMount(b); return err },
		"tools":  func(b []byte) error { _, err := ParseTools(b); return err },
		"model":  func(b []byte) error { _, err := ParseModelRef(b); return err },
		"label":  func(b []byte) error { _, err := ParseLabel(b); return err },
	} {
		check, parsed := Agent.Lookup(name).Format.Check(b), parse(b)
		if (check == nil) != (parsed == nil) {
			t.Fatalf("%s %q: Check says %v, the parser %v", name, b, check, parsed)
		}
	}
}
