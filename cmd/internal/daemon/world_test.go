package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/ordinary"
	"cortexfs/node/store"
	"cortexfs/node/tool"
	"cortexfs/node/tree"
	"cortexfs/node/view"
)

// testWorld is a daemon's world over a scratch store: everything but the mount,
// so that no process touches a mount of its own.
func testWorld(t *testing.T) (*world, *manager) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cfs") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{
		log: zap.NewNop(), conf: DefaultConf(), root: os.Geteuid() == 0, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()),
		mountpoint: filepath.Join(dir, "ctx"), run: &runDir{path: filepath.Join(dir, "rt")}, users: agent.SystemUsers(),
	}
	fail := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	fail(os.Mkdir(w.run.path, 0o711))
	fail(os.Mkdir(w.run.sockDir(), 0o711))
	fail(os.Mkdir(w.run.agentsDir(), 0o700))
	w.st, err = store.Open(filepath.Join(dir, "store"), store.Options{Create: true})
	fail(err)
	w.tools = tool.New(w.st)
	w.agents, err = agent.New(w.st, agent.Options{Users: w.users, Root: w.root, DaemonUID: w.uid, DaemonGID: w.gid, Subjects: w.tools})
	fail(err)
	w.views = view.New(w.agents, w.tools)
	w.ord, err = ordinary.New(w.st.DurableRoot(), ordinary.Options{Root: w.root})
	fail(err)
	w.tree, err = tree.New(tree.Options{
		Store: w.st, Agents: w.agents, Tools: w.tools, Views: w.views, Ordinary: w.ord, Users: w.users,
		Root: w.root, DaemonUID: w.uid, DaemonGID: w.gid,
	})
	fail(err)
	m := newManager(w)
	w.agents.SetRuntime(m)
	t.Cleanup(func() {
		w.tree.Close()
		if err := errors.Join(w.ord.Close(), w.agents.Close(), w.st.Close()); err != nil {
			t.Error(err)
		}
	})
	return w, m
}

// newAgent makes an agent owned by owner.
func newAgent(t *testing.T, w *world, name string, owner uint32, texts map[string]string) *agent.Object {
	t.Helper()
	m := map[string][]byte{}
	for k, v := range texts {
		m[k] = []byte(v)
	}
	o, err := w.agents.Create(agent.System(name), agent.CreateOptions{Writer: agent.Writer{Root: true}, Owner: owner, Texts: m})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestUnitStates(t *testing.T) {
	w, m := testWorld(t)
	o := newAgent(t, w, "a", w.uid, nil)
	k := o.Key()
	if s, pid := m.Live(k); s != node.Dead || pid != 0 {
		t.Fatalf("an agent that never ran: %s %d", s, pid)
	}
	u := m.unit(k)
	reached := make(chan bool, 1)
	go func() { reached <- u.await(context.Background(), node.Start) }()
	u.set(node.Start, nil, "")
	if !<-reached {
		t.Error("the waiter did not see the state")
	}
	if s, pid := m.Live(k); s != node.Start || pid != 0 {
		t.Errorf("%s %d", s, pid)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if u.await(ctx, node.Busy) {
		t.Error("a state that never came")
	}
	// A host process that is gone makes the agent dead whatever was published.
	proc, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	host, err := holdProcess(proc.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer host.close()
	u.set(node.Ready, &running{unit: u, host: host}, "")
	if s, pid := m.Live(k); s != node.Ready || pid != proc.Pid {
		t.Errorf("%s %d", s, pid)
	}
	if _, err := holdProcess(proc.Pid, host.Start+1); err == nil {
		t.Error("another start time is another process")
	}
	if err := host.signal(9); err != nil {
		t.Fatal(err)
	}
	if err := host.wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s, pid := m.Live(k); s != node.Dead || pid != 0 {
		t.Errorf("after its death: %s %d", s, pid)
	}
	if _, err := proc.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := host.signal(0); err == nil {
		t.Error("a reaped process took a signal")
	}
}

func TestTurnIsOneAtATime(t *testing.T) {
	_, m := testWorld(t)
	u := m.unit(agent.System("x"))
	if err := u.take(context.Background()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := u.take(ctx); err == nil {
		t.Error("two have the turn")
	}
	u.give()
	if err := u.take(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestSameAs(t *testing.T) {
	_, m := testWorld(t)
	host, err := holdProcess(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer host.close()
	is := place{Session: "default", Workspace: "/w", Mounts: [][]string{{"/a", "/b", "ro"}}}
	r := &running{unit: m.unit(agent.System("x")), host: host, want: is}
	if err := r.sameAs(is); err != nil {
		t.Error(err)
	}
	for what, p := range map[string]place{
		"session":    {Session: "other", Workspace: "/w", Mounts: is.Mounts},
		"workspace":  {Session: "default", Workspace: "/v", Mounts: is.Mounts},
		"mount list": {Session: "default", Workspace: "/w"},
		"--git":      {Session: "default", Workspace: "/w", Mounts: is.Mounts, GitRW: true},
	} {
		if err := r.sameAs(p); err == nil || !strings.Contains(err.Error(), what) || !strings.Contains(err.Error(), "/w") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
