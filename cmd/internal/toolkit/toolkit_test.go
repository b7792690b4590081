package toolkit

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

type result struct {
	code     int
	out, err string
}

func run(t *testing.T, tool, mode, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := Main(tool, args, mode, strings.NewReader(stdin), &out, &errs)
	return result{code, out.String(), errs.String()}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSchemasAreObjectsWithoutAuthority(t *testing.T) {
	for _, tool := range Tools() {
		var s map[string]any
		if err := json.Unmarshal([]byte(tool.Schema()), &s); err != nil {
			t.Errorf("%s: schema: %v", tool.Name, err)
		}
		if s["type"] != "object" || s["additionalProperties"] != false {
			t.Errorf("%s: schema is %v", tool.Name, s)
		}
		if tool.Description == "" || strings.ContainsAny(tool.Description, "\n\t") {
			t.Errorf("%s: description %q", tool.Name, tool.Description)
		}
		if !strings.HasPrefix(tool.Usage(), tool.Name) {
			t.Errorf("%s: usage %q", tool.Name, tool.Usage())
		}
	}
}

func TestReadBothForms(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a"), "one\ntwo\nthree")
	object := func(rest string) string { return `{"path":` + quote(path) + rest + `}` }
	for _, c := range []struct {
		mode, stdin string
		args        []string
		want        string
	}{
		{"", "", []string{path}, "one\ntwo\nthree"},
		{"cli", "", []string{path, "2"}, "two\nthree"},
		{"cli", "", []string{path, "2", "1"}, "two\n"},
		{"cli", "", []string{path, "9", "1"}, ""},
		{"", "", []string{object("")}, "one\ntwo\nthree"},
		{"native", "", []string{object(`,"line":3`)}, "three"},
		{"native", object(`,"line":1,"lines":1`), nil, "one\n"},
	} {
		got := run(t, "fs.read", c.mode, c.stdin, c.args...)
		if got.code != 0 || got.out != c.want || got.err != "" {
			t.Errorf("%q %q: %+v, want %q", c.args, c.stdin, got, c.want)
		}
	}
}

func quote(s string) string { b, _ := json.Marshal(s); return string(b) }

func TestBadInputIsExit2(t *testing.T) {
	for _, c := range []struct {
		tool, mode, stdin string
		args              []string
		want              string
	}{
		{"fs.read", "", "", nil, "PATH is missing"},
		{"fs.read", "", "", []string{"a", "0"}, "the least is 1"},
		{"fs.read", "", "", []string{"a", "x"}, "not a number"},
		{"fs.read", "", "", []string{"a", "1", "1", "1"}, "too many"},
		{"fs.read", "native", "{}", nil, "/path is missing"},
		{"fs.read", "native", `{"path":1}`, nil, "/path is not of type string"},
		{"fs.read", "native", `{"path":null}`, nil, "/path is not of type string"},
		{"fs.read", "native", `{"path":"a","line":"1"}`, nil, "/line is not of type integer"},
		{"fs.read", "native", `{"path":"a","line":1.5}`, nil, "/line is not of type integer"},
		{"fs.read", "native", `{"path":"a","mount":"x"}`, nil, "unknown key /mount"},
		{"fs.read", "native", `{"path":"a"} x`, nil, "text after"},
		{"fs.read", "native", `[]`, nil, "not a JSON object"},
		{"fs.read", "native", "", []string{"{}", "{}"}, "one JSON object"},
		{"fs.read", "native", strings.Repeat(" ", maxStdin+1), nil, "over"},
		{"fs.replace", "", "", []string{"a", "", "b"}, "OLD is empty"},
		{"shell.exec", "", "", []string{""}, "CMD is empty"},
		{"bash", "native", `{"args":["a",null]}`, nil, "/args/1 is not a string"},
		{"no.such", "", "", nil, "without a tool name"},
	} {
		got := run(t, c.tool, c.mode, c.stdin, c.args...)
		if got.code != 2 || !strings.Contains(got.err, c.want) || got.out != "" {
			t.Errorf("%s %q %q: %+v, want exit 2 and %q", c.tool, c.args, c.stdin, got, c.want)
		}
	}
}

func TestWriteKeepsModeLinksAndSymlinks(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "a"), "old")
	if err := os.Chmod(path, 0o751); err != nil {
		t.Fatal(err)
	}
	link, hard := filepath.Join(dir, "link"), filepath.Join(dir, "hard")
	if err := os.Symlink("a", link); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "fs.write", "", "", link, "new"); got.code != 0 {
		t.Fatalf("write through a symlink: %+v", got)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the symlink was replaced: %v %v", info, err)
	}
	if err := os.Link(path, hard); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "fs.write", "", "from stdin", path); got.code != 0 || got.out == "" {
		t.Fatalf("write from stdin: %+v", got)
	}
	if text, _ := os.ReadFile(hard); string(text) != "from stdin" {
		t.Errorf("the hard link reads %q", text)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o751 {
		t.Errorf("mode is now %v", info.Mode())
	}
	if got := run(t, "fs.write", "", "", filepath.Join(dir, "fresh"), ""); got.code != 0 {
		t.Errorf("an empty new file: %+v", got)
	}
	names, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}

func TestReplaceWantsExactlyOne(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a"), "x b x")
	for _, c := range []struct {
		old, new string
		code     int
		msg      string
		after    string
	}{
		{"x", "y", 1, "occurs 2 times", "x b x"},
		{"q", "y", 1, "does not occur", "x b x"},
		{"b", "", 0, "", "x  x"},
	} {
		got := run(t, "fs.replace", "", "", path, c.old, c.new)
		if got.code != c.code || !strings.Contains(got.err, c.msg) {
			t.Errorf("%q→%q: %+v", c.old, c.new, got)
		}
		if text, _ := os.ReadFile(path); string(text) != c.after {
			t.Errorf("%q→%q: file is %q", c.old, c.new, text)
		}
	}
}

func TestErrorsAndOddFiles(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	odd := write(t, filepath.Join(dir, "a\x1b[2J"), "")
	for _, c := range []struct {
		tool string
		args []string
		code int
		want string
	}{
		{"fs.read", []string{filepath.Join(dir, "none")}, 1, "no such file"},
		{"fs.read", []string{dir}, 1, "is a directory"},
		{"fs.read", []string{fifo}, 1, "not a regular file"}, // and does not hang
		{"fs.write", []string{fifo, "x"}, 1, "not a regular file"},
		{"fs.write", []string{dir, "x"}, 1, "is a directory"},
		{"fs.write", []string{"/proc/sys/kernel/ostype", "x"}, 13, "permission denied"},
	} {
		got := run(t, c.tool, "", "", c.args...)
		if got.code != c.code || !strings.Contains(got.err, c.want) {
			t.Errorf("%s %q: %+v, want %d %q", c.tool, c.args, got, c.code, c.want)
		}
	}
	got := run(t, "fs.list", "", "", dir)
	if got.out != `a\x1b[2J`+"\nfifo|\n" {
		t.Errorf("listing %q", got.out)
	}
	got = run(t, "fs.stat", "", "", odd)
	if strings.Contains(got.out, "\x1b") || !strings.Contains(got.out, "type=file\nsize=0\nmode=0640\n") {
		t.Errorf("stat %q", got.out)
	}
}

// TestShellPassesExitAndSignal runs the real programs, as both become bash.
func TestShellPassesExitAndSignal(t *testing.T) {
	dir := t.TempDir()
	for tool, cases := range map[string][]struct {
		args []string
		code int
		out  string
	}{
		"shell.exec": {{[]string{"echo hi; exit 7"}, 7, "hi\n"}, {[]string{`{"cmd":"echo $((6*7))"}`}, 0, "42\n"}},
		"bash":       {{[]string{"-c", "echo $0 $1", "a", "b"}, 0, "a b\n"}, {[]string{`{"args":["-c","exit 3"]}`}, 3, ""}},
	} {
		bin := filepath.Join(dir, tool)
		build := exec.Command("go", "build", "-o", bin, "-ldflags", "-X main.name="+tool, "cortexfs/cmd/tool")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
		for _, c := range cases {
			cmd := exec.Command(bin, c.args...)
			out, _ := cmd.Output()
			if cmd.ProcessState.ExitCode() != c.code || string(out) != c.out {
				t.Errorf("%s %q: exit %d, output %q", tool, c.args, cmd.ProcessState.ExitCode(), out)
			}
		}
	}
}
