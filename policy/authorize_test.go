package policy

import (
	"fmt"
	"testing"

	"cortexfs/node/fault"
)

func mustParse(t testing.TB, text string) *Set {
	t.Helper()
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return s
}

const ruleText = "allow coder_t tool:fs.read execute"

// allowed is a hosted request for which every row holds.
func allowed(t testing.TB) *Request {
	s := mustParse(t, "# rules\n"+ruleText+"\n")
	return &Request{
		Tool: "fs.read", Hosted: true,
		Declared: true, DeclaredLine: 2, ToolsFile: "/ctx/agent/coder.d/tools",
		Searched: []string{"/ctx/tool", "/ctx/home/1000/tool"},
		Hit:      &Hit{Path: "/ctx/tool/fs.read", Mode: 0o755, Search: true},
		UID:      1000, GID: 1000, Groups: []uint32{4999},
		Mount: &MountFact{Line: 1, Target: "/ctx"}, MountFile: "/ctx/agent/coder.d/mount",
		Subject: "coder_t", AgentPolicy: s, ToolPolicy: s,
		AgentPolicyFile: "/ctx/agent/coder.d/policy", ToolPolicyFile: "/ctx/tool/fs.read.d/policy",
		Opened: &OpenFact{OK: true}, Approval: &ApprovalFact{Allowed: true, Reason: "user"},
	}
}

// layers break one row each. Each layer is a row; some rows have several ways to
// fail.
var layers = []struct {
	name  string
	row   int
	kind  fault.Kind
	asked bool
	spoil func(q *Request)
}{
	{"bad name", 1, fault.Invalid, true, func(q *Request) { q.Tool = "fs read" }},
	{"model", 1, fault.Access, true, func(q *Request) { q.Model = true }},
	{"undeclared", 2, fault.Access, true, func(q *Request) { q.Declared = false }},
	{"no hit", 3, fault.NotExist, true, func(q *Request) { q.Hit = nil }},
	{"no x bit", 4, fault.Access, true, func(q *Request) { spoilHit(q, func(h *Hit) { h.Mode = 0o644 }) }},
	{"no search", 4, fault.Access, true, func(q *Request) { spoilHit(q, func(h *Hit) { h.Search = false }) }},
	{"no mount", 5, fault.Access, true, func(q *Request) { q.Mount = nil }},
	{"noexec", 5, fault.Access, true, func(q *Request) {
		if q.Mount != nil {
			q.Mount = &MountFact{Line: 3, Target: "/ctx", NoExec: true}
		}
	}},
	{"agent policy", 6, fault.Access, true, func(q *Request) { q.AgentPolicy = nil }},
	{"tool policy", 7, fault.Access, true, func(q *Request) { q.ToolPolicy = nil }},
	{"link", 8, fault.Loop, true, func(q *Request) { q.Opened = &OpenFact{Loop: true} }},
	{"not opened", 8, fault.Access, false, func(q *Request) { q.Opened = nil }},
	{"denied", 9, fault.Access, true, func(q *Request) { q.Approval = &ApprovalFact{Reason: "expired"} }},
	{"not asked", 9, fault.Access, false, func(q *Request) { q.Approval = nil }},
}

func spoilHit(q *Request, f func(*Hit)) {
	if q.Hit != nil {
		h := *q.Hit
		f(&h)
		q.Hit = &h
	}
}

// TestAllCombinations spoils every subset of the layers, hosted and not: only
// the empty one is allowed, and the lowest row names the refusal.
func TestAllCombinations(t *testing.T) {
	for _, hosted := range []bool{true, false} {
		for set := 0; set < 1<<len(layers); set++ {
			q := allowed(t)
			q.Hosted = hosted
			row := 0
			for i, l := range layers {
				if set&(1<<i) == 0 {
					continue
				}
				l.spoil(q)
				if applies := hosted || l.row >= 3 && l.row <= 7; applies && (row == 0 || l.row < row) {
					row = l.row
				}
			}
			// a name that no rule can have fails the policies too
			if !hosted && set&1 != 0 && (row == 0 || row > 6) {
				row = 6
			}
			v, ok := Authorize(q)
			if ok != (row == 0) || v.Row != row {
				t.Fatalf("hosted=%v set=%b: row %d ok=%v, want row %d", hosted, set, v.Row, ok, row)
			}
			checkExplained(t, q, v, ok)
		}
	}
}

// checkExplained compares Explain with the answer of Authorize.
func checkExplained(t *testing.T, q *Request, v Verdict, ok bool) {
	t.Helper()
	rows := Explain(q)
	want := 5
	if q.Hosted {
		want = 9
	}
	if len(rows) != want {
		t.Fatalf("%d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if !r.OK {
			if ok || r != v {
				t.Fatalf("first refusal of Explain is %+v, of Authorize %+v (ok=%v)", r, v, ok)
			}
			return
		}
		if r.Name == "" || r.Name != RowName(r.Row) {
			t.Fatalf("row without its name: %+v", r)
		}
	}
	if !ok {
		t.Fatalf("Explain allows, Authorize does not: %+v", v)
	}
}

func TestEachLayerAlone(t *testing.T) {
	for _, l := range layers {
		t.Run(l.name, func(t *testing.T) {
			q := allowed(t)
			l.spoil(q)
			v, ok := Authorize(q)
			if ok || v.Row != l.row || v.Kind != l.kind || v.Asked != l.asked {
				t.Fatalf("got %+v ok=%v, want row %d kind %v asked %v", v, ok, l.row, l.kind, l.asked)
			}
			if v.Why == "" {
				t.Error("a refusal without a reason")
			}
			if d, denied := Denied(Explain(q)); denied != l.asked || denied && d != v {
				t.Errorf("Denied = %+v %v", d, denied)
			}
		})
	}
}

func TestMissingTexts(t *testing.T) {
	q := allowed(t)
	q.AgentPolicy, q.ToolPolicy, q.Declared = nil, mustParse(t, "allow other_t tool:fs.read execute\n"), false
	var got []string
	for _, v := range Explain(q) {
		if v.Missing != "" {
			got = append(got, fmt.Sprintf("%d %s: %s", v.Row, v.File, v.Missing))
		}
	}
	want := []string{
		"2 /ctx/agent/coder.d/tools: fs.read",
		"6 /ctx/agent/coder.d/policy: " + ruleText,
		"7 /ctx/tool/fs.read.d/policy: " + ruleText,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("missing:\n got %q\nwant %q", got, want)
	}
	// what is printed as missing is what makes the row hold
	q.AgentPolicy = mustParse(t, Explain(q)[5].Missing)
	if v := Explain(q)[5]; !v.OK || v.Line != 1 {
		t.Errorf("after adding the missing rule: %+v", v)
	}
}

func TestExecuteBits(t *testing.T) {
	for _, c := range []struct {
		mode, uid, gid uint32
		groups         []uint32
		want           bool
	}{
		{0o001, 0, 0, nil, true},
		{0o010, 0, 0, nil, false},
		{0o100, 0, 0, nil, false},
		{0o110, 0, 0, nil, false},
		{0o100, 1000, 0, nil, true},
		{0o011, 1000, 1000, nil, false}, // the owner's bits decide
		{0o010, 0, 1000, nil, true},
		{0o101, 0, 1000, nil, false}, // the group's bits decide
		{0o010, 0, 4999, []uint32{7, 4999}, true},
		{0o101, 0, 4999, []uint32{4999}, false},
		{0o666, 1000, 1000, []uint32{4999}, false},
	} {
		q := allowed(t)
		q.Hit = &Hit{Path: "/ctx/tool/x", Mode: c.mode, UID: c.uid, GID: c.gid, Search: true}
		q.Groups = c.groups
		if _, ok := Authorize(q); ok != c.want {
			t.Errorf("mode %04o of %d:%d with groups %v: %v, want %v", c.mode, c.uid, c.gid, c.groups, ok, c.want)
		}
	}
}

func TestAuthorizeAllocatesNothing(t *testing.T) {
	q := allowed(t)
	if n := testing.AllocsPerRun(100, func() {
		if _, ok := Authorize(q); !ok {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAuthorize(b *testing.B) {
	q := allowed(b)
	b.ReportAllocs()
	for b.Loop() {
		Authorize(q)
	}
}
