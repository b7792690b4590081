package agent

import (
	"fmt"
	"strings"
	"testing"

	"cortexfs/node/control"
	"cortexfs/node/fault"
)

const fine = fault.Kind(255)

func kindOf(err error) fault.Kind {
	if err == nil {
		return fine
	}
	return fault.KindOf(err)
}

// TestWhoMayWrite is spec 4.8: writer × control × text, on an agent of uid 1000.
func TestWhoMayWrite(t *testing.T) {
	w := newWorld(t, Options{Root: true, Subjects: namedTools{"tooled_t": 0, "mine_t": 1000}})
	w.create(System("boss"), 1000)
	w.create(System("stranger"), 1001)
	o := w.create(System("x"), 1000)
	child := w.create(System("child"), 1000, "parent", "agent:boss\n")
	grown := w.create(System("below"), 1000, "parent", "agent:x\n")
	_ = grown
	type row struct {
		o     *Object
		name  string
		text  string
		root  fault.Kind
		owner fault.Kind
		line  int
	}
	for _, r := range []row{
		{o, "approval", "ask\n", fine, fine, 0},
		{o, "policy", "allow x_t tool:a execute\n", fine, fine, 0},
		{o, "owner", "1000\n", fine, fine, 0},
		{o, "owner", "1001\n", fine, fault.Perm, 1},
		{o, "owner", "0\n", fine, fault.Perm, 1},
		{o, "uid", "1000\n", fine, fine, 0},
		{o, "uid", "1001\n", fine, fault.Perm, 1},
		{o, "uid", "0\n", fault.Perm, fault.Perm, 1},
		{o, "gid", "1000\n", fine, fine, 0},
		{o, "gid", "50\n", fine, fine, 0},
		{o, "gid", "1001\n", fine, fault.Perm, 1},
		{o, "gid", "0\n", fault.Perm, fault.Perm, 1},
		{o, "groups", "", fine, fine, 0},
		{o, "groups", "50\n60\n", fine, fine, 0},
		{o, "groups", "50\n60\n27\n", fine, fault.Perm, 3},
		{o, "groups", "50\n0\n", fault.Perm, fault.Perm, 2},
		{o, "label", "fresh_t\n", fine, fine, 0},
		{o, "label", "u:r:fresh_t:s0", fine, fine, 0},
		{o, "label", "x_t\n", fine, fine, 0},
		{o, "label", "stranger_t\n", fine, fault.Perm, 1},
		{o, "label", "tooled_t\n", fine, fault.Perm, 1},
		{o, "label", "mine_t\n", fine, fine, 0},
		{o, "label", "u1001.any_t\n", fine, fault.Perm, 1},
		{o, "label", "u1000.any_t\n", fine, fine, 0},
		{o, "parent", "", fine, fine, 0},
		{o, "parent", "agent:boss\n", fine, fine, 0},
		{o, "parent", "agent:boss session:s run:r\n", fine, fine, 0},
		{o, "parent", "agent:stranger\n", fault.Perm, fault.Perm, 1}, // its uid is another
		{o, "parent", "agent:x\n", fault.Invalid, fault.Invalid, 1},
		{o, "parent", "agent:below\n", fault.Invalid, fault.Invalid, 1},
		{o, "parent", "agent:nobody\n", fault.Invalid, fault.Invalid, 1},
		{child, "parent", "agent:boss\n", fine, fine, 0},
		{child, "parent", "", fine, fault.Perm, 1},
		{child, "parent", "agent:x\n", fine, fault.Perm, 1},
	} {
		e := entry(t, r.name)
		for _, c := range []struct {
			who  string
			w    Writer
			want fault.Kind
		}{{"root", root(), r.root}, {"owner", person(1000), r.owner}, {"stranger", person(1001), fault.Access}} {
			err := r.o.Check(e, []byte(r.text), c.w)
			if got := kindOf(err); got != c.want {
				t.Errorf("%s writes %q into %s: %v, want %v", c.who, r.text, r.name, err, c.want)
				continue
			}
			if err == nil {
				continue
			}
			f := asFault("", err)
			if f.Path != "/ctx/agent/"+r.o.key.Name+".d/"+r.name {
				t.Errorf("%s %q: path %q", r.name, r.text, f.Path)
			}
			if c.want != fault.Access && f.Line != r.line {
				t.Errorf("%s %q: line %d, want %d", r.name, r.text, f.Line, r.line)
			}
		}
	}
}

// TestPrefixJudgesWholeLinesOnly: a half number is not judged, a finished line
// is, and what Check refuses at a line a prefix refuses as soon as it is there.
func TestPrefixJudgesWholeLinesOnly(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 1000)
	text := "50\n60\n27\n60\n"
	for i := range len(text) + 1 {
		err := o.CheckPrefix(entry(t, "groups"), []byte(text[:i]), person(1000))
		if want := i >= len("50\n60\n27\n"); fault.Is(err, fault.Perm) != want {
			t.Errorf("%q: %v", text[:i], err)
		}
	}
	if err := o.CheckPrefix(entry(t, "groups"), nil, person(1001)); !fault.Is(err, fault.Access) {
		t.Errorf("a stranger's empty draft: %v", err)
	}
}

func TestReset(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 1000, "parent", "", "approval", "ask")
	for _, c := range []struct {
		name string
		w    Writer
		want fault.Kind
	}{
		{"approval", person(1001), fault.Access},
		{"approval", person(1000), fine},
		{"abi", root(), fault.Invalid},
		{"label", root(), fault.Invalid},
		{"owner", root(), fault.Invalid},
		{"status", root(), fault.Invalid},
	} {
		if got := kindOf(o.Reset(entry(t, c.name), c.w)); got != c.want {
			t.Errorf("reset %s: %v, want %v", c.name, got, c.want)
		}
	}
	if o.Config().Approval != "auto" {
		t.Error("reset approval is no auto")
	}
	child := w.create(System("child"), 1000, "parent", "agent:x")
	if err := child.Reset(entry(t, "parent"), person(1000)); !fault.Is(err, fault.Perm) {
		t.Errorf("the owner frees a child: %v", err)
	}
}

// TestLabelStaysWithItsOwner: reserved while in use, after the agent went away,
// after a restart, until root frees it.
func TestLabelStaysWithItsOwner(t *testing.T) {
	o := Options{Root: true}
	w := newWorld(t, o)
	label := entry(t, "label")
	mine := w.create(InHome(1000, "a"), 1000)
	if _, err := mine.Commit(label, []byte("special_t"), person(1000)); err != nil {
		t.Fatal(err)
	}
	other := w.create(InHome(1001, "b"), 1001)
	take := func(o *Object, want fault.Kind) {
		t.Helper()
		if _, err := o.Commit(label, []byte("special_t"), person(o.key.UID)); kindOf(err) != want {
			t.Errorf("%v takes the label: %v, want %v", o.key, err, want)
		}
	}
	take(other, fault.Perm)
	if err := w.table.FreeLabel("special_t"); err != nil {
		t.Errorf("freed in use: %v", err)
	}
	take(other, fault.Perm) // mine still has it
	if err := w.table.Remove(mine.Key()); err != nil {
		t.Fatal(err)
	}
	take(other, fault.Perm)
	w.close()
	w.open(o)
	other, err := w.table.Lookup(InHome(1001, "b"))
	if err != nil {
		t.Fatal(err)
	}
	take(other, fault.Perm)
	if err := w.table.FreeLabel("special_t"); err != nil {
		t.Fatal(err)
	}
	take(other, fine)
	// The one before it is still its first owner's too.
	if owner, ok := w.table.LabelOwner("u1001.b_t"); !ok || owner != 1001 {
		t.Errorf("u1001.b_t belongs to %d, %v", owner, ok)
	}
	// What root gives to somebody takes nothing away from the first.
	third := w.create(System("c"), 1000, "label", "special_t")
	if owner, _ := w.table.LabelOwner("special_t"); owner != 1001 {
		t.Errorf("special_t belongs to %d", owner)
	}
	if log := strings.Join(readLog(t, third.Log()), ""); !strings.Contains(log, `"type":"policy.subject"`) {
		t.Errorf("nobody is warned: %s", log)
	}
	if f := third.StartFaults(); len(f) != 1 || f[0].Kind != fault.Perm {
		t.Errorf("an agent with a stranger's label starts: %v", f)
	}
}

// TestLabelGoesWithTheAgent: root gives an agent away, and its type with it; the
// first owner keeps a type that another agent of theirs has.
func TestLabelGoesWithTheAgent(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	a := w.create(System("a"), 1000)
	b := w.create(System("b"), 1000, "label", "both_t")
	w.create(System("c"), 1000, "label", "both_t")
	for _, o := range []*Object{a, b} {
		if _, err := o.Commit(entry(t, "owner"), []byte("1001"), root()); err != nil {
			t.Fatal(err)
		}
	}
	if owner, _ := w.table.LabelOwner("a_t"); owner != 1001 {
		t.Errorf("a_t belongs to %d", owner)
	}
	if f := a.StartFaults(); len(f) != 0 {
		t.Errorf("a: %v", f)
	}
	if owner, _ := w.table.LabelOwner("both_t"); owner != 1000 {
		t.Errorf("both_t belongs to %d", owner)
	}
	if f := b.StartFaults(); len(f) != 1 {
		t.Errorf("b: %v", f)
	}
}

// TestTwoOwnersOneLabel: of two owners who write one fresh type at once, one gets
// it.
func TestTwoOwnersOneLabel(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	label := entry(t, "label")
	a, b := w.create(InHome(1000, "a"), 1000), w.create(InHome(1001, "b"), 1001)
	for i := range 50 {
		text := fmt.Appendf(nil, "race%d_t\n", i)
		errs := make(chan error)
		for _, o := range []*Object{a, b} {
			go func() {
				_, err := o.Commit(label, text, person(o.key.UID))
				errs <- err
			}()
		}
		e1, e2 := <-errs, <-errs
		if (e1 == nil) == (e2 == nil) {
			t.Fatalf("round %d: %v, %v", i, e1, e2)
		}
	}
}

func TestCommit(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 1000)
	for _, c := range []struct {
		text string
		w    Writer
		want fault.Kind
	}{
		{"ask", person(1000), fine}, {"aks", person(1000), fault.Invalid}, {"auto", person(1001), fault.Access},
		{strings.Repeat("a", 70000), person(1000), fault.TooBig},
	} {
		gen, err := o.Commit(entry(t, "approval"), []byte(c.text), c.w)
		if kindOf(err) != c.want {
			t.Errorf("%.10q: %v, want %v", c.text, err, c.want)
		}
		if v := o.Store().Snapshot().Values["approval"]; string(v.Text) != "ask\n" || err == nil && v.Gen != gen {
			t.Errorf("after %.10q: %q, gen %d and %d", c.text, v.Text, v.Gen, gen)
		}
	}
	flushAll(o.Log(), 2)
	log := readLog(t, o.Log())
	var kinds []string
	for _, l := range parseLines(t, log) {
		kinds = append(kinds, fmt.Sprintf("%s %s %d", l.Type, l.Object, l.Count))
	}
	if got := strings.Join(kinds, ", "); got != "control.changed object 0, control.changed approval 0, control.rejected approval 0, control.rejected approval 2" {
		t.Errorf("the log has %s", got)
	}
	for _, l := range log {
		if strings.Contains(l, "aks") {
			t.Errorf("the log repeats the refused text: %s", l)
		}
	}
}

// TestAccountsOfTheMoment: a group that was taken from the owner after it was
// written ends the next start.
func TestAccountsOfTheMoment(t *testing.T) {
	users := accounts{1000: {1000, 50}}
	w := newWorld(t, Options{Root: true, Users: users})
	o := w.create(System("x"), 1000, "groups", "1000\n50\n", "gid", "50\n")
	if f := o.StartFaults(); len(f) != 0 {
		t.Fatal(f)
	}
	users[1000] = []uint32{1000}
	f := o.StartFaults()
	if len(f) != 2 || f[0].Kind != fault.Perm || f[1].Line != 2 || !strings.HasSuffix(f[1].Path, "/groups") {
		t.Errorf("faults %v", f)
	}
	// The Config that a start goes by knows today's accounts.
	late := w.create(System("late"), 2000)
	if c := late.Config(); c.GID != NoID || len(c.Faults) == 0 {
		t.Errorf("gid %d, faults %v", c.GID, c.Faults)
	}
	users[2000] = []uint32{77}
	if f, c := late.StartFaults(), late.Config(); len(f) != 0 || len(c.Faults) != 0 || c.GID != 77 {
		t.Errorf("faults %v and %v, gid %d", f, c.Faults, c.GID)
	}
	// Ids that root gave from the pool stand without any account.
	o = w.create(System("y"), 1000, "iso", "uid", "uid", "1879048500", "gid", "1879048500")
	if f := o.StartFaults(); len(f) != 0 {
		t.Errorf("an agent with ids of its own: %v", f)
	}
}

func TestCreate(t *testing.T) {
	w := newWorld(t, Options{Root: true, PerUID: 3, Subjects: namedTools{"coder_t": 0}})
	try := func(k Key, wr Writer, owner uint32, want fault.Kind, texts map[string][]byte) {
		t.Helper()
		_, err := w.table.Create(k, CreateOptions{Writer: wr, Owner: owner, Texts: texts})
		if kindOf(err) != want {
			t.Errorf("create %v by %d for %d: %v, want %v", k, wr.UID, owner, err, want)
		}
		if err != nil && want != fault.Exist {
			if _, err := w.table.Lookup(k); !fault.Is(err, fault.NotExist) {
				t.Errorf("%v is there after a refusal: %v", k, err)
			}
		}
	}
	try(System("bad.d"), root(), 0, fault.Invalid, nil)
	try(System(strings.Repeat("a", 63)), root(), 0, fault.Invalid, nil)
	try(InHome(1001, "a"), person(1000), 0, fault.Access, nil)
	try(System("a"), person(1000), 1001, fault.Perm, nil)
	try(System("a"), person(1000), 0, fault.Perm, nil)
	try(System("coder"), person(1000), 1000, fault.Perm, nil) // its default type is named by root's tool
	try(InHome(1000, "a"), person(1000), 0, fault.Invalid, map[string][]byte{"status": []byte("idle")})
	try(InHome(1000, "a"), person(1000), 0, fault.Invalid, map[string][]byte{"nothing": nil})
	try(InHome(1000, "a"), person(1000), 0, fault.Invalid, map[string][]byte{"approval": []byte("maybe")})
	try(InHome(1000, "a"), person(1000), 0, fault.Perm, map[string][]byte{"uid": []byte("1001")})
	try(InHome(1000, "a"), person(1000), 0, fault.Perm, map[string][]byte{"label": []byte("coder_t")})
	try(InHome(1000, "a"), person(1000), 0, fine, map[string][]byte{"approval": []byte("ask")})
	try(InHome(1000, "a"), person(1000), 0, fault.Exist, nil)
	try(System("b"), person(1000), 1000, fine, nil)
	try(System("coder"), root(), 1000, fine, nil)
	try(InHome(1000, "d"), person(1000), 0, fault.Again, nil)
	try(InHome(1001, "d"), person(1001), 0, fine, nil)
	o, err := w.table.Lookup(InHome(1000, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(o.Store().Snapshot().Values); got != 4 {
		t.Errorf("%d texts were written, want owner, label, abi and approval", got)
	}
}

// TestPoolIsNeverReused: ids of agents of owner 0 come from the pool, past the
// accounts that are there, and never twice, over removals and restarts.
func TestPoolIsNeverReused(t *testing.T) {
	users := accounts{0: {0}, 5001: {5001}, 1000: {1000, 5003}}
	o := Options{Root: true, Users: users, PoolFirst: 5000, PoolLast: 5006}
	w := newWorld(t, o)
	var got []uint32
	for i := range 4 {
		k := System(fmt.Sprintf("a%d", i))
		got = append(got, w.create(k, 0).Config().UID)
		if err := w.table.Remove(k); err != nil {
			t.Fatal(err)
		}
		w.close()
		w.open(o)
	}
	if fmt.Sprint(got) != "[5000 5002 5004 5005]" {
		t.Errorf("uids %v", got)
	}
	w.create(System("last"), 0)
	if _, err := w.table.Create(System("more"), CreateOptions{Writer: root()}); !fault.Is(err, fault.NoSpace) {
		t.Errorf("an empty pool: %v", err)
	}
}

func TestRemove(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 1000)
	w.table.SetRuntime(liveRuntime{System("x"): 42})
	if err := w.table.Remove(o.Key()); !fault.Is(err, fault.Busy) {
		t.Errorf("remove of a live agent: %v", err)
	}
	w.table.SetRuntime(nil)
	if err := w.table.Remove(o.Key()); err != nil {
		t.Fatal(err)
	}
	if !o.Gone() || len(w.table.All()) != 0 {
		t.Errorf("gone %v, all %v", o.Gone(), w.table.All())
	}
	if _, err := w.table.Lookup(o.Key()); !fault.Is(err, fault.NotExist) {
		t.Errorf("lookup: %v", err)
	}
	if _, err := o.Commit(entry(t, "approval"), []byte("ask"), root()); !fault.Is(err, fault.Stale) {
		t.Errorf("write through the old object: %v", err)
	}
	again := w.create(System("x"), 1001)
	if again == o || again.Gone() || again.Config().Owner != 1001 {
		t.Error("the new agent is the old one")
	}
	// Created, and a word about the label type of another owner.
	if log := readLog(t, again.Log()); len(log) != 2 || !strings.Contains(log[0], `"seq":1,`) {
		t.Errorf("the new agent begins with the log of the old one: %v", log)
	}
}

func TestFamily(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	w.slow()
	parent := func(name string) []string { return []string{"parent", "agent:" + name} }
	w.create(System("top"), 1000)
	w.create(System("a"), 1000, parent("top")...)
	w.create(System("b"), 1000, parent("a")...)
	w.create(System("c"), 1000, parent("b")...)
	w.create(System("d"), 1000, parent("c")...)
	if above, err := w.table.Ancestors(System("d")); err != nil || fmt.Sprint(above) != "[agent/c agent/b agent/a agent/top]" {
		t.Errorf("above d: %v, %v", above, err)
	}
	if below := w.table.Descendants(System("a")); fmt.Sprint(below) != "[agent/d agent/c agent/b]" {
		t.Errorf("below a: %v", below)
	}
	try := func(name, under string, want fault.Kind) {
		t.Helper()
		_, err := w.table.Create(System(name), CreateOptions{Writer: root(), Owner: 1000, Texts: map[string][]byte{"parent": []byte("agent:" + under)}})
		if kindOf(err) != want {
			t.Errorf("%s under %s: %v, want %v", name, under, err, want)
		}
	}
	try("e", "d", fault.Again) // too deep
	for i := 1; i < MaxChildren; i++ {
		try(fmt.Sprintf("t%d", i), "top", fine)
	}
	try("many", "top", fault.Again)
	// An agent of a home finds its parent there first.
	w.create(InHome(1000, "top"), 1000)
	w.create(InHome(1000, "kid"), 1000, parent("top")...)
	if p, ok := w.table.Parent(InHome(1000, "kid")); !ok || p != InHome(1000, "top") {
		t.Errorf("kid's parent is %v", p)
	}
	// A cycle can only come from behind the daemon's back; nothing hangs.
	top, err := w.table.Lookup(System("top"))
	if err != nil {
		t.Fatal(err)
	}
	w.raw(top, "parent", "agent:c\n")
	if _, err := w.table.Ancestors(System("d")); !fault.Is(err, fault.Invalid) {
		t.Errorf("a cycle: %v", err)
	}
	if n := len(w.table.Descendants(System("top"))); n != 19 {
		t.Errorf("%d below top", n)
	}
	if f := top.StartFaults(); len(f) != 1 || f[0].Kind != fault.Invalid {
		t.Errorf("start faults in a cycle: %v", f)
	}
}

func TestLists(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	if len(w.table.All()) != 0 {
		t.Error("a new store has agents")
	}
	w.create(InHome(1001, "b"), 1001)
	w.create(System("z"), 1000)
	w.create(InHome(1000, "a"), 1000)
	w.create(System("a"), 1000)
	if got := fmt.Sprint(w.table.All()); got != "[agent/a agent/z home/1000/agent/a home/1001/agent/b]" {
		t.Errorf("all: %s", got)
	}
	if got := fmt.Sprint(w.table.List(true, 1001), w.table.List(false, 7), w.table.List(true, 7), w.table.Homes()); got != "[home/1001/agent/b] [agent/a agent/z] [] [1000 1001]" {
		t.Errorf("lists: %s", got)
	}
	for _, c := range []struct {
		caller uint32
		ref    string
		want   string
	}{
		{1000, "a", "home/1000/agent/a"}, {1001, "a", "agent/a"}, {1000, "agent/a", "agent/a"}, {1000, "z", "agent/z"},
		{1000, "/ctx/agent/a", "agent/a"}, {1000, "home/1001/agent/b", "home/1001/agent/b"}, {1000, "b", ""}, {1000, "agent/b", ""}, {1000, "x/y", ""}, {1000, "..", ""},
	} {
		k, err := w.table.ByBareName(c.caller, c.ref)
		if (err == nil) != (c.want != "") || err == nil && k.String() != c.want {
			t.Errorf("%d looks for %s: %v, %v", c.caller, c.ref, k, err)
		}
	}
	// An agent that somebody else put into the store is found too.
	if _, err := w.st.Create("agent/m.d", map[string][]byte{"owner": []byte("1000\n")}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(w.table.List(false, 0)); got != "[agent/a agent/m agent/z]" {
		t.Errorf("after a foreign create: %s", got)
	}
}

func TestStoreInvalid(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 1000)
	w.raw(o, "mount", "/a\t/b\trx\t-\n")
	w.table.StoreChanged("agent/x.d")
	w.table.StoreChanged("agent/nobody.d")
	w.table.StoreChanged("tool/x.d")
	log := parseLines(t, readLog(t, o.Log()))
	last := log[len(log)-1]
	if last.Type != "store.invalid" || last.Object != "mount" || !strings.HasPrefix(last.Reason, "1:") {
		t.Errorf("%+v", last)
	}
}

// TestEveryDurableControlHasADefaultOrIsRequired guards firstText and Text.
func TestEveryDurableControlHasADefaultOrIsRequired(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 1000)
	for _, e := range control.Agent.Entries() {
		if e.Kind != control.Durable {
			continue
		}
		text, origin, err := o.Text(e.Name)
		if err != nil || origin == Default && e.Required {
			t.Errorf("%s: %q %s %v", e.Name, text, origin, err)
		}
		if err := e.JudgeFor(o.ControlObject(), text); err != nil {
			t.Errorf("%s: the default is refused: %v", e.Name, err)
		}
	}
}
