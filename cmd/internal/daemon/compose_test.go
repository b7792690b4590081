package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// composeFor composes without the companions that an installed daemon has.
func composeFor(t *testing.T, w *world, o *agent.Object, p place) (*composed, error) {
	t.Helper()
	cfg := o.Config()
	if len(cfg.Faults) > 0 {
		t.Fatal(cfg.Faults)
	}
	if err := w.makeHomes(cfg); err != nil {
		t.Fatal(err)
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	term := filepath.Join(filepath.Dir(self), "ctxterm")
	if err := os.WriteFile(term, nil, 0o755); err != nil {
		t.Skip("no place for a companion:", err)
	}
	t.Cleanup(func() { os.Remove(term) })
	c, err := w.compose(cfg, p, caller{UID: cfg.Owner})
	if err == nil {
		t.Cleanup(c.close)
	}
	return c, err
}

func row(c *composed, target string) *sandbox.Row {
	for i := range c.spec.Rows {
		if c.spec.Rows[i].Target == target {
			return &c.spec.Rows[i]
		}
	}
	return nil
}

func TestComposeDefaultTable(t *testing.T) {
	w, _ := testWorld(t)
	o := newAgent(t, w, "a", w.uid, map[string]string{"env": "X=1\n", "path": "/ctx/tool\n"})
	c, err := composeFor(t, w, o, place{Session: "s", Workspace: "/srv/w", Mounts: [][]string{{"/srv/m", "/m", "ro"}}})
	if err != nil {
		t.Fatal(err)
	}
	if r := row(c, "/ctx"); r == nil || r.Kind != sandbox.View || r.RW {
		t.Errorf("/ctx: %+v", r)
	}
	home := row(c, "/home/agent")
	if home == nil || home.Kind != sandbox.Store || !home.Home || !home.Handover || !home.RW || c.store[home.Store] == nil {
		t.Errorf("/home/agent: %+v", home)
	}
	if r := row(c, "/workspace"); r == nil || r.Kind != sandbox.Host || !r.RW || !r.Caller || !r.Handover || r.Source != "/srv/w" {
		t.Errorf("/workspace: %+v", r)
	}
	if r := row(c, "/m"); r == nil || r.RW || r.Caller || r.Origin != "--mount" {
		t.Errorf("/m: %+v", r)
	}
	env := strings.Join(c.spec.Env, "\n")
	for _, want := range []string{"CTX_AGENT=a", "CTX_SESSION=s", "X=1", "CTX_PATH=/ctx/tool"} {
		if !strings.Contains(env, want) {
			t.Errorf("no %s in %s", want, env)
		}
	}
	if c.spec.RootDir == nil || c.spec.RootDir.Kind != sandbox.Store {
		t.Errorf("root: %+v", c.spec.RootDir)
	}
	reasons := map[string]bool{}
	for _, r := range c.spec.Refuse {
		reasons[r.Path] = true
	}
	for _, p := range []string{w.st.Path(), w.mountpoint, filepath.Dir(w.run.path), "/etc/cortexfs"} {
		if !reasons[p] {
			t.Errorf("%s may be handed over", p)
		}
	}
}

func TestComposeLines(t *testing.T) {
	w, _ := testWorld(t)
	table := "/ctx\t/ctx\tro\trbind\n/tmp\t/tmp\trw\tbind\n/srv\t/workspace\trw\trbind,noexec\n/ctx/tool\t/tools\tro\tbind\n"
	o := newAgent(t, w, "a", w.uid, map[string]string{"mount": table})
	c, err := composeFor(t, w, o, place{Session: "s", Workspace: "/other"})
	if err != nil {
		t.Fatal(err)
	}
	if r := row(c, "/tmp"); r == nil || r.Kind != sandbox.Store || !strings.HasSuffix(r.Store, "/cache/tmp") {
		t.Errorf("/tmp is the host's: %+v", r)
	}
	n := 0
	for _, r := range c.spec.Rows {
		if r.Target == "/workspace" {
			n++
			if r.Source != "/srv" || !r.NoExec || r.Line != 3 {
				t.Errorf("/workspace: %+v", r)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d rows for /workspace", n)
	}
	if r := row(c, "/tools"); r == nil || r.Kind != sandbox.View {
		t.Errorf("/tools: %+v", r)
	}
}

func TestComposeShared(t *testing.T) {
	w, _ := testWorld(t)
	if err := w.ord.MakeShared("team", w.uid, w.gid, 0o770); err != nil {
		t.Fatal(err)
	}
	line := "/ctx/shared/team\t/team\trw\trbind\n"
	for policy, want := range map[string]bool{
		"":                              false,
		"allow a_t shared:team read\n":  false,
		"allow a_t shared:team write\n": false,
		"allow a_t shared:team read\nallow a_t shared:team write\n":  true,
		"allow a_t shared:other read\nallow b_t shared:team write\n": false,
	} {
		k := agent.System("a")
		o := newAgent(t, w, k.Name, w.uid, map[string]string{"mount": line, "policy": policy})
		c, err := composeFor(t, w, o, place{Session: "s"})
		if !want {
			if !fault.Is(err, fault.Access) || !strings.Contains(err.Error(), "/mount:1:") {
				t.Errorf("%q: %v", policy, err)
			}
		} else if err != nil {
			t.Errorf("%q: %v", policy, err)
		} else {
			top, data := row(c, "/team"), row(c, "/team/data")
			if top == nil || top.Kind != sandbox.Empty || top.RW || data == nil || data.Kind != sandbox.Store || !data.RW {
				t.Errorf("top %+v data %+v", top, data)
			}
		}
		if err := w.agents.Remove(k); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLinkInHome: what an agent's owner puts into the home is not followed out of it.
func TestComposeFollowsNoLink(t *testing.T) {
	w, _ := testWorld(t)
	o := newAgent(t, w, "a", w.uid, map[string]string{"mount": "/ctx/home/" + itoaU(w.uid) + "/agent/a/data/x\t/x\tro\tbind\n"})
	if err := w.makeHomes(o.Config()); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(w.st.Path(), "durable", "home", itoaU(w.uid), "agent", "a", "data")
	if err := os.Symlink("/etc", filepath.Join(data, "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := composeFor(t, w, o, place{Session: "s"}); err == nil || !strings.Contains(err.Error(), "/mount:1:") {
		t.Errorf("a link was followed: %v", err)
	}
}

func itoaU(n uint32) string {
	if n == 0 {
		return "0"
	}
	var b []byte
	for ; n > 0; n /= 10 {
		b = append([]byte{byte('0' + n%10)}, b...)
	}
	return string(b)
}

// TestComposeChild: what bounds a child's lines is told to whoever opens them, for
// each ancestor; a part of a parent's home is handed on from the store; and shared
// data follows the ancestors' rules.
func TestComposeChild(t *testing.T) {
	w, _ := testWorld(t)
	table := func(name, more string) string {
		return "/ctx\t/ctx\tro\trbind,nosuid,nodev\n" + fmt.Sprintf("/ctx/home/%d/agent/%s\t/home/agent\trw\trbind,nosuid,nodev\n", w.uid, name) + more
	}
	top := newAgent(t, w, "top", w.uid, map[string]string{"mount": table("top", "/srv/work\t/work\trw\trbind,nosuid,nodev\n")})
	if err := w.makeHomes(top.Config()); err != nil {
		t.Fatal(err)
	}
	adopt(t, w, "mid", "top", map[string]string{"mount": table("mid", "/srv/work/a\t/a\trw\trbind,nosuid,nodev\n")})
	low := adopt(t, w, "low", "mid", map[string]string{"mount": table("low",
		"/srv/work/a/b\t/b\tro\tbind,nosuid,nodev\n"+fmt.Sprintf("/ctx/home/%d/agent/top/data\t/theirs\tro\trbind,nosuid,nodev\n", w.uid))})
	if _, err := composeFor(t, w, low, place{Session: "s"}); !fault.Is(err, fault.Perm) {
		t.Errorf("the parent does not see its own parent's home: %v", err)
	}
	if err := low.Store().Put("mount", []byte(table("low",
		"/srv/work/a/b\t/b\tro\tbind,nosuid,nodev\n"+fmt.Sprintf("/ctx/home/%d/agent/mid/data\t/theirs\tro\trbind,nosuid,nodev\n", w.uid)))); err != nil {
		t.Fatal(err)
	}
	mid, err := w.agents.Lookup(agent.System("mid"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.makeHomes(mid.Config()); err != nil {
		t.Fatal(err)
	}
	c, err := composeFor(t, w, low, place{Session: "s", Workspace: "/srv/other"})
	if err != nil {
		t.Fatal(err)
	}
	want := []sandbox.Within{{Agent: "mid", Source: "/srv/work/a", Recursive: true}, {Agent: "top", Source: "/srv/work", Recursive: true}}
	if r := row(c, "/b"); r == nil || !slices.Equal(r.Within, want) {
		t.Errorf("/b: %+v", r)
	}
	if r := row(c, "/theirs"); r == nil || r.Kind != sandbox.Store || r.RW || r.Home || c.store[r.Store] == nil {
		t.Errorf("/theirs: %+v", r)
	}
	if r := row(c, "/home/agent"); r == nil || !r.Home || len(r.Within) != 0 {
		t.Errorf("/home/agent: %+v", r)
	}
	if r := row(c, "/workspace"); r == nil || len(r.Within) != 0 {
		t.Errorf("what a person hands over at the start is the person's: %+v", r)
	}
}
