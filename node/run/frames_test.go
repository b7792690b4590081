package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"pgregory.net/rapid"

	"cortexfs/node/fault"
)

func decodeAll(r io.Reader) ([]*Frame, error) {
	d := NewDecoder(r, runID)
	var all []*Frame
	for {
		f, err := d.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			if _, again := d.Next(); again != err {
				return all, fmt.Errorf("not final: %v then %v", err, again)
			}
			return all, err
		}
		all = append(all, f)
	}
}

func TestAllowedFrames(t *testing.T) {
	for in, want := range map[string]string{
		`{"type":"delta","run":"RUN","text":"a"}`:                                                            ``,
		` {"x":1,"text":"a","run":"RUN","type":"delta"} `:                                                    `{"type":"delta","run":"RUN","text":"a"}`,
		`{"type":"reasoning_delta","run":"RUN","text":""}`:                                                   ``,
		`{"type":"message","run":"RUN","role":"assistant","content":[{"type":"text","text":"a","y":1}]}`:     `{"type":"message","run":"RUN","role":"assistant","content":[{"type":"text","text":"a"}]}`,
		`{"type":"message","run":"RUN","role":"assistant","content":[]}`:                                     ``,
		`{"type":"reasoning_message","run":"RUN","role":"assistant","content":[{"type":"text","text":"a"}]}`: ``,
		`{"type":"usage","run":"RUN","input_tokens":1,"output_tokens":0,"cached_tokens":3,"cost":1.5}`:       `{"type":"usage","run":"RUN","input_tokens":1,"output_tokens":0,"cached_tokens":3}`,
		`{"type":"tool_call","run":"RUN","id":"c1","name":"fs.read","arguments":{"path":"a"},"state":"x"}`:   `{"type":"tool_call","run":"RUN","id":"c1","name":"fs.read","arguments":{"path":"a"}}`,
		`{"type":"tool_call","run":"RUN","id":"c1","name":"bash","arguments":"-c 'x'"}`:                      ``,
		`{"type":"error","run":"RUN","code":"EAGAIN","message":"slow\u001b[0m","recoverable":true}`:          `{"type":"error","run":"RUN","code":"EAGAIN","message":"slow[0m","recoverable":true}`,
		`{"type":"error","run":"RUN","recoverable":true}`:                                                    `{"type":"error","run":"RUN","code":"EIO","message":"","recoverable":true}`,
	} {
		in, want = strings.ReplaceAll(in, "RUN", runID), strings.ReplaceAll(want, "RUN", runID)
		if want == "" {
			want = in
		}
		for _, end := range []string{"\n", "", "\r\n", "\n\n  \n"} {
			all, err := decodeAll(strings.NewReader("\n" + in + end))
			if err != nil || len(all) != 1 || string(all[0].JSON) != want {
				t.Errorf("%s: %v", in, err)
			}
		}
	}
}

func TestForbiddenFrames(t *testing.T) {
	const delta = `{"type":"delta","run":"RUN","text":"a"}`
	const tool = `{"type":"tool_call","run":"RUN","id":"c","name":"t","arguments":{}}`
	for name, in := range map[string]string{
		"start":                    `{"type":"start","run":"RUN"}`,
		"done":                     `{"type":"done","run":"RUN","status":"ok"}`,
		"tool result":              `{"type":"tool_result","run":"RUN","tool_call_id":"c","content":"x"}`,
		"tool message":             `{"type":"message","run":"RUN","role":"tool","content":[{"type":"text","text":"a"}]}`,
		"user message":             `{"type":"message","run":"RUN","role":"user","content":[{"type":"text","text":"a"}]}`,
		"result part":              `{"type":"message","run":"RUN","role":"assistant","content":[{"type":"tool_result","tool_call_id":"c","content":"x","text":"y"}]}`,
		"image part":               `{"type":"message","run":"RUN","role":"assistant","content":[{"type":"image","text":"x"}]}`,
		"string content":           `{"type":"message","run":"RUN","role":"assistant","content":"x"}`,
		"no role":                  `{"type":"message","run":"RUN","content":[]}`,
		"no content":               `{"type":"message","run":"RUN","role":"assistant"}`,
		"delta with a role":        `{"type":"delta","run":"RUN","text":"a","role":"tool"}`,
		"approval request":         `{"type":"approval_request","run":"RUN","id":"c"}`,
		"approval result":          `{"type":"approval_result","run":"RUN","id":"c","decision":"allow_once"}`,
		"approve":                  `{"op":"approve","run":"RUN","id":"c","decision":"allow_once"}`,
		"terminal error":           `{"type":"error","run":"RUN","code":"EIO","message":"x"}`,
		"error not recoverable":    `{"type":"error","run":"RUN","code":"EIO","message":"x","recoverable":false}`,
		"error recoverable string": `{"type":"error","run":"RUN","code":"EIO","message":"x","recoverable":"true"}`,
		"unknown":                  `{"type":"telemetry","run":"RUN"}`,
		"no type":                  `{"run":"RUN","text":"a"}`,
		"type a number":            `{"type":5,"run":"RUN"}`,
		"no run":                   `{"type":"delta","text":"a"}`,
		"wrong run":                `{"type":"delta","run":"ctx-9","text":"a"}`,
		"run case":                 `{"type":"delta","Run":"RUN","text":"a"}`,
		"run twice":                `{"type":"delta","run":"ctx-9","text":"a","run":"RUN"}`,
		"type twice":               `{"type":"delta","type":"done","run":"RUN","text":"a"}`,
		"text a number":            `{"type":"delta","run":"RUN","text":5}`,
		"no text":                  `{"type":"delta","run":"RUN"}`,
		"usage words":              `{"type":"usage","run":"RUN","input_tokens":"1","output_tokens":2}`,
		"usage negative":           `{"type":"usage","run":"RUN","input_tokens":-1,"output_tokens":2}`,
		"usage half":               `{"type":"usage","run":"RUN","input_tokens":1}`,
		"usage fraction":           `{"type":"usage","run":"RUN","input_tokens":1.5,"output_tokens":2}`,
		"call id":                  `{"type":"tool_call","run":"RUN","id":"../c","name":"t","arguments":{}}`,
		"call without id":          `{"type":"tool_call","run":"RUN","name":"t","arguments":{}}`,
		"call name":                `{"type":"tool_call","run":"RUN","id":"c","name":"/bin/sh","arguments":{}}`,
		"call name .d":             `{"type":"tool_call","run":"RUN","id":"c","name":"x.d","arguments":{}}`,
		"arguments a list":         `{"type":"tool_call","run":"RUN","id":"c","name":"t","arguments":["a"]}`,
		"no arguments":             `{"type":"tool_call","run":"RUN","id":"c","name":"t"}`,
		"after a call":             tool + "\n" + delta,
		"two calls":                tool + "\n" + tool,
		"words after a call":       tool + "\nx",
		"not JSON":                 `hello`,
		"an array":                 `[` + delta + `]`,
		"two on a line":            delta + delta,
		"half":                     delta[:20],
		"not UTF-8":                `{"type":"delta","run":"RUN","text":"` + "\xff" + `"}`,
		"NUL":                      "\x00",
		"long line":                `{"type":"delta","run":"RUN","text":"` + strings.Repeat("x", MaxLine) + `"}`,
		"long line of blanks":      strings.Repeat(" ", MaxLine+1),
		"long line without end":    strings.Repeat("x", MaxLine+1),
		"much":                     strings.Repeat(`{"type":"delta","run":"RUN","text":"`+strings.Repeat("x", 200_000)+"\"}\n", 6),
		"many empty lines":         strings.Repeat("\n", MaxOutput+1),
	} {
		_, err := decodeAll(strings.NewReader(strings.ReplaceAll(in, "RUN", runID)))
		var v *Violation
		if !errors.As(err, &v) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(v.Detail) > 200 || !utf8.ValidString(v.Detail) || codeOf(err) != "EIO" {
			t.Errorf("%s: %q", name, v.Detail)
		}
	}
}

// TestLimitsAreExact: a line and an output of exactly the limit pass.
func TestLimitsAreExact(t *testing.T) {
	frame := func(n int) string {
		head := `{"type":"delta","run":"` + runID + `","text":"`
		return head + strings.Repeat("x", n-len(head)-2) + `"}`
	}
	if all, err := decodeAll(strings.NewReader(frame(MaxLine) + "\n")); err != nil || len(all) != 1 {
		t.Error(err)
	}
	quarter := frame(MaxOutput/8-1) + "\n"
	if all, err := decodeAll(strings.NewReader(strings.Repeat(quarter, 8))); err != nil || len(all) != 8 {
		t.Error(err)
	}
	if _, err := decodeAll(strings.NewReader(strings.Repeat(quarter, 8) + "\n")); err == nil {
		t.Error("one byte over the limit")
	}
}

// TestChunking: the frames do not depend on how the bytes arrive.
func TestChunking(t *testing.T) {
	text := strings.Repeat(strings.ReplaceAll(`{"type":"delta","run":"RUN","text":"世界 👩‍💻"}`+"\n", "RUN", runID), 50) + toolLine("c", "t", "{}") + "\n"
	want, err := decodeAll(strings.NewReader(text))
	if err != nil || len(want) != 51 {
		t.Fatal(err)
	}
	for _, r := range []io.Reader{iotest.OneByteReader(strings.NewReader(text)), iotest.HalfReader(strings.NewReader(text)), iotest.DataErrReader(strings.NewReader(text)), &random{r: strings.NewReader(text)}} {
		got, err := decodeAll(r)
		if err != nil || len(got) != len(want) {
			t.Fatal(len(got), err)
		}
		for i := range got {
			if !bytes.Equal(got[i].JSON, want[i].JSON) {
				t.Fatalf("%s", got[i].JSON)
			}
		}
	}
	broken := errors.New("pipe broke")
	if _, err := decodeAll(io.MultiReader(strings.NewReader(text[:100]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Error(err)
	}
}

type random struct{ r io.Reader }

func (r *random) Read(p []byte) (int, error) { return r.r.Read(p[:min(len(p), 1+rand.IntN(7))]) }

// FuzzDecoder: whatever a program writes, the decoder gives canonical frames of
// this run, none after a call, and stays within its limits.
func FuzzDecoder(f *testing.F) {
	for _, s := range []string{toolLine("c", "t", "{}"), messageLine("x"), `{"type":"delta","run":"` + runID + `","text":"a"}` + "\n" + toolLine("c", "t", `"a b"`), "\n\n", "{", `{"type":"error","run":"` + runID + `","recoverable":true}`,
		`{"type":"usage","run":"` + runID + `","input_tokens":1,"output_tokens":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := decodeAll(bytes.NewReader(b))
		for i, fr := range all {
			again, e := decodeFrame(fr.JSON, runID)
			if e != nil || !bytes.Equal(again.JSON, fr.JSON) || again.Text != fr.Text {
				t.Fatalf("%s is not canonical: %v", fr.JSON, e)
			}
			if (fr.Call != nil) != (fr.Type == "tool_call") || fr.Call != nil && i != len(all)-1 {
				t.Fatalf("%s at %d of %d", fr.JSON, i, len(all))
			}
			if _, allowed := frames[fr.Type]; !allowed || bytes.ContainsAny(fr.JSON, "\n") {
				t.Fatalf("%s", fr.JSON)
			}
		}
		if err == nil && len(b) > MaxOutput {
			t.Fatal("over the limit")
		}
		var v *Violation
		if err != nil && !errors.As(err, &v) {
			t.Fatal(err)
		}
	})
}

// ---- invocation

func TestInvocation(t *testing.T) {
	v := &Invocation{Run: runID, Input: "<a & b>\n", History: "h", ToolContext: "t"}
	b, err := v.Encode()
	want := `{"schema":"cortexfs.agent-invocation/v1","run":"ctx-0123","step":0,"input":"<a & b>\n","history_messages":"h","tool_context":"t","observation":null}` + "\n"
	if err != nil || string(b) != want {
		t.Errorf("%s %v", b, err)
	}
	v.Step, v.Observation = 3, &Observation{ToolCallID: "c", Name: "fs.read", Status: "error", Content: "ERROR: x", Truncated: true}
	b, err = v.Encode()
	want = `{"schema":"cortexfs.agent-invocation/v1","run":"ctx-0123","step":3,"input":"<a & b>\n","history_messages":"h","tool_context":"t","observation":{"tool_call_id":"c","name":"fs.read","status":"error","content":"ERROR: x","truncated":true}}` + "\n"
	if err != nil || string(b) != want {
		t.Errorf("%s %v", b, err)
	}
	for name, change := range map[string]func(v *Invocation){
		"history": func(v *Invocation) { v.History = strings.Repeat("x", MaxContext+1) },
		"tools":   func(v *Invocation) { v.ToolContext = strings.Repeat("x", MaxContext+1) },
		"content": func(v *Invocation) { v.Observation = &Observation{Content: strings.Repeat("x", MaxContent+1)} },
		"whole":   func(v *Invocation) { v.Input = strings.Repeat("x", MaxInvocation) },
		"escaped": func(v *Invocation) { v.Input = strings.Repeat("\x01", MaxInvocation/5) },
	} {
		c := *v
		change(&c)
		if _, err := c.Encode(); !fault.Is(err, fault.TooBig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestParseInvocation(t *testing.T) {
	v := &Invocation{Run: runID, Input: "x"}
	b, _ := v.Encode()
	good := string(b)
	if _, err := ParseInvocation(b); err != nil {
		t.Error(err)
	}
	for name, in := range map[string]string{
		"no LF": strings.TrimSuffix(good, "\n"), "two lines": good + good, "unknown key": strings.Replace(good, `"run"`, `"x":1,"run"`, 1),
		"missing key": strings.Replace(good, `"input":"x",`, ``, 1), "schema": strings.Replace(good, "/v1", "/v2", 1),
		"observation on step 0": strings.Replace(good, "null", `{"tool_call_id":"c","name":"n","status":"ok","content":"","truncated":false}`, 1),
		"none on step 1":        strings.Replace(good, `"step":0`, `"step":1`, 1), "step a word": strings.Replace(good, `"step":0`, `"step":"0"`, 1), "empty": "",
	} {
		if _, err := ParseInvocation([]byte(in)); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		v := &Invocation{Run: "r", Step: 1, Input: rapid.String().Draw(t, "input"), History: rapid.String().Draw(t, "history"),
			Observation: &Observation{ToolCallID: "c", Name: "n", Status: "ok", Content: rapid.String().Draw(t, "content")}}
		b, err := v.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseInvocation(b)
		if err != nil || got.Input != v.Input || *got.Observation != *v.Observation {
			t.Fatalf("%q: %v", b, err)
		}
	})
}

// ---- arguments

func TestArguments(t *testing.T) {
	schema := `{"type":"object","properties":{"input":{},"command":{},"args":{}}}`
	for _, c := range []struct {
		in, schema string
		words      []string
		native     string
	}{
		{`"a 'b c' \"d\\\"e\" f\\ g ''"`, "", []string{"a", "b c", `d"e`, "f g", ""}, ""},
		{`""`, "", []string{}, ""},
		{`"ls *.go | wc > $HOME; #x"`, "", []string{"ls", "*.go", "|", "wc", ">", "$HOME;", "#x"}, ""},
		{`{"args":["a","b c",""]}`, "", []string{"a", "b c", ""}, ""},
		{`{"argv":[]}`, "", []string{}, ""},
		{`{"command":"a 'b'"}`, "", []string{"a", "b"}, ""},
		{`{"input":"a 'b"}`, "", []string{"a 'b"}, ""},
		{`{"input":"x"}`, schema, nil, `{"input":"x"}`},
		{`{"command":"x"}`, schema, nil, `{"command":"x"}`},
		{`{"args":5}`, schema, nil, `{"args":5}`},
		{`{"argv":["x"]}`, schema, []string{"x"}, ""},
		{`{"args":["a"],"input":"b"}`, "", nil, `{"args":["a"],"input":"b"}`},
		{`{ "path" : "a" }`, "", nil, `{ "path" : "a" }`},
		{`{}`, "", nil, `{}`},
		{`{"Command":"x"}`, "", nil, `{"Command":"x"}`},
	} {
		a, err := ParseArgs(json.RawMessage(c.in), []byte(c.schema))
		if err != nil || !slices.Equal(a.Words, c.words) || string(a.Native) != c.native || (a.Words == nil) != (c.words == nil) {
			t.Errorf("%s: %+v %v", c.in, a, err)
		}
	}
	for in, kind := range map[string]fault.Kind{
		`"a 'b"`: fault.Invalid, `"a \"b"`: fault.Invalid, `"a\\"`: fault.Invalid, `{"args":"a"}`: fault.Invalid, `{"args":[1]}`: fault.Invalid, `{"argv":null}`: fault.Invalid,
		`{"command":["a"]}`: fault.Invalid, `{"input":5}`: fault.Invalid, `{"args":["a\u0000b"]}`: fault.Invalid, `{"a":{"b":1,"b":2}}`: fault.Invalid, `{"a":1,"a":2}`: fault.Invalid,
		`{"args":["` + strings.Repeat("x", MaxWord+1) + `"]}`: fault.TooBig, `{"args":["a"` + strings.Repeat(`,"a"`, MaxWords) + `]}`: fault.TooBig,
		`"` + strings.Repeat("a ", MaxWords+1) + `"`: fault.TooBig, `"` + strings.Repeat("a", MaxWords*(MaxWord+2)) + `"`: fault.TooBig,
	} {
		if _, err := ParseArgs(json.RawMessage(in), nil); !fault.Is(err, kind) {
			t.Errorf("%.40s: %v", in, err)
		}
	}
	big := `{"a":"` + strings.Repeat("x", maxInline) + `"}`
	a, err := ParseArgs(json.RawMessage(big), nil)
	if err != nil {
		t.Fatal(err)
	}
	if words, stdin := a.Exec(); words != nil || string(stdin) != big || a.Shown()[0] != big {
		t.Error("a large native argument is not on stdin")
	}
	small := &Args{Native: []byte(`{"a":1}`)}
	if words, stdin := small.Exec(); !slices.Equal(words, []string{`{"a":1}`}) || stdin != nil {
		t.Error(words, stdin)
	}
}

// TestWordsQuoting: any words, quoted in any way, come back.
func TestWordsQuoting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringOfN(rapid.RuneFrom([]rune("ab \t\n'\"\\$`*;|&#世👩‍💻")), 0, 12, -1), 0, 10).Draw(t, "words")
		var b strings.Builder
		for _, w := range words {
			b.WriteString(rapid.SampledFrom([]string{" ", "  ", "\t", "\n"}).Draw(t, "blank"))
			switch {
			case rapid.Bool().Draw(t, "double"):
				b.WriteString(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "`", "\\`").Replace(w) + `"`)
			case !strings.Contains(w, "'"):
				b.WriteString("'" + w + "'")
			default:
				b.WriteString("''")
				for _, r := range w {
					if r == '\n' {
						b.WriteString("'\n'")
					} else {
						b.WriteString(`\` + string(r))
					}
				}
			}
		}
		got, err := Words(b.String())
		if err != nil || !slices.Equal(got, words) && len(got)+len(words) > 0 {
			t.Fatalf("%q: %q %v", b.String(), got, err)
		}
	})
}

func TestCheckArguments(t *testing.T) {
	const schema = `{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"integer","maximum":5}},"required":["path"],"additionalProperties":false}`
	if err := CheckArguments([]byte(schema), []byte(`{"path":"secret-value","n":5}`)); err != nil {
		t.Error(err)
	}
	for args, place := range map[string]string{
		`{"path":"secret-value","n":6}`: `"/n"`, `{"n":1}`: "/ (required)", `{"path":"secret-value","secret-key":1}`: "/ (additionalProperties)", `{"path":{"secret-value":1}}`: `"/path"`, `5`: "/ (type)",
	} {
		err := CheckArguments([]byte(schema), []byte(args))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), place) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", args, err)
		}
	}
	// Nothing is loaded, whatever the schema refers to.
	for _, schema := range []string{`{"$ref":"file:///etc/passwd"}`, `{"$ref":"http://127.0.0.1:1/x"}`, `{"$schema":"file:///etc/passwd"}`, `{"$id":"file:///tmp/x","$ref":"y"}`, `{`, `5`, `{"type":"nonsense"}`} {
		if err := CheckArguments([]byte(schema), []byte(`{}`)); !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "root:") {
			t.Errorf("%s: %v", schema, err)
		}
	}
}

func TestMaskSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"bad key sk-abc123 here":          "bad key sk-[secret] here",
		"Authorization: Bearer abc.def-g": "Authorization: Bearer [secret]",
		"token=abc&x=1":                   "token=[secret]&x=1",
		`{"password": "hunter2"}`:         `{"password": "hunter2"}`,
		"password: hunter2, next":         "password: [secret], next",
		"disk-usage is fine":              "disk-usage is fine",
		"İ token=abc":                     "İ token=[secret]",
		"":                                "",
	} {
		if got := maskSecrets(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	if got := firstLine([]byte("\n\x1b[31mpanic: x\x07\nsecond")); got != "[31mpanic: x" {
		t.Errorf("%q", got)
	}
}
