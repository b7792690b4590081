package tree_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/nodetest"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

func fileAttr() store.FileAttr {
	return store.FileAttr{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Mode: 0o755}
}

// viewWorld has two agents of one uid with different labels, and two tools.
type viewWorld struct {
	*nodetest.World
	c    *nodetest.Proc
	uid  uint32 // of both agents
	gid  uint32
	a, b agent.Key
}

func newViewWorld(t *testing.T) *viewWorld {
	v := &viewWorld{World: nodetest.New(t), a: agent.System("a"), b: agent.System("b")}
	v.c = root(v.World)
	v.uid, v.gid = uint32(os.Geteuid()), uint32(os.Getegid())
	for _, k := range []agent.Key{v.a, v.b} {
		must(t, v.c.Mkdir("/"+k.StoreDir(), 0o755))
		v.set(t, "/"+k.StoreDir()+"/label", k.Name+"_t\n")
		v.set(t, "/"+k.StoreDir()+"/policy", allow(k.Name+"_t", "one")+allow(k.Name+"_t", "two"))
	}
	for _, name := range []string{"one", "two"} {
		v.set(t, "/tool/"+name, "#!/bin/sh\necho "+name+"\n")
		must(t, v.c.Chmod("/tool/"+name, 0o755))
	}
	v.set(t, "/tool/one.d/policy", allow("a_t", "one")+allow("b_t", "one"))
	v.set(t, "/tool/two.d/policy", allow("b_t", "two"))
	return v
}

func allow(subject, tool string) string { return "allow " + subject + " tool:" + tool + " execute\n" }

func (v *viewWorld) set(t testing.TB, path, text string) {
	t.Helper()
	if err := save(v.c, path, text); err != nil {
		t.Fatalf("write %s: %v", path, err)
	}
}

// ids are the runtime ids of an agent.
func (v *viewWorld) ids(t testing.TB, k agent.Key) (uid, gid uint32) {
	t.Helper()
	o, err := v.Agents.Lookup(k)
	must(t, err)
	return o.Config().UID, o.Config().GID
}

// inside is a process of the agent on its own connection.
func (v *viewWorld) inside(t testing.TB, k agent.Key) *nodetest.Proc {
	t.Helper()
	f, err := v.Tree.View(k)
	must(t, err)
	uid, gid := v.ids(t, k)
	p := nodetest.NewProc(f, uid, gid)
	t.Cleanup(p.CloseAll)
	return p
}

func TestViewsDiffer(t *testing.T) {
	v := newViewWorld(t)
	for k, want := range map[agent.Key]string{v.a: "[one one.d]", v.b: "[one one.d two two.d]"} {
		in := v.inside(t, k)
		names, err := in.ReadDir("/tool")
		must(t, err)
		if fmt.Sprint(names) != want {
			t.Errorf("%s sees %v, want %s", k.Name, names, want)
		}
		host, err := v.c.ReadDir("/" + k.StoreDir() + "/view/tool")
		must(t, err)
		if !slices.Equal(host, names) {
			t.Errorf("view/ shows %v, the agent sees %v", host, names)
		}
		if got, err := read(in, "/tool/one"); err != nil || !strings.Contains(got, "echo one") {
			t.Errorf("one reads %q, %v", got, err)
		}
		if got, err := read(in, "/tool/one.d/policy"); err != nil || got != allow(k.Name+"_t", "one") {
			t.Errorf("the tool's policy reads %q, %v", got, err)
		}
		_, err = in.Lstat("/tool/one.d/log")
		fails(t, err, syscall.ENOENT)
	}
	_, err := v.inside(t, v.a).Lstat("/tool/two")
	fails(t, err, syscall.ENOENT)
}

func TestViewLayout(t *testing.T) {
	v := newViewWorld(t)
	in := v.inside(t, v.a)
	o, err := v.Agents.Lookup(v.a)
	must(t, err)
	home := fmt.Sprintf("/home/%d", o.Config().Owner)
	must(t, v.c.Mkdir("/shared/s", 0o755))
	must(t, v.c.Mkdir("/shared/hidden", 0o755))
	v.set(t, home+"/.tshrc", "CTX_PATH=/ctx/tool\n")
	v.set(t, "/agent/a.d/policy", "allow a_t shared:s read\nallow a_t agent:b read\n")
	v.set(t, "/agent/a.d/mount", "/ctx\t/ctx\tro\trbind\n/ctx"+home+"/agent/a\t/home/agent\trw\t-\n/srv/x\t/data\tro\t-\n/ctx/shared/s\t/s\trw\t-\n")
	for dir, want := range map[string]string{
		"/":              "[agent bin home model shared status tool]",
		"/home":          fmt.Sprintf("[%d]", o.Config().Owner),
		home:             "[.tshrc agent tool]",
		home + "/agent":  "[a a.d]",
		"/shared":        "[s]",
		"/shared/s":      "[data tool]",
		"/shared/s/tool": "[]",
		"/agent":         "[a.d b.d]",
		"/agent/b.d":     "[status]",
		"/tool":          "[]",
		"/model":         "[]",
	} {
		names, err := in.ReadDir(dir)
		if dir == home+"/agent" { // a system agent's .d is in agent/
			want = "[a]"
		}
		if err != nil || fmt.Sprint(names) != want {
			t.Errorf("%s holds %v, %v; want %s", dir, names, err, want)
		}
	}
	for path, want := range map[string]string{home + "/agent/a": "/home/agent", "/shared/s/data": "/s/data"} {
		if got, err := in.Readlink(path); err != nil || got != want {
			t.Errorf("%s leads to %q, %v", path, got, err)
		}
	}
	if got, err := read(in, "/agent/a.d/mount"); err != nil || strings.Contains(got, "/srv/x") || !strings.Contains(got, "-\t/data\tro") {
		t.Errorf("mount reads %q, %v", got, err)
	}
	if got, err := read(in, home+"/.tshrc"); err != nil || got != "CTX_PATH=/ctx/tool\n" {
		t.Errorf(".tshrc reads %q, %v", got, err)
	}
	for _, gone := range []string{"/agent/a.d/view", "/agent/a.d/log", "/agent/a.d/exec", "/agent/b.d/policy", "/agent/a", "/agent/a.sock", "/shared/hidden"} {
		_, err := in.Lstat(gone)
		fails(t, err, syscall.ENOENT)
	}
	v.SetLive(v.b, node.Busy, 9)
	if got, err := read(in, "/agent/b.d/status"); err != nil || got != "busy\n" {
		t.Errorf("status of b: %q, %v", got, err)
	}
	v.SetLive(v.b, node.Dead, 0)
}

func TestViewIsReadOnly(t *testing.T) {
	v := newViewWorld(t)
	f, err := v.Tree.View(v.a)
	must(t, err)
	in := nodetest.NewProc(f, 0, 0) // no mode stands in the way
	defer in.CloseAll()
	for _, path := range []string{"/tool/one", "/tool/one.d/policy", "/agent/a.d/policy", "/agent/a.d/status", "/status", "/bin/ctx"} {
		_, err := in.Open(path, os.O_WRONLY, 0)
		fails(t, err, syscall.EROFS)
		fails(t, in.Chmod(path, 0o777), syscall.EROFS)
		fails(t, in.Truncate(path, 0), syscall.EROFS)
		fails(t, in.Unlink(path), syscall.EROFS)
		fails(t, in.Rename(path, path+"x"), syscall.EROFS)
	}
	for _, dir := range []string{"", "/tool", "/agent", "/agent/a.d", "/home", "/shared", "/model", "/bin"} {
		_, err := in.Open(dir+"/new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		fails(t, err, syscall.EROFS)
		fails(t, in.Mkdir(dir+"/new", 0o755), syscall.EROFS)
		fails(t, in.Symlink("x", dir+"/new"), syscall.EROFS)
		fails(t, in.Link("/status", dir+"/new"), syscall.EROFS)
	}
}

// Once the commit has returned no open succeeds, whatever a kernel has cached,
// and a process that runs goes on.
func TestRevocation(t *testing.T) {
	revoke := map[string]func(t *testing.T, v *viewWorld){
		"the agent's policy": func(t *testing.T, v *viewWorld) { v.set(t, "/agent/a.d/policy", "# nothing\n") },
		"the tool's policy":  func(t *testing.T, v *viewWorld) { v.set(t, "/tool/one.d/policy", allow("b_t", "one")) },
		"an empty policy": func(t *testing.T, v *viewWorld) {
			must(t, v.c.Truncate("/agent/a.d/policy", 0))
		},
		"the label":       func(t *testing.T, v *viewWorld) { v.set(t, "/agent/a.d/label", "other_t\n") },
		"the execute bit": func(t *testing.T, v *viewWorld) { must(t, v.c.Chmod("/tool/one", 0o644)) },
		"the file":        func(t *testing.T, v *viewWorld) { must(t, v.c.Unlink("/tool/one")) },
		"the search path": func(t *testing.T, v *viewWorld) { v.set(t, "/agent/a.d/path", "/ctx/home/0/tool\n") },
		"noexec": func(t *testing.T, v *viewWorld) {
			v.set(t, "/agent/a.d/mount", "/ctx\t/ctx\tro\trbind,noexec\n")
		},
		"a rename over the policy": func(t *testing.T, v *viewWorld) {
			fd, err := v.c.Open("/agent/a.d/sedXXXXXX", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			must(t, err)
			must(t, v.c.Close(fd))
			must(t, v.c.Rename("/agent/a.d/sedXXXXXX", "/agent/a.d/policy"))
		},
	}
	for what, take := range revoke {
		t.Run(what, func(t *testing.T) {
			v := newViewWorld(t)
			f, err := v.Tree.View(v.a)
			must(t, err)
			rec := newRecorder()
			defer f.AddNotifier(rec)()
			in := v.inside(t, v.a)
			running, err := in.Open("/tool/one", os.O_RDONLY, 0)
			must(t, err)
			// The node that a kernel may hold on to.
			uid, gid := v.ids(t, v.a)
			r := &vnode.Req{Ctx: t.Context(), UID: uid, GID: gid, TID: uint32(os.Getpid())}
			dir, err := f.Root().(vnode.Lookuper).Lookup(r, "tool")
			must(t, err)
			one, err := dir.Node.(vnode.Lookuper).Lookup(r, "one")
			must(t, err)
			take(t, v)
			for range 1000 {
				if _, _, err := one.Node.(vnode.Opener).Open(r, 0); err == nil {
					t.Fatal("opened after the revocation")
				}
				if _, err := in.Open("/tool/one", os.O_RDONLY, 0); err == nil {
					t.Fatal("opened by name after the revocation")
				}
			}
			if rec.take()["one"] == 0 {
				t.Error("the name was not pushed")
			}
			if names, err := in.ReadDir("/tool"); err != nil || slices.Contains(names, "one") {
				t.Errorf("listed %v, %v", names, err)
			}
			buf := make([]byte, 100)
			n, err := in.Pread(running, buf, 0)
			if err != nil || !strings.Contains(string(buf[:n]), "echo one") {
				t.Errorf("the running program reads %q, %v", buf[:n], err)
			}
		})
	}
}

// A grant is pushed too: a cached "no such name" must not outlive it.
func TestGrantIsPushed(t *testing.T) {
	v := newViewWorld(t)
	f, err := v.Tree.View(v.a)
	must(t, err)
	rec := newRecorder()
	defer f.AddNotifier(rec)()
	in := v.inside(t, v.a)
	_, err = in.Lstat("/tool/two")
	fails(t, err, syscall.ENOENT)
	v.set(t, "/tool/two.d/policy", allow("a_t", "two"))
	if rec.take()["two"] == 0 {
		t.Error("a tool's policy was not pushed")
	}
	if _, err := in.Lstat("/tool/two"); err != nil {
		t.Error(err)
	}
	v.set(t, "/agent/a.d/policy", allow("a_t", "one"))
	if rec.take()["two"] == 0 {
		t.Error("the agent's policy was not pushed")
	}
	v.set(t, "/agent/a.d/policy", allow("a_t", "two"))
	if got := rec.take(); got["two"] == 0 || got["one"] == 0 {
		t.Errorf("pushed %v", got)
	}
	v.set(t, "/tool/three", "x")
	if rec.take()["three"] == 0 {
		t.Error("a new tool was not pushed")
	}
}

// Views store nothing.
func TestViewsLeaveTheStoreAsItIs(t *testing.T) {
	v := newViewWorld(t)
	sum := func() string {
		h := sha256.New()
		err := filepath.WalkDir(filepath.Join(v.Dir, "store", "object"), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fmt.Fprintln(h, path, d.Type())
			if d.Type().IsRegular() {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				h.Write(text)
			}
			return nil
		})
		must(t, err)
		return fmt.Sprintf("%x", h.Sum(nil))
	}
	before := sum()
	for range 20 {
		for _, k := range []agent.Key{v.a, v.b} {
			in := v.inside(t, k)
			for _, dir := range []string{"/", "/tool", "/agent", "/home", "/shared", "/model", "/agent/" + k.Name + ".d"} {
				_, err := in.ReadDir(dir)
				must(t, err)
			}
			_, err := read(in, "/tool/one")
			must(t, err)
		}
	}
	if after := sum(); after != before {
		t.Error("the store changed")
	}
}

// The decisions leave events: refused with the row, executed.
func TestViewLogsDecisions(t *testing.T) {
	v := newViewWorld(t)
	in := v.inside(t, v.a)
	_, err := in.Lstat("/tool/two")
	fails(t, err, syscall.ENOENT)
	log, err := read(v.c, "/agent/a.d/log")
	must(t, err)
	if !strings.Contains(log, "tool.denied") || !strings.Contains(log, "row 7") {
		t.Errorf("log:\n%s", log)
	}
}
