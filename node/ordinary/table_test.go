package ordinary

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

func needHandles(t *testing.T, w *world) {
	t.Helper()
	if !w.fs.byHandle {
		t.Skip("open_by_handle_at needs CAP_DAC_READ_SEARCH and a file system with handles")
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestFewDescriptors: a user makes the kernel know many files; the daemon keeps
// its descriptors, and every node stays the file that it was.
func TestFewDescriptors(t *testing.T) {
	const files, few = 500, 20
	w, r := newWorldMax(t, few), me()
	needHandles(t, w)
	dir := w.home(r)
	before := descriptors(t)
	var nodes []*dnode
	for i := range files {
		n := put(t, r, dir, fmt.Sprint("f", i), fmt.Sprint("text ", i), 0o600)
		nodes = append(nodes, n)
	}
	if after := descriptors(t); after > before+few {
		t.Errorf("%d descriptors, %d before", after, before)
	}
	// Names move; the nodes do not care.
	if err := dir.Rename(r, "f0", dir, "moved"); err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if got, err := slurp(r, n); err != nil || got != fmt.Sprint("text ", i) {
			t.Fatalf("node %d reads %q, %v", i, got, err)
		}
	}
	e, err := dir.Lookup(r, "moved")
	if err != nil || e.Node != vnode.Node(nodes[0]) {
		t.Fatalf("lookup: %v, %v", e.Node, err)
	}
	nodes[0].Unref()
	// An unlinked file lives as long as its descriptor.
	h, _, err := nodes[1].Open(r, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Unlink(r, "f1"); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes[2:] {
		if _, err := n.Attr(r); err != nil {
			t.Fatal(err)
		}
	}
	if a, err := nodes[1].Attr(r); err != nil || a.Nlink != 0 {
		t.Errorf("the open unlinked file: %+v, %v", a, err)
	}
	h.Release(r)
}

// TestReusedNumber: the inode number of a file that is gone comes back with
// another file, while the old node is still known.
func TestReusedNumber(t *testing.T) {
	w, r := newWorldMax(t, 2), me()
	needHandles(t, w)
	dir := w.home(r)
	old := put(t, r, dir, "old", "old", 0o600)
	for i := range 4 { // push it out
		put(t, r, dir, fmt.Sprint("x", i), "", 0o600)
	}
	w.fs.mu.Lock()
	dormant := old.fd < 0
	w.fs.mu.Unlock()
	if !dormant {
		t.Fatal("the descriptor was not given up")
	}
	if err := dir.Unlink(r, "old"); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		e, h, _, err := dir.Create(r, fmt.Sprint("n", i), unix.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		h.Release(r)
		n := e.Node.(*dnode)
		same := n.id == old.id
		if n == old {
			t.Error("a new file is the old node")
		}
		n.Unref()
		if same {
			if _, err := old.Attr(r); !fault.Is(err, fault.Stale) {
				t.Errorf("the old node answers %v", err)
			}
			return
		}
	}
	t.Skip("no inode number came back")
}

func TestTooManyWithoutHandles(t *testing.T) {
	w, r := newWorldMax(t, 10), me()
	dir := w.home(r)
	w.fs.byHandle = false
	var last error
	for i := range 20 {
		e, err := dir.Mkdir(r, fmt.Sprint("d", i), 0o700)
		if last = err; err != nil {
			break
		}
		t.Cleanup(e.Node.(*dnode).Unref)
	}
	if !fault.Is(last, fault.TooMany) {
		t.Errorf("the last of many: %v", last)
	}
	if _, err := dir.ReadDir(r); err != nil {
		t.Errorf("what is known goes on: %v", err)
	}
}

func TestTooManyOpenFiles(t *testing.T) {
	w, r := newWorld(t), me()
	if r.UID == 0 {
		t.Skip("root has no limit")
	}
	n := put(t, r, w.home(r), "f", "x", 0o600)
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil || lim.Cur < 2*maxHandles {
		t.Skip("few descriptors here")
	}
	var open []vnode.Handle
	for range maxHandles {
		h, _, err := n.Open(r, unix.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, h)
	}
	if _, _, err := n.Open(r, unix.O_RDONLY); !fault.Is(err, fault.TooMany) {
		t.Errorf("one more: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := w.fs.MakeShared("s", 0, 0, 0o755); err != nil {
			t.Fatal(err)
		}
		h, _, err := put(t, as(0), w.node(nil, "shared/s/data"), "g", "", 0o644).Open(as(bob), unix.O_RDONLY)
		if err != nil {
			t.Errorf("another user: %v", err)
		} else {
			h.Release(nil)
		}
	}
	for _, h := range open {
		h.Release(r)
	}
	h, _, err := n.Open(r, unix.O_RDONLY)
	if err != nil {
		t.Fatalf("after the releases: %v", err)
	}
	h.Release(r)
}
