package attenuate

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cortexfs/policy"
)

// The model: what an agent can reach, found by looking at every path of a small
// sandbox, as the kernel would after the mounts are made. Nothing of the package's
// own comparison is used.

// object is a file as it is: the kind of tree that it lies in, the host mount that
// it lies on, its path. Two names of one file are one object.
type object struct {
	kind  kind
	mount string
	path  string
}

// access is what can be done with an object through one place.
type access struct{ write, exec, suid, dev bool }

// within: everything that can be done by a can be done by b.
func (a access) within(b access) bool {
	return (!a.write || b.write) && (!a.exec || b.exec) && (!a.suid || b.suid) && (!a.dev || b.dev)
}

// world is what the tables are looked at in: the mounts of the host, and which
// homes are one and the same for the comparison.
type world struct {
	mounts []string
	homes  map[string]string
}

var comps = []string{"a", "b", ".git", "session", "data"}

// rels are all relative paths of at most three components.
var rels = func() []string {
	all, level := []string{""}, []string{""}
	for range 3 {
		var next []string
		for _, at := range level {
			for _, c := range comps {
				next = append(next, at+"/"+c)
			}
		}
		all, level = append(all, next...), next
	}
	return all
}()

// on is the host mount on which a path lies.
func (w *world) on(p string) string {
	best := ""
	for _, m := range w.mounts {
		if (p == m || strings.HasPrefix(p, m+"/")) && len(m) > len(best) {
			best = m
		}
	}
	return best
}

func (w *world) object(k kind, source, rel string, recursive bool) object {
	p := strings.TrimSuffix(source, "/") + rel
	o := object{kind: k, path: p}
	if k == host {
		o.mount = w.on(source)
		if recursive {
			o.mount = w.on(p)
		}
	}
	for home, as := range w.homes {
		if p == home || strings.HasPrefix(p, home+"/") {
			o.path = as + p[len(home):]
		}
	}
	if k == tmp {
		o.path = "private" + rel
	}
	return o
}

// reach is everything that the agent can reach within three steps of its lines,
// and how.
func (w *world) reach(a *Agent) map[object][]access {
	all := map[object][]access{}
	for _, m := range a.Mounts {
		for _, rel := range rels {
			if decides(a, m, m.Target+rel) {
				o := w.object(m.kind(), m.Source, rel, m.Recursive)
				all[o] = append(all[o], w.access(a, m, rel))
			}
		}
	}
	if a.Root == "/" || a.Root == a.Home+"/root" {
		return all
	}
	for _, rel := range rels[1:] {
		if !provided(a, rel) {
			o := w.object(kindOf(a.Root), a.Root, rel, true)
			all[o] = append(all[o], access{exec: true})
		}
	}
	return all
}

// ways is how an agent can reach one object.
func (w *world) ways(a *Agent, o object) []access {
	var all []access
	for _, m := range a.Mounts {
		rel, ok := strings.CutPrefix(o.path, strings.TrimSuffix(w.object(m.kind(), m.Source, "", true).path, "/"))
		if !ok || w.object(m.kind(), m.Source, rel, m.Recursive) != o || !decides(a, m, m.Target+rel) {
			continue
		}
		all = append(all, w.access(a, m, rel))
	}
	if a.Root == "/" || a.Root == a.Home+"/root" {
		return all
	}
	rel, ok := strings.CutPrefix(o.path, w.object(kindOf(a.Root), a.Root, "", true).path)
	if ok && rel != "" && w.object(kindOf(a.Root), a.Root, rel, true) == o && !provided(a, rel) {
		all = append(all, access{exec: true})
	}
	return all
}

func (w *world) access(a *Agent, m Mount, rel string) access {
	first := strings.Split(rel+"/", "/")[1]
	write := m.RW && first != ".git" && !(m.Source == a.Home && slices.Contains([]string{"session", "log", "root"}, first))
	return access{write, !m.NoExec, !m.NoSuid, !m.NoDev}
}

// provided: the table has the name at the top of the sandbox.
func provided(a *Agent, rel string) bool {
	top := "/" + strings.Split(rel, "/")[1]
	return slices.ContainsFunc(a.Mounts, func(m Mount) bool { return m.Target == top || strings.HasPrefix(m.Target, top+"/") })
}

// decides: no line with a longer target leads to the place.
func decides(a *Agent, m Mount, at string) bool {
	for _, q := range a.Mounts {
		if len(q.Target) > len(m.Target) && (at == q.Target || strings.HasPrefix(at, q.Target+"/")) {
			return false
		}
	}
	return true
}

// held says whether the child's sources lie where Lines demands, by the mounts of
// the host: what a start checks.
func (w *world) held(t *rapid.T, child *Agent, above []*Agent, g *Grants) bool {
	lines, o := Lines(child, above, g)
	if o != nil {
		t.Fatalf("Check passed, Lines: %v", o)
	}
	for _, from := range lines {
		for _, l := range from {
			if l.Own || l.Granted || l.Line.kind() != host {
				continue
			}
			if !l.From.Recursive && w.on(l.Line.Source) != w.on(l.From.Source) {
				return false
			}
			if l.From.Recursive && !l.Line.Recursive && slices.ContainsFunc(w.mounts, func(m string) bool {
				return strings.HasPrefix(m, l.Line.Source+"/")
			}) {
				return false
			}
		}
	}
	return true
}

// Generators.

func pick(t *rapid.T, what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(t, what)
}

func genSource(t *rapid.T, home string) string {
	deeper := rapid.SampledFrom(rels[:6]).Draw(t, "deeper")
	switch rapid.IntRange(0, 9).Draw(t, "source") {
	case 0:
		return "/ctx"
	case 1:
		return "/ctx/tool"
	case 2:
		return home + deeper
	case 3:
		return pick(t, "shared", "/ctx/shared/a", "/ctx/shared/a/data", "/ctx/shared/a/data/b", "/ctx/shared/b", "/ctx/shared/a/tool")
	case 4:
		return "/tmp"
	default:
		return pick(t, "top", "/a", "/b", "/a/a", "/a/b") + deeper
	}
}

func genMount(t *rapid.T, home string) Mount {
	b := func(what string) bool { return rapid.Bool().Draw(t, what) }
	return Mount{
		Source: genSource(t, home), Target: pick(t, "target", "/a", "/a/a", "/a/b", "/a/a/b", "/b", "/b/a", "/tmp", "/data"),
		RW: b("rw"), Recursive: b("rbind"), NoSuid: b("nosuid"), NoDev: b("nodev"), NoExec: b("noexec"),
	}
}

// genTable has no target twice, as the control demands.
func genTable(t *rapid.T, home string, from []Mount) []Mount {
	var table []Mount
	for i := range rapid.IntRange(0, 4).Draw(t, "lines") {
		m := genMount(t, home)
		if len(from) > 0 && rapid.IntRange(0, 5).Draw(t, "derive") > 0 {
			m = derive(t, rapid.SampledFrom(from).Draw(t, "from"))
		}
		m.Line = i + 1
		if !slices.ContainsFunc(table, func(x Mount) bool { return x.Target == m.Target }) {
			table = append(table, m)
		}
	}
	return table
}

// derive makes a line that is mostly narrower than another.
func derive(t *rapid.T, m Mount) Mount {
	often := func(what string) bool { return rapid.IntRange(0, 3).Draw(t, what) > 0 }
	if !often("same place") {
		rel := rapid.SampledFrom(rels[:10]).Draw(t, "rel")
		m.Source += rel
		m.Target += rel
	}
	if !often("same target") {
		m.Target = pick(t, "target", "/a", "/b", "/data", "/a/b")
	}
	if !often("same mode") {
		m.RW = rapid.Bool().Draw(t, "rw")
	}
	if !often("same flags") {
		m.NoExec = m.NoExec || rapid.Bool().Draw(t, "noexec")
		m.Recursive = m.Recursive && rapid.Bool().Draw(t, "rbind")
		m.NoDev = rapid.Bool().Draw(t, "nodev")
	}
	return m
}

func genRoot(t *rapid.T, home string, from []string) string {
	return pick(t, "root", append([]string{"/", home + "/root", "/a", "/a/b", home + "/data"}, from...)...)
}

// genAgent makes an agent, one that is mostly like another if there is one.
func genAgent(t *rapid.T, name string, like *Agent) *Agent {
	a := &Agent{Name: name, Subject: name + "_t", Home: "/ctx/home/1/agent/" + name, UID: 7, GID: 7, Iso: isoShared, Approval: "auto"}
	var from []Mount
	var roots []string
	rules, tools, path, groups := allRules(), []string{"x", "y", "z"}, []string{"/ctx/tool", "/ctx/home/1/tool", "/ctx/shared/a/tool"}, []uint32{1, 2, 3}
	if like != nil {
		roots = []string{like.Root, like.Root, home(like.Root, like.Home, a.Home)}
		for _, m := range like.Mounts {
			m.Source = home(m.Source, like.Home, a.Home)
			from = append(from, m)
		}
		if rapid.IntRange(0, 4).Draw(t, "shrink") > 0 {
			rules, tools, path, groups = effective(like), like.Tools, like.Path, like.Groups
		}
		a.Iso, a.Approval, a.UID = like.Iso, like.Approval, like.UID
	}
	a.Root = genRoot(t, a.Home, roots)
	a.Mounts = genTable(t, a.Home, from)
	a.Policy = genPolicy(t, a.Subject, rules)
	a.Tools = genSub(t, "tools", tools)
	a.Path = genSub(t, "path", path)
	a.Groups = genSub(t, "groups", groups)
	if rapid.IntRange(0, 5).Draw(t, "other ids") == 0 {
		a.Iso, a.Approval = pick(t, "iso", isoShared, "uid", "userns"), pick(t, "approval", "auto", "ask")
		a.UID = rapid.SampledFrom([]uint32{7, 8}).Draw(t, "uid")
	}
	return a
}

func home(p, from, to string) string {
	if p == from || strings.HasPrefix(p, from+"/") {
		return to + p[len(from):]
	}
	return p
}

func genSub[T any](t *rapid.T, what string, from []T) []T {
	var out []T
	for _, x := range from {
		if rapid.IntRange(0, 3).Draw(t, what) > 0 {
			out = append(out, x)
		}
	}
	return out
}

// right is a rule without its subject.
type right struct {
	class policy.Class
	name  string
	perm  policy.Permission
}

func allRules() []right {
	var all []right
	for _, c := range policy.Classes() {
		for _, p := range policy.Permissions(c) {
			for _, n := range []string{"x", "y"} {
				if c == policy.Network {
					n = "default"
				}
				all = append(all, right{c, n, p})
			}
		}
	}
	return all
}

// effective are the rights that an agent has by its own policy.
func effective(a *Agent) []right {
	var all []right
	for _, r := range allRules() {
		if _, ok := a.Policy.Allows(a.Subject, r.class, r.name, r.perm); ok {
			all = append(all, r)
		}
	}
	return all
}

func genPolicy(t *rapid.T, subject string, from []right) *policy.Set {
	if rapid.IntRange(0, 20).Draw(t, "no policy") == 0 {
		return nil
	}
	var b strings.Builder
	for _, r := range genSub(t, "rules", from) {
		who := subject
		if rapid.IntRange(0, 9).Draw(t, "other subject") == 0 {
			who = "other_t"
		}
		b.WriteString(policy.Rule{Subject: who, Class: r.class, Name: r.name, Perm: r.perm}.String() + "\n")
	}
	s, err := policy.Parse([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// genGrants makes grants about what the child asks for.
func genGrants(t *rapid.T, child *Agent) *Grants {
	if rapid.IntRange(0, 2).Draw(t, "grants") > 0 {
		return nil
	}
	g := &Grants{Groups: genSub(t, "grant group", child.Groups), Tools: genSub(t, "grant tool", child.Tools), Mounts: genSub(t, "grant mount", child.Mounts)}
	for r := range child.Policy.About(child.Subject) {
		if rapid.Bool().Draw(t, "grant rule") {
			g.Rules = append(g.Rules, r)
		}
	}
	return g
}

func genWorld(t *rapid.T, homes map[string]string) *world {
	return &world{mounts: rapid.SliceOfN(rapid.SampledFrom([]string{"/a/a", "/a/b", "/a/a/b", "/b/a", "/b/data"}), 0, 2).Draw(t, "host mounts"), homes: homes}
}

// freer finds something that the child can do and the ancestor cannot, leaving out
// what is granted.
func (w *world) freer(child, above *Agent, g *Grants) string {
	if g == nil {
		g = &Grants{}
	}
	for o, ways := range w.reach(child) {
		has := w.ways(above, o)
		for _, m := range g.Mounts {
			has = append(has, w.ways(&Agent{Home: child.Home, Root: "/", Mounts: []Mount{m}}, o)...)
		}
		for _, way := range ways {
			if !slices.ContainsFunc(has, way.within) {
				return "reaches " + o.path + " on " + o.mount
			}
		}
	}
	for _, r := range effective(child) {
		given := slices.ContainsFunc(g.Rules, func(x policy.Rule) bool { return x.Class == r.class && x.Name == r.name && x.Perm == r.perm })
		given = given || r.class == policy.Tool && slices.Contains(g.Tools, r.name)
		if !given && !slices.Contains(effective(above), r) {
			return "may " + string(r.class) + ":" + r.name + " " + string(r.perm)
		}
	}
	for _, x := range child.Tools {
		if !slices.Contains(above.Tools, x) && !slices.Contains(g.Tools, x) {
			return "declares " + x
		}
	}
	for _, x := range child.Groups {
		if !slices.Contains(above.Groups, x) && !slices.Contains(g.Groups, x) {
			return "is in a group"
		}
	}
	for i, x := range child.Path {
		at := slices.Index(above.Path, x)
		if at < 0 || i > 0 && at < slices.Index(above.Path, child.Path[i-1]) {
			return "searches " + x
		}
	}
	switch {
	case child.UID != above.UID || child.GID != above.GID:
		return "has other ids"
	case above.Iso != isoShared && child.Iso != above.Iso:
		return "is isolated less"
	case above.Approval == "ask" && child.Approval != "ask":
		return "is not asked about"
	}
	return ""
}

// TestNeverMoreThanAnyAncestor: what Check lets pass never does what the parent or
// the grandparent cannot, by the model. The grandparent's own grants to the parent
// are none of the child's.
func TestNeverMoreThanAnyAncestor(t *testing.T) {
	passed, judged := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		top := genAgent(t, "p", nil)
		mid := genAgent(t, "q", top)
		child := genAgent(t, "c", mid)
		above := []*Agent{mid, top}
		g := genGrants(t, child)
		judged++
		if Check(child, above, g) != nil {
			return
		}
		w := genWorld(t, map[string]string{child.Home: "home", mid.Home: "home", top.Home: "home"})
		if !w.held(t, child, above, g) {
			return
		}
		passed++
		for _, a := range above {
			if why := w.freer(child, a, g); why != "" {
				t.Fatalf("passed, and %s, unlike %s\nchild %+v\nabove %+v\ngrants %+v\nhost mounts %v", why, a.Name, child, a, g, w.mounts)
			}
		}
	})
	t.Logf("%d of %d cases passed", passed, judged)
}

// TestPairsNeverMore is the same for one parent, where more cases pass.
func TestPairsNeverMore(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		top := genAgent(t, "p", nil)
		child := genAgent(t, "c", top)
		g := genGrants(t, child)
		if Check(child, []*Agent{top}, g) != nil {
			return
		}
		w := genWorld(t, map[string]string{child.Home: "home", top.Home: "home"})
		if !w.held(t, child, []*Agent{top}, g) {
			return
		}
		passed++
		if why := w.freer(child, top, g); why != "" {
			t.Fatalf("passed, and %s\nchild %+v\nparent %+v\ngrants %+v\nhost mounts %v", why, child, top, g, w.mounts)
		}
	})
	if passed == 0 {
		t.Error("nothing passed: the test says nothing")
	}
	t.Logf("%d passed", passed)
}

// TestMountsNeverMore looks at tables alone, so that most cases are about them.
func TestMountsNeverMore(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		bare := func(name string, from []Mount, roots ...string) *Agent {
			a := &Agent{Name: name, Home: "/ctx/home/1/agent/" + name, Iso: isoShared}
			a.Root, a.Mounts = genRoot(t, a.Home, roots), genTable(t, a.Home, from)
			return a
		}
		top := bare("p", nil)
		child := bare("c", top.Mounts, "/", "/", "/", top.Root)
		if Check(child, []*Agent{top}, nil) != nil {
			return
		}
		w := genWorld(t, map[string]string{child.Home: "home", top.Home: "home"})
		if !w.held(t, child, []*Agent{top}, nil) {
			return
		}
		if len(child.Mounts) > 0 {
			passed++
		}
		if why := w.freer(child, top, nil); why != "" {
			t.Fatalf("passed, and %s\nchild %+v\nparent %+v\nhost mounts %v", why, child, top, w.mounts)
		}
	})
	if passed == 0 {
		t.Error("no table passed: the test says nothing")
	}
	t.Logf("%d tables passed", passed)
}

func TestReflexive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := genAgent(t, "a", nil)
		if o := Check(a, []*Agent{a}, nil); o != nil {
			t.Fatalf("%v: %+v", o, a)
		}
	})
}

// TestTransitive: a chain whose every pair holds holds as a whole.
func TestTransitive(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		top := genAgent(t, "p", nil)
		mid := genAgent(t, "q", top)
		child := genAgent(t, "c", mid)
		if Check(mid, []*Agent{top}, nil) != nil || Check(child, []*Agent{mid}, nil) != nil {
			return
		}
		passed++
		if o := Check(child, []*Agent{mid, top}, nil); o != nil {
			t.Fatalf("c ⊆ q ⊆ p, but %v\nc %+v\nq %+v\np %+v", o, child, mid, top)
		}
	})
	t.Logf("%d chains", passed)
}

// TestMonotone: taking something from a child that passes leaves one that passes;
// a grant never makes one that passes fail.
func TestMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		top := genAgent(t, "p", nil)
		child := genAgent(t, "c", top)
		if Check(child, []*Agent{top}, nil) != nil {
			return
		}
		if o := Check(child, []*Agent{top}, &Grants{Tools: child.Tools, Groups: child.Groups}); o != nil {
			t.Fatalf("with grants it fails: %v", o)
		}
		less := *child
		less.Tools, less.Groups, less.Path = genSub(t, "tools", child.Tools), genSub(t, "groups", child.Groups), genSub(t, "path", child.Path)
		less.Policy = genPolicy(t, child.Subject, effective(child))
		less.Approval = "ask"
		if o := Check(&less, []*Agent{top}, nil); o != nil {
			t.Fatalf("less is too much: %v", o)
		}
	})
}

// TestTranslated: what a parent asks for by the paths that it sees either is
// nothing that it sees, or lies inside that.
func TestTranslated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		parent := &Agent{Name: "p", Home: "/ctx/home/1/agent/p", Root: "/", Iso: isoShared}
		parent.Mounts = genTable(t, parent.Home, nil)
		child := &Agent{Name: "c", Home: "/ctx/home/1/agent/c", Root: "/", Iso: isoShared}
		ask := Mount{
			Source: pick(t, "at", "/a", "/a/a", "/a/b", "/b", "/tmp", "/data") + rapid.SampledFrom(rels[:10]).Draw(t, "rel"),
			Target: "/got", Recursive: true, Line: 1,
		}
		got, o := Translate(parent, []Mount{ask})
		if o != nil {
			if cover, ok := parent.covers(ask.Source); ok && cover.kind() != tmp && !strings.HasPrefix(cover.Source, "/ctx/shared") {
				t.Fatalf("refused although line %d shows it: %v", cover.Line, o)
			}
			return
		}
		child.Mounts = got
		o = Check(child, []*Agent{parent}, nil)
		over := slices.ContainsFunc(parent.Mounts, func(q Mount) bool { return strings.HasPrefix(q.Target, ask.Source+"/") })
		if o != nil && !over {
			t.Fatalf("%+v became %+v: %v\nparent %+v", ask, got[0], o, parent.Mounts)
		}
	})
}
