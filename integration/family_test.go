package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// state is the word of an agent's status, "gone" without an object.
func (w *world) state(name string) string {
	text, err := os.ReadFile(filepath.Join(w.mnt, "agent", name+".d/status"))
	if err != nil {
		return "gone"
	}
	return strings.TrimSpace(string(text))
}

// TestFamily is issue 5 with real mounts and sandboxes: a weaker child, bounded at
// its making, at each write, at its start and at every call; root's grant; and
// lives that end together.
func TestFamily(t *testing.T) {
	w := newWorld(t)
	refused := func(script, says string) {
		t.Helper()
		if r := w.ctx(script); r.code != 13 || !contains(r.out, says) {
			t.Errorf("%s: exit %d, want 13 and %q\n%s", script, r.code, says, r.out)
		}
	}
	w.must(`ctx agent start architect`)
	refused(`ctx agent new helper --parent architect --tool deploy`, "ctx agent grant CHILD tool deploy")
	refused(`ctx agent new helper --parent architect --mount /etc /etc2 ro`, "does not see")
	w.must(`ctx agent new helper --parent architect --tool fs.read --tool fs.stat`)
	for _, text := range []string{"allow helper_t tool:deploy execute", "allow helper_t network:default connect"} {
		if r := w.ctx(`(echo "` + text + `" > "$M/agent/helper.d/policy") 2>&1`); r.code == 0 || !contains(r.out, "Operation not permitted") {
			t.Errorf("%s: %+v", text, r)
		}
	}
	if r := w.ctx(`getfattr --only-values -n user.cortexfs.error "$M/agent/helper.d/policy" 2>/dev/null`); r.code == 0 && !contains(r.out, "network:default connect") {
		t.Errorf("the error names no offender: %+v", r)
	}

	// Row 7 holds by the creator's right; no tool's policy was touched.
	w.must(`ctx agent start helper --no-default-workspace`)
	if r := w.inside("helper", `/ctx/tool/fs.stat /ctx/status`); r.code != 0 {
		t.Errorf("by its creator's right: %+v", r)
	}
	if r := w.inside("helper", `ls /ctx/tool/fs.write; ls /workspace | wc -l`); !contains(r.out, "No such file") || !contains(r.out, "0\n") {
		t.Errorf("more than it was given: %+v", r)
	}
	if r := w.ctx(`ctx agent why helper fs.stat`); r.code != 0 || !contains(r.out, "by the right of its creator (agent/architect)") {
		t.Errorf("why: %+v", r)
	}
	// What the parent loses, the running child loses with its next call.
	w.must(`sed -i /tool:fs.stat/d "$M/agent/architect.d/policy"`)
	if r := w.inside("helper", `/ctx/tool/fs.stat /ctx/status`); r.code == 0 {
		t.Errorf("the parent's right is gone, the child's is not: %+v", r)
	}
	refused(`ctx agent why helper fs.stat`, "no rule allows it to agent/architect, above it")
	w.must(`ctx agent stop helper`)
	refused(`ctx agent start helper --no-default-workspace`, "agent architect has")
	w.must(`echo 'allow architect_t tool:fs.stat execute' >> "$M/agent/architect.d/policy"`)

	// Root's grant: the planner without a tool has a child with it.
	w.must(`install -m 0755 /bin/true "$M/tool/deploy" && ctx agent grant helper tool deploy --reason 'it deploys'`)
	w.must(`printf 'allow helper_t tool:deploy execute\n' > "$M/tool/deploy.d/policy"; echo deploy >> "$M/agent/helper.d/tools"; echo 'allow helper_t tool:deploy execute' >> "$M/agent/helper.d/policy"`)
	w.must(`ctx agent start helper --no-default-workspace`)
	if r := w.inside("helper", `/ctx/tool/deploy`); r.code != 0 {
		t.Errorf("granted: %+v", r)
	}
	if r := w.ctx(`ctx agent status helper; ctx agent grant --list`); strings.Count(r.out, "it deploys") != 2 {
		t.Errorf("the grant is not told: %+v", r)
	}
	w.must(`ctx agent grant helper --revoke 1`)
	if r := w.inside("helper", `/ctx/tool/deploy`); r.code == 0 {
		t.Errorf("revoked: %+v", r)
	}
	w.must(`sed -i /deploy/d "$M/agent/helper.d/policy" "$M/agent/helper.d/tools"`)

	// Six below the architect, in three generations; one stop.
	w.must(`mkdir -p "$W/tree/sub" && ln -s /etc "$W/tree/out"
ctx agent new k1 --parent architect && ctx agent new k2 --parent k1 && ctx agent new k3 --parent k2 --temp && ctx agent new k4 --parent architect --temp && ctx agent new k5 --parent k1
for k in k1 k2 k3 k4 k5; do
  echo "allow ${k}_t tool:tsh execute" > "$M/agent/$k.d/policy"; ctx agent start $k --no-default-workspace >/dev/null || exit; done`)
	if r := w.ctx(`ctx agent ps`); !contains(r.out, "`- k3 [ready] life=temp") {
		t.Errorf("the forest:\n%s", r.out)
	}
	pids := strings.Fields(w.must(`cat "$M"/agent/*.d/pid`))
	if len(pids) != 7 {
		t.Errorf("%d run", len(pids))
	}
	w.must(`ctx agent stop architect`)
	want := map[string]string{"architect": "dead", "helper": "dead", "k1": "dead", "k2": "dead", "k3": "gone", "k4": "gone", "k5": "dead"}
	for name, s := range want {
		if got := w.state(name); got != s {
			t.Errorf("%s is %s, want %s", name, got, s)
		}
	}
	for _, pid := range pids {
		if r := w.ctx(`grep -s '^State:' /proc/` + pid + `/status`); r.code == 0 && !contains(r.out, "Z") {
			t.Errorf("process %s is left: %s", pid, r.out)
		}
	}
	w.must(`test -d "$M/home/0/agent/k3/session" && grep -q child.cancel "$M/agent/k2.d/log"`)

	// A parent's death, and a line that leads out by a link: only what the parent sees.
	w.must(`printf '/ctx\t/ctx\tro\trbind,nosuid,nodev\n%s\t/tree\tro\trbind,nosuid,nodev\n' "$W/tree" > "$M/agent/architect.d/mount"
printf '/ctx\t/ctx\tro\trbind,nosuid,nodev\n%s\t/sub\tro\trbind,nosuid,nodev\n' "$W/tree/sub" > "$M/agent/k1.d/mount"
ctx agent start architect --no-default-workspace && ctx agent start k1 --no-default-workspace`)
	w.must(`kill -9 $(cat "$M/agent/architect.d/pid")`)
	eventually(t, "the child of a killed parent is dead", func() bool { return w.state("k1") == "dead" })
	w.must(`printf '/ctx\t/ctx\tro\trbind,nosuid,nodev\n%s\t/sub\tro\trbind,nosuid,nodev\n' "$W/tree/out" > "$M/agent/k1.d/mount"`)
	refused(`ctx agent start k1 --no-default-workspace`, "leads out of what agent architect sees")

	// Orphans are shown, start nothing and are allowed nothing.
	w.must(`ctx agent rm k5 && ctx agent rm k2 && ctx agent new k6 --parent k1 && ctx agent rm k1`)
	if r := w.ctx(`ctx agent ps`); !contains(r.out, "k6 [dead] orphan_of=k1") {
		t.Errorf("orphans:\n%s", r.out)
	}
	if r := w.ctx(`ctx agent start k6 --no-default-workspace`); r.code == 0 || !contains(r.out, "agent k1, is not there") {
		t.Errorf("an orphan: %+v", r)
	}
}

// TestFamilyOfAUser: an owner makes children in the home and bounds nobody else's.
func TestFamilyOfAUser(t *testing.T) {
	w := newWorld(t)
	user := who{uid: 1, gid: 1}
	run := func(as who, script string) result { return w.sh(as, script, w.vars()...) }
	if r := run(user, `ctx agent new boss --tool fs.read && ctx agent new kid --parent boss --tool fs.read && ctx agent new other && ctx agent children boss`); r.code != 0 || !contains(r.out, "kid\t-\thome/1/agent/kid\t") {
		t.Fatalf("%+v", r)
	}
	for _, c := range []struct {
		as     who
		script string
		code   int
	}{
		{user, `ctx agent new wide --parent boss --tool fs.write`, 13},
		{user, `ctx agent new sister --parent boss --label u1.kid_t`, 13},
		{user, `ctx agent new twin --parent boss --label u1.boss_t`, 0},
		{user, `ctx agent new stranger --parent architect`, 13},
		{user, `ctx agent grant kid tool fs.write --reason x`, 13},
		{user, `: > "$M/home/1/agent/kid.d/parent"`, 0}, // told at the close, where no shell looks; see below
		{user, `echo > "$M/home/1/agent/kid.d/parent"`, 1},
		{user, `echo agent:other > "$M/home/1/agent/kid.d/parent"`, 1},
		{user, `mkdir "$M/home/1/agent/kid/../boss.d" 2>/dev/null`, 1},
		{who{}, `echo agent:kid > "$M/home/1/agent/boss.d/parent"`, 1},
		{who{}, `echo agent:other > "$M/home/1/agent/kid.d/parent"`, 1}, // other lacks what kid has
	} {
		if r := run(c.as, c.script); r.code != c.code {
			t.Errorf("%s by %d: exit %d, want %d\n%s", c.script, c.as.uid, r.code, c.code, r.out)
		}
	}
	if got := read(t, filepath.Join(w.mnt, "home/1/agent/kid.d/parent")); got != "agent:boss\n" {
		t.Errorf("parent %q", got)
	}
}
