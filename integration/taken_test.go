package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestTakenRights is spec 5 and 9 with real sandboxes: a right that the kernel holds
// for a running agent and that is taken away ends the agent after a notice that its
// terminal and its log have; what is added waits for the next start.
func TestTakenRights(t *testing.T) {
	w := newWorld(t)
	w.must(`mkdir "$W/../data" "$W/../more" && echo secret > "$W/../data/f" && ctx agent new lone
echo 'allow lone_t tool:tsh execute' | tee "$M/agent/lone.d/policy" >> "$M/tool/tsh.d/policy"
printf '/ctx\t/ctx\tro\trbind,nosuid,nodev\n%s/data\t/data\trw\t-\n' "$(dirname "$W")" > "$M/agent/lone.d/mount"
echo 4999 > "$M/agent/lone.d/groups"`)
	start := func() { t.Helper(); w.must(`ctx agent start lone --no-default-workspace`) }
	log := func() string { t.Helper(); return read(t, filepath.Join(w.mnt, "agent/lone.d/log")) }
	ends := func(what, says string) {
		t.Helper()
		seen := len(log())
		// The line is told by who looks at the terminal, too.
		r := w.ctx(`{ timeout 40 ctx agent watch lone < /dev/null > "$W/../seen" 2>&1 & } ; ` + what + ` && ctx agent status lone; wait`)
		if r.code != 0 || !contains(r.out, "it is stopped within") {
			t.Errorf("status after %s: %+v", what, r)
		}
		eventually(t, "dead after "+what, func() bool { return w.state("lone") == "dead" })
		eventually(t, "put away after "+what, func() bool { return contains(log()[seen:], `"type":"agent.stop"`) })
		text := log()[seen:]
		for _, want := range []string{`"type":"agent.revoke"`, says, `"by":"uid 0"`} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in the log after %s:\n%s", want, what, text)
			}
		}
		if text := read(t, filepath.Join(w.dir, "seen")); !strings.Contains(text, "[cortexfs] this agent is stopped in 5s") {
			t.Errorf("no notice on the terminal: %q", text)
		}
	}
	start()
	// Nothing of this takes anything from what runs.
	w.must(`tac "$M/agent/lone.d/mount" > "$W/../t" && cat "$W/../t" > "$M/agent/lone.d/mount"
printf '%s\t/more\tro\t-\n' "$(dirname "$W")/more" >> "$M/agent/lone.d/mount"
printf '4999\n4998\n' > "$M/agent/lone.d/groups"; echo "# a comment" >> "$M/agent/lone.d/policy"`)
	if r := w.ctx(`ctx agent status lone`); contains(r.out, "it is stopped") || !contains(r.out, "groups,mount") {
		t.Errorf("after additions: %+v", r)
	}
	if r := w.inside("lone", `cat /data/f; ls -d /more`); !contains(r.out, "secret") || !contains(r.out, "No such file") {
		t.Errorf("before: %+v", r)
	}
	ends(`sed -i '\|\t/data\t|d' "$M/agent/lone.d/mount"`, `the line \"`+filepath.Join(w.dir, "data")+` /data rw\" was taken away`)
	start()
	if r := w.inside("lone", `ls -d /data /more`); contains(r.out, "/data\n") || !contains(r.out, "/more\n") {
		t.Errorf("after the next start: %+v", r)
	}
	ends(`echo 4998 > "$M/agent/lone.d/groups"`, "groups, line 1: group 4999 was taken away")
}
