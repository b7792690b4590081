package view

import (
	"fmt"
	"strings"
	"testing"

	"cortexfs/node/agent"
	"cortexfs/policy"
)

// lineage is a parent, its child and its grandchild, all of uid 1000, with tools x
// and y whose policies name the parent alone.
func lineage(w *world) (top, mid, low *View) {
	for _, name := range []string{"x", "y", "own"} {
		w.install("tool/"+name, open)
		w.toolControl("tool/"+name, "policy", allow("top_t", name))
	}
	w.toolControl("tool/own", "policy", allow("low_t", "own"))
	all := func(subject string) string {
		return allow(subject, "x", "y", "own") + "allow " + subject + " shared:s read\nallow " + subject + " model:main use\n"
	}
	top = w.agent(agent.System("top"), 1000, "policy", all("top_t"), "tools", "x\ny\nown\n")
	mid = w.agent(agent.System("mid"), 1000, "parent", "agent:top", "policy", all("mid_t"), "tools", "x\n")
	low = w.agent(agent.System("low"), 1000, "parent", "agent:mid", "policy", all("low_t"), "tools", "x\n")
	return top, mid, low
}

// TestChildFollowsItsAncestors: each change of an ancestor is in the child's very
// next decision, in its listing, and explained with row and ancestor.
func TestChildFollowsItsAncestors(t *testing.T) {
	w := newWorld(t)
	top, mid, low := lineage(w)
	check := func(what string, v *View, name string, row int, ancestor string) {
		t.Helper()
		_, ok := v.Allowed("tool", name)
		_, verdict, decided := v.Decide("tool", name)
		rows, explained := v.Explain(name, false)
		denied, _ := policy.Denied(rows)
		listed := strings.Contains(" "+names(v.Tools("tool"))+" ", " tool/"+name+" ")
		if want := row == 0; ok != want || decided != want || explained != want || listed != want {
			t.Errorf("%s: %s allowed %v, decided %v, explained %v, listed %v", what, name, ok, decided, explained, listed)
		}
		if row != 0 && (verdict.Row != row || verdict.Ancestor != ancestor || denied.Row != row || denied.Ancestor != ancestor) {
			t.Errorf("%s: %s: row %d of %q, explained row %d of %q", what, name, verdict.Row, verdict.Ancestor, denied.Row, denied.Ancestor)
		}
	}
	// Row 7: by its own rule, or by the right of who created it.
	for _, v := range []*View{top, mid, low} {
		check("start", v, "x", 0, "")
	}
	check("start", low, "own", 0, "")
	check("start", mid, "own", 7, "")
	// Row 7 goes with the creator's right, at any distance.
	w.toolControl("tool/x", "policy", "#\n")
	for _, v := range []*View{top, mid, low} {
		check("nobody is named", v, "x", 7, "")
	}
	w.toolControl("tool/x", "policy", allow("mid_t", "x"))
	check("the child is named", top, "x", 7, "")
	check("the child is named", low, "x", 0, "")
	w.toolControl("tool/x", "policy", allow("top_t", "x"))
	// Row 6 of an ancestor, with its own subject.
	w.set(top, "policy", allow("top_t", "x"))
	check("the top loses y", low, "x", 0, "")
	check("the top loses y", low, "y", 6, "agent/top")
	check("the top loses y", mid, "y", 6, "agent/top")
	w.set(mid, "policy", allow("mid_t", "y"))
	check("the parent loses x", low, "x", 6, "agent/mid")
	w.set(mid, "policy", allow("mid_t", "y")) // what takes away passes
	w.set(top, "policy", allow("top_t", "x", "y"))
	w.set(mid, "policy", allow("mid_t", "x", "y"))
	check("all is back", low, "x", 0, "")
	// Rows 3 and 5 of an ancestor.
	w.set(top, "path", "/ctx/home/1000/tool\n")
	check("the top searches elsewhere", low, "x", 3, "agent/top")
	w.set(top, "path", "")
	w.set(top, "mount", "")
	check("the top has no tree", low, "x", 5, "agent/top")
	w.set(top, "mount", "/ctx\t/ctx\tro\trbind,nosuid,nodev,noexec\n")
	check("the top has it noexec", mid, "x", 5, "agent/top")
	w.set(top, "mount", "/ctx\t/ctx\tro\trbind,nosuid,nodev\n")
	check("all is back", low, "x", 0, "")
	// Rows 2 and 9, of hosted calls.
	if rows, ok := low.Explain("x", true); !ok || rows[1].Row != 2 {
		t.Errorf("%+v", rows)
	}
	w.set(top, "tools", "y\n")
	if rows, ok := low.Explain("x", true); ok || rows[1].OK || rows[1].Ancestor != "agent/top" {
		t.Errorf("row 2: %+v", rows[1])
	}
	w.set(top, "approval", "ask\n")
	if q := low.Request("x", true); q.Approval != nil {
		t.Error("the top asks, its grandchild does not")
	}
	// A removed ancestor leaves an orphan: nothing is allowed.
	if err := w.agents.Remove(agent.System("top")); err != nil {
		t.Fatal(err)
	}
	check("an orphan", low, "x", 6, "")
	check("an orphan", mid, "x", 6, "")
	if _, verdict, _ := mid.Decide("tool", "x"); verdict.File != "/ctx/agent/mid.d/parent" || !strings.Contains(verdict.Why, "not there") {
		t.Errorf("%+v", verdict)
	}
}

// TestChildSeesNoMore: models, spaces and agents follow the ancestors too.
func TestChildSeesNoMore(t *testing.T) {
	w := newWorld(t)
	top, _, low := lineage(w)
	if !low.ModelAllowed("main") || !low.SpaceAllowed("s") || fmt.Sprint(low.Models(), low.Spaces()) != "[main] [s]" {
		t.Errorf("%v %v", low.Models(), low.Spaces())
	}
	w.set(top, "policy", allow("top_t", "x"))
	if low.ModelAllowed("main") || low.SpaceAllowed("s") || len(low.Models())+len(low.Spaces()) != 0 {
		t.Errorf("%v %v", low.Models(), low.Spaces())
	}
}

// TestGrantedTool: rows 2 and 6 of the ancestors are lifted by root's grant for
// this child alone; row 7 is the tool's, as ever.
func TestGrantedTool(t *testing.T) {
	w := newWorld(t)
	_, mid, low := lineage(w)
	w.install("tool/deploy", open)
	w.toolControl("tool/deploy", "policy", allow("mid_t", "deploy"))
	if _, err := mid.Agent().Grant("tool", "deploy", "it deploys", "uid 0"); err != nil {
		t.Fatal(err)
	}
	w.set(mid, "policy", allow("mid_t", "x", "y", "deploy"))
	w.set(mid, "tools", "x\ndeploy\n")
	if rows, ok := mid.Explain("deploy", true); !ok {
		t.Errorf("%+v", rows)
	}
	if err := low.Agent().Store().Put("policy", []byte(allow("low_t", "deploy"))); err != nil {
		t.Fatal(err)
	}
	if _, verdict, ok := low.Decide("tool", "deploy"); ok || verdict.Row != 6 || verdict.Ancestor != "agent/top" {
		t.Errorf("the grant is handed on: %+v", verdict)
	}
	if _, err := mid.Agent().Revoke(1, "uid 0"); err != nil {
		t.Fatal(err)
	}
	if _, verdict, ok := mid.Decide("tool", "deploy"); ok || verdict.Row != 6 || verdict.Ancestor != "agent/top" {
		t.Errorf("revoked: %v %+v", ok, verdict)
	}
	if got := names(mid.Tools("tool")); strings.Contains(got, "deploy") {
		t.Errorf("listed: %s", got)
	}
}

// BenchmarkAllowedChild is a decision three generations down.
func BenchmarkAllowedChild(b *testing.B) {
	w, _ := installed(b, 100)
	w.toolControl("tool/t00042", "policy", allow("p_t", "t00042"))
	parent := ""
	var v *View
	for _, name := range []string{"p", "q", "r"} {
		v = w.agent(agent.System(name), 1000, "policy", allow(name+"_t", "t00042"), "parent", parent)
		parent = "agent:" + name
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := v.Allowed("tool", "t00042"); !ok {
			b.Fatal("refused")
		}
	}
}
