package ctlproto

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	"cortexfs/node/fault"
)

func TestRoundTrip(t *testing.T) {
	owner := uint32(7)
	for _, q := range []Request{
		&New{Agent: "a", Owner: &owner, Texts: map[string]string{"approval": "ask\n"}, Tools: []string{"fs.read"}},
		&Rm{Agent: "a"}, &Start{Agent: "coder", Session: "s", CWD: "/w", Mounts: [][]string{{"/a", "/b", "ro"}}, DryRun: true},
		&Stop{Agent: "a", GraceMS: 5}, &Restart{Agent: "a"}, &Attach{Agent: "a"}, &Watch{Agent: "a", Session: "x"},
		&PS{All: true}, &PS{}, &Status{Agent: "a"}, &Why{Agent: "a", Tool: "t"}, &View{Agent: "a"}, &Env{Agent: "a"},
		&Wait{Agent: "a", State: "dead", TimeoutMS: -1}, &Reload{}, &Bootstrap{DryRun: true}, &Exec{Agent: "a", Argv: []string{"ls", "-l"}},
		&Wait{Agent: "a", Child: "b", Session: "s"}, &Grant{Agent: "a", Kind: "tool", Value: "x", Reason: "y"}, &Grant{List: true},
		&Grant{Agent: "a", Revoke: 3}, &Children{Agent: "a"},
	} {
		line, err := EncodeRequest(q)
		if err != nil {
			t.Fatal(err)
		}
		if line[len(line)-1] != '\n' || bytes.Count(line, []byte("\n")) != 1 {
			t.Fatalf("%q is not one line", line)
		}
		got, err := DecodeRequest(bytes.TrimSuffix(line, []byte("\n")))
		if err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%s: %+v, %v; want %+v", line, got, err, q)
		}
	}
}

// TestEveryFieldHasAName: a field without a tag could never be sent.
func TestEveryFieldHasAName(t *testing.T) {
	seen := map[string]bool{}
	for _, make := range ops {
		q := make()
		if seen[q.Op()] {
			t.Errorf("operation %s twice", q.Op())
		}
		seen[q.Op()] = true
		ty := reflect.TypeOf(q).Elem()
		for i := 0; i < ty.NumField(); i++ {
			if ty.Field(i).Tag.Get("json") == "" {
				t.Errorf("%s.%s has no json name", q.Op(), ty.Field(i).Name)
			}
		}
	}
	if len(Ops()) != len(seen) {
		t.Errorf("Ops lists %d of %d", len(Ops()), len(seen))
	}
}

func TestStrict(t *testing.T) {
	for line, want := range map[string]string{
		``:                      "not JSON",
		`x`:                     "not JSON",
		`null`:                  "not a JSON object",
		`[]`:                    "not a JSON object",
		`"op"`:                  "not a JSON object",
		`{}`:                    `"op" is missing`,
		`{"op":1}`:              `"op" is missing`,
		`{"op":"fly"}`:          `unknown operation "fly"`,
		`{"OP":"ps"}`:           `"op" is missing`,
		`{"op":"ps","op":"ps"}`: `field "op" is repeated`,
		`{"op":"status","agent":"a","agent":"b"}`:     `field "agent" is repeated`,
		`{"op":"status","Agent":"a"}`:                 `unknown field "Agent"`,
		`{"op":"status","agent":"a","x":1}`:           `unknown field "x"`,
		`{"op":"status","agent":null}`:                `field "agent" is null`,
		`{"op":"status","agent":1}`:                   `field "agent" has the wrong type`,
		`{"op":"stop","agent":"a","grace_ms":"1"}`:    `field "grace_ms" has the wrong type`,
		`{"op":"stop","agent":"a","grace_ms":1.5}`:    `field "grace_ms" has the wrong type`,
		`{"op":"start","agent":"a","mounts":["/a"]}`:  `field "mounts" has the wrong type`,
		`{"op":"new","agent":"a","texts":{"x":1}}`:    `field "texts" has the wrong type`,
		`{"op":"new","agent":"a","owner":4294967296}`: `field "owner" has the wrong type`,
		`{"op":"new","agent":"a","owner":-1}`:         `field "owner" has the wrong type`,
		`{"op":"ps"}{"op":"ps"}`:                      "more than one value",
		`{"op":"ps"} x`:                               "more than one value",
		`{"op":"ps"`:                                  "unfinished JSON",
		`{"op":"ps",}`:                                "",
	} {
		q, err := DecodeRequest([]byte(line))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want Invalid with %q", line, q, err, want)
		}
	}
	if _, err := DecodeRequest(append([]byte(`{"op":"ps"}`), bytes.Repeat([]byte(" "), MaxFrame)...)); !fault.Is(err, fault.TooBig) {
		t.Errorf("long line: %v", err)
	}
	if _, err := EncodeRequest(&Why{Agent: strings.Repeat("a", MaxFrame)}); !fault.Is(err, fault.TooBig) {
		t.Errorf("long request: %v", err)
	}
}

type pipe struct {
	io.Reader
	io.Writer
}

func TestConnFrames(t *testing.T) {
	long := strings.Repeat("x", MaxFrame-1)
	in := "one\n\n" + long + "\ntwo\nrest"
	c := NewConn(pipe{strings.NewReader(in), io.Discard})
	for _, want := range []string{"one", "", long, "two"} {
		got, err := c.ReadLine()
		if err != nil || string(got) != want {
			t.Fatalf("%d bytes, %v; want %d", len(got), err, len(want))
		}
	}
	if _, err := c.ReadLine(); err != io.ErrUnexpectedEOF {
		t.Errorf("a torn last line: %v", err)
	}
	c = NewConn(pipe{strings.NewReader(strings.Repeat("y", 2*MaxFrame)), io.Discard})
	if _, err := c.ReadLine(); !fault.Is(err, fault.TooBig) {
		t.Errorf("a line without end: %v", err)
	}
	if err := c.Write(Frame{Type: "note", Text: strings.Repeat("z", MaxFrame)}); !fault.Is(err, fault.TooBig) {
		t.Errorf("a long frame: %v", err)
	}
}

func TestErrorFrames(t *testing.T) {
	for kind, exit := range map[fault.Kind]int{
		fault.Invalid: 2, fault.Access: 13, fault.Perm: 13, fault.Unavailable: 69, fault.Busy: 1, fault.NotExist: 1, fault.Again: 1, fault.IO: 1,
	} {
		f := ErrorFrame(fault.E("start", "agent/a", kind, nil))
		if f.Exit != exit || f.Code == "" || !f.Last() {
			t.Errorf("%v: %+v", kind, f)
		}
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var back Frame
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		err = back.Remote()
		if !fault.Is(err, kind) || ExitCode(err) != exit || err.Error() != f.Msg {
			t.Errorf("%v comes back as %v (exit %d)", kind, err, ExitCode(err))
		}
	}
	if (&Frame{Type: "result"}).Remote() != nil {
		t.Error("a result is no error")
	}
	if e := (&Frame{Type: "error", Code: "EWHAT", Exit: 9999}).Remote(); ExitCode(e) != ExitError || !fault.Is(e, fault.IO) {
		t.Errorf("an unknown errno: %v", e)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, op := range Ops() {
		f.Add([]byte(`{"op":"` + op + `","agent":"a"}`))
	}
	f.Add([]byte(`{"op":"start","agent":"a","mounts":[["/a","/b","ro"]]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		q, err := DecodeRequest(line)
		if err != nil {
			return
		}
		out, err := EncodeRequest(q)
		if err != nil {
			return
		}
		again, err := DecodeRequest(bytes.TrimSuffix(out, []byte("\n")))
		if err != nil {
			t.Fatalf("%q decodes, but not what it encodes to, %q: %v", line, out, err)
		}
		a, _ := json.Marshal(q)
		b, _ := json.Marshal(again)
		if !bytes.Equal(a, b) {
			t.Fatalf("%s != %s", a, b)
		}
	})
}
