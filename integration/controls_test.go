package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// agentDir makes an agent by mkdir and returns its .d.
func (d *daemon) agentDir(as who, path string) string {
	d.t.Helper()
	dir := filepath.Join(d.mnt, path)
	if r := d.sh(as, `mkdir "$D"`, "D="+dir); r.code != 0 {
		d.t.Fatalf("mkdir %s: %+v", path, r)
	}
	return dir
}

// TestRegistryThroughTheMount writes every example of the registry: a good one
// is read back, a bad one gives its errno from write, close or nothing else,
// and the old value stays.
func TestRegistryThroughTheMount(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	for _, e := range control.Agent.Entries() {
		if e.Kind != control.Durable || e.Format == nil {
			continue
		}
		path := filepath.Join(dir, e.Name)
		t.Run(e.Name, func(t *testing.T) {
			for _, good := range e.Good {
				if err := os.WriteFile(path, []byte(good), 0o644); err != nil {
					if e.Name == "parent" || errors.Is(err, syscall.EPERM) {
						continue // right form, but this agent may not have it (spec 4.8, 17)
					}
					t.Errorf("good %q: %v", good, err)
					continue
				}
				if got, want := read(t, path), string(control.Normalize([]byte(good))); good != "" && got != want {
					t.Errorf("good %q reads %q", good, got)
				}
			}
			old := read(t, path)
			for _, bad := range e.Bad {
				err := os.WriteFile(path, []byte(bad.Text), 0o644)
				if bad.Text == "" {
					if got := read(t, path); got != old {
						t.Errorf("an empty text changed %q to %q", old, got)
					}
					continue // nobody sees the answer of a release (spec 4.5)
				}
				if !errors.Is(err, bad.Kind.Errno()) {
					t.Errorf("bad %.60q: %v, want %v", bad.Text, err, bad.Kind.Errno())
				}
				if got := read(t, path); got != old {
					t.Errorf("bad %.60q changed %q to %q", bad.Text, old, got)
				}
			}
		})
	}
}

// TestBadInputByKind has the texts that the issue names, at the controls that
// they are about.
func TestBadInputByKind(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	big := strings.Repeat("# 34567890123456789012345678901234567890123456789012345678901234\n", 1100)
	for _, c := range []struct {
		control, text string
		want          fault.Kind
		place         string // in user.cortexfs.error
	}{
		{"policy", "allow coder_t tool:fs.read execute\r\n", fault.Invalid, "1:35: "},
		{"mount", "/a\t/b\tro\tbind\r\n", fault.Invalid, "1:"},
		{"tools", "fs.read\r\n", fault.Invalid, "1:8: "},
		{"approval", "\ufeffask\n", fault.Invalid, "1:1: "},
		{"approval", "as\x00k\n", fault.Invalid, "1:3: "},
		{"system.md", "caf\xe9 \n", fault.Invalid, "1:4: "},
		{"policy", big, fault.TooBig, ""},
		{"system.md", strings.Repeat("x", 65537), fault.TooBig, ""},
		{"mount", "/a /b ro bind\n", fault.Invalid, "1:"},
		{"mount", "/a\t/b\tro\texec\n", fault.Invalid, "1:"},
		{"mount", "/a\t/b\tro\tbind,rbind\n", fault.Invalid, "1:"},
		{"mount", "/a\t/b\tro\tbind,bind\n", fault.Invalid, "1:"},
		{"mount", "/a\t/b\tro\t-\n/c\t/b\tro\t-\n", fault.Invalid, "2:"},
		{"mount", "/a/../b\t/b\tro\t-\n", fault.Invalid, "1:"},
		{"mount", "/a\t/usr/lib\tro\t-\n", fault.Invalid, "1:"},
		{"tools", "fs.read", fault.Invalid, "1:"},
		{"tools", "tsh\n", fault.Invalid, "1:1: "},
		{"tools", "a\na\n", fault.Invalid, "2:1: "},
		{"tools", ".git\n", fault.Invalid, "1:1: "},
		{"tools", "x.sock\n", fault.Invalid, "1:1: "},
		{"uid", "01000\n", fault.Invalid, "1:"},
		{"uid", "+1000\n", fault.Invalid, "1:1: "},
		{"uid", "-1\n", fault.Invalid, "1:1: "},
		{"uid", "4294967295\n", fault.Invalid, "1:"},
		{"uid", "१०००\n", fault.Invalid, "1:1: "},
		{"policy", "allow coder_t chair:x sit\n", fault.Invalid, "1:"},
		{"policy", "allow coder_t tool:x use\n", fault.Invalid, "1:"},
		{"policy", "# ok\ndeny coder_t tool:x execute\n", fault.Invalid, "2:1: "},
		{"env", "LD_PRELOAD=/x\n", fault.Invalid, "1:"},
		{"env", "A=1\nCTX_ROOT=/x\n", fault.Invalid, "2:"},
		{"env", "HOME=/x\n", fault.Invalid, "1:"},
		{"meta.json", "[1]\n", fault.Invalid, "1:1: "},
	} {
		path := filepath.Join(dir, c.control)
		old := read(t, path)
		err := os.WriteFile(path, []byte(c.text), 0o644)
		if !errors.Is(err, c.want.Errno()) {
			t.Errorf("%s %.40q: %v, want %v", c.control, c.text, err, c.want.Errno())
			continue
		}
		if got := read(t, path); got != old {
			t.Errorf("%s %.40q changed %q to %q", c.control, c.text, old, got)
		}
		if c.place == "" {
			continue
		}
		buf := make([]byte, 4096)
		n, err := unix.Getxattr(path, "user.cortexfs.error", buf)
		if err != nil || !strings.HasPrefix(string(buf[:max(n, 0)]), c.place) {
			t.Errorf("%s %.40q: user.cortexfs.error is %q (%v), want %s…", c.control, c.text, buf[:max(n, 0)], err, c.place)
		}
	}
	log := read(t, filepath.Join(dir, "log"))
	if !strings.Contains(log, `"control.rejected"`) || !strings.Contains(log, "carriage return") {
		t.Errorf("the log has no control.rejected with its reason:\n%s", log)
	}
}

// TestNamesInADirectoryOfControls: a misspelt control fails, an unlink changes
// nothing, links and directories are refused.
func TestNamesInADirectoryOfControls(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	for _, c := range []struct{ script, says string }{
		{`touch "$D/aproval"`, "Operation not permitted"},
		{`echo ask > "$D/aproval"`, "Operation not permitted"},
		{`mkdir "$D/sub"`, "Operation not permitted"},
		{`ln -s /etc/passwd "$D/policy.new" `, "Operation not permitted"},
		{`ln -sf /tmp/mine "$D/x" `, "Operation not permitted"},
		{`ln "$D/policy" "$D/label"`, ""},
		{`mv "$D/policy" "$D/label"`, "Operation not permitted"},
		{`mkfifo "$D/mount.fifo"`, "Operation not permitted"},
		{`truncate -s 2 "$D/approval"`, "nvalid argument"},
		{`printf 'ask\n' | dd of="$D/approval" conv=notrunc status=none`, "nvalid argument"},
		{`chown 12345 "$D/approval"`, "Operation not permitted"},
		{`setfattr -n user.cortexfs.kind -v x "$D/approval"`, "Operation not permitted"},
		{`echo dead > "$D/status"`, "Operation not permitted"},
		{`mkdir "$D/../../extra"`, "Operation not permitted"},
		{`rmdir "$D/../../tool"`, "Operation not permitted"},
	} {
		r := d.sh(who{}, c.script, "D="+dir)
		if r.code == 0 || !strings.Contains(r.out, c.says) {
			t.Errorf("%s: %+v, want a failure with %q", c.script, r, c.says)
		}
	}
	if got := read(t, filepath.Join(dir, "approval")); got != "auto\n" {
		t.Errorf("approval reads %q", got)
	}
	if r := d.sh(who{}, `chmod 600 "$D/approval" && touch -d yesterday "$D/approval" && chown root:root "$D/approval" && stat -c %a "$D/approval"`, "D="+dir); r.code != 0 || r.out != "644\n" {
		t.Errorf("chmod, touch and chown to the same owner succeed without effect: %+v", r)
	}
	set(t, filepath.Join(dir, "policy"), "allow coder_t tool:fs.read execute\n")
	if r := d.sh(who{}, `rm "$D/policy" && ! cat "$D/policy" 2>/dev/null`, "D="+dir); r.code != 0 {
		t.Errorf("rm: %+v", r)
	}
	eventually(t, "a removed control comes back with its value", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "policy"))
		return err == nil && string(text) == "allow coder_t tool:fs.read execute\n"
	})
}

// TestTwoWritersNeverMakeAThird is case E09.
func TestTwoWritersNeverMakeAThird(t *testing.T) {
	d := newDaemon(t, "")
	path := filepath.Join(d.agentDir(who{}, "agent/coder.d"), "mount")
	tables := map[[32]byte]bool{}
	var files []string
	for i, rows := range []int{3, 200} {
		var b strings.Builder
		for r := range rows {
			fmt.Fprintf(&b, "/srv/%d/%d\t/t%d\tro\tbind,nosuid\n", i, r, r)
		}
		file := filepath.Join(t.TempDir(), "table")
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		tables[sha256.Sum256([]byte(b.String()))] = true
	}
	set(t, path, read(t, files[0]))
	var writersOf []*exec.Cmd
	for _, f := range files {
		cmd := command(who{}, []string{"F=" + f, "P=" + path}, "bash", "-c", `for i in $(seq 150); do cat "$F" > "$P" || exit 1; done`)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		writersOf = append(writersOf, cmd)
	}
	ended := make(chan error, len(writersOf))
	for _, cmd := range writersOf {
		go func() { ended <- cmd.Wait() }()
	}
	reads := 0
	for left := len(writersOf); left > 0; {
		if text := read(t, path); !tables[sha256.Sum256([]byte(text))] {
			t.Fatalf("a third text after %d reads: %q", reads, text)
		}
		reads++
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("a writer failed: %v", err)
			}
			left--
		default:
		}
	}
	if reads < 10 {
		t.Errorf("only %d reads beside the writers", reads)
	}
}

// TestTruncateThenWait is case E07: others see the old text until the writer's
// close.
func TestTruncateThenWait(t *testing.T) {
	d := newDaemon(t, "")
	path := filepath.Join(d.agentDir(who{}, "agent/coder.d"), "policy")
	const old, fresh = "allow coder_t tool:fs.read execute\n", "allow coder_t tool:fs.list execute\n"
	set(t, path, old)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if got := read(t, path); got != old {
			t.Fatalf("after truncation others read %q", got)
		}
	}
	if _, err := f.WriteString(fresh); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != old {
		t.Errorf("before close others read %q", got)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != fresh {
		t.Errorf("after close others read %q", got)
	}
}

// TestFullDisk: a store on a full file system refuses with ENOSPC and keeps the
// old text, also over a restart; a revocation still commits from the reserve.
func TestFullDisk(t *testing.T) {
	d := newDaemon(t, "")
	d.stop()
	if err := unix.Mount("tmpfs", d.store, "tmpfs", 0, "size=24m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		d.stop()
		if err := unix.Unmount(d.store, 0); err != nil {
			t.Error(err)
		}
	}()
	d.start()
	dir := d.agentDir(who{}, "agent/coder.d")
	policy, system := filepath.Join(dir, "policy"), filepath.Join(dir, "system.md")
	set(t, policy, "allow coder_t tool:fs.read execute\n")
	big := strings.Repeat("x", 60_000) + "\n"
	set(t, system, big)
	// The reserve gives way once and the rest is filled, by the daemon's own user.
	fill := filepath.Join(d.store, "filler")
	full := func() {
		f, err := os.OpenFile(fill, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		chunk := make([]byte, 4096)
		for {
			if _, err := f.Write(chunk); err != nil {
				if !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
				return
			}
		}
	}
	full()
	set(t, policy, "# revoked\n") // from the reserve
	failed := false
	for i := 0; i < 2000 && !failed; i++ {
		full()
		other := filepath.Join(d.mnt, fmt.Sprintf("agent/a%d.d", i))
		if err := os.Mkdir(other, 0o755); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			failed = true
			if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("half an agent after ENOSPC: %v", err)
			}
			break
		}
		path := filepath.Join(other, "system.md")
		err := os.WriteFile(path, []byte(big), 0o644)
		if err != nil && !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if err != nil {
			failed = true
			if got := read(t, path); got != "" {
				t.Errorf("after ENOSPC the text is %.20q…, want the old one", got)
			}
		}
	}
	if !failed {
		t.Error("the store never got full")
	}
	kept := read(t, system)
	d.kill()
	d.start()
	if got := read(t, system); got != kept {
		t.Errorf("after a restart the text is %.20q…, want %.20q…", got, kept)
	}
	if got := read(t, policy); got != "# revoked\n" {
		t.Errorf("after a restart the policy is %q", got)
	}
}

// TestKillDuringWrites: kill -9 of the daemon at random moments of 500 writes;
// after a restart each control is the text before or after, whole.
func TestKillDuringWrites(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	path := filepath.Join(dir, "mount")
	text := func(i int) string { return strings.Repeat(fmt.Sprintf("/srv/%d\t/t\tro\t-\n", i), 1) }
	acknowledged := -1
	for i, round := 0, 0; i < 500; round++ {
		stopAt := i + 1 + rand.IntN(120)
		timer := time.AfterFunc(time.Duration(rand.IntN(60_000))*time.Microsecond, func() { _ = d.cmd.Process.Kill() })
		for ; i < 500 && i < stopAt; i++ {
			if err := os.WriteFile(path, []byte(text(i)), 0o644); err != nil {
				i++ // this one may have been made durable before the kill
				break
			}
			acknowledged = i
		}
		timer.Stop()
		d.kill()
		d.start()
		got := read(t, path)
		ok := acknowledged >= 0 && got == text(acknowledged)
		for k := acknowledged + 1; k < i; k++ {
			ok = ok || got == text(k)
		}
		if acknowledged < 0 {
			ok = ok || strings.Contains(got, "/ctx\t/ctx")
		}
		if !ok {
			t.Fatalf("round %d: after write %d was acknowledged and up to %d tried, the control reads %q", round, acknowledged, i-1, got)
		}
	}
	var strays []string
	err := filepath.WalkDir(filepath.Join(d.store, "object/agent"), func(p string, e os.DirEntry, err error) error {
		if err == nil && strings.Contains(e.Name(), "tmp") {
			strays = append(strays, p)
		}
		return err
	})
	if err != nil || len(strays) > 0 {
		t.Errorf("temporary files left in the store: %v %v", strays, err)
	}
}
