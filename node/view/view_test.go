package view

import (
	"fmt"
	"strings"
	"testing"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
)

var open = store.FileAttr{Mode: 0o755}

// TestAllCombinations: with every layer right or wrong, the tool is there exactly
// if all are right, and the refusal names the first wrong row, its file and what
// is missing.
func TestAllCombinations(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000)
	w.install("tool/t", open)
	const rule = "allow x_t tool:t execute"
	layers := []struct {
		row   int
		kind  fault.Kind
		file  string
		apply func(good bool)
	}{
		{3, fault.NotExist, "/ctx/agent/x.d/path", func(good bool) { w.set(v, "path", pick(good, "/ctx/shared/s/tool\n/ctx/tool\n", "/usr/bin\n")) }},
		{3, fault.NotExist, "/ctx/agent/x.d/path", func(good bool) { w.attr("tool/t", store.FileAttr{Mode: mode(good, 0o755, 0o644)}) }},
		{4, fault.Access, "/ctx/tool/t", func(good bool) {
			// Only where the file is a hit at all: owner may, others may not.
			if f, err := w.st.StatFile("tool/t"); err == nil && f.Attr.Mode == 0o755 && !good {
				w.attr("tool/t", store.FileAttr{Mode: 0o700})
			}
		}},
		{5, fault.Access, "/ctx/agent/x.d/mount", func(good bool) { w.set(v, "mount", pick(good, "/ctx\t/ctx\tro\trbind\n", "/srv\t/srv\tro\t-\n")) }},
		{5, fault.Access, "/ctx/agent/x.d/mount", func(good bool) {
			if text, _, _ := v.Agent().Text("mount"); !good && strings.HasPrefix(string(text), "/ctx\t") {
				w.set(v, "mount", "/srv\t/srv\tro\t-\n/ctx\t/ctx\tro\tnoexec\n")
			}
		}},
		{6, fault.Access, "/ctx/agent/x.d/policy", func(good bool) { w.set(v, "policy", "# mine\n"+pick(good, rule+"\n", "allow y_t tool:t execute\n")) }},
		{7, fault.Access, "/ctx/tool/t.d/policy", func(good bool) { w.toolControl("tool/t", "policy", pick(good, rule+"\n", "")) }},
	}
	for bits := range 1 << len(layers) {
		first := -1
		for i, l := range layers {
			good := bits>>i&1 == 0
			l.apply(good)
			if !good && first < 0 {
				first = i
			}
		}
		found, ok := v.Allowed("tool", "t")
		if ok != (bits == 0) || ok && found.Name != "t" {
			t.Fatalf("%07b: allowed %v", bits, ok)
		}
		equal(t, fmt.Sprintf("%07b listing", bits), names(v.Tools("tool")), pick(ok, "tool/t", ""))
		_, verdict, ok2 := v.Decide("tool", "t")
		rows, ok3 := v.Explain("t", false)
		if ok2 != ok || ok3 != ok || len(rows) != 5 {
			t.Fatalf("%07b: Allowed %v, Decide %v, Explain %v with %d rows", bits, ok, ok2, ok3, len(rows))
		}
		if ok {
			continue
		}
		l := layers[first]
		if verdict.Row != l.row || verdict.Kind != l.kind || verdict.File != l.file || verdict.Why == "" {
			t.Errorf("%07b: refused by %+v, want row %d of %s", bits, verdict, l.row, l.file)
		}
		if denied, _ := policy.Denied(rows); denied.Row != l.row || denied.File != l.file {
			t.Errorf("%07b: Explain says %+v", bits, denied)
		}
		if l.row >= 6 && verdict.Missing != rule {
			t.Errorf("%07b: missing %q", bits, verdict.Missing)
		}
	}
}

func (w *world) attr(path string, a store.FileAttr) {
	w.Helper()
	if err := w.st.SetAttr(path, a); err != nil {
		w.Fatal(err)
	}
}

func pick(good bool, a, b string) string {
	if good {
		return a
	}
	return b
}

func mode(good bool, a, b uint32) uint32 {
	if good {
		return a
	}
	return b
}

// TestTwoLabelsOfOneUser: the label is the boundary between agents of one uid.
func TestTwoLabelsOfOneUser(t *testing.T) {
	w := newWorld(t)
	a := w.agent(agent.InHome(1000, "a"), 1000, "policy", allow("u1000.a_t", "read", "write", "ghost"))
	b := w.agent(agent.InHome(1000, "b"), 1000, "policy", allow("u1000.b_t", "read", "write"))
	for _, n := range []string{"read", "write", "other"} {
		w.install("tool/"+n, open)
	}
	w.toolControl("tool/read", "policy", allow("u1000.a_t", "read")+allow("u1000.b_t", "read"))
	w.toolControl("tool/write", "policy", allow("u1000.a_t", "write"))
	equal(t, "a", names(a.Tools("tool")), "tool/read tool/write")
	equal(t, "b", names(b.Tools("tool")), "tool/read")
	text, ok := b.ToolControl(b.Tools("tool")[0], "policy")
	if !ok || string(text) != allow("u1000.b_t", "read") {
		t.Errorf("b reads the tool's policy as %q", text)
	}
	// A rule for another subject in one's own policy grants nothing.
	w.set(b, "policy", allow("u1000.a_t", "read", "write"))
	equal(t, "b", names(b.Tools("tool")), "")
	// The label decides at the next call.
	w.toolControl("tool/write", "policy", allow("u1000.new_t", "write"))
	w.set(b, "policy", allow("u1000.new_t", "write"))
	w.set(b, "label", "u1000.new_t")
	equal(t, "b", names(b.Tools("tool")), "tool/write")
}

// TestModeBits: the host ids of the agent decide as they would on Linux.
func TestModeBits(t *testing.T) {
	w := newWorld(t)
	var views []*View
	for _, uid := range []uint32{1000, 1001, 1002} {
		k := agent.InHome(uid, "x")
		text := ""
		if uid == 1002 {
			text = "50\n"
		}
		views = append(views, w.agent(k, uid, "groups", text, "policy", allow(fmt.Sprintf("u%d.x_t", uid), "t")))
	}
	w.install("tool/t", open)
	w.toolControl("tool/t", "policy", allow("u1000.x_t", "t")+allow("u1001.x_t", "t")+allow("u1002.x_t", "t"))
	for _, c := range []struct {
		attr store.FileAttr
		want string // for the owner, a stranger, a member of group 50
	}{
		{store.FileAttr{UID: 0, GID: 0, Mode: 0o755}, "yyy"},
		{store.FileAttr{UID: 1000, GID: 50, Mode: 0o750}, "y-y"},
		{store.FileAttr{UID: 1000, GID: 50, Mode: 0o700}, "y--"},
		{store.FileAttr{UID: 1000, GID: 50, Mode: 0o010}, "--y"},
		{store.FileAttr{UID: 1000, GID: 50, Mode: 0o001}, "-y-"},
		{store.FileAttr{UID: 1001, GID: 1001, Mode: 0o500}, "-y-"},
	} {
		w.attr("tool/t", c.attr)
		got := ""
		for _, v := range views {
			_, ok := v.Allowed("tool", "t")
			got += pick(ok, "y", "-")
		}
		if got != c.want {
			t.Errorf("%+v: %s, want %s", c.attr, got, c.want)
		}
	}
}

// TestSearchPath: only tiers of this tree count, of the homes only the owner's,
// a shared one only with the rule; the first hit counts, also a refused one.
func TestSearchPath(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.InHome(1000, "x"), 1000)
	for _, p := range []string{"tool/t", "home/1000/tool/t", "home/1001/tool/t", "shared/s/tool/t"} {
		w.install(p, open)
		w.toolControl(p, "policy", allow("u1000.x_t", "t"))
	}
	const rule = "allow u1000.x_t tool:t execute\n"
	space := "allow u1000.x_t shared:s read\n"
	for _, c := range []struct{ path, policy, tiers, first string }{
		{"", rule, "tool home/1000/tool", "/ctx/tool/t"},
		{"/ctx/home/1000/tool:/ctx/tool\n", rule, "home/1000/tool tool", "/ctx/home/1000/tool/t"},
		{"/ctx/home/1001/tool\n", rule, "", ""},
		{"/usr/bin\n/ctx\n/ctx/agent\n/ctx/tool/\n", rule, "tool", "/ctx/tool/t"},
		{"/ctx/shared/s/tool\n", rule, "", ""},
		{"/ctx/shared/s/tool\n/ctx/tool\n", rule + space, "shared/s/tool tool", "/ctx/shared/s/tool/t"},
		{"/tool\n/ctx/home/1000\n", rule, "", ""},
	} {
		w.set(v, "path", c.path)
		w.set(v, "policy", c.policy)
		equal(t, "tiers of "+c.path, strings.Join(v.Tiers(), " "), c.tiers)
		q := v.Request("t", false)
		got := ""
		if q.Hit != nil {
			got = q.Hit.Path
		}
		equal(t, "first hit of "+c.path, got, c.first)
		for _, dir := range []string{"tool", "home/1000/tool", "home/1001/tool", "shared/s/tool"} {
			_, ok := v.Allowed(dir, "t")
			listed := names(v.Tools(dir)) != ""
			if want := strings.Contains(" "+c.tiers+" ", " "+dir+" "); ok != want || listed != want {
				t.Errorf("path %q: %s/t allowed %v, listed %v", c.path, dir, ok, listed)
			}
		}
	}
	w.set(v, "path", "/ctx/tool:/ctx/home/1000/tool")
	equal(t, "hits", names(v.Search("t")), "tool/t home/1000/tool/t")
	w.toolControl("tool/t", "policy", "")
	if rows, ok := v.Explain("t", false); ok || rows[4].Missing != "allow u1000.x_t tool:t execute" || rows[4].File != "/ctx/tool/t.d/policy" {
		t.Errorf("a refused first hit is passed over: %+v", rows)
	}
}

// TestHomeIsClosed: an agent with a uid of its own does not pass the owner's 0700
// home.
func TestHomeIsClosed(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 0)
	w.install("home/0/tool/t", open)
	w.toolControl("home/0/tool/t", "policy", allow("x_t", "t"))
	w.set(v, "policy", allow("x_t", "t"))
	_, verdict, ok := v.Decide("home/0/tool", "t")
	if ok || verdict.Row != 4 || !strings.Contains(verdict.Why, "/ctx/home/0") {
		t.Errorf("%+v", verdict)
	}
}

func TestHostedRows(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000, "policy", allow("x_t", "t", "tsh"), "tools", "a\nt\n")
	for _, n := range []string{"t", "tsh"} {
		w.install("tool/"+n, open)
		w.toolControl("tool/"+n, "policy", allow("x_t", n))
	}
	for _, c := range []struct {
		name     string
		ok       bool
		line     int
		row      int
		approval bool
	}{{"t", true, 2, 0, false}, {"tsh", true, 0, 0, false}, {"u", false, 0, 2, false}, {"bad/name", false, 0, 1, false}, {"t", true, 2, 0, true}} {
		if c.approval {
			w.set(v, "approval", "ask")
		}
		q := v.Request(c.name, true)
		rows, ok := v.Explain(c.name, true)
		denied, _ := policy.Denied(rows)
		if ok != c.ok || len(rows) != 9 || q.DeclaredLine != c.line || denied.Row != c.row || q.ToolsFile != "/ctx/agent/x.d/tools" {
			t.Errorf("%s: ok %v, %d rows, line %d, denied %+v", c.name, ok, len(rows), q.DeclaredLine, denied)
		}
		if (q.Approval == nil) != c.approval {
			t.Errorf("%s: approval %+v", c.name, q.Approval)
		}
	}
}

// TestFaultsCloseTheView: an agent with an invalid text on disk sees no tool.
func TestFaultsCloseTheView(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000, "policy", allow("x_t", "t"))
	w.install("tool/t", open)
	w.toolControl("tool/t", "policy", allow("x_t", "t"))
	for _, name := range []string{"policy", "label", "owner", "uid", "gid", "groups", "mount", "path", "tools"} {
		equal(t, "before "+name, names(v.Tools("tool")), "tool/t")
		was, stored := v.Agent().Store().Snapshot().Values[name]
		if err := v.Agent().Store().Put(name, []byte("\x01\n")); err != nil {
			t.Fatal(err)
		}
		equal(t, "with a bad "+name, names(v.Tools("tool")), "")
		var err error
		if stored {
			err = v.Agent().Store().Put(name, was.Text)
		} else {
			err = v.Agent().Store().Delete(name)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestRestOfTheView(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000, "policy", `allow x_t model:main use
allow x_t model:debug/echo use
allow y_t model:secret use
allow x_t shared:one read
allow x_t shared:two write
allow x_t agent:peer read
allow x_t agent:far read
allow x_t agent:nobody read
allow x_t agent:kid read
`)
	w.agent(agent.System("peer"), 1000)
	w.agent(agent.InHome(1000, "peer"), 1000)
	w.agent(agent.System("far"), 1001)
	w.agent(agent.System("kid"), 1000, "parent", "agent:x")
	w.agent(agent.System("other"), 1000)
	equal(t, "models", sorted(v.Models()...), "debug/echo main")
	if !v.ModelAllowed("main") || v.ModelAllowed("secret") {
		t.Error("models by name")
	}
	equal(t, "spaces", sorted(v.Spaces()...), "one")
	if !v.SpaceAllowed("one") || v.SpaceAllowed("two") {
		t.Error("spaces by name")
	}
	var peers []string
	for _, p := range v.Agents() {
		peers = append(peers, fmt.Sprint(p.Key, p.Child))
		if q, ok := v.AgentVisible(p.Key); !ok || q != p {
			t.Errorf("%v by name: %+v, %v", p.Key, q, ok)
		}
	}
	equal(t, "agents", strings.Join(peers, ", "), "agent/kid true, agent/peer false, home/1000/agent/peer false")
	for _, k := range []agent.Key{agent.System("far"), agent.System("other"), agent.System("nobody"), agent.InHome(1001, "peer")} {
		if _, ok := v.AgentVisible(k); ok {
			t.Errorf("%v is visible", k)
		}
	}
	if p, ok := v.AgentVisible(agent.System("x")); !ok || !p.Self {
		t.Errorf("itself: %+v %v", p, ok)
	}
}

func TestControlsHideHostPaths(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000)
	w.set(v, "mount", "/ctx\t/ctx\tro\trbind\n\n/srv/secret\t/data\trw\t-\n/ctx/home/1000/agent/x\t/home/agent\trw\t-\n/ctxother\t/o\tro\t-\n")
	text, ok := v.Control("mount")
	equal(t, "mount", string(text), "/ctx\t/ctx\tro\trbind\n\n-\t/data\trw\t-\n/ctx/home/1000/agent/x\t/home/agent\trw\t-\n-\t/o\tro\t-\n")
	if !ok {
		t.Error("mount is hidden")
	}
	if err := v.Agent().Store().Put("mount", []byte("/srv/secret no tabs\n/srv/x\ty")); err != nil {
		t.Fatal(err)
	}
	text, _ = v.Control("mount")
	equal(t, "a bad table", string(text), "-\n-\ty")
	for _, name := range []string{"exec", "log", "view", "status", "pid", "hooks", "nothing"} {
		if _, ok := v.Control(name); ok {
			t.Errorf("%s is shown as a text", name)
		}
	}
	if text, ok := v.Control("cwd"); !ok || string(text) != "/workspace\n" {
		t.Errorf("cwd %q", text)
	}
}

// TestNothingIsStored: after any number of views the store is what it was, to the
// byte and the time.
func TestNothingIsStored(t *testing.T) {
	w := newWorld(t)
	for _, n := range []string{"t", "u", "v"} {
		w.install("tool/"+n, open)
		w.toolControl("tool/"+n, "policy", allow("x0_t", n)+allow("x1_t", n))
	}
	var views []*View
	for i := range 3 {
		views = append(views, w.agent(agent.System(fmt.Sprintf("x%d", i)), 1000, "policy", allow(fmt.Sprintf("x%d_t", i), "t", "v", "gone")))
	}
	before := digest(t, w.dir)
	for range 200 {
		for _, v := range views {
			for _, tier := range v.Tiers() {
				for _, f := range v.Tools(tier) {
					v.ToolControl(f, "policy")
					v.ToolControl(f, "schema")
				}
			}
			v.Decide("tool", "nothing")
			v.Explain("u", true)
			v.Search("t")
			v.Agents()
			v.Models()
			v.Spaces()
			v.Control("mount")
			v.Agent().StartFaults()
			v.Gen()
		}
	}
	if after := digest(t, w.dir); after != before {
		t.Error("the store is another one after the views were looked at")
	}
}

// TestViewBelongsToTheObject: a new agent of an old name starts with a new view.
func TestViewBelongsToTheObject(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000, "policy", allow("x_t", "t"))
	w.install("tool/t", open)
	w.toolControl("tool/t", "policy", allow("x_t", "t"))
	equal(t, "before", names(v.Tools("tool")), "tool/t")
	if v != w.views.For(v.Agent()) {
		t.Error("the same agent has two views")
	}
	if err := w.agents.Remove(agent.System("x")); err != nil {
		t.Fatal(err)
	}
	equal(t, "removed", names(v.Tools("tool")), "")
	if _, ok := v.Allowed("tool", "t"); ok {
		t.Error("a removed agent may")
	}
	again := w.agent(agent.System("x"), 1000)
	equal(t, "again", names(again.Tools("tool")), "")
	if again == v {
		t.Error("the view of the old agent")
	}
}

func TestGenMoves(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000)
	w.install("tool/t", open)
	gens := map[uint64]string{}
	step := func(what string) {
		t.Helper()
		g := v.Gen()
		if was, ok := gens[g]; ok {
			t.Errorf("%s does not move it since %s", what, was)
		}
		gens[g] = what
		if g != v.Gen() {
			t.Error("it moves by itself")
		}
	}
	step("start")
	w.set(v, "policy", allow("x_t", "t"))
	step("policy")
	w.toolControl("tool/t", "policy", allow("x_t", "t"))
	step("tool policy")
	w.attr("tool/t", store.FileAttr{Mode: 0o700})
	step("mode")
	w.agent(agent.System("kid"), 1000, "parent", "agent:x")
	step("child")
}
