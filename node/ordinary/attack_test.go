package ordinary

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// TestSwapAttack (notes-security X9): the owner exchanges a directory and a
// symlink to a foreign one as fast as possible while the daemon, as root, walks
// through the name. Not one byte may come from outside.
func TestSwapAttack(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	outside := filepath.Join(w.path, "outside")
	if err := os.Mkdir(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("foreign"), 0o644); err != nil {
		t.Fatal(err)
	}
	sub, err := dir.Mkdir(r, "a", 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Node.(*dnode).Unref()
	put(t, r, sub.Node.(*dnode), "f", "own", 0o644)
	if err := drop(dir.Symlink(r, "b", outside)); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var swapper sync.WaitGroup
	a, b := w.direct(r, "a"), w.direct(r, "b")
	swapper.Go(func() {
		for !stop.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	tries := 30000
	if testing.Short() {
		tries = 5000
	}
	walk := AgentDir(r.UID, "coder") + "/data/a/f"
	own, foreign := 0, 0
	look := func(n vnode.Node, err error) {
		if err != nil {
			return
		}
		defer n.(*dnode).Unref()
		switch text, err := slurp(nil, n); { // as root: no right protects the file
		case err == nil && text == "own":
			own++
		case err == nil:
			foreign++
		}
	}
	for range tries {
		look(w.fs.Node(nil, walk)) // the whole path at once
		if e, err := dir.Lookup(nil, "a"); err == nil {
			e2, err := e.Node.(vnode.Lookuper).Lookup(nil, "f") // name by name
			look(e2.Node, err)
			e.Node.(*dnode).Unref()
		}
	}
	stop.Store(true)
	swapper.Wait()
	t.Logf("%d reads of our own file in %d tries", own, 2*tries)
	if foreign > 0 || own == 0 {
		t.Errorf("%d foreign reads, %d own", foreign, own)
	}
}

// TestHandOvers: nothing that a user can put under a name leads the daemon out.
func TestHandOvers(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	for name, target := range map[string]string{
		"abs": "/etc", "up": "../../../..", "self": ".", "proc": "/proc/self/root",
	} {
		if err := drop(dir.Symlink(r, name, target)); err != nil {
			t.Fatal(err)
		}
		base := AgentDir(r.UID, "coder") + "/data/" + name
		if n, err := w.fs.Node(nil, base+"/passwd"); !fault.Is(err, fault.Loop) {
			t.Errorf("through %s: %v, %v", name, n, err)
		}
		n := w.node(nil, base)
		if _, err := n.Lookup(nil, "passwd"); !fault.Is(err, fault.NotDir) {
			t.Errorf("lookup in the symlink %s: %v", name, err)
		}
		if err := drop(n.Mkdir(nil, "x", 0o700)); !fault.Is(err, fault.NotDir) {
			t.Errorf("mkdir in the symlink %s: %v", name, err)
		}
		if _, err := n.ReadDir(nil); !fault.Is(err, fault.NotDir) && !fault.Is(err, fault.Loop) {
			t.Errorf("readdir of the symlink %s: %v", name, err)
		}
		if _, err := n.Setattr(nil, vnode.SetAttr{Size: ptr[uint64](0)}); err == nil {
			t.Errorf("truncate of the symlink %s", name)
		}
		if _, err := n.Setattr(nil, vnode.SetAttr{Mode: ptr[uint32](0)}); err == nil {
			t.Errorf("chmod of the symlink %s", name)
		}
	}
	for _, path := range []string{"..", "home/../..", "/etc", "home//x", ""} {
		if path == "" {
			continue
		}
		if _, err := w.fs.Node(nil, path); !fault.Is(err, fault.Invalid) {
			t.Errorf("Node(%q): %v", path, err)
		}
	}
	// A directory moved out of the tree by its owner stays what it is; its
	// descriptor gives no way to a parent.
	e, err := dir.Mkdir(r, "moved", 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Node.(*dnode).Unref()
	out := filepath.Join(w.path, "outside-moved")
	if err := os.Rename(w.direct(r, "moved"), out); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Node.(*dnode).Lookup(nil, ".."); !fault.Is(err, fault.Invalid) {
		t.Errorf("..: %v", err)
	}
}

func TestDevicesAreNotServed(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	r := as(alice)
	dir := w.home(r)
	if err := unix.Mknod(w.direct(r, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skip(err)
	}
	if _, err := dir.Lookup(r, "null"); !fault.Is(err, fault.Perm) {
		t.Errorf("lookup: %v", err)
	}
	if got := names(t, r, dir); got != "" {
		t.Errorf("listed: %q", got)
	}
	if _, _, _, err := dir.Create(r, "null", unix.O_WRONLY, 0o600); !fault.Is(err, fault.Perm) {
		t.Errorf("create: %v", err)
	}
}

// TestForeignMount: what is mounted below is another file system and no part of
// the tree.
func TestForeignMount(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	r := as(alice)
	dir := w.home(r)
	if err := drop(dir.Mkdir(r, "mnt", 0o755)); err != nil {
		t.Fatal(err)
	}
	at := w.direct(r, "mnt")
	if err := unix.Mount("/etc", at, "", unix.MS_BIND, ""); err != nil {
		t.Skip("no bind mounts here: ", err)
	}
	defer unix.Unmount(at, unix.MNT_DETACH)
	if _, err := dir.Lookup(nil, "mnt"); !fault.Is(err, fault.CrossDevice) {
		t.Errorf("lookup of a mount: %v", err)
	}
}

// TestRenameStorm runs everything against everything; the race detector and the
// count of references at the end are the judges.
func TestRenameStorm(t *testing.T) {
	t.Run("many descriptors", func(t *testing.T) { renameStorm(t, newWorld(t)) })
	t.Run("few descriptors", func(t *testing.T) {
		w := newWorldMax(t, 5)
		needHandles(t, w)
		renameStorm(t, w)
	})
}

func renameStorm(t *testing.T, w *world) {
	r := me()
	top := w.home(r)
	dirs := []*dnode{top}
	for i := range 3 {
		e, err := top.Mkdir(r, fmt.Sprint("dir", i), 0o755)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Node.(*dnode).Unref)
		dirs = append(dirs, e.Node.(*dnode))
	}
	rounds := 1500
	if testing.Short() {
		rounds = 200
	}
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for range rounds {
				storm(t, r, rnd, dirs)
			}
		})
	}
	wg.Wait()
	for _, d := range dirs[1:] {
		if _, err := d.ReadDir(r); err != nil && !fault.Is(err, fault.NotExist) {
			t.Error(err)
		}
	}
}

func storm(t *testing.T, r *vnode.Req, rnd *rand.Rand, dirs []*dnode) {
	dir, other := dirs[rnd.IntN(len(dirs))], dirs[rnd.IntN(len(dirs))]
	name, name2 := fmt.Sprint("n", rnd.IntN(6)), fmt.Sprint("n", rnd.IntN(6))
	var err error
	switch rnd.IntN(8) {
	case 0:
		var e vnode.Entry
		var h vnode.Handle
		if e, h, _, err = dir.Create(r, name, unix.O_RDWR|unix.O_APPEND, 0o600); err == nil {
			if _, err := h.(vnode.Writer).Write(r, []byte("line\n"), 0); err != nil {
				t.Error(err)
			}
			err = h.(vnode.Locker).SetLock(r, posix(rnd.Uint64N(3), unix.F_WRLCK, 0, toEnd))
			_ = h.(vnode.Flusher).Flush(r, 1)
			h.Release(r)
			e.Node.(*dnode).Unref()
		}
	case 1, 2:
		err = dir.Rename(r, name, other, name2)
	case 3:
		err = dir.Unlink(r, name)
	case 4:
		err = drop(dir.Mkdir(r, name, 0o700))
	case 5:
		err = dir.Rmdir(r, name)
	case 6:
		var e vnode.Entry
		if e, err = dir.Lookup(r, name); err == nil {
			var text string
			if text, err = slurp(r, e.Node); err == nil && strings.Trim(text, "line\n") != "" {
				t.Errorf("read %q", text)
			}
			err = drop(other.Link(r, e.Node, name2))
			e.Node.(*dnode).Unref()
		}
	case 7:
		_, err = dir.ReadDir(r)
	}
	switch fault.KindOf(err) {
	case fault.NotExist, fault.Exist, fault.NotDir, fault.IsDir, fault.NotEmpty, fault.Invalid, fault.Perm, fault.Again, fault.Stale:
	default:
		if err != nil {
			t.Error(err)
		}
	}
}

func TestNodesAreCanonical(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	n := put(t, r, dir, "f", "x", 0o600)
	for range 3 {
		e, err := dir.Lookup(r, "f")
		if err != nil || e.Node != vnode.Node(n) {
			t.Fatalf("lookup gives %v, %v", e.Node, err)
		}
		n.Unref()
	}
	e, err := dir.Lookup(r, "f")
	if err != nil {
		t.Fatal(err)
	}
	other := openFS(t, w.path, 0)
	if !w.fs.Is(e.Node) || other.Is(e.Node) {
		t.Error("Is does not know its own nodes")
	}
	foreign, err := other.Node(r, AgentDir(r.UID, "coder")+"/data")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.(*dnode).Unref()
	if err := dir.Rename(r, "f", foreign, "g"); !fault.Is(err, fault.CrossDevice) {
		t.Errorf("rename between two: %v", err)
	}
	n.Unref()
}

func TestStaleNode(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	e, err := dir.Mkdir(r, "d", 0o700)
	if err != nil {
		t.Fatal(err)
	}
	n := e.Node.(*dnode)
	n.Unref() // the server forgets it and then asks all the same
	if _, err := n.Attr(r); !fault.Is(err, fault.Stale) {
		t.Errorf("Attr: %v", err)
	}
	if err := drop(n.Mkdir(r, "x", 0o700)); !fault.Is(err, fault.Stale) {
		t.Errorf("Mkdir: %v", err)
	}
	if err := dir.Rename(r, "d", n, "x"); !fault.Is(err, fault.Stale) {
		t.Errorf("Rename: %v", err)
	}
	// A directory that was removed while known.
	e, err = dir.Mkdir(r, "e", 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Node.(*dnode).Unref()
	if err := dir.Rmdir(r, "e"); err != nil {
		t.Fatal(err)
	}
	if err := drop(e.Node.(*dnode).Mkdir(r, "x", 0o700)); !fault.Is(err, fault.NotExist) {
		t.Errorf("Mkdir in a removed directory: %v", err)
	}
}

func TestHomes(t *testing.T) {
	w, r := newWorld(t), me()
	for range 2 { // the second time nothing changes
		if err := w.fs.MakeAgentHome(r.UID, r.GID, "coder"); err != nil {
			t.Fatal(err)
		}
		if err := w.fs.MakeShared("team", r.UID, r.GID, 0o2770); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]uint32{
		HomeDir(r.UID): 0o700, HomeDir(r.UID) + "/agent": 0o755, AgentDir(r.UID, "coder"): 0o700,
		AgentDir(r.UID, "coder") + "/session": 0o700, "shared/team/data": 0o2770,
	} {
		if a, err := w.node(nil, path).Attr(r); err != nil || a.Mode != mode || a.UID != r.UID || a.GID != r.GID {
			t.Errorf("%s: %+v, %v", path, a, err)
		}
	}
	if got := names(t, r, w.node(r, AgentDir(r.UID, "coder"))); got != "cache data log root session" {
		t.Errorf("home has %q", got)
	}
	// A home whose parts were exchanged is an error, not a way out.
	data := filepath.Join(w.path, AgentDir(r.UID, "coder"), "data")
	if err := os.Remove(data); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/tmp", data); err != nil {
		t.Fatal(err)
	}
	if err := w.fs.MakeAgentHome(r.UID, r.GID, "coder"); err == nil {
		t.Error("a symlink passes for a directory")
	}
	for _, name := range []string{"", "..", "a/b", "x.d", strings.Repeat("n", 63)} {
		if err := w.fs.MakeAgentHome(r.UID, r.GID, name); !fault.Is(err, fault.Invalid) {
			t.Errorf("agent %q: %v", name, err)
		}
		if err := w.fs.MakeShared(name+"\n", r.UID, r.GID, 0o700); !fault.Is(err, fault.Invalid) {
			t.Errorf("space %q: %v", name, err)
		}
	}
}
