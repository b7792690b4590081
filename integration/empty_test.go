package integration

import (
	"path/filepath"
	"testing"
)

// TestEmptying: truncate(1), `: >` and cp of an empty file commit the empty text
// where it is valid, at the latest at release; elsewhere the value stays (spec 4.5).
func TestEmptying(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	for _, c := range matrixControls {
		path := filepath.Join(dir, c.name)
		empties := c.name == "mount" || c.name == "tools" || c.name == "policy"
		for _, script := range []string{`truncate -s 0 "$P"`, `: > "$P"`, `cp /dev/null "$P"`, `python3 -c 'import os; os.truncate(os.environ["P"], 0)'`} {
			set(t, path, c.good)
			r := d.sh(who{}, script, "P="+path)
			if !empties {
				if got := read(t, path); got != c.good {
					t.Errorf("%s: %s: reads %q", c.name, script, got)
				}
				continue
			}
			if r.code != 0 {
				t.Errorf("%s: %s: %+v", c.name, script, r)
			}
			eventually(t, c.name+": "+script+" empties it", func() bool { return read(t, path) == "" })
		}
	}
	if r := d.sh(who{}, `python3 -c 'import os; os.truncate(os.environ["P"], 0)'`, "P="+filepath.Join(dir, "approval")); r.code == 0 {
		t.Error("truncate(2) of a control that is never empty succeeds")
	}
}

// TestGitConfig: git's way of writing (lock file, rename) on a control that takes
// such a text, and on those that do not.
func TestGitConfig(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	before := names(t, dir)
	system := filepath.Join(dir, "system.md")
	for _, script := range []string{`git config -f "$P" user.name coder`, `git config -f "$P" user.name reviewer`, `git config -f "$P" --unset user.name; git config -f "$P" user.name reviewer`} {
		if r := d.sh(who{}, script, "P="+system); r.code != 0 {
			t.Errorf("%s: %+v", script, r)
		}
	}
	if got := read(t, system); got != "[user]\n\tname = reviewer\n" {
		t.Errorf("system.md reads %q", got)
	}
	for _, c := range matrixControls {
		path := filepath.Join(dir, c.name)
		for _, old := range []string{c.old, ""} {
			if old == "" && (c.name == "approval" || c.name == "meta.json") {
				continue
			}
			set(t, path, old)
			r := d.sh(who{}, `git config -f "$P" user.name coder`, "P="+path)
			if r.code == 0 {
				t.Errorf("%s: git config succeeds", c.name)
			}
			if got := read(t, path); got != old {
				t.Errorf("%s reads %q, was %q", c.name, got, old)
			}
		}
	}
	if after := names(t, dir); after != before {
		t.Errorf("left behind: before %s\nafter %s", before, after)
	}
}

// TestFileCommand: what `ctx file` says of the registry and of a text.
func TestFileCommand(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	vars := []string{"CTX_ROOT=" + d.mnt, "D=" + dir}
	for _, c := range []struct {
		script, says string
		code         int
	}{
		{`ctx file list`, "approval", 0},
		{`ctx file help mount`, "source", 0},
		{`ctx file check "$D/mount"`, "", 0},
		{`printf '/a\t/b\tro\texec\n' | ctx file check --as mount -`, "1:", 2},
		{`ctx file list -o json`, `"name": "policy"`, 0},
	} {
		r := d.sh(who{}, c.script, vars...)
		if r.code != c.code || !contains(r.out, c.says) {
			t.Errorf("%s: exit %d, want %d and %q:\n%.600s", c.script, r.code, c.code, c.says, r.out)
		}
	}
}
