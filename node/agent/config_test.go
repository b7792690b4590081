package agent

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/policy"
)

func TestKeysReadBack(t *testing.T) {
	for _, k := range []Key{System("coder"), InHome(1000, "coder"), InHome(0, "a.b+c"), InHome(4294967294, "x")} {
		for _, s := range []string{k.String(), k.StoreDir()} {
			if back, ok := ParseKey(s); !ok || back != k {
				t.Errorf("ParseKey(%q) = %v, %v", s, back, ok)
			}
		}
	}
	for _, s := range []string{"", "agent", "agent/", "agent/x.sock", "agent/a/b", "home/01/agent/x", "home/1/agent/", "home/1/tool/x", "home/4294967295/agent/x", "/agent/x", "agent/" + strings.Repeat("a", 63)} {
		if k, ok := ParseKey(s); ok {
			t.Errorf("ParseKey(%q) = %v", s, k)
		}
	}
	if a, b := InHome(1, "0.x").RuntimeKey(), System("x").RuntimeKey(); a == b {
		t.Errorf("runtime keys collide: %s", a)
	}
}

func TestDefaults(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	for _, c := range []struct {
		key     Key
		owner   uint32
		uid     string
		subject string
		iso     string
		search  []string
	}{
		{System("coder"), 1000, "1000", "coder_t", "shared", []string{"/ctx/tool", "/ctx/home/1000/tool"}},
		{InHome(1001, "coder"), 1001, "1001", "u1001.coder_t", "shared", []string{"/ctx/tool", "/ctx/home/1001/tool"}},
		{System("keeper"), 0, "pool", "keeper_t", "uid", []string{"/ctx/tool", "/ctx/home/0/tool"}},
	} {
		cfg := w.create(c.key, c.owner).Config()
		if len(cfg.Faults) != 0 {
			t.Errorf("%v: faults %v", c.key, cfg.Faults)
		}
		uid := fmt.Sprint(cfg.UID)
		if cfg.UID >= PoolFirst && cfg.UID <= PoolLast && cfg.GID == cfg.UID {
			uid = "pool"
		} else if gid, _ := people.User(c.owner); cfg.GID != gid {
			t.Errorf("%v: gid %d", c.key, cfg.GID)
		}
		if cfg.Owner != c.owner || uid != c.uid || cfg.Subject != c.subject || cfg.Iso != c.iso || !slices.Equal(cfg.Search, c.search) {
			t.Errorf("%v: owner %d uid %s subject %s iso %s search %v", c.key, cfg.Owner, uid, cfg.Subject, cfg.Iso, cfg.Search)
		}
		if cfg.Cwd != "/workspace" || cfg.Life != "owned" || cfg.Approval != "auto" || cfg.ABI != "sdk-envelope-v1" ||
			cfg.Model.String() != "main" || len(cfg.Path) != 0 || len(cfg.Groups) != 0 || cfg.Parent != (control.Parent{}) {
			t.Errorf("%v: %+v", c.key, cfg)
		}
		want := fmt.Sprintf("/ctx/home/%d/agent/%s", c.owner, c.key.Name)
		if cfg.StateDir() != want || cfg.Root != want+"/root" {
			t.Errorf("%v: state %s root %s", c.key, cfg.StateDir(), cfg.Root)
		}
		var table []string
		for _, m := range cfg.Mounts {
			table = append(table, m.String())
		}
		if got := strings.Join(table, "\n"); got != "/ctx\t/ctx\tro\trbind,nosuid,nodev\n"+want+"\t/home/agent\trw\trbind,nosuid,nodev" {
			t.Errorf("%v: mounts %q", c.key, got)
		}
		if cfg.Policy == nil || len(cfg.Policy.Rules()) != 0 {
			t.Errorf("%v: policy %v", c.key, cfg.Policy)
		}
	}
}

func TestOwnerOfAHomeIsThePath(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(InHome(1001, "x"), 1001)
	w.raw(o, "owner", "1000\n")
	if c := o.Config(); c.Owner != 1001 || !c.OwnerOK || c.UID != 1001 {
		t.Errorf("owner %d uid %d", c.Owner, c.UID)
	}
	if err := o.MayWrite(person(1000)); !fault.Is(err, fault.Access) {
		t.Errorf("the owner named by the file may write: %v", err)
	}
	if err := o.MayWrite(person(1001)); err != nil {
		t.Error(err)
	}
}

func TestUsersDaemon(t *testing.T) {
	w := newWorld(t, Options{DaemonUID: 1000, DaemonGID: 1000, DaemonGroups: []uint32{1000, 50}, Users: accounts{}})
	o := w.create(InHome(1000, "x"), 1000)
	if c := o.Config(); c.GID != 1000 || len(c.Faults) != 0 {
		t.Errorf("gid %d, faults %v", c.GID, c.Faults)
	}
	if f := o.StartFaults(); len(f) != 0 {
		t.Errorf("start faults %v, groups %v", f, o.Config().Groups)
	}
	w.raw(o, "groups", "")
	if f := o.StartFaults(); len(f) != 1 || f[0].Kind != fault.Unavailable || !strings.Contains(f[0].Error(), "50") {
		t.Errorf("a group that cannot be dropped: %v", f)
	}
	w.raw(o, "iso", "uid\n")
	if f := o.Config().Faults; len(f) != 1 || f[0].Kind != fault.Perm {
		t.Errorf("iso=uid under a user's daemon: %v", f)
	}
}

// TestInvalidTextFailsClosed: every control with a text that its format refuses
// is a fault with its file, and unless no decision may read it, the policy grants
// nothing.
func TestInvalidTextFailsClosed(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	const rule = "allow x_t tool:a execute\n"
	for i, e := range control.Agent.Entries() {
		if e.Kind != control.Durable {
			continue
		}
		o := w.create(System(fmt.Sprintf("a%d", i)), 1000, "label", "x_t\n", "policy", rule)
		if _, ok := o.Config().Policy.Allows("x_t", policy.Tool, "a", policy.Execute); !ok {
			t.Fatal("the policy grants nothing from the start")
		}
		w.raw(o, e.Name, "\x1b bad\n")
		c := o.Config()
		if e.Name == "owner" && c.OwnerOK {
			t.Error("an owner nobody can read is somebody")
		}
		if !slices.ContainsFunc(c.Faults, func(f *fault.Error) bool {
			return f.Path == o.Key().TreeDir()+"/"+e.Name && f.Kind == fault.Invalid && f.Line == 1
		}) {
			t.Errorf("%s: faults %v", e.Name, c.Faults)
		}
		_, allowed := c.Policy.Allows("x_t", policy.Tool, "a", policy.Execute)
		if allowed == e.Grants {
			t.Errorf("%s invalid: policy allows = %v", e.Name, allowed)
		}
		if text, origin, err := o.Text(e.Name); string(text) != "\x1b bad\n" || origin != Durable || err != nil {
			t.Errorf("%s: the bytes on disk do not read back: %q %s %v", e.Name, text, origin, err)
		}
	}
}

func TestMissingRequired(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	for _, name := range []string{"owner", "label", "abi"} {
		o := w.create(System("x-"+name), 1000)
		if err := o.Store().Delete(name); err != nil {
			t.Fatal(err)
		}
		f := o.StartFaults()
		if !slices.ContainsFunc(f, func(f *fault.Error) bool {
			return f.Kind == fault.NotExist && f.Path == o.Key().TreeDir()+"/"+name
		}) {
			t.Errorf("%s missing: %v", name, f)
		}
	}
	o := w.create(InHome(1001, "y"), 1001)
	if err := o.Store().Delete("owner"); err != nil {
		t.Fatal(err)
	}
	if f := o.StartFaults(); len(f) != 0 {
		t.Errorf("an agent in a home needs no owner file: %v", f)
	}
}

func TestHostRootNever(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	for name, line := range map[string]int{"uid": 1, "gid": 1, "groups": 2} {
		o := w.create(System("x-"+name), 1000, "policy", "allow x_t tool:a execute\n", "label", "x_t")
		text := "0\n"
		if name == "groups" {
			text = "50\n0\n"
		}
		w.raw(o, name, text)
		c := o.Config()
		if len(c.Faults) == 0 || c.Faults[0].Kind != fault.Perm || c.Faults[0].Line != line {
			t.Errorf("%s 0: faults %v", name, c.Faults)
		}
		if c.UID == 0 || c.GID == 0 || slices.Contains(c.Groups, 0) || c.Policy != nil {
			t.Errorf("%s 0: uid %d gid %d groups %v policy %v", name, c.UID, c.GID, c.Groups, c.Policy)
		}
	}
	o := w.create(System("y"), 1000)
	w.raw(o, "uid", "1001\n")
	if f := o.Config().Faults; len(f) != 1 || f[0].Kind != fault.Perm || !strings.Contains(f[0].Error(), "iso=uid") {
		t.Errorf("a foreign uid with iso=shared: %v", f)
	}
}

func TestUnknownOwnerAccount(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 7777)
	if f := o.StartFaults(); len(f) == 0 || !strings.Contains(f[0].Error(), "7777") {
		t.Errorf("an owner without account: %v", f)
	}
	if text, _, _ := o.Text("gid"); len(text) != 0 {
		t.Errorf("gid reads %q", text)
	}
	if c := o.ControlObject(); c.Owner != 7777 || c.OwnerGID != noGroup {
		t.Errorf("shown as %d:%d", c.Owner, c.OwnerGID)
	}
	if err := o.Store().Delete("owner"); err != nil {
		t.Fatal(err)
	}
	if c := o.ControlObject(); c.Owner == NoID || c.OwnerGID == NoID {
		t.Errorf("without an owner shown as %d:%d", c.Owner, c.OwnerGID)
	}
}

// TestConfigFollowsTexts: whoever reads after Put returned sees the new text,
// with many readers at it.
func TestConfigFollowsTexts(t *testing.T) {
	w := newWorld(t, Options{Root: true})
	o := w.create(System("x"), 1000)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					o.Config()
				}
			}
		}()
	}
	for i := range 300 {
		word := []string{"auto", "ask"}[i%2]
		if _, err := o.Commit(entry(t, "approval"), []byte(word), root()); err != nil {
			t.Fatal(err)
		}
		if got := o.Config().Approval; got != word {
			t.Fatalf("after Put(%s): %s", word, got)
		}
	}
	close(stop)
	wg.Wait()
	a, b := o.Config(), o.Config()
	if a != b {
		t.Error("an unchanged Config is made again")
	}
}
