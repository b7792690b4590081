package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
)

// change commits a text as root and tells the daemon as the tree does.
func change(t *testing.T, w *world, o *agent.Object, name, text string) {
	t.Helper()
	if _, err := o.Commit(control.Agent.Lookup(name), []byte(text), agent.Writer{Root: true}); err != nil {
		t.Fatal(err)
	}
	w.changed(o.Key().StoreDir())
}

// runs starts a fake and gives it what a real one keeps of its start.
func runs(t *testing.T, m *manager, o *agent.Object) *running {
	t.Helper()
	begin(t, m, o)
	r := m.unit(o.Key()).current()
	r.texts = startTexts(o.Config())
	return r
}

// reviewed waits until no change is left to be looked at.
func (m *manager) settled() bool {
	m.reviews.mu.Lock()
	defer m.reviews.mu.Unlock()
	return !m.reviews.busy
}

func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

const (
	aLine = "/srv/a\t/a\trw\t-\n"
	bLine = "/srv/b\t/b\tro\t-\n"
)

// TestTakenEnds: a line that is taken ends the agent and all below it, deepest
// first, and the log says which line and that it was told before.
func TestTakenEnds(t *testing.T) {
	w, m := testWorld(t)
	w.conf.Notice = time.Millisecond
	f := fake(t, m)
	top := adopt(t, w, "top", "", map[string]string{"mount": aLine + bLine})
	kid := adopt(t, w, "kid", "top", map[string]string{"mount": aLine})
	other := adopt(t, w, "other", "", map[string]string{"mount": aLine + bLine})
	r := runs(t, m, top)
	runs(t, m, kid)
	runs(t, m, other)
	for _, c := range []struct{ name, text string }{
		{"mount", aLine + bLine + "/srv/c\t/c\trw\t-\n"}, {"mount", bLine + "\n" + aLine}, {"groups", "77\n"}, {"env", "A=b\n"}, {"policy", "# none\n"},
	} {
		change(t, w, top, c.name, c.text)
		within(t, "looked at", m.settled)
		if r.noticed.Load() || state(m, top) != node.Ready {
			t.Fatalf("%s=%q ends it", c.name, c.text)
		}
	}
	if got := strings.Join(r.pendingRestart(top), ","); got != "groups,env,mount" {
		t.Errorf("restart=%s", got)
	}
	change(t, w, top, "mount", aLine)
	<-r.done
	within(t, "the tree is dead", func() bool { return state(m, top) == node.Dead && state(m, kid) == node.Dead })
	if state(m, other) != node.Ready || f.order("kid") > f.order("top") {
		t.Errorf("other is %s, ends %v", state(m, other), f.ends)
	}
	text, err := os.ReadFile(filepath.Join(w.st.Path(), "state/log", top.Key().RuntimeKey()+".log"))
	if err != nil || !strings.Contains(string(text), `"type":"agent.revoke"`) || !strings.Contains(string(text), `mount, line 2: the line \"/srv/b /b ro\" was taken away`) {
		t.Errorf("the log: %v\n%s", err, text)
	}
	// Started again it has what its table says now.
	again := runs(t, m, top)
	change(t, w, top, "env", "C=d\n")
	within(t, "looked at", m.settled)
	if again.noticed.Load() {
		t.Error("the new one is ended for what the old one lost")
	}
}

// TestTakenFromTheParent: a running child of a dead parent loses what that loses.
func TestTakenFromTheParent(t *testing.T) {
	w, m := testWorld(t)
	w.conf.Notice = time.Millisecond
	fake(t, m)
	top := adopt(t, w, "top", "", map[string]string{"mount": aLine + bLine})
	kid := adopt(t, w, "kid", "top", map[string]string{"mount": bLine})
	r := runs(t, m, kid)
	change(t, w, top, "mount", bLine)
	within(t, "looked at", m.settled)
	if r.noticed.Load() {
		t.Error("what the child does not have is not taken from it")
	}
	change(t, w, top, "mount", aLine)
	<-r.done
}

// TestGivenBackInTime: who writes a table in two commands loses no agent; the next
// loss is noticed all the same.
func TestGivenBackInTime(t *testing.T) {
	w, m := testWorld(t)
	w.conf.Notice = 300 * time.Millisecond
	fake(t, m)
	o := adopt(t, w, "a", "", map[string]string{"mount": aLine + bLine})
	r := runs(t, m, o)
	change(t, w, o, "mount", aLine)
	within(t, "noticed", r.noticed.Load)
	if !strings.Contains(r.noticeGiven(), "mount, line 2") {
		t.Errorf("status says %q", r.noticeGiven())
	}
	change(t, w, o, "mount", aLine+bLine)
	within(t, "void", func() bool { return !r.noticed.Load() })
	if state(m, o) != node.Ready || r.noticeGiven() != "" {
		t.Errorf("%s, %q", state(m, o), r.noticeGiven())
	}
	change(t, w, o, "mount", bLine)
	<-r.done
}

// TestTakenWhileNobodyLooked: what was taken during the start, or while there was
// no daemon, is found when the agent is up.
func TestTakenWhileNobodyLooked(t *testing.T) {
	w, m := testWorld(t)
	w.conf.Notice = 0
	fake(t, m)
	o := adopt(t, w, "a", "", map[string]string{"groups": "77\n78\n"})
	r := runs(t, m, o)
	r.reviewed("nothing")
	if r.noticed.Load() {
		t.Error("nothing was taken")
	}
	if err := o.Store().Put("groups", []byte("78\n")); err != nil {
		t.Fatal(err)
	}
	r.reviewed("a change during the start")
	<-r.done
}
