package attenuate

import (
	"strings"
	"testing"

	"cortexfs/policy"
)

// fuzzAgent reads an agent from two texts, however malformed.
func fuzzAgent(name, tab, pol string) *Agent {
	a := &Agent{Name: name, Subject: name + "_t", Home: "/ctx/home/1/agent/" + name, Root: "/", Iso: isoShared}
	for i, line := range strings.Split(tab, "\n") {
		if i == 8 {
			break
		}
		f := strings.Split(line, " ")
		if len(f) < 3 {
			continue
		}
		m := Mount{Source: f[0], Target: f[1], RW: strings.Contains(f[2], "w"), Recursive: strings.Contains(f[2], "R"), NoSuid: strings.Contains(f[2], "s"),
			NoDev: strings.Contains(f[2], "d"), NoExec: strings.Contains(f[2], "x"), Line: i + 1}
		double := false
		for _, q := range a.Mounts {
			double = double || q.Target == m.Target
		}
		if !double {
			a.Mounts = append(a.Mounts, m)
		}
	}
	a.Policy, _ = policy.Parse([]byte(strings.ReplaceAll(pol, "ME", name+"_t")))
	return a
}

// FuzzNeverMore: no text of a table makes a child that passes and reaches what its
// parent does not, by the model.
func FuzzNeverMore(f *testing.F) {
	f.Add("/srv/work /work rR\n/srv/e /work/a r", "/srv/work/b /b r", "allow ME tool:x execute\n", "allow ME tool:x execute\n")
	f.Add("/tmp /tmp wR", "/tmp/x /x w", "", "allow ME tool:x execute\n")
	f.Add("/ /a wR", "/ctx/home/1/agent/p /b w", "#\n", "#\n")
	f.Add("/a/.. /a wR", "/a/.git/. /b w", "#\n", "#\n")
	f.Add("/ctx /ctx rR\n/ctx/shared/a /s w", "/ctx/shared/a/data /b w", "#\n", "#\n")
	f.Fuzz(func(t *testing.T, parentTable, childTable, parentPolicy, childPolicy string) {
		parent, child := fuzzAgent("p", parentTable, parentPolicy), fuzzAgent("c", childTable, childPolicy)
		if o := Check(parent, []*Agent{parent}, nil); o != nil && o.Control != "mount" {
			t.Fatalf("not reflexive: %v", o)
		}
		o := Check(child, []*Agent{parent}, nil)
		if o != nil {
			if o.Error() == "" || o.Ancestor != "p" {
				t.Fatalf("%+v", o)
			}
			return
		}
		w := &world{homes: map[string]string{child.Home: "home", parent.Home: "home"}}
		if why := w.freer(child, parent, nil); why != "" {
			t.Fatalf("passed, and %s\nparent %+v\nchild %+v", why, parent, child)
		}
	})
}
