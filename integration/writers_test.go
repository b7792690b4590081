package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var (
	alice = who{uid: 2001, gid: 2001, groups: []uint32{2001, 3001}}
	bob   = who{uid: 2002, gid: 2002, groups: []uint32{2002}}
)

// TestWhoMayWrite is spec 4.8 with three uids: root, an owner, a stranger.
func TestWhoMayWrite(t *testing.T) {
	d := newDaemon(t, "")
	sys := d.agentDir(who{}, "agent/coder.d")
	other := d.agentDir(who{}, "agent/reviewer.d")
	if r := d.sh(who{}, `echo 2001 > "$D/owner" && printf '' && cat "$D/owner"`, "D="+sys); r.code != 0 || r.out != "2001\n" {
		t.Fatalf("root gives an agent away: %+v", r)
	}
	own := d.agentDir(alice, "home/2001/agent/mine.d")
	for _, c := range []struct {
		name   string
		as     who
		script string
		ok     bool
		says   string
	}{
		{"the owner writes", alice, `echo ask > "$S/approval"`, true, ""},
		{"root writes", who{}, `echo auto > "$S/approval"`, true, ""},
		{"a stranger does not", bob, `echo ask > "$S/approval"`, false, "Permission denied"},
		{"nor by rename", bob, `cd "$S" && cp approval approval.new`, false, "Permission denied"},
		{"nor by unlink", bob, `rm -f "$S/approval"`, false, "Permission denied"},
		{"nor into another home", bob, `ls "$O"`, false, "Permission denied"},
		{"the owner does not write another's", alice, `echo ask > "$R/approval"`, false, "Permission denied"},
		{"private controls are private", bob, `cat "$S/mount"`, false, "Permission denied"},
		{"and readable to the owner", alice, `cat "$S/mount"`, true, ""},
		{"owner is root's to change", alice, `echo 2002 > "$S/owner"`, false, "Operation not permitted"},
		{"parent is root's to set", alice, `echo agent:reviewer > "$O/parent"`, false, "Operation not permitted"},
		{"uid is their own", alice, `echo 2002 > "$O/uid"`, false, "Operation not permitted"},
		{"own uid is allowed", alice, `echo 2001 > "$O/uid"`, true, ""},
		{"never uid 0", alice, `echo 0 > "$O/uid"`, false, "Operation not permitted"},
		{"gid is one of theirs", alice, `echo 3001 > "$O/gid"`, true, ""},
		{"and no other", alice, `echo 3002 > "$O/gid"`, false, "Operation not permitted"},
		{"groups are theirs", alice, `printf '3001\n2001\n' > "$O/groups"`, true, ""},
		{"each of them", alice, `printf '3001\n3002\n' > "$O/groups"`, false, "Operation not permitted"},
		{"a label type of somebody else", alice, `echo reviewer_t > "$O/label"`, false, "Operation not permitted"},
		{"in long form too", alice, `echo user_u:agent_r:reviewer_t:s0 > "$O/label"`, false, "Operation not permitted"},
		{"a free one", alice, `echo u2001.fresh_t > "$O/label"`, true, ""},
		{"root frees it for them", who{}, `echo reviewer_t > "$O/label"`, true, ""},
		{"a home agent stays the home's", who{}, `echo 2002 > "$O/owner"; cat "$O/owner"; stat -c %u "$O/policy"`, false, "2001\n"},
		{"agent/ is root's", alice, `mkdir "$M/agent/x.d"`, false, "Permission denied"},
		{"tool/ is root's", alice, `echo x > "$M/tool/x"`, false, "Permission denied"},
	} {
		r := d.sh(c.as, c.script, "S="+sys, "R="+other, "O="+own, "M="+d.mnt)
		if (r.code == 0) != c.ok && c.name != "a home agent stays the home's" || !strings.Contains(r.out, c.says) {
			t.Errorf("%s: %+v, want ok=%v and %q", c.name, r, c.ok, c.says)
		}
	}
}

// TestTheOpenerIsTheWriter is attack X13: a setuid program writes through a
// descriptor that its caller opened, and gains nothing.
func TestTheOpenerIsTheWriter(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(alice, "home/2001/agent/mine.d")
	rootcat := filepath.Join(d.dir, "rootcat")
	if r := d.sh(who{}, `cp /bin/cat "$C" && chmod 4755 "$C"`, "C="+rootcat); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := d.sh(alice, `"$C" /etc/shadow | wc -c`, "C="+rootcat); strings.HasPrefix(r.out, "0") {
		t.Skip("set-user-id programs do not work on this file system")
	}
	for text, ok := range map[string]bool{"2001": true, "2002": false, "0": false} {
		r := d.sh(alice, `echo "$X" | "$C" > "$D/uid"`, "C="+rootcat, "D="+dir, "X="+text)
		if (r.code == 0) != ok {
			t.Errorf("uid %s written by a setuid program: %+v", text, r)
		}
	}
	if got := read(t, filepath.Join(dir, "uid")); got != "2001\n" {
		t.Errorf("uid is %q", got)
	}
}

// TestForeignNamespacesDoNotWrite is attack X12: from another user or pid
// namespace the controls can be read, not written; foreign_ns lifts it.
func TestForeignNamespacesDoNotWrite(t *testing.T) {
	for _, options := range []string{"", "foreign_ns"} {
		d := newDaemon(t, options)
		sys, own := d.agentDir(who{}, "agent/coder.d"), d.agentDir(alice, "home/2001/agent/mine.d")
		for _, c := range []struct {
			as     who
			dir    string
			script string
		}{
			{who{}, sys, `unshare --user --map-root-user sh -c 'echo ask > "$D/approval"'`},
			{who{}, sys, `unshare --pid --fork sh -c 'echo ask > "$D/approval"'`},
			{who{}, sys, `unshare --pid --fork sh -c 'rm "$D/model"'`},
			{who{}, sys, `unshare --pid --fork sh -c 'cp "$D/approval" "$D/approval.new"; mv "$D/approval.new" "$D/approval"'`},
			{who{}, sys, `unshare --pid --fork sh -c 'truncate -s 0 "$D/policy"'`},
			{who{}, sys, `unshare --pid --fork mkdir "$D/../foreign.d"`},
			{alice, own, `unshare --user --map-root-user sh -c 'echo ask > "$D/approval"'`},
		} {
			r := d.sh(c.as, c.script, "D="+c.dir)
			if options == "" && (r.code == 0 || !strings.Contains(r.out, "Permission denied")) {
				t.Errorf("%s: %+v, want a refusal", c.script, r)
			}
			if options != "" && r.code != 0 {
				t.Errorf("with foreign_ns: %s: %+v", c.script, r)
			}
			if r := d.sh(c.as, `unshare --user --map-root-user cat "$D/label"`, "D="+c.dir); r.code != 0 {
				t.Errorf("reading from another namespace: %+v", r)
			}
		}
		if got := read(t, filepath.Join(sys, "approval")); options == "" && got != "auto\n" {
			t.Errorf("approval is %q", got)
		}
	}
}

// TestOwnerChangedUnderAnOpenHandle: a handle from before commits nothing.
func TestOwnerChangedUnderAnOpenHandle(t *testing.T) {
	d := newDaemon(t, "")
	dir := d.agentDir(who{}, "agent/coder.d")
	path := filepath.Join(dir, "approval")
	set(t, filepath.Join(dir, "owner"), "2001\n")
	r := d.sh(alice, `exec 3>"$P"; echo go; read line; echo ask >&3; echo $?`, "P="+path) // no input: read fails at once
	if !strings.Contains(r.out, "0") {
		t.Fatalf("the owner's own handle: %+v", r)
	}
	set(t, path, "auto\n")
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	set(t, filepath.Join(dir, "owner"), "2002\n")
	_, werr := f.WriteString("ask\n")
	cerr := f.Close()
	if !errors.Is(werr, syscall.ESTALE) && !errors.Is(cerr, syscall.ESTALE) {
		t.Errorf("write %v, close %v; want ESTALE from one of them", werr, cerr)
	}
	if got := read(t, path); got != "auto\n" {
		t.Errorf("approval is %q", got)
	}
}
