package tool

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
)

type world struct {
	*testing.T
	dir string
	st  *store.Store
	cat *Catalog
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{dir: filepath.Join(t.TempDir(), "store")}
	w.T, _ = t.(*testing.T)
	st, err := store.Open(w.dir, store.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	w.st, w.cat = st, New(st)
	return w
}

// install puts an executable into a tier.
func (w *world) install(tier, name string, a store.FileAttr, bytes string) {
	w.Helper()
	if err := w.st.MkdirAll(tier); err != nil {
		w.Fatal(err)
	}
	d, err := w.st.NewFile(tier)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := d.WriteAt([]byte(bytes), 0); err != nil {
		w.Fatal(err)
	}
	f, err := d.Commit(tier+"/"+name, a)
	if err != nil {
		w.Fatal(err)
	}
	f.Close()
}

func (w *world) control(tier, name, control, text string) {
	w.Helper()
	o, err := w.st.Ensure(tier + "/" + name + ".d")
	if err == nil {
		err = o.Put(control, []byte(text))
	}
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) names(tier string) string {
	var all []string
	for _, t := range w.cat.List(tier) {
		all = append(all, t.Name)
	}
	return strings.Join(all, " ")
}

var plain = store.FileAttr{Mode: 0o755}

func TestTiers(t *testing.T) {
	for dir, want := range map[string]bool{
		"tool": true, "home/1000/tool": true, "home/0/tool": true, "shared/x/tool": true,
		"": false, "tools": false, "tool/x": false, "home/01/tool": false, "home/x/tool": false, "home/1/tool/": false,
		"home/1/tools": false, "shared/x.d/tool": false, "shared/x/y/tool": false, "shared//tool": false, "agent": false, "home/1/agent": false,
	} {
		if IsTier(dir) != want {
			t.Errorf("IsTier(%q) = %v", dir, !want)
		}
	}
	w := newWorld(t)
	w.install("home/1000/tool", "a", plain, "x")
	w.install("shared/p/tool", "a", plain, "x")
	if got := fmt.Sprint(w.cat.Tiers()); got != "[home/1000/tool shared/p/tool tool]" {
		t.Errorf("tiers %s", got)
	}
	if _, ok := w.cat.Lookup("nowhere", "a"); ok || w.cat.List("nowhere") != nil || w.cat.Gen("nowhere") != 0 {
		t.Error("a directory that is no tier has tools")
	}
}

// TestHits: only a regular file with an execute bit is one.
func TestHits(t *testing.T) {
	w := newWorld(t)
	w.install("tool", "good", plain, "#!")
	w.install("tool", "group-only", store.FileAttr{UID: 7, GID: 8, Mode: 0o010}, "x")
	w.install("tool", "plain", store.FileAttr{Mode: 0o644}, "x")
	if err := w.st.Symlink("tool/link", "good"); err != nil {
		t.Fatal(err)
	}
	if err := w.st.MkdirAll("tool/dir"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "object/tool/.hidden"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := w.names("tool"); got != "good group-only" {
		t.Errorf("tools: %s", got)
	}
	for _, name := range []string{"plain", "link", "dir", "group-only.d", ".hidden", "..", "", "a/b", "nothing"} {
		if f, ok := w.cat.Lookup("tool", name); ok {
			t.Errorf("%q is a hit: %v", name, f)
		}
	}
	f, ok := w.cat.Lookup("tool", "group-only")
	if !ok || f.Info.Attr != (store.FileAttr{UID: 7, GID: 8, Mode: 0o010}) || f.Path() != "tool/group-only" || f.TreePath() != "/ctx/tool/group-only" || f.Dir() != "tool/group-only.d" {
		t.Errorf("%+v", f)
	}
	if w.names("home/5/tool") != "" {
		t.Error("a tier that is not there has tools")
	}
}

// TestLookupFollowsEveryChange: each way in which a tool can come, go or change
// is seen by the next Lookup and List, without a word to the catalog.
func TestLookupFollowsEveryChange(t *testing.T) {
	w := newWorld(t)
	have := func(step, want string) {
		t.Helper()
		if got := w.names("tool"); got != want {
			t.Errorf("%s: tools %q, want %q", step, got, want)
		}
		for _, name := range []string{"a", "b"} {
			if _, ok := w.cat.Lookup("tool", name); ok != strings.Contains(want, name) {
				t.Errorf("%s: Lookup(%s) = %v", step, name, ok)
			}
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	have("new", "")
	w.install("tool", "a", plain, "1")
	have("install", "a")
	first, _ := w.cat.Lookup("tool", "a")
	again, _ := w.cat.Lookup("tool", "a")
	if first != again {
		t.Error("an unchanged tool is found twice")
	}
	w.install("tool", "a", plain, "22")
	second, _ := w.cat.Lookup("tool", "a")
	if second.Info.Gen == first.Info.Gen || second.Info.Size != 2 {
		t.Errorf("replaced: %+v after %+v", second.Info, first.Info)
	}
	check(w.st.SetAttr("tool/a", store.FileAttr{UID: 5, GID: 6, Mode: 0o700}))
	third, _ := w.cat.Lookup("tool", "a")
	if third.Info.Attr != (store.FileAttr{UID: 5, GID: 6, Mode: 0o700}) || third.Info.Gen != second.Info.Gen {
		t.Errorf("chown: %+v after %+v", third.Info, second.Info)
	}
	check(w.st.SetAttr("tool/a", store.FileAttr{Mode: 0o600}))
	have("chmod -x", "")
	check(w.st.SetAttr("tool/a", plain))
	have("chmod +x", "a")
	check(w.st.RenameFile("tool/a", "tool/b"))
	have("rename", "b")
	check(w.st.RemoveFile("tool/b"))
	have("remove", "")
	w.install("tool", "a", plain, "1")
	gen := w.cat.Gen("tool")
	w.control("tool", "a", "policy", "allow x_t tool:a execute\n")
	w.control("tool", "a", "policy", "allow y_t tool:a execute\n")
	if now := w.cat.Gen("tool"); now > gen+1 { // the directory a.d came
		t.Errorf("a policy moves the tier from %d to %d", gen, now)
	}
}

func TestChangesFromOutside(t *testing.T) {
	w := newWorld(t)
	w.install("tool", "a", plain, "1")
	w.names("tool")
	if err := w.st.Watch(func(string) {}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(w.dir, "object/tool/a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "object/tool/c"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.st.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := w.names("tool"); got != "c" {
		t.Errorf("tools %q", got)
	}
	if _, ok := w.cat.Lookup("tool", "a"); ok {
		t.Error("a is still a hit")
	}
}

func TestPolicy(t *testing.T) {
	w := newWorld(t)
	w.install("tool", "a", plain, "1")
	f, _ := w.cat.Lookup("tool", "a")
	allows := func() bool {
		_, ok := f.Policy().Allows("x_t", policy.Tool, "a", policy.Execute)
		return ok
	}
	// Where the tool is not the daemon's own, a .d holds who it belongs to.
	if allows() || f.Policy() != nil || f.Fault() != nil {
		t.Error("a tool without a policy lets somebody in")
	}
	const rule = "allow x_t tool:a execute\n"
	w.control("tool", "a", "policy", rule)
	if !allows() {
		t.Error("the rule is not seen")
	}
	if p := f.Policy(); p != f.Policy() {
		t.Error("an unchanged policy is parsed again")
	}
	for _, bad := range []string{"allow x_t tool:a execute\r\n", rule + "deny\n", "\xff"} {
		w.control("tool", "a", "policy", bad)
		if allows() || f.Fault() == nil || f.Fault().Path != "/ctx/tool/a.d/policy" {
			t.Errorf("%q: %v, %v", bad, f.Policy(), f.Fault())
		}
	}
	w.control("tool", "a", "policy", rule)
	w.control("tool", "a", "description", "\x1b")
	if !allows() {
		t.Error("a bad description decides something")
	}
	w.control("tool", "a", "mcp", "{")
	if allows() || f.Fault() == nil {
		t.Error("a bad mcp locator decides nothing")
	}
	if err := f.Object().Delete("mcp"); err != nil || !allows() {
		t.Errorf("%v, allowed %v", err, allows())
	}
	if err := w.st.Remove("tool/a.d"); err != nil {
		t.Fatal(err)
	}
	if allows() || f.Object() != nil {
		t.Error("the policy outlives its directory")
	}
	w.control("tool", "a", "policy", rule)
	if !allows() {
		t.Error("the new directory is not seen")
	}
}

func TestTexts(t *testing.T) {
	w := newWorld(t)
	w.install("tool", "a", plain, "1")
	f, _ := w.cat.Lookup("tool", "a")
	for name, want := range map[string]string{"name": "a\n", "description": "", "schema": "{\"type\":\"object\"}\n", "policy": "", "cap": ""} {
		if text, origin, err := f.Text(name); string(text) != want || origin != "default" || err != nil {
			t.Errorf("%s: %q %s %v", name, text, origin, err)
		}
	}
	for _, name := range []string{"mcp", "origin", "config", "log", "status", "hooks", "x"} {
		if _, _, err := f.Text(name); !fault.Is(err, fault.NotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.control("tool", "a", "description", "Does it.\n")
	if text, origin, err := f.Text("description"); string(text) != "Does it.\n" || origin != "durable" || err != nil {
		t.Errorf("%q %s %v", text, origin, err)
	}
}

func TestNamedElsewhere(t *testing.T) {
	w := newWorld(t)
	w.install("tool", "a", store.FileAttr{UID: 0, Mode: 0o755}, "1")
	w.install("tool", "mine", store.FileAttr{UID: 1000, Mode: 0o755}, "1")
	w.install("home/1001/tool", "b", store.FileAttr{UID: 0, Mode: 0o755}, "1")
	w.control("tool", "a", "policy", "allow root_t tool:a execute\n")
	w.control("tool", "mine", "policy", "allow mine_t tool:mine execute\n")
	w.control("home/1001/tool", "b", "policy", "allow hers_t tool:b execute\n")
	for _, c := range []struct {
		subject string
		uid     uint32
		want    string
	}{
		{"root_t", 1000, "/ctx/tool/a.d/policy"}, {"root_t", 0, ""}, {"mine_t", 1000, ""}, {"mine_t", 1001, "/ctx/tool/mine.d/policy"},
		{"hers_t", 1001, ""}, {"hers_t", 1000, "/ctx/home/1001/tool/b.d/policy"}, {"free_t", 1000, ""},
	} {
		for range 2 { // the second answer is a remembered one
			if path, ok := w.cat.NamedElsewhere(c.subject, c.uid); path != c.want || ok != (c.want != "") {
				t.Errorf("%s for %d: %q, %v", c.subject, c.uid, path, ok)
			}
		}
	}
	w.control("tool", "a", "policy", "")
	if path, ok := w.cat.NamedElsewhere("root_t", 1000); ok {
		t.Errorf("still named in %s", path)
	}
}

// TestMissesAreBounded: made-up names do not grow the catalog without end.
func TestMissesAreBounded(t *testing.T) {
	w := newWorld(t)
	w.install("tool", "a", plain, "1")
	for i := range 3 * maxMisses {
		w.cat.Lookup("tool", fmt.Sprintf("x%d", i))
	}
	if n := len(w.cat.tier("tool").tools); n > maxMisses+1 {
		t.Errorf("%d names are remembered", n)
	}
	if _, ok := w.cat.Lookup("tool", "a"); !ok {
		t.Error("a is lost")
	}
}

func TestSubscribe(t *testing.T) {
	w := newWorld(t)
	var got []string
	cancel := w.cat.Subscribe(func(tier, name string) { got = append(got, tier+"/"+name) })
	w.cat.Changed("tool", "a")
	cancel()
	w.cat.Changed("tool", "b")
	if fmt.Sprint(got) != "[tool/a]" {
		t.Errorf("told %v", got)
	}
}

// TestConcurrent: readers see each state whole while tools come and go; after an
// operation returned, nobody sees the one before.
func TestConcurrent(t *testing.T) {
	w := newWorld(t)
	w.install("tool", "a", plain, "1")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					if f, ok := w.cat.Lookup("tool", "a"); ok {
						f.Policy()
					}
					w.cat.List("tool")
				}
			}
		}()
	}
	for i := range 200 {
		mode := uint32(0o755)
		if i%2 == 0 {
			mode = 0o644
		}
		if err := w.st.SetAttr("tool/a", store.FileAttr{Mode: mode}); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.cat.Lookup("tool", "a"); ok != (mode == 0o755) {
			t.Fatalf("round %d: mode %o, hit %v", i, mode, ok)
		}
		if got := w.names("tool") == "a"; got != (mode == 0o755) {
			t.Fatalf("round %d: mode %o, listed %v", i, mode, got)
		}
	}
	close(stop)
	wg.Wait()
}
