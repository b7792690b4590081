package control

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"cortexfs/node"
	"cortexfs/node/fault"
)

var update = flag.Bool("update", false, "write the golden files anew")

var sets = []struct {
	name string
	set  *Set
}{{"agent", Agent}, {"tool", Tool}, {"model", Model}}

// walk calls f for every entry of every table.
func walk(t *testing.T, f func(t *testing.T, e *Entry)) {
	for _, s := range sets {
		for _, e := range s.set.Entries() {
			t.Run(s.name+"/"+e.Name, func(t *testing.T) { f(t, e) })
		}
	}
}

func TestGoodTexts(t *testing.T) {
	walk(t, func(t *testing.T, e *Entry) {
		if e.Format != nil && (len(e.Good) == 0 || len(e.Bad) == 0) {
			t.Fatal("an entry with a format needs good and bad examples")
		}
		for _, text := range e.Good {
			if err := e.Format.Check([]byte(text)); err != nil {
				t.Errorf("%q: %v", text, err)
			}
			for i := 0; i <= len(text); i++ {
				if err := e.Format.Prefix([]byte(text[:i])); err != nil {
					t.Errorf("prefix %q of the good %q: %v", text[:i], text, err)
				}
			}
			norm := Normalize([]byte(text))
			if err := e.Format.Check(norm); err != nil {
				t.Errorf("%q is good, the committed %q is not: %v", text, norm, err)
			}
			if len(text) > 0 && !bytes.HasSuffix(norm, []byte("\n")) || len(text) == 0 && len(norm) != 0 {
				t.Errorf("%q is committed as %q", text, norm)
			}
		}
	})
}

func TestBadTexts(t *testing.T) {
	walk(t, func(t *testing.T, e *Entry) {
		for _, b := range e.Bad {
			err := e.Format.Check([]byte(b.Text))
			var f *fault.Error
			if !errors.As(err, &f) || f.Kind != b.Kind {
				t.Errorf("%q: %v, want kind %v", b.Text, err, b.Kind)
				continue
			}
			if f.Line < 1 || f.Col < 1 || f.Line > strings.Count(b.Text, "\n")+1 {
				t.Errorf("%q: refused at %d:%d", b.Text, f.Line, f.Col)
			}
			if f.Err == nil || strings.ContainsAny(f.Err.Error(), "\n\r\x00") {
				t.Errorf("%q: message %q", b.Text, f.Place())
			}
		}
	})
}

// What a shell's echo or an editor writes ends in LF: such a text must be refused
// in the write, or be one that more text could repair.
func TestBadLinesFailInTheWrite(t *testing.T) {
	walk(t, func(t *testing.T, e *Entry) {
		if e.Kind != Durable {
			return
		}
		for _, b := range e.Bad {
			if strings.TrimSpace(b.Text) == "" && b.Text != " \n" || !strings.HasSuffix(b.Text, "\n") {
				continue // only the end can tell
			}
			if _, isJSON := e.Format.(*jsonFormat); isJSON && b.Text == "{\n" {
				continue
			}
			if e.Format.Prefix([]byte(b.Text)) == nil {
				t.Errorf("%q is not refused by Prefix", b.Text)
			}
		}
	})
}

func TestSizeLimit(t *testing.T) {
	walk(t, func(t *testing.T, e *Entry) {
		if e.Kind != Durable {
			if err := e.Judge([]byte("x\n")); !fault.Is(err, fault.Perm) {
				t.Errorf("writing gives %v", err)
			}
			return
		}
		big := bytes.Repeat([]byte("a\n"), node.MaxText/2)
		for _, c := range []struct {
			text []byte
			big  bool
		}{{big, false}, {append(big[:len(big):len(big)], '\n'), true}, {bytes.Repeat([]byte("a"), node.MaxText), true}, {bytes.Repeat([]byte("\n"), 1<<20), true}} {
			if got := fault.Is(e.Judge(c.text), fault.TooBig); got != c.big {
				t.Errorf("%d bytes: too big is %v", len(c.text), got)
			}
			if got := fault.Is(e.JudgePrefix(c.text), fault.TooBig); got != c.big {
				t.Errorf("prefix of %d bytes: too big is %v", len(c.text), got)
			}
		}
	})
}

// objects for which defaults are made.
var objects = []Object{
	{Name: "coder", Owner: 0, Root: true},
	{Name: "coder", Owner: 1000, OwnerGID: 1000, Root: true},
	{Name: "coder", Home: true, Owner: 1000, OwnerGID: 100},
	{Name: strings.Repeat("a", 62), Home: true, Owner: node.MaxUint, OwnerGID: 1, Groups: []uint32{4, 24}},
	{Name: "fs.read", Owner: 0},
}

func TestDefaults(t *testing.T) {
	walk(t, func(t *testing.T, e *Entry) {
		for _, o := range objects {
			if e.Name == "id" {
				o.Name = "debug/" + o.Name
			}
			text := e.DefaultText(o)
			switch {
			case e.Default == nil:
				// nothing can be guessed, or there is nothing until it is written
				if e.Kind == Durable && !e.Required && !e.Optional {
					t.Error("neither required nor with a default")
				}
				continue
			case e.Kind == Durable:
				if err := e.JudgeFor(o, []byte(text)); err != nil {
					t.Errorf("%+v: default %q: %v", o, text, err)
				}
			default:
				if err := e.Format.Check([]byte(text)); err != nil {
					t.Errorf("%+v: default %q: %v", o, text, err)
				}
			}
			if text != string(Normalize([]byte(text))) {
				t.Errorf("default %q is not as it would be committed", text)
			}
		}
	})
}

func TestDefaultTypes(t *testing.T) {
	long := strings.Repeat("a", 62)
	seen := map[string]Object{}
	for _, o := range []Object{
		{Name: "coder"}, {Name: "coder", Home: true, Owner: 1000}, {Name: "coder", Home: true, Owner: 1001},
		{Name: long}, {Name: long, Home: true, Owner: 1000}, {Name: long[:61] + "b", Home: true, Owner: 1000},
		{Name: long, Home: true, Owner: node.MaxUint},
	} {
		typ := DefaultType(o)
		if err := node.CheckName(typ); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		if other, dup := seen[typ]; dup {
			t.Errorf("%+v and %+v share the type %s", o, other, typ)
		}
		seen[typ] = o
	}
	for o, want := range map[string]Object{"coder_t": {Name: "coder", Owner: 1000}, "u1000.coder_t": {Name: "coder", Home: true, Owner: 1000}} {
		if got := DefaultType(want); got != o {
			t.Errorf("type %s, want %s", got, o)
		}
	}
}

// The properties that the specification fixes for each entry.
func TestTable(t *testing.T) {
	private := map[string]bool{"env": true, "log": true, "mount": true, "system.md": true, "prompt.template.md": true, "meta.json": true}
	required := map[string]bool{"owner": true, "label": true, "abi": true}
	for _, e := range Agent.Entries() {
		want := uint32(0o644)
		switch {
		case private[e.Name]:
			want = 0o600
		case e.Kind == Exec, e.Kind == Dir, e.Kind == ViewDir:
			want = 0o700
		case e.Kind == Live:
			want = 0o444
		}
		if e.Mode != want {
			t.Errorf("%s has mode %04o, want %04o", e.Name, e.Mode, want)
		}
		if e.Required != required[e.Name] {
			t.Errorf("%s: required is %v", e.Name, e.Required)
		}
		if e.FinalLF != (e.Name == "tools") {
			t.Errorf("%s: final LF is %v", e.Name, e.FinalLF)
		}
	}
	for _, name := range []string{"system.md", "prompt.template.md", "meta.json"} {
		if Agent.Lookup(name).Grants {
			t.Errorf("%s may not grant anything", name)
		}
	}
	walk(t, func(t *testing.T, e *Entry) {
		if e.Doc == "" || e.Long == "" || len(e.Doc) > 79 || strings.HasSuffix(e.Doc, ".") {
			t.Errorf("doc %q long %q", e.Doc, e.Long)
		}
		if e.Kind == Live && (e.Grants || e.Applies != "") || e.Kind == Durable && e.Applies == "" {
			t.Errorf("kind %v with applies %q, grants %v", e.Kind, e.Applies, e.Grants)
		}
		if (e.Format == nil) != (e.Kind == Dir || e.Kind == Exec || e.Kind == ViewDir) {
			t.Errorf("kind %v and format %v", e.Kind, e.Format)
		}
		if e.Format != nil && e.Format.Name() == "" {
			t.Error("format without a name")
		}
		if !node.IsName(e.Name) {
			t.Error("not a name")
		}
	})
	if Agent.Lookup("aproval") != nil {
		t.Error("a misspelt name is found")
	}
}

// TestGolden compares the table with testdata/table.txt: a change of the ABI has
// to be seen in a diff. `go test ./node/control -update` writes it.
func TestGolden(t *testing.T) {
	var b strings.Builder
	o := Object{Name: "coder", Owner: 1000, OwnerGID: 1000, Root: true}
	for _, s := range sets {
		fmt.Fprintf(&b, "# %s\n", s.name)
		for _, e := range s.set.Entries() {
			format := "-"
			if e.Format != nil {
				format = e.Format.Name()
			}
			flags := ""
			for _, f := range []struct {
				set  bool
				word string
			}{{e.Required, " required"}, {e.FinalLF, " final-lf"}, {e.Optional, " optional"}, {e.Grants, " grants"}, {e.Only != "", " only=" + e.Only}} {
				if f.set {
					flags += f.word
				}
			}
			fmt.Fprintf(&b, "%-18s %-7s %04o  %-15s applies=%q default=%q%s\n", e.Name, e.Kind, e.Mode, format, e.Applies, e.DefaultText(o), flags)
		}
	}
	const file = "testdata/table.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("the table differs from %s:\n%s", file, got)
	}
}
