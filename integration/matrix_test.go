package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A writer is a real program that puts the text of $T (also in $V, without its
// final LF) into the control $P. It is run once with a good and once with a bad
// text for each control of the matrix.
type writer struct {
	name   string
	script string
	argv   []string // instead of script
	keys   func(text string) []typed
	pty    bool
	// silent: the program hides the refusal (its exit code is 0); what it prints
	// is in says. notes-fuse 1c has what each program does.
	silent bool
	says   string // what it prints on refusal; "Invalid argument" where empty
	// overlay: the text is laid over the old one or put behind it, so only a
	// control that is empty before takes it.
	overlay bool
	// keeps and backup name what the program itself leaves beside a control that
	// it could not save, and that it saved (%s is the control's name).
	keeps, backup string
}

const vimSave = `try | silent write | catch | call writefile([v:exception], '/dev/stderr', 'a') | cquit | endtry`

func vim(extra string) []string {
	return []string{"bash", "-c", `vim -u NONE -N -i NONE ` + extra + ` -c "silent %!cat $T" -c "` + vimSave + `" -c qa "$P"`}
}

var writers = []writer{
	{name: "bash echo", script: `echo "$V" > "$P"`},
	{name: "bash echo >>", script: `echo "$V" >> "$P"`, overlay: true},
	{name: "dash echo", argv: []string{"dash", "-c", `echo "$V" > "$P"`}, says: "I/O error"},
	{name: "dash echo >>", argv: []string{"dash", "-c", `echo "$V" >> "$P"`}, says: "I/O error", overlay: true},
	{name: "printf", script: `printf '%s\n' "$V" > "$P"`},
	{name: "cat", script: `cat "$T" > "$P"`},
	{name: "tee", script: `tee "$P" < "$T" > /dev/null`},
	{name: "cp", script: `cp "$T" "$P"`},
	{name: "cp --remove-destination", script: `cp --remove-destination "$T" "$P"`},
	{name: "dd", script: `dd if="$T" of="$P" status=none`},
	{name: "dd bs=1", script: `dd if="$T" of="$P" bs=1 status=none`},
	{name: "dd conv=notrunc", script: `dd if="$T" of="$P" conv=notrunc status=none`, overlay: true},
	{name: "dd conv=fsync", script: `dd if="$T" of="$P" conv=fsync status=none`},
	{name: "mv", script: `cp "$T" "$T.moved" && mv -f "$T.moved" "$P"; c=$?; rm -f "$T.moved"; exit $c`},
	{name: "install", script: `install -m 0644 "$T" "$P"`},
	{name: "sed -i", script: `[ -s "$P" ] || exit 77; sed -i -e "1r $T" -e '1,$d' "$P"`},
	{name: "perl -i", script: `[ -s "$P" ] || exit 77; perl -i -e 'local $/; <>; open my $t, "<", $ENV{T}; print <$t>; close ARGV or die "close: $!"' "$P"`},
	{name: "python write", script: `python3 -c 'import os
f = open(os.environ["P"], "w"); f.write(open(os.environ["T"]).read()); f.close()'`},
	{name: "python os.replace", script: `python3 -c 'import os, tempfile
p = os.environ["P"]; d = os.path.dirname(p)
fd, tmp = tempfile.mkstemp(prefix=os.path.basename(p) + ".", dir=d)
os.write(fd, open(os.environ["T"], "rb").read()); os.fsync(fd); os.close(fd)
try:
    os.replace(tmp, p)
except OSError:
    os.unlink(tmp); raise
dfd = os.open(d, os.O_RDONLY); os.fsync(dfd); os.close(dfd)'`},
	{name: "vim", argv: vim(""), pty: true, says: "E51"},
	{name: "vim backupcopy=yes", argv: vim(`--cmd "set backupcopy=yes writebackup"`), pty: true, says: "E51", keeps: "%s~"},
	{name: "vim backupcopy=no", argv: vim(`--cmd "set backupcopy=no writebackup"`), pty: true, says: "E51"},
	{name: "nano", argv: []string{"bash", "-c", `nano --ignorercfiles --nonewlines "$P"`}, pty: true, silent: true, says: "Error writing",
		keys: func(text string) []typed {
			return []typed{
				{"Exit", "\x1b\\\x1bt"}, // first line, cut to the end
				{"", strings.ReplaceAll(text, "\n", "\r") + "\x0f"},
				{"File Name to Write", "\r"},
				{"", "\x18n"},
			}
		}},
	{name: "emacs -nw", argv: []string{"bash", "-c", `emacs -Q -nw "$P" --eval '(condition-case e
  (progn (erase-buffer) (insert-file-contents (getenv "T")) (set-buffer-modified-p t) (save-buffer) (kill-emacs 0))
  (error (write-region (format "%S" e) nil (concat (getenv "T") ".err")) (kill-emacs 3)))'; c=$?
cat "$T.err" 2>/dev/null; rm -f "$T.err"; exit $c`}, pty: true, says: "nvalid argument", keeps: "#%s#", backup: "%s~"},
}

// The controls of the matrix: a word, a table, a list with a required final LF,
// rules, JSON.
var matrixControls = []struct{ name, old, good, bad string }{
	{"approval", "auto\n", "ask\n", "maybe\n"},
	{"mount", "/a\t/a\tro\t-\n", "/ctx\t/ctx\tro\trbind,nosuid,nodev\n/srv/x\t/x\trw\tbind,noexec\n", "/srv/x\t/x\trw\tbind,rbind\n"},
	{"tools", "bash\n", "fs.read\nfs.list\n", "fs.read\ntsh\n"},
	{"policy", "# none\n", "# two\nallow coder_t tool:fs.read execute\nallow coder_t model:main use\n", "allow coder_t tool:fs.read exec\n"},
	{"meta.json", "{}\n", "{\"for\": [1, \"two\", null]}\n", "{\"for\": [1, }\n"},
}

// TestWriterMatrix is the table of issue 2, item 3: each real program, each kind
// of control, a valid and an invalid text; exit code and message, the value
// afterwards, nothing left in the directory.
func TestWriterMatrix(t *testing.T) {
	d := newDaemon(t, "")
	if r := d.sh(who{}, `mkdir "$M/agent/coder.d"`, "M="+d.mnt); r.code != 0 {
		t.Fatalf("mkdir: %+v", r)
	}
	dir := filepath.Join(d.mnt, "agent/coder.d")
	elsewhere := t.TempDir()
	for _, c := range matrixControls {
		for _, w := range writers {
			for _, text := range []string{c.good, c.bad} {
				t.Run(fmt.Sprintf("%s/%s/%v", c.name, w.name, text == c.good), func(t *testing.T) {
					runWriter(t, d, w, filepath.Join(dir, c.name), elsewhere, c.old, text, text == c.good)
				})
			}
		}
	}
}

func runWriter(t *testing.T, d *daemon, w writer, control, elsewhere, old, text string, good bool) {
	t.Helper()
	if w.overlay {
		name := filepath.Base(control)
		if name == "approval" || name == "meta.json" {
			t.Skip("never empty: nothing can be put behind it")
		}
		old = ""
	}
	set(t, control, old)
	before := names(t, filepath.Dir(control))
	file := filepath.Join(elsewhere, "text")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	vars := []string{"P=" + control, "T=" + file, "V=" + strings.TrimSuffix(text, "\n"), "HOME=" + elsewhere}
	argv := w.argv
	if argv == nil {
		argv = []string{"bash", "-c", w.script}
	}
	var r result
	if w.pty {
		var keys []typed
		if w.keys != nil {
			keys = w.keys(text)
		}
		r = onTerminal(t, who{}, vars, keys, argv...)
	} else {
		r = runProgram(t, who{}, vars, argv...)
	}
	want := old
	if good {
		want = text
	}
	if got := read(t, control); got != want {
		t.Errorf("the control reads %q, want %q\nexit %d, printed %.300q", got, want, r.code, r.out)
	}
	says := w.says
	if says == "" {
		says = "nvalid argument"
	}
	switch {
	case good && r.code != 0:
		t.Errorf("exit %d for a good text: %s", r.code, r.out)
	case !good && !w.silent && r.code == 0:
		t.Errorf("exit 0 for a bad text: %s", r.out)
	case !good && !strings.Contains(r.out, says):
		t.Errorf("a bad text: printed %.600q, want %q in it", r.out, says)
	}
	own := w.keeps
	if good {
		own = w.backup
	}
	if own != "" { // its user clears that away, and can
		if err := os.Remove(filepath.Join(filepath.Dir(control), fmt.Sprintf(own, filepath.Base(control)))); err != nil {
			t.Error(err)
		}
	}
	if after := names(t, filepath.Dir(control)); after != before {
		t.Errorf("left behind: before %s\nafter %s", before, after)
	}
}

func set(t *testing.T, control, text string) {
	t.Helper()
	if read(t, control) == text {
		return
	}
	if err := os.WriteFile(control, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if text == "" { // committed at release: wait for what the next open shows
		eventually(t, "the empty text is in force", func() bool { return read(t, control) == "" })
	}
	if got := read(t, control); got != text {
		t.Fatalf("%s: wrote %q, reads %q", control, text, got)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}
