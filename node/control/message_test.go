package control

import (
	"strings"
	"testing"

	"cortexfs/node/fault"
)

// The messages are what people get when a text is refused: these are worth their
// words.
func TestMessages(t *testing.T) {
	for _, c := range []struct{ control, text, want string }{
		{"mount", "/a /b ro bind\n", "1:14: 1 fields, four are needed: separate them by one TAB each, not by spaces"},
		{"mount", "/a\t/b\tro bind\n", "1:9: separate fields by one TAB, not by spaces"},
		{"mount", "/a\t/b\tro\n", "1:9: 3 fields, four are needed: source, target, ro or rw, options"},
		{"mount", "/a\t/b\tro\tbind\r\n", "1:14: carriage return"},
		{"mount", "/a\t/b\tro\tbind,rbind\n", "1:15: bind and rbind exclude each other"},
		{"mount", "/a\t/b\tro\texec\n", "1:10: unknown option, - or some of bind rbind nosuid nodev noexec"},
		{"mount", "/a\t/b\tro\tnodev,nodev\n", "1:16: repeats the option nodev"},
		{"mount", "/a\t/b\tro\t-,bind\n", "1:10: - stands alone"},
		{"mount", "\n/a\t/b\tro\t-\n/c\t/b\tro\t-\n", "3:4: target: repeats the target of line 2"},
		{"mount", "/a\t/ctx/x\tro\t-\n", "1:4: target: nothing is mounted below /ctx"},
		{"mount", "/a\t/ctx\tro\t-\n", "1:4: target: /ctx takes the source /ctx only"},
		{"mount", "/a\t/etc/profile.d/x\tro\t-\n", "1:4: target: /etc/profile.d and what is below belongs to the runtime"},
		{"mount", "/a/../b\t/b\tro\t-\n", "1:4: source: path with a . or .. component"},
		{"tools", "fs.read\ntsh\n", "2:1: tsh is reserved: it always counts as declared"},
		{"tools", "fs.read", "1:8: the last line does not end in a newline"},
		{"tools", "fs.read\r\n", "1:8: carriage return"},
		{"tools", "a\n\nb\n", "2:1: blank line"},
		{"approval", "maybe\n", "1:1: unknown value, one of auto ask"},
		{"approval", "ask\n\n", "2:1: a blank line after the value"},
		{"approval", "ask\nauto\n", "2:1: a second line: this control holds one value"},
		{"approval", "", "1:1: the value is empty"},
		{"uid", "+1\n", "1:1: not a plain decimal number: digits only"},
		{"uid", "01\n", "1:1: number with a leading zero"},
		{"uid", "4294967295\n", "1:1: number is over 4294967294"},
		{"uid", " 1\n", "1:1: blank before the value"},
		{"uid", "1 \n", "1:2: blank after the value"},
		{"env", "LD_PRELOAD=/x\n", "1:1: the keys LD_* are reserved"},
		{"env", "A=1\nA=2\n", "2:1: repeats the key of line 1"},
		{"env", "SHELL=/bin/sh\n", "1:1: the key SHELL is reserved"},
		{"env", "CTX_AGENT_STEPS=256\n", "1:17: number is not 1–255"},
		{"meta.json", "{\"a\":1,}\n", "1:8: a key in quotes is expected"},
		{"meta.json", "{\n \"a\": tru\n}\n", "2:10: true, false or null is expected"},
		{"meta.json", "[]\n", "1:1: a JSON object begins with {"},
		{"meta.json", "{\"a\":[1\n", "2:1: the text ends inside the object: , or the closing bracket is expected"},
		{"system.md", "a\n\x1b[1m\n", "2:1: control byte 0x1b"},
		{"policy", "allow coder_t tool:fs.read execute\r\n", "1:35: carriage return"},
	} {
		err := Agent.Lookup(c.control).Judge([]byte(c.text))
		if got := placeOf(err); got != c.want {
			t.Errorf("%s %q:\n got %s\nwant %s", c.control, c.text, got, c.want)
		}
	}
}

// A refused text may hold a secret that was pasted into the wrong file: no message
// repeats a word of it (spec section 4.9).
func TestMessagesDoNotRepeatTheText(t *testing.T) {
	const secret = "hunter2"
	walk(t, func(t *testing.T, e *Entry) {
		if e.Kind != Durable {
			return
		}
		var texts []string
		for _, s := range append([]string{""}, e.Good...) {
			for i := 0; i <= len(s); i++ {
				texts = append(texts, s[:i]+secret+s[i:], s[:i]+" "+secret+"\n"+s[i:], s[:i]+secret+"\r\n")
			}
		}
		for _, s := range texts {
			for _, err := range []error{e.Judge([]byte(s)), e.JudgePrefix([]byte(s))} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Fatalf("%q: %v", s, err)
				}
			}
		}
	})
}

// Lines that repeat what the runtime sets are good for that object only.
func TestEnvOfAnObject(t *testing.T) {
	e := Agent.Lookup("env")
	o := Object{Name: "coder", Owner: 1000}
	const text = "CTX_ROOT=/ctx\nCTX_HOME=/ctx/home/1000\nCTX_AGENT=coder\n"
	if err := e.JudgeFor(o, []byte(text)); err != nil {
		t.Errorf("refused: %v", err)
	}
	for i := range text {
		if err := e.JudgePrefixFor(o, []byte(text[:i])); err != nil {
			t.Fatalf("prefix %q: %v", text[:i], err)
		}
	}
	if err := e.Judge([]byte(text)); !fault.Is(err, fault.Invalid) {
		t.Errorf("without the object: %v", err)
	}
	other := Object{Name: "coder", Owner: 1001}
	if err := e.JudgeFor(other, []byte(text)); !fault.Is(err, fault.Invalid) {
		t.Errorf("for another owner: %v", err)
	}
	if err := e.JudgePrefixFor(other, []byte("CTX_HOME=/ctx/home/1000")); !fault.Is(err, fault.Invalid) {
		t.Errorf("prefix for another owner: %v", err)
	}
	vars, err := ParseEnv([]byte(text+"CTX_PATH=/ctx/tool\n"), append(Repeats(o), "CTX_PATH=/ctx/tool")...)
	if err != nil || len(vars) != 4 {
		t.Errorf("ParseEnv = %v, %v", vars, err)
	}
}

func TestLoneNewlineInTools(t *testing.T) {
	got, err := ParseTools([]byte("\n"))
	if err != nil || len(got.Names) != 0 {
		t.Errorf("a lone newline reads as %v, %v", got.Names, err)
	}
}

func TestSmallParsers(t *testing.T) {
	if r, err := ParseModelRef([]byte("debug/echo\n")); err != nil || r != (ModelRef{Provider: "debug", Model: "echo"}) || r.String() != "debug/echo" {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := ParseModelRef([]byte("main")); err != nil || r.Alias != "main" || r.String() != "main" {
		t.Errorf("%+v, %v", r, err)
	}
	if w, err := ParseWord([]byte("ask\n")); err != nil || w != "ask" {
		t.Errorf("%q, %v", w, err)
	}
	if n, err := ParseUint32([]byte("4294967294")); err != nil || n != 4294967294 {
		t.Errorf("%d, %v", n, err)
	}
	if l, err := ParseLabel([]byte("a:b:c_t:s0\n")); err != nil || l.Type != "c_t" {
		t.Errorf("%v, %v", l, err)
	}
	if m, err := ParseMCP([]byte(`{"transport":"stdio","config":"/c","server":"s","tool":"t"}`)); err != nil || m.Where != "sandbox" {
		t.Errorf("%+v, %v", m, err)
	}
	if c, err := ParseTshConfig([]byte("cache_capacity=7\n")); err != nil || c["cache_capacity"] != 7 || len(c) != 1 {
		t.Errorf("%v, %v", c, err)
	}
}
