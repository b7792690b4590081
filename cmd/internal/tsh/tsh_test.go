package tsh

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
)

func TestWords(t *testing.T) {
	for line, want := range map[string][]string{
		``:                        nil,
		`   `:                     nil,
		`# a comment`:             nil,
		`fs.read a # tail`:        {"fs.read", "a"},
		`a b  c`:                  {"a", "b", "c"},
		`a 'b c' "d e" f\ g`:      {"a", "b c", "d e", "f g"},
		`a '$x *' "\$x \"q\" \n"`: {"a", "$x *", `$x "q" \n`},
		`a ''`:                    {"a", ""},
		`a "b"'c'd`:               {"a", "bcd"},
		`a \* \| \;`:              {"a", "*", "|", ";"},
		`t '{"path":"x y"}'`:      {"t", `{"path":"x y"}`},
		`日本 🚀`:                    {"日本", "🚀"},
	} {
		got, err := Words(line)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("Words(%q) = %q, %v; want %q", line, got, err, want)
		}
	}
	for _, line := range []string{`a | b`, `a > f`, `a < f`, `a; b`, `a;`, `a & `, `a && b`, `a *`, `a ?`, `a [x]`, `a $x`, `a "$x"`,
		"a `b`", `a $(b)`, `x=1 a`, `x=1`, `! a`, `(a)`, `{ a; }`, `if a; then b; fi`, `a 'open`, `a "open`, "a\nb", "a\x00b", `a $'x'`,
		`a <<E`, `f() { a; }`, `a 2>&1`, `a ${x}`, `a $((1))`, strings.Repeat("a", maxLine+1)} {
		if got, err := Words(line); err == nil {
			t.Errorf("Words(%.40q) = %q, want an error", line, got)
		}
	}
}

func FuzzWords(f *testing.F) {
	for _, s := range []string{`a 'b' "c" \d`, `a|b`, "a\\\nb", `"\`, `'`, "é\x80", `a {b,c} ~`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		words, err := Words(line)
		if err != nil {
			return
		}
		// What was accepted comes back when quoted again, word for word.
		var quoted []string
		for _, w := range words {
			if strings.ContainsRune(w, '\r') {
				return // the parser reads CR LF as LF
			}
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		again, err := Words(strings.Join(quoted, " "))
		if err != nil || !cmp.Equal(again, words) {
			t.Errorf("%q: %q became %q (%v)", line, words, again, err)
		}
	})
}

// world is a tree of tools in a temporary directory.
type world struct {
	root, home string
	env        map[string]string
}

func newWorld(t *testing.T) *world {
	dir := t.TempDir()
	w := &world{root: filepath.Join(dir, "ctx"), home: filepath.Join(dir, "ctx/home/7")}
	w.env = map[string]string{"CTX_ROOT": w.root, "CTX_HOME": w.home, "CTX_AGENT": "coder"}
	w.tool(t, "tool/hello", "#!/bin/sh\necho hello \"$@\" $CTX_TOOL $CTX_TOOL_MODE\n", 0o755)
	w.tool(t, "tool/fails", "#!/bin/sh\nexit 7\n", 0o755)
	w.tool(t, "tool/dies", "#!/bin/sh\nkill -TERM $$\n", 0o755)
	w.tool(t, "tool/plain", "no exec bit", 0o644)
	w.tool(t, "home/7/tool/hello", "#!/bin/sh\necho mine\n", 0o755)
	w.file(t, "tool/hello.d/description", "Says hello.\x1b[2J\n", 0o644)
	w.file(t, "tool/hello.d/schema", "{\"type\":\"object\"}\n", 0o644)
	if err := os.Symlink("hello", filepath.Join(w.root, "tool/link")); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) file(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	path = filepath.Join(w.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (w *world) tool(t *testing.T, path, text string, mode os.FileMode) { w.file(t, path, text, mode) }

func (w *world) run(t *testing.T, stdin string, args ...string) (code int, out, errs string) {
	t.Helper()
	in, err := os.CreateTemp(t.TempDir(), "in")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := in.WriteString(stdin); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	var o, e bytes.Buffer
	s := &Shell{Getenv: func(k string) string { return w.env[k] }, Env: []string{"PATH=/usr/bin:/bin"}, Stdin: in, Stdout: &o, Stderr: &e}
	code = s.Main(args)
	return code, o.String(), e.String()
}

func TestRun(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		stdin string
		args  []string
		code  int
		want  string // in either output
	}{
		{"", []string{"hello", "a b"}, 0, "hello a b hello cli"},
		{"", []string{"fails"}, 7, ""},
		{"", []string{"dies"}, 143, ""},
		{"", []string{"ls"}, 69, "no such tool"}, // PATH is not looked at
		{"", []string{"/bin/ls"}, 2, "never by path"},
		{"", []string{"./hello"}, 2, "never by path"},
		{"", []string{"plain"}, 69, "no such tool"},
		{"", []string{"link"}, 69, "no such tool"},
		{"", []string{"-x"}, 2, "unknown option"},
		{"", []string{"--list"}, 0, "dies\nfails\nhello\n"},
		{"", []string{"--", "fails"}, 7, ""},
		{"hello x\nfails\n", nil, 7, "hello x hello cli"},
		{"fails\nexit\nhello\n", nil, 7, ""},
		{"exit 3\nhello\n", nil, 3, ""},
		{"exit 300\n", nil, 2, "not a code"},
		{"hello | cat\n", nil, 2, "no pipes"},
		{"tools -l hel\n", nil, 0, "hello\t" + w.root + "/tool/hello\tSays hello.\\x1b[2J\n"},
		{"which -a hello\n", nil, 0, w.root + "/tool/hello\n" + w.home + "/tool/hello (shadowed)\n"},
		{"type hello\ntype help\n", nil, 0, "help is a built-in"},
		{"help hello\n", nil, 0, "schema: {\"type\":\"object\"}"},
		{"find SAYS\n", nil, 0, "hello\tSays hello."},
		{"find nothing\n", nil, 1, ""},
		{"load hello\npin fails\nloads\n", nil, 0, "hello\nfails\n"},
		{"pin fails\nunload fails\n", nil, 69, "is pinned"},
		{"load nothing\n", nil, 69, "no such tool"},
		{"hello\nhistory\n", nil, 0, "    1  hello\n    2  history\n"},
	} {
		code, out, errs := w.run(t, c.stdin, c.args...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("%q %q: exit %d, want %d and %q\nout %q\nerr %q", c.stdin, c.args, code, c.code, c.want, out, errs)
		}
		if strings.Contains(out+errs, "\x1b") {
			t.Errorf("%q %q printed an escape byte", c.stdin, c.args)
		}
	}
}

func TestSearchPath(t *testing.T) {
	w := newWorld(t)
	standard := []string{w.root + "/tool", w.home + "/tool"}
	for _, c := range []struct {
		name        string
		agent, path string
		rc          string
		want        []string
	}{
		{"default", "coder", "", "", standard},
		{"the process path is authoritative", "coder", "/a:/b", "CTX_PATH=/c\n", []string{"/a", "/b"}},
		{"relative and empty parts are dropped", "coder", ":/a::b:./c", "", []string{"/a"}},
		{"tshrc reorders", "coder", "", "# x\n\nCTX_PATH=" + standard[1] + ":" + standard[0] + "\n", []string{standard[1], standard[0]}},
		{"tshrc leaves out", "coder", "", "CTX_PATH=" + standard[1], standard[1:]},
		{"tshrc adds nothing", "coder", "", "CTX_PATH=/tmp:/workspace", nil},
		{"a person's tshrc", "", "/a", "CTX_PATH=/c", []string{"/c"}},
		{"a person's path", "", "/a", "", []string{"/a"}},
	} {
		w.env["CTX_AGENT"], w.env["CTX_PATH"] = c.agent, c.path
		if err := os.RemoveAll(filepath.Join(w.home, ".tshrc")); err != nil {
			t.Fatal(err)
		}
		if c.rc != "" {
			w.file(t, "home/7/.tshrc", c.rc, 0o644)
		}
		got := NewSearch(func(k string) string { return w.env[k] })
		if !cmp.Equal(got.Dirs, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got.Dirs, c.want)
		}
	}
}

func TestAPersonMayListNotRun(t *testing.T) {
	w := newWorld(t)
	w.env["CTX_AGENT"] = ""
	if code, out, _ := w.run(t, "", "--list"); code != 0 || !strings.Contains(out, "hello") {
		t.Errorf("list: %d %q", code, out)
	}
	if code, _, errs := w.run(t, "", "hello"); code != 69 || !strings.Contains(errs, "ctx agent attach") {
		t.Errorf("run: %d %q", code, errs)
	}
}

func TestLoadsEvictTheLeastRecentlyUsed(t *testing.T) {
	l := NewLoads("# c\n\nmax_loaded_tools=3\n")
	must := func(evicted string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return evicted
	}
	for _, n := range []string{"a", "b", "c", "a"} {
		if e := must(l.Load(n)); e != "" {
			t.Errorf("load %s put out %s", n, e)
		}
	}
	if e := must(l.Load("d")); e != "b" {
		t.Errorf("d put out %q, want b", e)
	}
	must(l.Pin("c"))
	if e := must(l.Load("e")); e != "a" {
		t.Errorf("e put out %q, want a", e)
	}
	must(l.Pin("d"))
	must(l.Pin("e"))
	if _, err := l.Load("f"); err == nil {
		t.Error("loaded over three pins")
	}
	if err := l.Unpin("d"); err != nil {
		t.Fatal(err)
	}
	if e := must(l.Load("f")); e != "d" {
		t.Errorf("f put out %q, want d", e)
	}
	if got := l.Names(); !cmp.Equal(got, []string{"c", "e", "f"}) {
		t.Errorf("loaded: %v", got)
	}
}

// TestTerminal drives the real program on a PTY: editing, Ctrl-C at the prompt,
// Ctrl-C in a tool, completion, end of input.
func TestTerminal(t *testing.T) {
	w := newWorld(t)
	w.tool(t, "tool/sleeper", "#!/bin/sh\ntrap 'echo caught; exit 5' INT\necho sleeping\nwhile :; do sleep 0.05; done\n", 0o755)
	bin := filepath.Join(t.TempDir(), "tsh")
	build := exec.Command("go", "build", "-o", bin, "cortexfs/cmd/tsh")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	cmd := exec.Command(bin)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "TERM=xterm", "CTX_AGENT=coder", "CTX_ROOT=" + w.root, "CTX_HOME=" + w.home}
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var seen bytes.Buffer
	expect := func(want string) {
		t.Helper()
		_ = tty.SetReadDeadline(time.Now().Add(20 * time.Second))
		buf := make([]byte, 4096)
		for !strings.Contains(seen.String(), want) {
			n, err := tty.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				t.Fatalf("waiting for %q: %v\nseen %q", want, err, seen.String())
			}
		}
		_, rest, _ := strings.Cut(seen.String(), want)
		seen.Reset()
		seen.WriteString(rest)
	}
	send := func(s string) {
		t.Helper()
		if _, err := tty.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	expect("coder> ")
	send("rubbish\x03hell\tthere\r")
	expect("hello there hello cli")
	expect("coder> ")
	send("sleeper\r")
	expect("sleeping")
	send("\x03")
	expect("caught")
	expect("coder> ")
	send("exit 4\r")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 4 {
		t.Errorf("exit %v", err)
	}
}
