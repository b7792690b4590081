package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
)

// tools installs tools whose policies name subjects.
func tools(t *testing.T, w *world, subjects []string, names ...string) {
	t.Helper()
	if err := w.st.MkdirAll("tool"); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		d, err := w.st.NewFile("tool")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.WriteAt([]byte("#!/bin/true\n"), 0); err != nil {
			t.Fatal(err)
		}
		f, err := d.Commit("tool/"+name, store.FileAttr{Mode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		var b strings.Builder
		for _, s := range subjects {
			fmt.Fprintf(&b, "allow %s tool:%s execute\n", s, name)
		}
		o, err := w.st.Ensure("tool/" + name + ".d")
		if err == nil {
			err = o.Put("policy", []byte(b.String()))
		}
		if err != nil {
			t.Fatal(err)
		}
		w.tools.Changed("tool", name)
	}
}

const bossRules = `allow boss_t tool:tsh execute
allow boss_t tool:agent.create execute
allow boss_t tool:agent.start execute
allow boss_t tool:agent.stop execute
allow boss_t tool:fs.read execute
allow boss_t agent:kid create
allow boss_t agent:kid start
allow boss_t agent:kid stop
allow boss_t agent:kid2 create
allow boss_t agent:temp create
allow boss_t mount:src read
`

// boss is a running agent that may make kids, with a mount of its own.
func bossWorld(t *testing.T) (*world, *manager, *agent.Object) {
	t.Helper()
	w, m := testWorld(t)
	fake(t, m)
	tools(t, w, []string{"boss_t"}, "tsh", "agent.create", "agent.start", "agent.stop", "fs.read", "fs.write")
	o := newAgent(t, w, "boss", w.uid, map[string]string{
		"policy": bossRules, "tools": "agent.create\nagent.start\nagent.stop\nfs.read\n",
		"mount": "/ctx\t/ctx\tro\trbind,nosuid,nodev\n" + fmt.Sprintf("/ctx/home/%d/agent/boss", w.uid) + "\t/home/agent\trw\trbind,nosuid,nodev\n/srv/work\t/work\trw\trbind,nosuid,nodev\n",
	})
	if err := w.makeHomes(o.Config()); err != nil {
		t.Fatal(err)
	}
	begin(t, m, o)
	return w, m, o
}

// TestAgentsMakeChildren: a child made by the parent's own paths, weaker, with a
// channel, in force at once; and started, cancelled, gone.
func TestAgentsMakeChildren(t *testing.T) {
	w, m, boss := bossWorld(t)
	k := boss.Key()
	kid, err := m.createChild(k, "default", "01RUN", claim{}, &birthRequest{
		Name: "kid", Life: "temp", Tools: []string{"fs.read"}, Mounts: [][]string{{"/work/src", "/src", "ro"}}, Handoff: "read it\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := kid.Config()
	if c.Parent.String() != "agent:boss session:default run:01RUN" || c.Life != "temp" || c.Subject != "kid_t" || c.Owner != w.uid ||
		c.UID != boss.Config().UID || len(c.Faults) != 0 {
		t.Errorf("%+v", c)
	}
	if got := c.Mounts[len(c.Mounts)-1]; got.Source != "/srv/work/src" || got.Target != "/src" || got.RW || !got.NoSuid || !got.NoDev {
		t.Errorf("mount %+v", got)
	}
	if f := kid.StartFaults(); len(f) != 0 {
		t.Error(f)
	}
	// Row 7 by its creator's right, and no further.
	if rows, ok := w.views.For(kid).Explain("fs.read", true); !ok {
		t.Errorf("%+v", rows)
	}
	ch := channel{w, w.uid, "boss", "default", "kid"}
	if s, err := ch.status(); err != nil || s != chanPending {
		t.Errorf("channel %s %v", s, err)
	}
	text, _, err := ch.get("handoff.md", 100)
	if err != nil || string(text) != "read it\n" {
		t.Errorf("%q %v", text, err)
	}
	if _, err := m.startChild(context.Background(), k, "default", "01RUN", claim{Agent: "boss", Session: "default", Run: "01RUN"}, "kid"); err != nil {
		t.Fatal(err)
	}
	if s, _ := ch.status(); s != chanActive {
		t.Errorf("channel %s", s)
	}
	if err := m.stopTree(context.Background(), k, time.Second, "test"); err != nil {
		t.Fatal(err)
	}
	if s, _ := ch.status(); s != chanCancelled {
		t.Errorf("channel %s", s)
	}
	if _, err := w.agents.Lookup(kid.Key()); !fault.Is(err, fault.NotExist) {
		t.Errorf("a temporary child is left: %v", err)
	}
	log, err := os.ReadFile(filepath.Join(w.st.Path(), "state/log/system.0.boss.log"))
	if err != nil || !strings.Contains(string(log), `"type":"child.create","agent":"boss","session":"default","run":"01RUN","object":"kid","status":"ok","by":"agent/boss"`) {
		t.Errorf("%s %v", log, err)
	}
}

// TestWhatAgentsMayNotMake is tests 89 and 101 as far as the daemon decides them:
// each refusal makes nothing.
func TestWhatAgentsMayNotMake(t *testing.T) {
	w, m, boss := bossWorld(t)
	k := boss.Key()
	newAgent(t, w, "sister", w.uid, nil)
	for what, c := range map[string]struct {
		say  claim
		q    birthRequest
		want fault.Kind
	}{
		"for another agent":      {claim{Agent: "sister"}, birthRequest{Name: "kid"}, fault.Access},
		"for another session":    {claim{Session: "other"}, birthRequest{Name: "kid"}, fault.Access},
		"for another run":        {claim{Run: "02"}, birthRequest{Name: "kid"}, fault.Access},
		"a name without rule":    {claim{}, birthRequest{Name: "other"}, fault.Access},
		"a bad name":             {claim{}, birthRequest{Name: "../kid"}, fault.Invalid},
		"a bad life":             {claim{}, birthRequest{Name: "kid", Life: "eternal"}, fault.Invalid},
		"a tool that it lacks":   {claim{}, birthRequest{Name: "kid", Tools: []string{"fs.write"}}, fault.Perm},
		"a rule that it lacks":   {claim{}, birthRequest{Name: "kid", Rules: []string{"network:default connect"}}, fault.Perm},
		"two rules in one":       {claim{}, birthRequest{Name: "kid", Rules: []string{"tool:fs.read execute\nallow boss_t tool:x execute"}}, fault.Invalid},
		"a sister's label":       {claim{}, birthRequest{Name: "kid", Label: "sister_t"}, fault.Perm},
		"a group":                {claim{}, birthRequest{Name: "kid", Groups: []uint32{12345}}, fault.Perm},
		"a mount without rule":   {claim{}, birthRequest{Name: "kid", Mounts: [][]string{{"/work", "/other", "ro"}}}, fault.Access},
		"a mount rw without":     {claim{}, birthRequest{Name: "kid", Mounts: [][]string{{"/work/src", "/src", "rw"}}}, fault.Access},
		"a path of the host":     {claim{}, birthRequest{Name: "kid", Mounts: [][]string{{"/srv/work", "/src", "ro"}}}, fault.Perm},
		"a path above":           {claim{}, birthRequest{Name: "kid", Mounts: [][]string{{"/work/../etc", "/src", "ro"}}}, fault.Perm},
		"what it does not see":   {claim{}, birthRequest{Name: "kid", Mounts: [][]string{{"/etc", "/src", "ro"}}}, fault.Perm},
		"over the runtime":       {claim{}, birthRequest{Name: "kid", Mounts: [][]string{{"/work", "/proc/src", "ro"}}}, fault.Invalid},
		"itself":                 {claim{}, birthRequest{Name: "boss"}, fault.Access},
		"a model with a newline": {claim{}, birthRequest{Name: "kid", Model: "main\nx"}, fault.Invalid},
	} {
		_, err := m.createChild(k, "default", "01", c.say, &c.q)
		if !fault.Is(err, c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := w.agents.Lookup(agent.System("kid")); !fault.Is(err, fault.NotExist) {
			t.Fatalf("%s: made all the same", what)
		}
	}
	// The parent's own label is the same subject, and may be asked for.
	kid, err := m.createChild(k, "default", "01", claim{}, &birthRequest{Name: "kid", Label: "boss_t"})
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(w.lineageNotes(kid), "\n"); !strings.Contains(notes, "one security subject") {
		t.Error(notes)
	}
	// The tool's rule missing on either side; dead parents; others' agents.
	set := func(o *agent.Object, name, text string) {
		t.Helper()
		if _, err := o.Commit(control.Agent.Lookup(name), []byte(text), agent.Writer{Root: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.stopChild(context.Background(), k, "default", "01", claim{}, "sister"); !fault.Is(err, fault.Access) {
		t.Errorf("stop of a sister: %v", err)
	}
	if _, err := m.startChild(context.Background(), k, "default", "01", claim{}, "boss"); !fault.Is(err, fault.Access) {
		t.Errorf("start of itself: %v", err)
	}
	set(boss, "policy", strings.ReplaceAll(bossRules, "allow boss_t tool:agent.create execute\n", ""))
	if _, err := m.createChild(k, "default", "01", claim{}, &birthRequest{Name: "kid2"}); !fault.Is(err, fault.Access) || !strings.Contains(err.Error(), "row 6") {
		t.Errorf("%v", err)
	}
	set(boss, "policy", bossRules)
	tools(t, w, []string{"nobody_t"}, "agent.create")
	if _, err := m.createChild(k, "default", "01", claim{}, &birthRequest{Name: "kid2"}); !fault.Is(err, fault.Access) || !strings.Contains(err.Error(), "row 7") {
		t.Errorf("%v", err)
	}
	tools(t, w, []string{"boss_t"}, "agent.create")
	if err := m.stopTree(context.Background(), k, time.Second, "test"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.createChild(k, "default", "01", claim{}, &birthRequest{Name: "kid2"}); !fault.Is(err, fault.NoProcess) {
		t.Errorf("a dead parent: %v", err)
	}
}

// TestNoChildOutlivesACancelledParent: births and starts against the stop of the
// parent, many times: afterwards nothing that it made runs, and no temporary
// object is left.
func TestNoChildOutlivesACancelledParent(t *testing.T) {
	w, m, boss := bossWorld(t)
	k := boss.Key()
	for i := range 6 {
		var all sync.WaitGroup
		for _, name := range []string{"kid", "temp"} {
			all.Go(func() {
				for {
					kid, err := m.createChild(k, "default", "01", claim{}, &birthRequest{Name: name, Life: "temp"})
					if err != nil {
						return
					}
					_, _, err = m.unit(kid.Key()).start(context.Background(), kid, place{Session: "default"}, caller{Root: true})
					if err != nil {
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		if err := m.stopTree(context.Background(), k, 50*time.Millisecond, "test"); err != nil {
			t.Error(err)
		}
		all.Wait()
		for _, name := range []string{"kid", "temp"} {
			if s, _ := m.Live(agent.System(name)); s != node.Dead {
				t.Errorf("%s is %s", name, s)
			}
			if _, err := w.agents.Lookup(agent.System(name)); !fault.Is(err, fault.NotExist) {
				t.Errorf("%s is left: %v", name, err)
			}
		}
		begin(t, m, boss)
	}
}

// TestWaitForAChild: it blocks until the status is final, and asks without waiting.
func TestWaitForAChild(t *testing.T) {
	w, path := serveControl(t)
	c := dial(t, path)
	p := newAgent(t, w, "p", w.uid, nil)
	adopt(t, w, "k", "p", nil)
	if err := w.makeHomes(p.Config()); err != nil {
		t.Fatal(err)
	}
	ask := func(q *ctlproto.Wait) (ctlproto.ChildResult, error) {
		var res ctlproto.ChildResult
		data, err := c.Do(q, nil)
		if err == nil {
			err = json.Unmarshal(data, &res)
		}
		return res, err
	}
	if _, err := ask(&ctlproto.Wait{Agent: "p", Child: "k"}); !fault.Is(err, fault.NotExist) {
		t.Errorf("no channel: %v", err)
	}
	if _, err := ask(&ctlproto.Wait{Agent: "p", Child: "k", State: "dead"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("both: %v", err)
	}
	ch := channel{w, w.uid, "p", "default", "k"}
	if err := ch.open("agent/k", "default", "do it\n"); err != nil {
		t.Fatal(err)
	}
	if err := ch.open("agent/k", "default", "again\n"); !fault.Is(err, fault.Busy) {
		t.Errorf("a channel in use is replaced: %v", err)
	}
	if res, err := ask(&ctlproto.Wait{Agent: "p", Child: "k"}); err != nil || res.Channel != chanPending {
		t.Errorf("%+v %v", res, err)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		_ = ch.put("result.md", []byte("done it\x1b[2J\n"))
		_ = ch.put("status", []byte("done\n"))
	}()
	if res, err := ask(&ctlproto.Wait{Agent: "p", Child: "k", TimeoutMS: -1}); err != nil || res.Channel != chanDone || res.Result != "done it\x1b[2J\n" || res.Parent != "default" {
		t.Errorf("%+v %v", res, err)
	}
	// Active, and nobody works on it.
	if err := ch.put("status", []byte("active\n")); err != nil {
		t.Fatal(err)
	}
	if res, err := ask(&ctlproto.Wait{Agent: "p", Child: "k", TimeoutMS: -1}); err != nil || res.Channel != chanCancelled {
		t.Errorf("%+v %v", res, err)
	}
	var kids []ctlproto.Child
	if _, err := c.Do(&ctlproto.Children{Agent: "p"}, func(f *ctlproto.Frame) error {
		var k ctlproto.Child
		err := json.Unmarshal(f.Data, &k)
		kids = append(kids, k)
		return err
	}); err != nil || len(kids) != 1 || kids[0].Name != "k" || kids[0].Channel != chanCancelled {
		t.Errorf("%+v %v", kids, err)
	}
	// Links and other files in the owner's directory lead nowhere (test 78).
	dir := filepath.Join(w.st.Path(), "durable", ch.dir())
	if err := os.Remove(filepath.Join(dir, "status")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/hostname", filepath.Join(dir, "status")); err != nil {
		t.Fatal(err)
	}
	if s, err := ch.status(); err == nil {
		t.Errorf("a link is followed: %s", s)
	}
	if err := ch.put("status", []byte("done\n")); err != nil {
		t.Error(err)
	}
	if s, err := ch.status(); err != nil || s != chanDone {
		t.Errorf("%s %v", s, err)
	}
}

// TestGrantOverTheSocket: root only is root here; the list, the status, the
// revocation, and the error that teaches it.
func TestGrantOverTheSocket(t *testing.T) {
	w, path := serveControl(t)
	c := dial(t, path)
	newAgent(t, w, "p", w.uid, nil)
	adopt(t, w, "k", "p", nil)
	do := func(q ctlproto.Request, out any) error {
		data, err := c.Do(q, nil)
		if err == nil && out != nil {
			err = json.Unmarshal(data, out)
		}
		return err
	}
	err := do(&ctlproto.New{Agent: "agent/n", Parent: "p", Tools: []string{"deploy"}}, nil)
	if !fault.Is(err, fault.Perm) || !strings.Contains(err.Error(), "ctx agent grant CHILD") {
		t.Errorf("%v", err)
	}
	var g ctlproto.Granted
	if err := do(&ctlproto.Grant{Agent: "k", Kind: "tool", Value: "deploy", Reason: "it has to"}, &g); err != nil || g.N != 1 || g.Parent != "agent/p" {
		t.Errorf("%+v %v", g, err)
	}
	for _, q := range []*ctlproto.Grant{
		{Agent: "k", Kind: "tool", Value: "deploy"}, {Agent: "k", Kind: "x", Value: "y", Reason: "z"}, {Agent: "p", Kind: "tool", Value: "x", Reason: "y"},
		{Agent: "k", Kind: "tool", Value: "x", Reason: "y", Revoke: 1},
	} {
		if err := do(q, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	var st ctlproto.Described
	if err := do(&ctlproto.Status{Agent: "k"}, &st); err != nil || len(st.Grants) != 1 || st.Grants[0].Reason != "it has to" {
		t.Errorf("%+v %v", st, err)
	}
	var n int
	for _, q := range []*ctlproto.Grant{{List: true}, {List: true, Agent: "k"}} {
		if _, err := c.Do(q, func(*ctlproto.Frame) error { n++; return nil }); err != nil {
			t.Error(err)
		}
	}
	if n != 2 {
		t.Errorf("%d listed", n)
	}
	if err := do(&ctlproto.Grant{Agent: "k", Revoke: 1}, nil); err != nil {
		t.Error(err)
	}
	if err := do(&ctlproto.Grant{Agent: "k", Revoke: 1}, nil); !fault.Is(err, fault.NotExist) {
		t.Error(err)
	}
	if w.root {
		o := &op{w: w, by: caller{UID: 1000, GID: 1000}}
		if _, err := o.grant(context.Background(), &ctlproto.Grant{List: true}); !fault.Is(err, fault.Access) {
			t.Errorf("a user: %v", err)
		}
	}
}

// TestLike: what is copied is the other agent's authority for the new one, by the
// new one's own names.
func TestLike(t *testing.T) {
	w, path := serveControl(t)
	c := dial(t, path)
	old := fmt.Sprintf("/ctx/home/%d/agent/old", w.uid)
	newAgent(t, w, "old", w.uid, map[string]string{
		"policy": "# mine\nallow old_t tool:fs.read execute\nallow other_t tool:x execute\n", "tools": "fs.read\n", "approval": "ask\n",
		"mount": "/ctx\t/ctx\tro\trbind\n" + old + "\t/home/agent\trw\trbind\n" + old + "er\t/o\tro\trbind\n" + old + "/data\t/d\tro\trbind\n",
	})
	if _, err := c.Do(&ctlproto.New{Agent: "agent/new", Like: "old"}, nil); err != nil {
		t.Fatal(err)
	}
	o, err := w.agents.Lookup(agent.System("new"))
	if err != nil {
		t.Fatal(err)
	}
	text := func(name string) string { b, _, _ := o.Text(name); return string(b) }
	if got := text("policy"); got != "# mine\nallow new_t tool:fs.read execute\nallow other_t tool:x execute\n" {
		t.Errorf("%q", got)
	}
	home := fmt.Sprintf("/ctx/home/%d/agent/new", w.uid)
	if got := text("mount"); got != "/ctx\t/ctx\tro\trbind\n"+home+"\t/home/agent\trw\trbind\n"+old+"er\t/o\tro\trbind\n"+home+"/data\t/d\tro\trbind\n" {
		t.Errorf("%q", got)
	}
	if text("approval") != "ask\n" || text("tools") != "fs.read\n" || text("label") != "user_u:agent_r:new_t:s0\n" {
		t.Errorf("%q %q %q", text("approval"), text("tools"), text("label"))
	}
}
