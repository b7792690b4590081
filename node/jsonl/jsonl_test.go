package jsonl

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParse(t *testing.T) {
	good := []struct{ in, out string }{
		{`{}`, `{}`},
		{` {"b":1, "a" : "x"} `, `{"b":1,"a":"x"}`},
		{`{"a":{"b":[1,2]},"A":null}`, `{"a":{"b":[1,2]},"A":null}`},
	}
	for _, c := range good {
		o, err := Parse([]byte(c.in))
		if err != nil || string(o.Append(nil)) != c.out {
			t.Errorf("%s: %s, %v", c.in, o.Append(nil), err)
		}
	}
	for _, in := range []string{"", "x", "[]", `"a"`, "{", `{"a":1`, `{"a":1}{}`, `{"a":1} x`, `{"a":1,"a":2}`, `{"a":1,}`, "{\"a\":\"\xff\"}", `{"a" 1}`} {
		if o, err := Parse([]byte(in)); err == nil {
			t.Errorf("%s: %v", in, o)
		} else if strings.Contains(err.Error(), "x") && in == "x" && !strings.Contains(err.Error(), "byte") {
			t.Errorf("%v repeats the text", err)
		}
	}
	o, _ := Parse([]byte(`{"Type":"a","type":"b","n":5}`))
	if s, _ := o.String("type"); s != "b" {
		t.Error("case folded")
	}
	if _, ok := o.String("n"); ok {
		t.Error("a number as a string")
	}
}

func TestMarshal(t *testing.T) {
	if got := string(Marshal([]any{"<a&b>", 1, nil})); got != `["<a&b>",1,null]` {
		t.Error(got)
	}
}

func TestUnique(t *testing.T) {
	for in, ok := range map[string]bool{
		`{"a":{"b":1},"c":[{"b":1},{"b":2}]}`: true, `{"a":{"b":1,"b":2}}`: false, `[{"a":1,"a":1}]`: false, `1`: true, `{"a"`: false,
	} {
		if err := Unique([]byte(in)); (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `{"a":{"b":[]}}`, "{", `{"a":1,"a":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := Parse(b)
		if err != nil {
			return
		}
		var m map[string]json.RawMessage
		if json.Unmarshal(b, &m) != nil || len(m) != len(o) || !utf8.Valid(b) {
			t.Fatalf("accepted %q", b)
		}
		again, err := Parse(o.Append(nil))
		if err != nil || len(again) != len(o) {
			t.Fatalf("%q does not come back: %v", b, err)
		}
	})
}
