package agent

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cortexfs/node/control"
	"cortexfs/node/store"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("AGENT_CRASH_CHILD"); dir != "" {
		crashChild(dir)
	}
	os.Exit(m.Run())
}

// crashChild makes, grants and removes children for ever and says what was
// acknowledged.
func crashChild(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	st, err := store.Open(dir, store.Options{})
	fail(err)
	t, err := New(st, Options{Root: true, Users: people})
	fail(err)
	at := time.Now()
	t.now = func() time.Time { at = at.Add(BirthTime); return at }
	for n := len(t.All()); ; n++ {
		k := System(fmt.Sprint("k", n))
		o, err := t.Create(k, CreateOptions{Writer: root(), Owner: 1000, Born: true, Texts: map[string][]byte{
			"parent": []byte("agent:p"), "policy": []byte("allow " + k.Name + "_t tool:x execute\n"), "life": []byte("temp"),
		}})
		fail(err)
		fmt.Println("made", k.Name)
		_, err = o.Grant(GrantTool, "deploy", "why", "uid 0")
		fail(err)
		fmt.Println("granted", k.Name)
		switch n % 3 {
		case 0:
			fmt.Println("labelling", k.Name)
			_, err = o.Commit(control.Agent.Lookup("label"), []byte(k.Name+"b_t"), root())
			fail(err)
			fmt.Println("labelled", k.Name)
		case 1:
			fmt.Println("removing", k.Name)
			fail(t.Remove(k))
			fmt.Println("removed", k.Name)
		}
		if len(t.Children(System("p"))) == MaxChildren {
			for _, c := range t.Children(System("p")) {
				fmt.Println("removing", c.Name)
				fail(t.Remove(c))
			}
		}
	}
}

// TestHalfMadeAgents: killed at any point, an agent is whole or not there; what was
// acknowledged holds, and no record gives anything to one that it was not made for.
func TestHalfMadeAgents(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	w.create(System("p"), 1000, "policy", "allow p_t tool:x execute\n")
	w.close()
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	for range rounds {
		said := crash(t, w.dir)
		w.open(Options{Root: true})
		for _, k := range w.table.All() {
			o, err := w.table.Lookup(k)
			if err != nil {
				t.Fatal(err)
			}
			c := o.Config()
			if len(c.Faults) != 0 || c.Owner != 1000 || k.Name != "p" && (c.Parent.Agent != "p" || c.Life != "temp" || c.Policy == nil) {
				t.Errorf("%s is half made: %v %+v", k, c.Faults, c)
			}
			list, void := o.Grants()
			born := o.Family().Born
			if said["labelled "+k.Name] && (len(list) != 0 || born[0]) {
				t.Errorf("%s: another label, and left are %v, born %v", k, list, born)
			}
			if said["granted "+k.Name] && !said["labelling "+k.Name] && !said["removing "+k.Name] && (len(list) != 1 || void[0] || !born[0]) {
				t.Errorf("%s: the acknowledged grant is %v, void %v, born %v", k, list, void, born)
			}
		}
		for what := range said {
			verb, name, _ := strings.Cut(what, " ")
			_, err := w.table.Lookup(System(name))
			switch {
			case verb == "made" && err != nil && !said["removing "+name]:
				t.Errorf("%s was acknowledged: %v", name, err)
			case verb == "removed" && err == nil:
				t.Errorf("%s is back", name)
			}
		}
		if left, err := filepath.Glob(filepath.Join(w.dir, "object/agent/.*")); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
		for _, k := range w.table.Children(System("p")) {
			if err := w.table.Remove(k); err != nil {
				t.Error(err)
			}
		}
		if r := w.table.kin.Load(); len(r.births)+len(r.grants) > 1 {
			// One birth may have been written down for an agent that never came to be.
			t.Errorf("records of agents that are gone: %v %v", r.births, r.grants)
		}
		w.close()
	}
}

// crash runs a child and kills it after a while; it returns what the child said.
func crash(t *testing.T, dir string) map[string]bool {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "AGENT_CRASH_CHILD="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := map[string]bool{}
	stop := 1 + rand.IntN(60)
	for in := bufio.NewScanner(out); in.Scan(); {
		said[in.Text()] = true
		if strings.HasPrefix(in.Text(), "error") {
			t.Error(in.Text())
		}
		if len(said) == stop {
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait()
	return said
}
