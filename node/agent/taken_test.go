package agent

import (
	"strings"
	"testing"

	"cortexfs/node"
	"cortexfs/node/control"
)

// started is what a running agent keeps of its start.
func started(w *world, o *Object) (owner uint32, texts map[string]string) {
	texts = map[string]string{}
	for _, name := range []string{"owner", "uid", "gid", "groups", "iso", "mount", "env"} {
		text, ok := o.Config().Text(name)
		if !ok {
			w.Fatalf("%s cannot be read", name)
		}
		texts[name] = text
	}
	return o.Config().Owner, texts
}

const (
	view  = "/ctx\t/ctx\tro\trbind,nosuid,nodev\n"
	srv   = "/srv/a\t/a\trw\trbind,nosuid,nodev\n"
	space = "/ctx/shared/docs\t/docs\trw\trbind,nosuid,nodev\n"
	rules = "allow low_t shared:docs read\nallow low_t shared:docs write\n"
)

// TestTakenFromARunningAgent: who has to end, and by what; in one row after
// another, each from the same start.
func TestTakenFromARunningAgent(t *testing.T) {
	type change struct{ agent, control, text string }
	for name, c := range map[string]struct {
		changes []change
		want    []string // begins of the losses
	}{
		"nothing":                  {nil, nil},
		"another environment":      {[]change{{"low", "env", "A=b\n"}}, nil},
		"another line":             {[]change{{"low", "mount", view + srv + space + "/srv/a/x\t/mine\tro\trbind,nosuid,nodev\n"}}, nil},
		"a blank line, reordered":  {[]change{{"low", "mount", space + "\n" + srv + view}}, nil},
		"its line":                 {[]change{{"low", "mount", view + space}}, []string{"mount, line 2: "}},
		"its line, and back again": {[]change{{"low", "mount", view + space}, {"low", "mount", view + srv + space}}, nil},
		"its line's mode":          {[]change{{"low", "mount", view + strings.Replace(srv, "\trw\t", "\tro\t", 1) + space}}, []string{"mount, line 2: "}},
		"its group":                {[]change{{"low", "groups", "60\n"}}, []string{"groups, line 1: group 50"}},
		"a rule of the space":      {[]change{{"low", "policy", "allow low_t shared:docs read\n"}}, []string{"policy: its policy lacks `allow low_t shared:docs write`"}},
		"all rules":                {[]change{{"low", "policy", ""}}, []string{"policy: its policy lacks `allow low_t shared:docs read`"}},
		"its subject":              {[]change{{"low", "label", "other_t\n"}}, []string{"policy: "}},
		"the parent's rule":        {[]change{{"mid", "policy", ""}}, []string{"policy: an agent above it lacks"}},
		"the parent's group":       {[]change{{"boss", "groups", "60\n"}}, []string{"groups, line 1: agent boss"}},
		"the parent's line":        {[]change{{"boss", "mount", view + space}}, []string{"mount, line 2: agent boss"}},
		"a line of the parent's over it": {[]change{{"boss", "mount", view + srv + space + "/tmp\t/a/secret\tro\t-\n"}},
			nil},
		"the parent": {[]change{{"low", "parent", ""}}, nil},
		"the owner": {[]change{{"low", "parent", ""}, {"low", "owner", "1001\n"}},
			[]string{"owner, line 1: "}},
		"the uid, written as it was": {[]change{{"low", "uid", "1000\n"}}, nil},
	} {
		w := newWorld(t, Options{Root: true})
		all := map[string]*Object{}
		parent := ""
		for _, n := range []string{"boss", "mid", "low"} {
			all[n] = w.create(System(n), 1000, "parent", parent, "groups", "50\n60\n", "mount", view+srv+space, "policy", strings.ReplaceAll(rules, "low_t", n+"_t"))
			parent = "agent:" + n
		}
		low := all["low"]
		if f := low.StartFaults(); len(f) > 0 {
			t.Fatalf("%s: %v", name, f)
		}
		owner, texts := started(w, low)
		for _, ch := range c.changes {
			w.commit(all[ch.agent], ch.control, ch.text)
		}
		got := low.Taken(owner, texts)
		ok := len(got) == len(c.want)
		for i := range min(len(got), len(c.want)) {
			ok = ok && strings.HasPrefix(got[i].String(), c.want[i])
		}
		if !ok {
			t.Errorf("%s: %v, want %q", name, got, c.want)
		}
	}
}

// TestTakenFailsClosed: texts that cannot be read any more, a parent that is gone,
// an object that is gone, and what root granted and takes back.
func TestTakenFailsClosed(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	boss := w.create(System("boss"), 1000, "groups", "50\n")
	o := w.create(System("kid"), 1000, "parent", "agent:boss")
	g, err := o.Grant("group", "60", "it has to", "uid 0")
	if err != nil {
		t.Fatal(err)
	}
	w.commit(o, "groups", "50\n60\n")
	owner, texts := started(w, o)
	if l := o.Taken(owner, texts); len(l) > 0 {
		t.Errorf("nothing was taken: %v", l)
	}
	if _, err := o.Revoke(g.N, "uid 0"); err != nil {
		t.Fatal(err)
	}
	if l := o.Taken(owner, texts); len(l) != 1 || l[0].Control != "groups" || l[0].Line != 2 {
		t.Errorf("a grant was revoked: %v", l)
	}
	w.commit(o, "groups", "50\n")
	owner, texts = started(w, o)
	if err := o.Store().Put("mount", []byte("nonsense\n")); err != nil {
		t.Fatal(err)
	}
	if l := o.Taken(owner, texts); len(l) != 2 || l[0].Control != "mount" {
		t.Errorf("an unreadable table: %v", l)
	}
	if err := o.Store().Delete("mount"); err != nil {
		t.Fatal(err)
	}
	if err := w.table.Remove(boss.Key()); err != nil {
		t.Fatal(err)
	}
	if l := o.Taken(owner, texts); len(l) != 1 || l[0].Control != "parent" {
		t.Errorf("an orphan: %v", l)
	}
	if err := w.table.Remove(o.Key()); err != nil {
		t.Fatal(err)
	}
	if l := o.Taken(owner, texts); len(l) != 1 {
		t.Errorf("a removed agent: %v", l)
	}
}

func TestSpaceOf(t *testing.T) {
	for source, want := range map[string]string{
		"/ctx/shared/docs": "docs", "/ctx/shared/docs/data": "docs", "/ctx/shared/docs/data/x": "docs",
		"/ctx/shared/docs/tool": "", "/ctx/shared/docs/database": "", "/srv/shared/docs": "", "/ctx": "",
	} {
		if got, ok := spaceOf(source); ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q %v", source, got, ok)
		}
	}
}

// hearing is a runtime that listens.
type hearing []string

func (*hearing) Live(Key) (node.State, int) { return node.Dead, 0 }
func (h *hearing) Changed(k Key, by string) { *h = append(*h, k.Name+" by "+by) }

// TestAnnounce: a runtime hears if it listens.
func TestAnnounce(t *testing.T) {
	w := newWorld(t, Options{})
	w.table.Announce(System("x"), "nobody hears")
	w.table.SetRuntime(liveRuntime{})
	w.table.Announce(System("x"), "nobody listens")
	var h hearing
	w.table.SetRuntime(&h)
	w.table.Announce(System("x"), "uid 0")
	if len(h) != 1 || h[0] != "x by uid 0" {
		t.Error(h)
	}
	if _, ok := (&Config{}).Text("status"); ok || control.Agent.Lookup("status") == nil {
		t.Error("a live control has no text")
	}
}
