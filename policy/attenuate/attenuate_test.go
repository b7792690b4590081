package attenuate

import (
	"strings"
	"testing"

	"cortexfs/node/fault"
	"cortexfs/policy"
)

func parse(t testing.TB, text string) *policy.Set {
	t.Helper()
	s, err := policy.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// table reads mount lines with blanks for TABs.
func table(t testing.TB, text string) []Mount {
	t.Helper()
	var all []Mount
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 4 {
			t.Fatalf("line %q", line)
		}
		m := Mount{Source: f[0], Target: f[1], RW: f[2] == "rw", Line: i + 1}
		for _, o := range strings.Split(f[3], ",") {
			switch o {
			case "rbind":
				m.Recursive = true
			case "nosuid":
				m.NoSuid = true
			case "nodev":
				m.NoDev = true
			case "noexec":
				m.NoExec = true
			}
		}
		all = append(all, m)
	}
	return all
}

const parentTable = `/ctx /ctx ro rbind,nosuid,nodev
/ctx/home/7/agent/boss /home/agent rw rbind,nosuid,nodev
/srv/work /work rw rbind,nosuid,nodev
/srv/empty /work/secret ro bind,nosuid,nodev
/srv/docs /docs ro bind,nosuid,nodev,noexec
/ctx/shared/a/data /shared/a rw rbind,nosuid,nodev
/tmp /tmp rw rbind,nosuid,nodev`

func boss(t testing.TB) *Agent {
	return &Agent{
		Name: "boss", Subject: "boss_t", UID: 7, GID: 7, Groups: []uint32{20, 30}, Iso: "shared", Approval: "auto",
		Policy: parse(t, "allow boss_t tool:fs.read execute\nallow boss_t tool:fs.list execute\nallow boss_t model:main use\nallow boss_t network:default connect\nallow boss_t shared:a read\n"),
		Tools:  []string{"fs.read", "fs.list"}, Path: []string{"/ctx/tool", "/ctx/home/7/tool"},
		Mounts: table(t, parentTable), Home: "/ctx/home/7/agent/boss", Root: "/ctx/home/7/agent/boss/root",
	}
}

func worker(t testing.TB) *Agent { return plain(t, "worker") }

func plain(t testing.TB, name string) *Agent {
	return &Agent{
		Name: name, Subject: name + "_t", UID: 7, GID: 7, Iso: "shared", Approval: "auto", Path: []string{"/ctx/tool"},
		Home: "/ctx/home/7/agent/" + name, Root: "/ctx/home/7/agent/" + name + "/root",
		Mounts: table(t, "/ctx /ctx ro rbind,nosuid,nodev\n/ctx/home/7/agent/"+name+" /home/agent rw rbind,nosuid,nodev"),
	}
}

// TestMounts: spec 17 and cases C07, C01, one line at a time.
func TestMounts(t *testing.T) {
	const sure = ",nosuid,nodev"
	for _, c := range []struct{ line, bad string }{
		{"/srv/work /work ro rbind" + sure + "\n/srv/empty /work/secret ro bind" + sure, ""},
		{"/srv/work /elsewhere rw rbind" + sure + "\n/srv/empty /elsewhere/secret ro bind" + sure, ""},
		{"/srv/work/sub /sub rw rbind" + sure, ""},
		{"/srv/work/sub /sub rw bind" + sure, ""},
		{"/srv/docs /docs ro bind,nosuid,nodev,noexec", ""},
		{"/srv/docs/x /x ro bind,nosuid,nodev,noexec", ""},
		{"/ctx/tool /t ro rbind" + sure, ""},
		{"/ctx/shared/a/data/x /x rw rbind" + sure, ""},
		{"/tmp /tmp rw rbind" + sure, ""},
		{"/ctx/home/7/agent/worker/data /d rw rbind" + sure, ""},
		{"/ctx/home/7/agent/boss/data /d rw rbind" + sure, ""},
		{"/srv/work/.git /g ro rbind" + sure, ""},
		// wider
		{"/srv/docs /docs rw bind,nosuid,nodev,noexec", "is rw"},
		{"/srv/docs /docs ro rbind,nosuid,nodev,noexec", "is rbind"},
		{"/srv/docs /docs ro bind" + sure, "without noexec"},
		{"/srv/docs /docs ro bind,nosuid,noexec", "without nodev"},
		{"/srv/docs /docs ro bind,nodev,noexec", "without nosuid"},
		{"/ctx /ctx rw rbind" + sure, "is rw"},
		{"/srv/work/.git /g rw rbind" + sure, "is rw"},
		{"/srv/work /w rw rbind" + sure + "\n/srv/empty /w/secret ro bind" + sure + "\n/srv/work/.git /w/.git rw bind" + sure, "is rw"},
		{"/ctx/home/7/agent/worker/session /s rw rbind" + sure, "is rw"},
		{"/ctx/home/7/agent/boss/log /s rw rbind" + sure, "is rw"},
		{"/ctx/home/7/agent/boss /s rw rbind" + sure, "is rw"},
		// what lies over
		{"/srv/work /work ro rbind" + sure, "uncovers"},
		{"/srv/work /work ro rbind" + sure + "\n/srv/empty /secret ro bind" + sure, "uncovers"},
		{"/srv/work/secret /s ro rbind" + sure, "lies over it"},
		{"/srv/work/secret/deep /s ro rbind" + sure, "lies over it"},
		// not seen
		{"/srv /srv ro rbind" + sure, "does not see"},
		{"/ /host ro rbind" + sure, "does not see"},
		{"/srv/workshop /w ro rbind" + sure, "does not see"},
		{"/etc /e ro rbind" + sure, "does not see"},
		{"/work /w ro rbind" + sure, "does not see"},
		{"/tmp/x /x ro rbind" + sure, "does not see"},
		{"/tmp /t ro rbind" + sure, "does not see"},
		{"/ctx/shared/b/data /b ro rbind" + sure, "does not see"},
		{"/ctx/shared/a /a ro rbind" + sure, "does not see"},
		{"/ctx/home/7/agent/sister /s ro rbind" + sure, "does not see"},
		{"/proc/1/root/etc /p ro rbind" + sure, "does not see"},
		// other spellings
		{"/srv/work/ /w ro rbind" + sure, "clean"},
		{"/srv/work/../etc /w ro rbind" + sure, "clean"},
		{"/srv//work /w ro rbind" + sure, "clean"},
		{"/srv/./work /w ro rbind" + sure, "clean"},
		{"srv/work /w ro rbind" + sure, "clean"},
	} {
		child := worker(t)
		child.Mounts = table(t, c.line)
		o := Check(child, []*Agent{boss(t)}, nil)
		switch {
		case c.bad == "" && o != nil:
			t.Errorf("%q: %v", c.line, o)
		case c.bad != "" && (o == nil || o.Control != "mount" || !strings.Contains(o.What, c.bad)):
			t.Errorf("%q: %v, want %s", c.line, o, c.bad)
		case o != nil && (o.Line == 0 || o.Grant == "" || o.Ancestor != "boss"):
			t.Errorf("%q: %+v", c.line, o)
		}
	}
}

// TestControls: every other control with something wider; the message names whose
// right is missing and, where there is one, the grant that would give it.
func TestControls(t *testing.T) {
	for _, c := range []struct {
		control string
		change  func(*Agent)
		line    int
		says    string
		grant   string
	}{
		{"uid", func(a *Agent) { a.UID = 8 }, 1, "7", ""},
		{"gid", func(a *Agent) { a.GID = 0 }, 1, "7", ""},
		{"groups", func(a *Agent) { a.Groups = []uint32{30, 40} }, 2, "group 40", "group 40"},
		{"path", func(a *Agent) { a.Path = []string{"/ctx/home/7/tool", "/ctx/tool"} }, 1, "another order", ""},
		{"path", func(a *Agent) { a.Path = []string{"/ctx/shared/a/tool"} }, 1, "/ctx/shared/a/tool", ""},
		{"tools", func(a *Agent) { a.Tools = []string{"fs.list", "fs.write"} }, 2, "fs.write", "tool fs.write"},
		{"policy", func(a *Agent) {
			a.Policy = parse(t, "# own\nallow worker_t tool:fs.read execute\nallow worker_t tool:fs.write execute\n")
		}, 3, "allow boss_t tool:fs.write execute", "tool fs.write"},
		{"policy", func(a *Agent) { a.Policy = parse(t, "allow worker_t shared:a write\n") }, 1, "allow boss_t shared:a write", "rule 'allow worker_t shared:a write'"},
		{"root", func(a *Agent) { a.Root = "/etc" }, 1, "does not see", ""},
		{"root", func(a *Agent) { a.Root = "/srv/docs" }, 1, "does not see", ""},
		{"root", func(a *Agent) { a.Root = "/srv/work" }, 1, "uncover", ""},
		{"root", func(a *Agent) { a.Root = "/ctx/home/7/agent/sister/root" }, 1, "does not see", ""},
	} {
		child := worker(t)
		if o := Check(child, []*Agent{boss(t)}, nil); o != nil {
			t.Fatal(o)
		}
		c.change(child)
		o := Check(child, []*Agent{boss(t)}, nil)
		if o == nil || o.Control != c.control || o.Line != c.line || o.Grant != c.grant || !strings.Contains(o.What, c.says) {
			t.Errorf("%s: %+v, want line %d, %q, grant %q", c.control, o, c.line, c.says, c.grant)
			continue
		}
		if msg := o.Error(); (c.grant != "") != strings.Contains(msg, "ctx agent grant") || !strings.Contains(msg, "agent boss") {
			t.Errorf("%s: %s", c.control, msg)
		}
		if f := o.Fault("/ctx/x"); f.Kind != fault.Perm || f.Line != c.line || f.Path != "/ctx/x" {
			t.Errorf("%+v", f)
		}
		if again := CheckControl(c.control, child, []*Agent{boss(t)}, nil, true); again == nil || *again != *o {
			t.Errorf("CheckControl: %+v, Check: %+v", again, o)
		}
		if other := CheckControl("approval", child, []*Agent{boss(t)}, nil, true); other != nil {
			t.Errorf("another control: %+v", other)
		}
	}
}

func TestIsoAndApproval(t *testing.T) {
	for _, c := range []struct {
		parent, child string
		ok            bool
	}{
		{"shared", "shared", true}, {"shared", "uid", true}, {"shared", "userns", true}, {"uid", "uid", true}, {"userns", "userns", true},
		{"uid", "shared", false}, {"userns", "shared", false}, {"uid", "userns", false}, {"userns", "uid", false},
	} {
		p, a := boss(t), worker(t)
		p.Iso, a.Iso = c.parent, c.child
		if got := Check(a, []*Agent{p}, nil) == nil; got != c.ok {
			t.Errorf("parent %s, child %s: %v", c.parent, c.child, got)
		}
	}
	p, a := boss(t), worker(t)
	p.Approval = "ask"
	if o := Check(a, []*Agent{p}, nil); o == nil || o.Control != "approval" {
		t.Errorf("%+v", o)
	}
	a.Approval = "ask"
	if o := Check(a, []*Agent{p}, nil); o != nil {
		t.Error(o)
	}
}

// TestGrants: a grant lifts what it names for the child that it names, and nothing
// for that child's children.
func TestGrants(t *testing.T) {
	top, child, below := boss(t), worker(t), plain(t, "below")
	child.Policy = parse(t, "allow worker_t tool:fs.write execute\nallow worker_t shared:b read\n")
	child.Tools, child.Groups = []string{"fs.write"}, []uint32{99}
	child.Mounts = append(child.Mounts, table(t, "\n\n/srv/extra /extra ro rbind,nosuid,nodev")...)
	g := &Grants{
		Tools: []string{"fs.write"}, Groups: []uint32{99}, Mounts: table(t, "/srv/extra /extra rw rbind,nosuid,nodev"),
		Rules: []policy.Rule{{Subject: "worker_t", Class: policy.Shared, Name: "b", Perm: policy.Read}},
	}
	if o := Check(child, []*Agent{top}, g); o != nil {
		t.Error(o)
	}
	for i, less := range []*Grants{
		nil,
		{Groups: g.Groups, Mounts: g.Mounts, Rules: g.Rules},
		{Tools: g.Tools, Mounts: g.Mounts, Rules: g.Rules},
		{Tools: g.Tools, Groups: g.Groups, Rules: g.Rules},
		{Tools: g.Tools, Groups: g.Groups, Mounts: g.Mounts},
		{Tools: g.Tools, Groups: g.Groups, Mounts: g.Mounts, Rules: []policy.Rule{{Subject: "other_t", Class: policy.Shared, Name: "b", Perm: policy.Read}}},
		{Tools: g.Tools, Groups: g.Groups, Rules: g.Rules, Mounts: table(t, "/srv/extra /extra ro bind,nosuid,nodev")},
		{Tools: g.Tools, Groups: g.Groups, Rules: g.Rules, Mounts: table(t, "/srv/extra /other ro rbind,nosuid,nodev")},
	} {
		if Check(child, []*Agent{top}, less) == nil {
			t.Errorf("grants %d are enough", i)
		}
	}
	below.Policy = parse(t, "allow below_t tool:fs.write execute\n")
	if o := Check(below, []*Agent{child, top}, nil); o == nil || o.Ancestor != "boss" {
		t.Errorf("a grant is handed on: %+v", o)
	}
	if o := Check(below, []*Agent{child}, nil); o != nil {
		t.Error(o)
	}
}

// TestGrandparent: the nearest ancestor that has less is named, however far.
func TestGrandparent(t *testing.T) {
	top, mid, child := boss(t), worker(t), plain(t, "c")
	mid.Tools, child.Tools = []string{"deploy"}, []string{"deploy"}
	if o := Check(child, []*Agent{mid, top}, nil); o == nil || o.Ancestor != "boss" || o.Control != "tools" {
		t.Errorf("%+v", o)
	}
	child.Mounts = table(t, "/ctx /ctx ro rbind,nosuid,nodev\n/ctx/home/7/agent/worker/data /d rw rbind,nosuid,nodev")
	child.Tools = nil
	if o := Check(child, []*Agent{mid, top}, nil); o != nil {
		t.Errorf("part of the parent's own home: %v", o)
	}
}

// TestUnfinished: while a table is being written, what a later line can mend is no
// offence; everything else is at once.
func TestUnfinished(t *testing.T) {
	child := worker(t)
	child.Mounts = table(t, "/srv/work /work ro rbind,nosuid,nodev")
	if o := CheckControl("mount", child, []*Agent{boss(t)}, nil, false); o != nil {
		t.Error(o)
	}
	if CheckControl("mount", child, []*Agent{boss(t)}, nil, true) == nil {
		t.Error("finished, it uncovers something")
	}
	child.Mounts = table(t, "/srv/docs /docs rw bind,nosuid,nodev,noexec")
	if CheckControl("mount", child, []*Agent{boss(t)}, nil, false) == nil {
		t.Error("no later line makes that narrower")
	}
}

func TestLabelComparesRules(t *testing.T) {
	child := worker(t)
	child.Policy = parse(t, "allow later_t tool:deploy execute\n")
	if o := Check(child, []*Agent{boss(t)}, nil); o != nil {
		t.Errorf("a rule about another subject grants nothing: %v", o)
	}
	child.Subject = "later_t"
	if o := CheckControl("label", child, []*Agent{boss(t)}, nil, true); o == nil || o.Control != "policy" {
		t.Errorf("%+v", o)
	}
}

func TestTranslate(t *testing.T) {
	for _, c := range []struct{ at, want string }{
		{"/work/sub", "/srv/work/sub"}, {"/work", "/srv/work"}, {"/work/secret", "/srv/empty"}, {"/work/secret/x", "/srv/empty/x"},
		{"/docs/x", "/srv/docs/x"}, {"/home/agent/data", "/ctx/home/7/agent/boss/data"}, {"/shared/a", "/ctx/shared/a/data"},
		{"/ctx/tool", "/ctx/tool"}, {"/srv/work", ""}, {"/etc", ""}, {"/", ""}, {"/work/../etc", ""}, {"/workshop", ""}, {"/tmp", ""},
	} {
		got, o := Translate(boss(t), []Mount{{Source: c.at, Target: "/x", Recursive: true, Line: 1}})
		if (o == nil) != (c.want != "") || o == nil && got[0].Source != c.want {
			t.Errorf("%s: %+v %v, want %q", c.at, got, o, c.want)
		}
		if o == nil && strings.HasPrefix(c.at, "/docs") && (!got[0].NoExec || got[0].Recursive) {
			t.Errorf("the parent's flags are lost: %+v", got[0])
		}
	}
	if got, o := Translate(boss(t), []Mount{{Source: "/tmp", Target: "/tmp", RW: true}}); o != nil || got[0].Source != "/tmp" {
		t.Errorf("%+v %v", got, o)
	}
}
