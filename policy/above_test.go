package policy

import (
	"strings"
	"testing"
)

func setOf(t testing.TB, text string) *Set {
	t.Helper()
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// child is a request of an agent with a parent and a grandparent where every row
// holds.
func child(t testing.TB) *Request {
	above := func(name string, born bool) Ancestor {
		return Ancestor{
			Name: "agent/" + name, Subject: name + "_t", Policy: setOf(t, "allow "+name+"_t tool:x execute\n"), PolicyFile: name + "/policy",
			Declares: func(string) (int, bool) { return 1, true }, ToolsFile: name + "/tools", Searched: []string{"/ctx/tool"}, SearchFile: name + "/path",
			Mount: &MountFact{Line: 1, Target: "/ctx"}, MountFile: name + "/mount", Born: born,
		}
	}
	return &Request{
		Tool: "x", Hosted: true, Declared: true, DeclaredLine: 1, Searched: []string{"/ctx/tool"}, HitDir: "/ctx/tool",
		Hit: &Hit{Path: "/ctx/tool/x", Mode: 0o755, Search: true}, UID: 7, GID: 7, Mount: &MountFact{Line: 1, Target: "/ctx"},
		Subject: "c_t", AgentPolicy: setOf(t, "allow c_t tool:x execute\n"), ToolPolicy: setOf(t, "allow c_t tool:x execute\nallow top_t tool:x execute\n"),
		ToolPolicyFile: "/ctx/tool/x.d/policy", Opened: &OpenFact{OK: true}, Approval: &ApprovalFact{Auto: true},
		Above: []Ancestor{above("mid", true), above("top", true)},
	}
}

// TestAbove: each row that an ancestor lacks refuses the child, names the row, the
// ancestor and its file, and what is missing there.
func TestAbove(t *testing.T) {
	if v, ok := Authorize(child(t)); !ok {
		t.Fatalf("%+v", v)
	}
	for _, c := range []struct {
		what          string
		change        func(*Request)
		row           int
		who, file     string
		missing, says string
	}{
		{"not declared", func(q *Request) { q.Above[1].Declares = func(string) (int, bool) { return 0, false } }, 2, "agent/top", "top/tools", "x", "declared by agent/top"},
		{"elsewhere", func(q *Request) { q.Above[0].Searched = []string{"/ctx/home/1/tool"} }, 3, "agent/mid", "mid/path", "", "does not search"},
		{"no mount", func(q *Request) { q.Above[0].Mount = nil }, 5, "agent/mid", "mid/mount", "", "exposes"},
		{"noexec", func(q *Request) { q.Above[1].Mount = &MountFact{Line: 3, NoExec: true} }, 5, "agent/top", "top/mount", "", "noexec"},
		{"no rule", func(q *Request) { q.Above[1].Policy = setOf(t, "allow c_t tool:x execute\n") }, 6, "agent/top", "top/policy", "allow top_t tool:x execute", "no rule"},
		{"no policy", func(q *Request) { q.Above[0].Policy = nil }, 6, "agent/mid", "mid/policy", "allow mid_t tool:x execute", "missing or invalid"},
		{"no label", func(q *Request) { q.Above[0].Subject = "" }, 6, "agent/mid", "mid/policy", "", "no label"},
		{"nearest first", func(q *Request) { q.Above[0].Policy, q.Above[1].Policy = nil, nil }, 6, "agent/mid", "mid/policy", "allow mid_t tool:x execute", ""},
		{"unknown parent", func(q *Request) { q.Above, q.Lineage, q.LineageFile = nil, "its parent is not there", "c/parent" }, 6, "", "c/parent", "", "not there"},
		{"unknown, granted", func(q *Request) {
			q.Lineage, q.LineageFile, q.GrantedRule = "its parent is not there", "c/parent", true
		}, 6, "", "c/parent", "", ""},
	} {
		q := child(t)
		c.change(q)
		v, ok := Authorize(q)
		if ok || v.Row != c.row || v.Ancestor != c.who || v.File != c.file || v.Missing != c.missing || !strings.Contains(v.Why, c.says) {
			t.Errorf("%s: %v %+v", c.what, ok, v)
		}
		if first, _ := Denied(Explain(q)); first != v {
			t.Errorf("%s: explained %+v, decided %+v", c.what, first, v)
		}
	}
}

// TestGrantLiftsRowsTwoAndSix and nothing else.
func TestGrantLiftsRowsTwoAndSix(t *testing.T) {
	q := child(t)
	q.Above[1].Policy, q.GrantedRule = nil, true
	if v, ok := Authorize(q); !ok {
		t.Errorf("%+v", v)
	}
	q.Above[0].Declares = func(string) (int, bool) { return 0, false }
	if _, ok := Authorize(q); ok {
		t.Error("the rule's grant declares")
	}
	q.GrantedTool = true
	if v, ok := Authorize(q); !ok {
		t.Errorf("%+v", v)
	}
	q.AgentPolicy = nil
	if v, ok := Authorize(q); ok || v.Row != 6 || v.Ancestor != "" {
		t.Errorf("a grant stands for the child's own rule: %+v", v)
	}
}

// TestCreatorsRight: row 7 by the child's own rule, else by its creator's, as long
// as the chain of creation reaches.
func TestCreatorsRight(t *testing.T) {
	for _, c := range []struct {
		tool     string
		born     [2]bool
		ok       bool
		ancestor string
	}{
		{"allow c_t tool:x execute\n", [2]bool{false, false}, true, ""},
		{"allow mid_t tool:x execute\n", [2]bool{true, false}, true, "agent/mid"},
		{"allow mid_t tool:x execute\n", [2]bool{false, true}, false, ""},
		{"allow top_t tool:x execute\n", [2]bool{true, true}, true, "agent/top"},
		{"allow top_t tool:x execute\n", [2]bool{true, false}, false, ""},
		{"allow top_t tool:x execute\n", [2]bool{false, true}, false, ""},
		{"#\n", [2]bool{true, true}, false, ""},
	} {
		q := child(t)
		q.ToolPolicy = setOf(t, c.tool)
		q.Above[0].Born, q.Above[1].Born = c.born[0], c.born[1]
		rows := Explain(q)
		v := rows[6]
		if v.Row != 7 || v.OK != c.ok || v.Ancestor != c.ancestor {
			t.Errorf("%q %v: %+v", c.tool, c.born, v)
		}
		if !c.ok && v.Missing != "allow c_t tool:x execute" {
			t.Errorf("%q: missing %q", c.tool, v.Missing)
		}
	}
	q := child(t)
	q.ToolPolicy = nil
	if _, ok := Authorize(q); ok {
		t.Error("an invalid tool policy allows")
	}
}

func TestAboveAllocatesNothing(t *testing.T) {
	q := child(t)
	q.ToolPolicy = setOf(t, "allow top_t tool:x execute\n")
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := Authorize(q); !ok {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
