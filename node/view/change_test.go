package view

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/store"
)

// TestRevocation: after the change has returned, no call says yes, with others
// busy filling every cache; over each kind of change that can take a right away.
func TestRevocation(t *testing.T) {
	w := newWorld(t)
	v := w.agent(agent.System("x"), 1000)
	w.install("tool/t", open)
	other := w.agent(agent.System("y"), 1000, "policy", allow("y_t", "t"))
	grant := allow("x_t", "t")
	ways := []struct {
		name      string
		give, end func()
	}{
		{"agent policy", func() { w.set(v, "policy", grant) }, func() { w.set(v, "policy", "") }},
		{"agent policy, comment only", func() { w.set(v, "policy", grant) }, func() { w.set(v, "policy", "#"+grant) }},
		{"tool policy", func() { w.toolControl("tool/t", "policy", grant) }, func() { w.toolControl("tool/t", "policy", allow("y_t", "t")) }},
		{"mode", func() { w.attr("tool/t", open) }, func() { w.attr("tool/t", store.FileAttr{Mode: 0o744}) }},
		{"file", func() { w.install("tool/t", open) }, func() {
			if err := w.st.RemoveFile("tool/t"); err != nil {
				t.Fatal(err)
			}
		}},
		{"path", func() { w.set(v, "path", "") }, func() { w.set(v, "path", "/usr/bin\n") }},
		{"mount", func() { w.set(v, "mount", "/ctx\t/ctx\tro\t-\n") }, func() { w.set(v, "mount", "/ctx\t/ctx\tro\tnoexec\n") }},
		{"label", func() { w.set(v, "label", "x_t") }, func() { w.set(v, "label", "z_t") }},
	}
	for _, way := range ways {
		way.give()
	}
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 3 {
		busy.Add(1)
		go func() {
			defer busy.Done()
			for {
				select {
				case <-stop:
					return
				default:
					v.Allowed("tool", "t")
					v.Tools("tool")
					other.Tools("tool")
				}
			}
		}()
	}
	const tries = 10_000
	rounds, asked := 25, 0
	if testing.Short() {
		rounds = 3
	}
	var late atomic.Int64
	for range rounds {
		for _, way := range ways {
			if _, ok := v.Allowed("tool", "t"); !ok {
				_, verdict, _ := v.Decide("tool", "t")
				t.Fatalf("%s: not given: %+v", way.name, verdict)
			}
			way.end()
			var asking sync.WaitGroup
			each := tries / (rounds * len(ways) * 2)
			for range 2 {
				asking.Add(1)
				asked += each
				go func() {
					defer asking.Done()
					for range each {
						_, ok := v.Allowed("tool", "t")
						if ok || len(v.Tools("tool")) != 0 {
							late.Add(1)
						}
					}
				}()
			}
			asking.Wait()
			if n := late.Load(); n != 0 {
				t.Fatalf("%s: %d calls said yes after the change had returned", way.name, n)
			}
			way.give()
		}
	}
	close(stop)
	busy.Wait()
	t.Logf("%d calls after %d revocations", asked, rounds*len(ways))
}

// TestRandomWalk: over random changes, every way of asking agrees with a plain
// reading of spec section 8.
func TestRandomWalk(t *testing.T) {
	w := newWorld(t)
	r := rand.New(rand.NewPCG(1, 2))
	subjects := []string{"a_t", "b_t"}
	tools := []string{"p", "q"}
	tiers := []string{"tool", "home/1000/tool"}
	var views []*View
	type state struct {
		path   string
		policy map[string]bool
		noexec bool
	}
	model := []*state{}
	for i, n := range []string{"a", "b"} {
		views = append(views, w.agent(agent.System(n), 1000, "label", subjects[i]))
		model = append(model, &state{policy: map[string]bool{}})
	}
	files := map[string]uint32{}             // path → mode, 0 none
	policies := map[string]map[string]bool{} // path → subject
	rules := func(m map[string]bool, f func(string) string) string {
		text := ""
		for k := range m {
			text += f(k)
		}
		return text
	}
	steps := 400
	if testing.Short() {
		steps = 60
	}
	for step := range steps {
		i := r.IntN(2)
		path := tiers[r.IntN(2)] + "/" + tools[r.IntN(2)]
		name := path[strings.LastIndex(path, "/")+1:]
		switch r.IntN(6) {
		case 0:
			model[i].path = []string{"", "/ctx/tool\n", "/ctx/home/1000/tool\n/ctx/tool\n", "/ctx/home/1000/tool\n"}[r.IntN(4)]
			w.set(views[i], "path", model[i].path)
		case 1:
			n := tools[r.IntN(2)]
			model[i].policy[n] = !model[i].policy[n]
			text := rules(model[i].policy, func(n string) string {
				return pick(model[i].policy[n], allow(subjects[i], n), allow("c_t", n))
			})
			w.set(views[i], "policy", text)
		case 2:
			model[i].noexec = !model[i].noexec
			w.set(views[i], "mount", "/ctx\t/ctx\tro\t"+pick(model[i].noexec, "noexec", "-")+"\n")
		case 3, 4:
			switch files[path] = []uint32{0, 0o755, 0o755, 0o644, 0o700}[r.IntN(5)]; {
			case files[path] == 0:
				if err := w.st.RemoveFile(path); err != nil && !fault.Is(err, fault.NotExist) {
					t.Fatal(err)
				}
			default:
				w.install(path, store.FileAttr{Mode: files[path]})
			}
		case 5:
			if policies[path] == nil {
				policies[path] = map[string]bool{}
			}
			s := subjects[r.IntN(2)]
			policies[path][s] = !policies[path][s]
			w.toolControl(path, "policy", rules(policies[path], func(s string) string {
				return pick(policies[path][s], allow(s, name), "")
			}))
		}
		for i, v := range views {
			for _, tier := range tiers {
				listed := " " + names(v.Tools(tier)) + " "
				for _, n := range tools {
					p := tier + "/" + n
					inPath := model[i].path == "" || strings.Contains(model[i].path, "/ctx/"+tier+"\n")
					want := inPath && files[p] == 0o755 && !model[i].noexec && model[i].policy[n] && policies[p][subjects[i]]
					_, ok := v.Allowed(tier, n)
					_, verdict, ok2 := v.Decide(tier, n)
					if ok != want || ok2 != want || strings.Contains(listed, " "+p+" ") != want {
						t.Fatalf("step %d, agent %s, %s: want %v, Allowed %v, Decide %v (%+v), listed %q", step, subjects[i], p, want, ok, ok2, verdict, listed)
					}
				}
			}
		}
	}
}
