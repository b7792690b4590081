package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cortexfs/node/fault"
	"cortexfs/policy"
)

// with commits a control and fails the test if that is refused.
func (w *world) commit(o *Object, name, text string) {
	w.Helper()
	if _, err := o.Commit(entry(w.T, name), []byte(text), root()); err != nil {
		w.Fatal(err)
	}
}

// refuses commits a control; the error is Perm, says what it should and changes
// nothing.
func (w *world) refuses(o *Object, name, text, says string) {
	w.Helper()
	before, _, _ := o.Text(name)
	for who, wr := range map[string]Writer{"root": root(), "owner": person(o.Config().Owner)} {
		_, err := o.Commit(entry(w.T, name), []byte(text), wr)
		if !fault.Is(err, fault.Perm) || !strings.Contains(err.Error(), says) {
			w.Errorf("%s writes %q into %s: %v, want %q", who, text, name, err, says)
		}
		var e *fault.Error
		if err != nil {
			e = asFault("", err)
			if e.Path != o.path(name) || e.Line == 0 {
				w.Errorf("%s: place %s:%d", name, e.Path, e.Line)
			}
		}
	}
	if after, _, _ := o.Text(name); string(after) != string(before) {
		w.Errorf("%s: %q became %q", name, before, after)
	}
}

const bossPolicy = "allow boss_t tool:fs.read execute\nallow boss_t model:main use\n"

// family is a parent of uid 1000 with a child and a grandchild.
func family(w *world) (boss, mid, low *Object) {
	boss = w.create(System("boss"), 1000, "policy", bossPolicy, "tools", "fs.read\n", "groups", "50\n")
	mid = w.create(System("mid"), 1000, "parent", "agent:boss", "policy", "allow mid_t tool:fs.read execute\n", "tools", "fs.read\n")
	low = w.create(System("low"), 1000, "parent", "agent:mid", "policy", "allow low_t tool:fs.read execute\n")
	return boss, mid, low
}

// TestFreerIsRefused is cases C01 and C07 and test 101: every control of a child,
// and of a grandchild, with something wider, by root and by the owner.
func TestFreerIsRefused(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	boss, mid, low := family(w)
	for _, o := range []*Object{mid, low} {
		subject := o.Config().Subject
		for _, c := range []struct{ name, text, says string }{
			{"policy", "allow " + subject + " tool:fs.read execute\nallow " + subject + " tool:fs.write execute\n", "tool:fs.write execute"},
			{"policy", "allow " + subject + " network:default connect\n", "network:default connect"},
			{"tools", "fs.read\nfs.write\n", "does not declare the tool fs.write"},
			{"groups", "60\n", "group 60"},
			{"gid", "60\n", "gid"},
			{"path", "/ctx/shared/a/tool\n", "/ctx/shared/a/tool"},
			{"path", "/ctx/home/1000/tool:/ctx/tool\n", "another order"},
			{"root", "/etc\n", "root"},
			{"mount", "/ctx\t/ctx\tro\trbind,nosuid,nodev\n/etc\t/e\tro\t-\n", "does not see"},
			{"mount", "/ctx\t/ctx\trw\trbind,nosuid,nodev\n", "is rw"},
			{"mount", "/ctx\t/ctx\tro\trbind,nodev\n", "without nosuid"},
		} {
			w.refuses(o, c.name, c.text, c.says)
		}
	}
	// Isolation and approval can only become stronger.
	w.commit(boss, "approval", "ask\n")
	if mid.Approval() != "ask" || low.Approval() != "ask" {
		t.Error("the parent asks, the child does not")
	}
	w.commit(mid, "approval", "ask\n")
	w.refuses(mid, "approval", "auto\n", "approval=ask")
	// What takes away passes whatever the parent has.
	w.commit(boss, "policy", "")
	w.commit(mid, "policy", "# nothing\n")
	w.commit(mid, "tools", "")
	w.refuses(mid, "policy", "allow mid_t tool:fs.read execute\n", "boss_t tool:fs.read")
}

// TestIsoOfChildren: the child of an iso=uid parent runs with its ids and as
// isolated.
func TestIsoOfChildren(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	boss := w.create(System("boss"), 0)
	kid := w.create(System("kid"), 0, "parent", "agent:boss")
	b, k := boss.Config(), kid.Config()
	if b.UID < PoolFirst || k.UID != b.UID || k.GID != b.GID || k.Iso != IsoUID || k.Owner != b.Owner {
		t.Errorf("parent %d %d %s, child %d %d %s", b.UID, b.GID, b.Iso, k.UID, k.GID, k.Iso)
	}
	if f := kid.StartFaults(); len(f) != 0 {
		t.Error(f)
	}
	w.refuses(kid, "iso", "shared\n", "iso=uid")
	w.refuses(kid, "iso", "userns\n", "iso=uid")
	w.refuses(kid, "uid", "1879050000\n", "uid")
}

// TestRefusedAtBirth: nothing is made, whoever makes it; and what a child takes
// from its parent by default fits it.
func TestRefusedAtBirth(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	w.create(System("boss"), 1000, "policy", bossPolicy, "path", "/ctx/home/1000/tool\n", "approval", "ask\n")
	for _, c := range []struct{ name, text, says string }{
		{"policy", "allow kid_t tool:fs.write execute\n", "ctx agent grant CHILD tool fs.write"},
		{"tools", "fs.write\n", "ctx agent grant CHILD tool fs.write"},
		{"groups", "60\n", "group 60"},
		{"approval", "auto\n", "approval"},
		{"path", "/ctx/tool\n", "/ctx/tool"},
		{"uid", "1000\n", ""},
	} {
		_, err := w.table.Create(System("kid"), CreateOptions{Writer: root(), Owner: 1000, Texts: map[string][]byte{"parent": []byte("agent:boss"), c.name: []byte(c.text)}})
		if c.says == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		if !fault.Is(err, fault.Perm) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %q: %v", c.name, c.text, err)
		}
		if _, err := w.table.Lookup(System("kid")); !fault.Is(err, fault.NotExist) {
			t.Errorf("made all the same: %v", err)
		}
	}
	kid, err := w.table.Lookup(System("kid"))
	if err != nil {
		t.Fatal(err)
	}
	if c := kid.Config(); c.Approval != "ask" || fmt.Sprint(c.Search) != "[/ctx/home/1000/tool]" || c.Subject != "kid_t" || c.Life != "owned" || c.ABI == "" {
		t.Errorf("%+v", c)
	}
}

// TestDefaultTableOfAChild: of a default table only what the parent has.
func TestDefaultTableOfAChild(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	for i, c := range []struct{ table, want string }{
		{"/ctx\t/ctx\tro\trbind,nosuid,nodev\n/ctx/home/1000/agent/p0\t/home/agent\trw\trbind,nosuid,nodev\n", "/ctx /home/agent:rw"},
		{"/ctx\t/ctx\tro\trbind,nosuid,nodev\n/ctx/home/1000/agent/p1\t/home/agent\tro\trbind,nosuid,nodev\n", "/ctx /home/agent"},
		{"/ctx\t/ctx\tro\trbind,nosuid,nodev\n", "/ctx"},
		{"/ctx\t/ctx\tro\trbind,nosuid,nodev,noexec\n", ""},
		{"", ""},
	} {
		w.create(System(fmt.Sprint("p", i)), 1000, "mount", c.table)
		kid := w.create(System(fmt.Sprint("k", i)), 1000, "parent", fmt.Sprint("agent:p", i))
		var got []string
		for _, m := range kid.Config().Mounts {
			got = append(got, m.Target+map[bool]string{true: ":rw"}[m.RW])
		}
		if strings.Join(got, " ") != c.want || len(kid.StartFaults()) != 0 {
			t.Errorf("%q: %q, want %q; %v", c.table, got, c.want, kid.StartFaults())
		}
	}
}

// TestPrefixOfAChild: as soon as a line is too much, the write fails; a table that
// is not finished yet may still be mended.
func TestPrefixOfAChild(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	_, mid, _ := family(w)
	text := "allow mid_t tool:fs.read execute\nallow mid_t tool:fs.write execute\n# more\n"
	second := strings.Index(text, "fs.write execute\n") + len("fs.write execute\n")
	for i := range len(text) + 1 {
		err := mid.CheckPrefix(entry(t, "policy"), []byte(text[:i]), person(1000))
		if want := i >= second; fault.Is(err, fault.Perm) != want {
			t.Errorf("%q: %v", text[:i], err)
		}
	}
}

// TestStartOfAChild: judged by what its ancestors are then.
func TestStartOfAChild(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	boss, mid, low := family(w)
	for _, o := range []*Object{boss, mid, low} {
		if f := o.StartFaults(); len(f) != 0 {
			t.Error(f)
		}
	}
	w.commit(boss, "policy", "allow boss_t model:main use\n")
	for _, o := range []*Object{mid, low} {
		f := o.StartFaults()
		if len(f) != 1 || f[0].Kind != fault.Perm || f[0].Path != o.path("policy") || f[0].Line != 1 || !strings.Contains(f[0].Error(), "agent boss") && o == mid {
			t.Errorf("%v", f)
		}
	}
	w.commit(boss, "policy", bossPolicy)
	if f := low.StartFaults(); len(f) != 0 {
		t.Error(f)
	}
	// Case C09: a parent that is gone, one that nobody can read, one behind the
	// daemon's back that is the child itself.
	if err := w.table.Remove(System("boss")); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Object{mid, low} {
		f := o.StartFaults()
		if len(f) != 1 || f[0].Kind != fault.NotExist || !strings.Contains(f[0].Error(), "agent boss, is not there") {
			t.Errorf("%v", f)
		}
		if o.Allows(policy.Tool, "fs.read", policy.Execute) {
			t.Error("an orphan is allowed something")
		}
	}
	w.refuses(mid, "policy", "allow mid_t tool:fs.read execute\nallow mid_t tool:x execute\n", "not there")
	w.commit(mid, "policy", "")
	w.raw(low, "parent", "agent:low\n")
	if low.Family().Broken == nil || low.Allows(policy.Tool, "fs.read", policy.Execute) {
		t.Error("its own parent")
	}
	w.raw(low, "parent", "nobody knows\n")
	if low.Family().Broken == nil || low.Allows(policy.Tool, "fs.read", policy.Execute) {
		t.Error("an unreadable parent")
	}
}

// TestEveryDecision: what an ancestor loses its descendants lose at once, and get
// back with it.
func TestEveryDecision(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	boss, mid, low := family(w)
	may := func() string {
		var s string
		for _, o := range []*Object{boss, mid, low} {
			s += map[bool]string{true: "+", false: "-"}[o.Allows(policy.Tool, "fs.read", policy.Execute)]
		}
		return s
	}
	for _, c := range []struct {
		what string
		do   func()
		want string
	}{
		{"start", func() {}, "+++"},
		{"boss loses", func() { w.commit(boss, "policy", "#\n") }, "---"},
		{"boss gets", func() { w.commit(boss, "policy", bossPolicy) }, "+++"},
		{"mid loses", func() { w.commit(mid, "policy", "#\n") }, "+--"},
		{"mid gets", func() { w.commit(mid, "policy", "allow mid_t tool:fs.read execute\n") }, "+++"},
		{"boss is another subject", func() { w.commit(boss, "label", "other_t\n") }, "---"},
		{"boss is itself", func() { w.commit(boss, "label", "boss_t\n") }, "+++"},
		{"boss is broken on disk", func() { w.raw(boss, "policy", "deny\n") }, "---"},
		{"boss is repaired", func() { w.raw(boss, "policy", bossPolicy) }, "+++"},
		{"boss has a broken group list", func() { w.raw(boss, "groups", "x\n") }, "---"},
	} {
		c.do()
		if got := may(); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

// TestTurningTheParent is test 81 and case C09: the owner neither clears nor turns
// a parent, not by its text and not by the names of others.
func TestTurningTheParent(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	w.slow()
	_, mid, _ := family(w)
	owner := person(1000)
	for _, text := range []string{"", "agent:low\n", "agent:mid\n", "agent:nobody\n", "agent:boss session:x\n"} {
		if _, err := mid.Commit(entry(t, "parent"), []byte(text), owner); !fault.Is(err, fault.Perm) {
			t.Errorf("owner: parent %q: %v", text, err)
		}
	}
	for text, kind := range map[string]fault.Kind{"agent:low\n": fault.Invalid, "agent:mid\n": fault.Invalid, "agent:nobody\n": fault.Invalid} {
		if _, err := mid.Commit(entry(t, "parent"), []byte(text), root()); !fault.Is(err, kind) {
			t.Errorf("root: parent %q: %v", text, err)
		}
	}
	// A home agent below a system agent: one of that name in the home would be its
	// parent instead.
	w.create(System("chief"), 0)
	kid := w.create(InHome(1000, "kid"), 1000, "parent", "agent:chief")
	if f := kid.Family(); len(f.Above) != 1 || f.Born[0] {
		t.Errorf("a child of another owner's agent has its row 7: %v", f.Born)
	}
	if _, err := w.table.Create(InHome(1000, "chief"), CreateOptions{Writer: owner}); !fault.Is(err, fault.Perm) {
		t.Errorf("an owner takes a parent's place: %v", err)
	}
	w.create(InHome(1000, "chief"), 1000) // root may
	if f := kid.Family(); len(f.Above) != 1 || f.Above[0].Key != InHome(1000, "chief") {
		t.Errorf("above: %v", f.Above)
	}
	if err := w.table.Remove(InHome(1000, "chief")); !fault.Is(err, fault.Perm) {
		t.Errorf("its removal turns the parent: %v", err)
	}
	// root gives a parent that bounds less than the agent has.
	free := w.create(System("free"), 1000, "policy", "allow free_t tool:deploy execute\n")
	w.refuses(free, "parent", "agent:boss\n", "tool:deploy")
	w.commit(free, "policy", "")
	w.commit(free, "parent", "agent:boss\n")
}

// TestLabelsOfChildren: a type of its own, or the parent's when asked for by name;
// never a sibling's.
func TestLabelsOfChildren(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	_, mid, low := family(w)
	w.create(System("sister"), 1000, "parent", "agent:boss")
	for text, want := range map[string]fault.Kind{"sister_t\n": fault.Perm, "boss_t\n": fine, "mine_t\n": fine, "low_t\n": fine} {
		if err := mid.Check(entry(t, "label"), []byte(text), person(1000)); kindOf(err) != want {
			t.Errorf("label %q: %v", text, err)
		}
	}
	if err := low.Check(entry(t, "label"), []byte("boss_t\n"), person(1000)); kindOf(err) != fault.Perm {
		t.Errorf("a grandparent's label: %v", err)
	}
	try := func(label string, want fault.Kind) {
		t.Helper()
		_, err := w.table.Create(System("new"+label), CreateOptions{Writer: person(1000), Owner: 1000, Texts: map[string][]byte{"parent": []byte("agent:boss"), "label": []byte(label)}})
		if kindOf(err) != want {
			t.Errorf("born with %s: %v", label, err)
		}
	}
	try("sister_t", fault.Perm)
	try("boss_t", fine)
	// Rules that lie in wait for another label are judged when it comes.
	w.commit(mid, "policy", "allow mid_t tool:fs.read execute\nallow later_t tool:deploy execute\n")
	w.refuses(mid, "label", "later_t\n", "tool:deploy")
}

// TestGrantsOfRoot: what a grant lifts, for whom, how long, and that it is there
// after a restart.
func TestGrantsOfRoot(t *testing.T) {
	o := Options{Root: true}
	w := newWorld(t, o)
	boss, mid, low := family(w)
	write := "allow mid_t tool:fs.read execute\nallow mid_t tool:fs.write execute\n"
	for _, c := range []struct{ kind, value, reason string }{
		{"tool", "fs write", "x"}, {"tool", "fs.write", ""}, {"tool", "fs.write", "  "}, {"thing", "x", "x"}, {"group", "0", "x"}, {"group", "wheel", "x"},
		{"rule", "allow other_t tool:x execute", "x"}, {"rule", "allow mid_t tool:x", "x"}, {"rule", "#", "x"}, {"mount", "/a /b", "x"},
		{"mount", "/a/../b /c ro", "x"}, {"mount", "/a\t/b\tro\t-\n/c\t/d\tro\t-", "x"},
	} {
		if _, err := mid.Grant(c.kind, c.value, c.reason, "uid 0"); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := boss.Grant("tool", "fs.write", "x", "uid 0"); !fault.Is(err, fault.Invalid) {
		t.Errorf("an agent without a parent: %v", err)
	}
	g, err := mid.Grant("tool", "fs.write", "the editor of the team", "uid 0")
	if err != nil || g.N != 1 {
		t.Fatal(g, err)
	}
	if _, err := mid.Grant("tool", "fs.write", "again", "uid 0"); !fault.Is(err, fault.Exist) {
		t.Error(err)
	}
	w.commit(mid, "policy", write)
	w.commit(mid, "tools", "fs.read\nfs.write\n")
	w.refuses(low, "policy", "allow low_t tool:fs.write execute\n", "boss_t tool:fs.write")
	if !mid.Allows(policy.Tool, "fs.write", policy.Execute) || boss.Allows(policy.Tool, "fs.write", policy.Execute) {
		t.Error("the grant is not for the child alone")
	}
	for _, c := range []struct{ kind, value, name, text string }{
		{"group", "60", "groups", "50\n60\n"},
		{"mount", "/srv/data /data ro", "mount", "/ctx\t/ctx\tro\trbind,nosuid,nodev\n/srv/data\t/data\tro\trbind,nosuid,nodev\n"},
		{"rule", "allow  mid_t  shared:a read", "policy", write + "allow mid_t shared:a read\n"},
	} {
		w.refuses(mid, c.name, c.text, "ctx agent grant CHILD "+c.kind)
		if _, err := mid.Grant(c.kind, c.value, "needed", "uid 0"); err != nil {
			t.Fatal(err)
		}
		w.commit(mid, c.name, c.text)
	}
	if f := mid.StartFaults(); len(f) != 0 {
		t.Error(f)
	}
	log, err := os.ReadFile(filepath.Join(w.dir, "state/log/system.0.mid.log"))
	if err != nil || !strings.Contains(string(log), `"type":"grant","agent":"mid","object":"tool fs.write","status":"ok","reason":"the editor of the team","by":"uid 0"`) {
		t.Errorf("log %s %v", log, err)
	}
	// Nothing of it lies in the .d.
	entries, err := os.ReadDir(filepath.Join(w.dir, "object/agent/mid.d"))
	if err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.Contains(e.Name(), "grant") }) {
		t.Errorf("%v %v", entries, err)
	}
	w.close()
	w.open(o)
	mid, err = w.table.Lookup(System("mid"))
	if err != nil {
		t.Fatal(err)
	}
	list, void := mid.Grants()
	if len(list) != 4 || slices.Contains(void, true) || list[3].Value != "allow mid_t shared:a read" || list[3].N != 4 {
		t.Fatalf("%+v %v", list, void)
	}
	if !mid.Allows(policy.Tool, "fs.write", policy.Execute) {
		t.Error("the grant is gone with the daemon")
	}
	if _, err := mid.Revoke(1, "uid 0"); err != nil {
		t.Fatal(err)
	}
	if _, err := mid.Revoke(1, "uid 0"); !fault.Is(err, fault.NotExist) {
		t.Error(err)
	}
	if mid.Allows(policy.Tool, "fs.write", policy.Execute) || len(mid.StartFaults()) == 0 {
		t.Error("a revoked grant still counts")
	}
	if g, err := mid.Grant("tool", "fs.write", "once more", "uid 0"); err != nil || g.N != 5 {
		t.Errorf("number %d is given again: %v", g.N, err)
	}
	// Another label voids them, and the old one does not bring them back.
	w.commit(mid, "policy", "allow mid_t tool:fs.read execute\n")
	w.commit(mid, "label", "fresh_t\n")
	w.commit(mid, "label", "user_u:agent_r:mid_t:s0\n")
	if list, _ := mid.Grants(); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

// TestGrantsGoWithOwnerAndParent: also behind the daemon's back, where the record
// stays and says that it is void.
func TestGrantsGoWithOwnerAndParent(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	w.create(System("other"), 1000, "policy", "allow other_t tool:fs.read execute\n", "tools", "fs.read\n")
	_, mid, _ := family(w)
	if _, err := mid.Grant("group", "60", "x", "uid 0"); err != nil {
		t.Fatal(err)
	}
	w.raw(mid, "parent", "agent:other\n")
	if list, void := mid.Grants(); len(list) != 1 || !void[0] || mid.Family().Grants != nil {
		t.Errorf("%v %v", list, void)
	}
	w.raw(mid, "parent", "agent:boss\n")
	if mid.Family().Grants == nil {
		t.Error("it is what it was")
	}
	w.commit(mid, "parent", "agent:other\n")
	if list, _ := mid.Grants(); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	if _, err := mid.Grant("group", "60", "x", "uid 0"); err != nil {
		t.Fatal(err)
	}
	if err := w.table.Remove(System("other")); err != nil {
		t.Fatal(err)
	}
	if list, _ := mid.Grants(); len(list) != 0 {
		t.Errorf("the parent went, and its successor gets %v", list)
	}
}

// TestCreatedBy: the record of who created whom holds while the child is who it
// was.
func TestCreatedBy(t *testing.T) {
	o := Options{Root: true}
	w := newWorld(t, o)
	_, mid, _ := family(w)
	plain := w.create(System("plain"), 1000)
	w.commit(plain, "parent", "agent:boss\n")
	if got := mid.Family().Born; len(got) != 1 || !got[0] {
		t.Errorf("born %v", got)
	}
	if got := plain.Family().Born; len(got) != 1 || got[0] {
		t.Errorf("adopted, not born: %v", got)
	}
	made, err := w.table.Create(System("made"), CreateOptions{Writer: root(), Owner: 1000, Texts: map[string][]byte{"parent": []byte("agent:boss")}})
	if err != nil {
		t.Fatal(err)
	}
	if got := made.Family().Born; len(got) != 1 || got[0] {
		t.Errorf("made with a parent, by somebody else: %v", got)
	}
	w.close()
	w.open(o)
	for _, c := range []struct {
		key  Key
		want string
	}{{System("mid"), "[true]"}, {System("low"), "[true true]"}, {System("plain"), "[false]"}} {
		k, err := w.table.Lookup(c.key)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(k.Family().Born); got != c.want {
			t.Errorf("%s: %s", c.key, got)
		}
	}
	mid, err = w.table.Lookup(System("mid"))
	if err != nil {
		t.Fatal(err)
	}
	w.commit(mid, "policy", "")
	w.commit(mid, "label", "fresh_t\n")
	w.commit(mid, "label", "user_u:agent_r:mid_t:s0\n")
	if mid.Family().Born[0] {
		t.Error("void is for ever")
	}
	// One of the same name that comes later was not created by anybody.
	for _, name := range []string{"low", "mid"} {
		if err := w.table.Remove(System(name)); err != nil {
			t.Fatal(err)
		}
	}
	again := w.create(System("low"), 1000)
	w.commit(again, "parent", "agent:boss\n")
	if again.Family().Born[0] {
		t.Error("born by name")
	}
}

// TestBirths is case C05: ten births a minute in a tree, sixty-four below its top,
// whoever is the parent.
func TestBirths(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	now := time.Now()
	w.table.now = func() time.Time { return now }
	w.create(System("top"), 1000)
	w.create(System("elsewhere"), 1000)
	bear := func(name, parent string) error {
		_, err := w.table.Create(System(name), CreateOptions{Writer: root(), Owner: 1000, Texts: map[string][]byte{"parent": []byte("agent:" + parent)}})
		return err
	}
	if err := bear("c0", "top"); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < MaxBirths; i++ {
		if err := bear(fmt.Sprint("c", i), []string{"top", "c0"}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	if err := bear("over", "c0"); !fault.Is(err, fault.Again) {
		t.Errorf("birth %d: %v", MaxBirths+1, err)
	}
	if err := bear("e", "elsewhere"); err != nil {
		t.Errorf("another tree: %v", err)
	}
	now = now.Add(BirthTime - 1)
	if err := bear("over", "c0"); !fault.Is(err, fault.Again) {
		t.Errorf("within the minute: %v", err)
	}
	now = now.Add(1)
	if err := bear("over", "c0"); err != nil {
		t.Error(err)
	}
	for n := MaxBirths + 1; n < MaxFamily; n++ {
		now = now.Add(BirthTime)
		if err := bear(fmt.Sprint("f", n), fmt.Sprint("c", n%5)); err != nil {
			t.Fatal(n, err)
		}
	}
	now = now.Add(BirthTime)
	if err := bear("f64", "c0"); !fault.Is(err, fault.Again) || !strings.Contains(err.Error(), "64") {
		t.Errorf("the 65th below the top: %v", err)
	}
	if n := len(w.table.Descendants(System("top"))); n != MaxFamily {
		t.Errorf("%d descendants", n)
	}
}

// TestWorkspaceOfTheParent: what a start added to the parent's table the child may
// have while it runs.
func TestWorkspaceOfTheParent(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	boss, mid, _ := family(w)
	line := "/ctx\t/ctx\tro\trbind,nosuid,nodev\n/srv/project/src\t/src\tro\trbind,nosuid,nodev\n"
	w.refuses(mid, "mount", line, "does not see")
	w.table.SetRuntime(lines{boss.Key(): {{Source: "/srv/project", Target: "/workspace", RW: true, Recursive: true, NoSuid: true, NoDev: true}}})
	w.commit(mid, "mount", line)
	origins, err := mid.Origins()
	if err != nil || len(origins) != 2 || origins[1][0].From.Source != "/srv/project" {
		t.Errorf("%+v %v", origins, err)
	}
	w.table.SetRuntime(nil)
	if f := mid.StartFaults(); len(f) != 1 || f[0].Kind != fault.Perm || f[0].Line != 2 {
		t.Errorf("the parent is dead: %v", f)
	}
}
