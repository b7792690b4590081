package tree_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/nodetest"
	"cortexfs/node/tree"
	"cortexfs/node/vnode"
)

func TestSuite(t *testing.T) { nodetest.RunTree(t, nodetest.New(t).Env()) }

const (
	ruleRead = "allow coder_t tool:fs.read execute\n"
	ruleList = "allow coder_t tool:fs.list execute\n"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func fails(t testing.TB, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

// save writes a whole text.
func save(c nodetest.Client, path, text string) error {
	fd, err := c.Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = c.Write(fd, []byte(text))
	return errors.Join(err, c.Close(fd))
}

func read(c nodetest.Client, path string) (string, error) {
	fd, err := c.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer c.Close(fd)
	buf := make([]byte, 1<<20)
	n, err := c.Pread(fd, buf, 0)
	return string(buf[:n]), err
}

// root is the process that may write everything.
func root(w *nodetest.World) *nodetest.Proc {
	return w.Client(uint32(os.Geteuid()), uint32(os.Getegid()))
}

// foreignPID starts a process in namespaces of its own.
func foreignPID(t *testing.T) uint32 {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		t.Skip("no namespaces here: ", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return uint32(cmd.Process.Pid)
}

// A process of a sandbox has the owner's uid and is not the owner (notes X12).
func TestForeignNamespaces(t *testing.T) {
	for _, lifted := range []bool{false, true} {
		w := nodetest.New(t, func(o *tree.Options) { o.ForeignNS = lifted })
		host := root(w)
		must(t, host.Mkdir("/agent/a.d", 0o755))
		must(t, save(host, "/tool/t", "#!/bin/sh\n"))
		fd, err := host.Open("/agent/a.d/policy", os.O_WRONLY, 0)
		must(t, err)
		inside := root(w)
		inside.SetThread(foreignPID(t))
		if got, err := read(inside, "/agent/a.d/approval"); err != nil || got != "auto\n" {
			t.Errorf("reading: %q, %v", got, err)
		}
		handed := inside.Take(host, fd)
		_, werr := inside.Write(handed, []byte(ruleRead))
		for what, err := range map[string]error{
			"echo": save(inside, "/agent/a.d/approval", "ask\n"),
			"touch": func() error {
				_, err := inside.Open("/agent/a.d/mount~", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				return err
			}(),
			"symlink":       inside.Symlink("x", "/agent/a.d/.#mount"),
			"unlink":        inside.Unlink("/agent/a.d/policy"),
			"mkdir":         inside.Mkdir("/agent/b.d", 0o755),
			"chmod":         inside.Chmod("/agent/a.d/tools", 0o644),
			"truncate":      inside.Truncate("/agent/a.d/tools", 0),
			"tool":          save(inside, "/tool/t", "x"),
			"chmod tool":    inside.Chmod("/tool/t", 0o700),
			"unlink tool":   inside.Unlink("/tool/t"),
			"link":          inside.Link("/agent/a.d/tools", "/agent/a.d/tools~"),
			"handed handle": werr,
			"rename":        inside.Rename("/agent/a.d/tools", "/agent/a.d/tools~"),
			"rmdir":         inside.Rmdir("/agent/a.d"),
		} {
			if lifted {
				continue // the order of a map: only that nothing is refused as foreign matters
			}
			if !errors.Is(err, syscall.EACCES) {
				t.Errorf("%s: %v, want EACCES", what, err)
			}
		}
		if lifted {
			must(t, host.Mkdir("/agent/c.d", 0o755))
			must(t, save(inside, "/agent/c.d/approval", "ask\n"))
		}
		unknown := root(w)
		unknown.SetThread(0)
		if err := save(unknown, "/agent/a.d/approval", "ask\n"); !lifted {
			fails(t, err, syscall.EACCES)
		}
	}
}

// The group of -o agent_group makes agents in agent/.
func TestAgentGroup(t *testing.T) {
	w := nodetest.New(t, func(o *tree.Options) { o.AgentGroup = nodetest.Project })
	if !w.Root {
		t.Skip("needs several users")
	}
	alice := w.Client(nodetest.Alice, nodetest.Alice, nodetest.Project)
	must(t, alice.Mkdir("/agent/hers.d", 0o755))
	if got, err := read(alice, "/agent/hers.d/owner"); err != nil || got != "2001\n" {
		t.Errorf("owner %q, %v", got, err)
	}
	must(t, save(alice, "/agent/hers.d/approval", "ask\n"))
	bob := w.Client(nodetest.Bob, nodetest.Bob, nodetest.Project)
	fails(t, save(bob, "/agent/hers.d/approval", "auto\n"), syscall.EACCES)
	fails(t, bob.Rmdir("/agent/hers.d"), syscall.EACCES)
	fails(t, w.Client(nodetest.Carol, nodetest.Carol).Mkdir("/agent/x.d", 0o755), syscall.EACCES)
	must(t, alice.Rmdir("/agent/hers.d"))
}

// status and pid come from one snapshot, status wakes who polls, NAME.sock is
// there while the agent lives.
func TestLive(t *testing.T) {
	w := nodetest.New(t)
	c := root(w)
	k := agent.System("a")
	must(t, c.Mkdir("/agent/a.d", 0o755))
	r := &vnode.Req{Ctx: t.Context(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), TID: uint32(os.Getpid())}
	h := openHandle(t, w, r, "agent", "a.d", "status")
	defer h.Release(r)
	buf := make([]byte, 32)
	n, err := h.(vnode.Reader).Read(r, buf, 0)
	must(t, err)
	if string(buf[:n]) != "dead\n" {
		t.Errorf("status reads %q", buf[:n])
	}
	woken := make(chan struct{})
	ready, err := h.(vnode.Poller).Poll(r, func() { close(woken) })
	must(t, err)
	if ready {
		t.Error("readable before a change")
	}
	w.SetLive(k, node.Ready, 4242)
	<-woken
	if ready, err := h.(vnode.Poller).Poll(r, nil); err != nil || !ready {
		t.Errorf("after the change: readable %v, %v", ready, err)
	}
	n, err = h.(vnode.Reader).Read(r, buf, 0)
	must(t, err)
	if string(buf[:n]) != "ready\n" {
		t.Errorf("status reads %q", buf[:n])
	}
	for path, want := range map[string]string{"status": "ready\n", "pid": "4242\n"} {
		if got, err := read(c, "/agent/a.d/"+path); err != nil || got != want {
			t.Errorf("%s reads %q, %v", path, got, err)
		}
		if st, err := c.Lstat("/agent/a.d/" + path); err != nil || st.Size != int64(len(want)) {
			t.Errorf("%s: size %d, %v", path, st.Size, err)
		}
	}
	if target, err := c.Readlink("/agent/a.sock"); err != nil || !strings.HasPrefix(target, "/run/") {
		t.Errorf("sock %q, %v", target, err)
	}
	fails(t, c.Rmdir("/agent/a.d"), syscall.EBUSY)
	fails(t, c.Unlink("/agent/a.sock"), syscall.EPERM)
	w.SetLive(k, node.Dead, 0)
	_, err = c.Lstat("/agent/a.sock")
	fails(t, err, syscall.ENOENT)
	must(t, c.Rmdir("/agent/a.d"))
}

func openHandle(t *testing.T, w *nodetest.World, r *vnode.Req, path ...string) vnode.Handle {
	t.Helper()
	n := w.Tree.Root()
	for _, name := range path {
		e, err := n.(vnode.Lookuper).Lookup(r, name)
		must(t, err)
		n = e.Node
	}
	h, _, err := n.(vnode.Opener).Open(r, 0)
	must(t, err)
	return h
}

// recorder hears what is pushed.
type recorder struct {
	mu      sync.Mutex
	entries map[string]int
	nodes   map[vnode.Node]int
}

func newRecorder() *recorder {
	return &recorder{entries: map[string]int{}, nodes: map[vnode.Node]int{}}
}

func (r *recorder) EntryChanged(_ vnode.Node, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries[name]++
}

func (r *recorder) NodeChanged(n vnode.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[n]++
}

func (r *recorder) take() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries
	r.entries = map[string]int{}
	return e
}

// On the main mount no name is ever pushed (notes-security X7); listings of
// executables are, because the kernel keeps them.
func TestPushesOfTheMainTree(t *testing.T) {
	w := nodetest.New(t)
	c := root(w)
	must(t, c.Mkdir("/agent/a.d", 0o755))
	rec := newRecorder()
	defer w.Tree.AddNotifier(rec)()
	must(t, save(c, "/agent/a.d/policy", ruleRead))
	must(t, c.Unlink("/agent/a.d/policy"))
	must(t, c.Mkdir("/agent/b.d", 0o755))
	must(t, c.Rmdir("/agent/b.d"))
	w.SetLive(agent.System("a"), node.Ready, 1)
	w.SetLive(agent.System("a"), node.Dead, 0)
	if len(rec.nodes) != 0 {
		t.Errorf("pushed %v", rec.nodes)
	}
	for _, change := range []func() error{
		func() error { return save(c, "/tool/t", "x") },
		func() error { return c.Rename("/tool/t", "/tool/u") },
		func() error { return c.Unlink("/tool/u") },
	} {
		rec.nodes = map[vnode.Node]int{}
		must(t, change())
		if len(rec.nodes) != 1 {
			t.Errorf("pushed %v, want the listing of tool/", rec.nodes)
		}
	}
	if names := rec.take(); len(names) != 0 {
		t.Errorf("names were pushed: %v", names)
	}
}

// What is changed behind the daemon's back is shown, bad texts too, so that an
// editor can repair them.
func TestStoreEditedBehind(t *testing.T) {
	w := nodetest.New(t)
	c := root(w)
	must(t, c.Mkdir("/agent/a.d", 0o755))
	must(t, save(c, "/tool/old", "one"))
	if _, err := c.ReadDir("/tool"); err != nil {
		t.Fatal(err)
	}
	must(t, w.Store.Watch(w.Tree.StoreChanged))
	object := filepath.Join(w.Dir, "store", "object")
	must(t, os.WriteFile(filepath.Join(object, "agent/a.d/policy"), []byte("nonsense\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(object, "tool/new"), []byte("fresh"), 0o755))
	must(t, os.WriteFile(filepath.Join(object, "tool/.new"), []byte("two!"), 0o755))
	must(t, os.Rename(filepath.Join(object, "tool/.new"), filepath.Join(object, "tool/old")))
	must(t, w.Store.Reload())
	for path, want := range map[string]string{"/agent/a.d/policy": "nonsense\n", "/tool/new": "fresh", "/tool/old": "two!"} {
		if got, err := read(c, path); err != nil || got != want {
			t.Errorf("%s reads %q, %v; want %q", path, got, err, want)
		}
	}
	must(t, save(c, "/agent/a.d/policy", ruleRead))
	must(t, os.Remove(filepath.Join(object, "tool/new")))
	must(t, os.RemoveAll(filepath.Join(object, "agent/a.d")))
	must(t, w.Store.Reload())
	for _, path := range []string{"/tool/new", "/agent/a.d"} {
		_, err := c.Lstat(path)
		fails(t, err, syscall.ENOENT)
	}
}

// What package store or the daemon writes without the tree is seen, without a
// watcher.
func TestToolInstalledThroughTheStore(t *testing.T) {
	w := nodetest.New(t)
	c := root(w)
	if names, err := c.ReadDir("/tool"); err != nil || len(names) != 0 {
		t.Fatal(names, err)
	}
	must(t, w.Store.MkdirAll("tool"))
	d, err := w.Store.NewFile("tool")
	must(t, err)
	_, err = d.WriteAt([]byte("bytes"), 0)
	must(t, err)
	f, err := d.Commit("tool/x", fileAttr())
	must(t, err)
	f.Close()
	if got, err := read(c, "/tool/x"); err != nil || got != "bytes" {
		t.Errorf("reads %q, %v", got, err)
	}
	if names, err := c.ReadDir("/tool"); err != nil || fmt.Sprint(names) != "[x]" {
		t.Errorf("lists %v, %v", names, err)
	}
	must(t, w.Store.RemoveFile("tool/x"))
	if names, err := c.ReadDir("/tool"); err != nil || len(names) != 0 {
		t.Errorf("lists %v, %v", names, err)
	}
}

// Two writers at once, a reader always: only whole committed texts are ever read.
func TestTwoWritersOneReader(t *testing.T) {
	w := nodetest.New(t)
	must(t, root(w).Mkdir("/agent/a.d", 0o755))
	a, b := strings.Repeat(ruleRead, 40), strings.Repeat("# b\n"+ruleList, 60)
	var writers sync.WaitGroup
	for _, text := range []string{a, b} {
		c := root(w)
		writers.Add(1)
		go func() {
			defer writers.Done()
			for i := range 60 {
				fd, err := c.Open("/agent/a.d/policy", os.O_WRONLY|os.O_TRUNC, 0)
				if err != nil {
					t.Error(err)
					return
				}
				for off := 0; off < len(text); off += 97 + i {
					if _, err := c.Write(fd, []byte(text[off:min(len(text), off+97+i)])); err != nil {
						t.Error(err)
					}
				}
				if err := c.Close(fd); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	c := root(w)
	for reads := 0; ; reads++ {
		got, err := read(c, "/agent/a.d/policy")
		if err != nil || (got != a && got != b && got != "") {
			t.Fatalf("read %d: %q, %v", reads, got, err)
		}
		select {
		case <-done:
			if got == "" {
				t.Error("nothing was committed")
			}
			return
		default:
		}
	}
}

// The second of an unlinked name is over long before a test that waits.
func TestDefaultHideTime(t *testing.T) {
	w := nodetest.New(t, func(o *tree.Options) { o.HideFor = 0 })
	c := root(w)
	must(t, c.Mkdir("/agent/a.d", 0o755))
	must(t, c.Unlink("/agent/a.d/approval"))
	_, err := c.Lstat("/agent/a.d/approval")
	fails(t, err, syscall.ENOENT)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := c.Lstat("/agent/a.d/approval"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the name does not come back")
		}
	}
	if got, err := read(c, "/agent/a.d/approval"); err != nil || got != "auto\n" {
		t.Errorf("reads %q, %v", got, err)
	}
}
