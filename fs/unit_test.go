package fs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"bazil.org/fuse"
	"go.uber.org/zap"
	"pgregory.net/rapid"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// No error of the tree becomes ENOSYS or success.
func TestErrnoNeverENOSYS(t *testing.T) {
	var all []error
	for _, k := range fault.Kinds() {
		all = append(all, fault.E("op", "path", k, nil), fmt.Errorf("wrapped: %w", fault.E("op", "path", k, nil)))
	}
	for n := syscall.Errno(1); n < 134; n++ {
		all = append(all, n, fault.FromOS("op", "path", n))
	}
	all = append(all, errors.New("plain"), context.Canceled, fuse.Errno(syscall.ENOSYS))
	for _, err := range all {
		if n := errno(err); n == syscall.ENOSYS || n == 0 {
			t.Errorf("%v (%T) became %d", err, err, n)
		}
	}
	if n := errno(fault.E("", "", fault.Access, nil)); n != syscall.EACCES {
		t.Errorf("Access became %v", n)
	}
}

type testNode struct {
	name  string
	unref *int
}

func (testNode) Attr(*vnode.Req) (vnode.Attr, error) { return vnode.Attr{}, nil }
func (n testNode) Unref()                            { *n.unref++ }

// Numbers are given once, kept while known, and references come back exactly.
func TestNodeTable(t *testing.T) {
	var tab nodes
	var rootRefs, refs int
	root := testNode{"root", &rootRefs}
	tab.init(root)
	n := testNode{"n", &refs}
	first := tab.ref(n)
	if again := tab.ref(n); again != first || first.id == rootID {
		t.Fatalf("one node has two inodes: %v, %v", first, again)
	}
	if tab.ref(root).id != rootID {
		t.Error("the root got another number")
	}
	back := func(id, count uint64) {
		node, got := tab.forget(id, count)
		if node != nil {
			unref(node, got)
		}
	}
	back(first.id, 1)
	if tab.get(first.id) != first {
		t.Error("forgotten while the kernel holds it")
	}
	back(first.id, 5) // more than it has: the kernel's mistake must not be ours
	if tab.get(first.id) != nil || refs != 2 {
		t.Errorf("known=%v refs=%d", tab.get(first.id), refs)
	}
	if second := tab.ref(n); second.id == first.id {
		t.Error("a number was used twice")
	}
	back(rootID, 100)
	if tab.get(rootID) == nil || rootRefs != 1 {
		t.Errorf("root: known=%v refs=%d", tab.get(rootID), rootRefs)
	}
	tab.drain()
	if refs != 3 || rootRefs != 1 {
		t.Errorf("after the end: %d, root %d", refs, rootRefs)
	}
}

// Locks agree with a model that keeps a lock per byte.
func TestLocksModel(t *testing.T) {
	const size, owners = 12, 3
	rapid.Check(t, func(t *rapid.T) {
		var tab locks
		h := &handle{id: 1, ino: &inode{id: 2}}
		var model [size][owners]int16 // 0: none
		for i := range model {
			for j := range model[i] {
				model[i][j] = syscall.F_UNLCK
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			from := rapid.IntRange(0, size-1).Draw(t, "from")
			to := rapid.IntRange(from, size-1).Draw(t, "to")
			owner := rapid.IntRange(0, owners-1).Draw(t, "owner")
			typ := rapid.SampledFrom([]int16{syscall.F_RDLCK, syscall.F_WRLCK, syscall.F_UNLCK}).Draw(t, "type")
			l := vnode.Lock{Owner: uint64(owner), Type: typ, Start: uint64(from), End: uint64(to)}
			clash := false
			for b := from; b <= to && typ != syscall.F_UNLCK; b++ {
				for o, have := range model[b] {
					if o != owner && have != syscall.F_UNLCK && (have == syscall.F_WRLCK || typ == syscall.F_WRLCK) {
						clash = true
					}
				}
			}
			if got := tab.get(h.ino, l); typ != syscall.F_UNLCK && (got.Type != syscall.F_UNLCK) != clash {
				t.Fatalf("get says %v, model %v", got, clash)
			}
			err := tab.set(context.Background(), h, &l)
			if clash != fault.Is(err, fault.Again) || (!clash && err != nil) {
				t.Fatalf("set: %v, model says clash=%v", err, clash)
			}
			if !clash {
				for b := from; b <= to; b++ {
					model[b][owner] = typ
				}
			}
		}
		tab.drop(h)
		if len(tab.byInode) != 0 {
			t.Fatalf("records left: %v", tab.byInode)
		}
	})
}

// One uid cannot have any number of lock requests waiting.
func TestLockWaitsAreBounded(t *testing.T) {
	var tab locks
	for i := range maxLockWaits {
		if err := tab.enter(7); err != nil {
			t.Fatalf("waiter %d: %v", i, err)
		}
	}
	if err := tab.enter(7); !fault.Is(err, fault.Again) {
		t.Errorf("one more: %v", err)
	}
	if err := errors.Join(tab.enter(8), tab.enter(0)); err != nil {
		t.Errorf("others: %v", err)
	}
	tab.exit(7)
	if err := tab.enter(7); err != nil {
		t.Errorf("after one has gone: %v", err)
	}
}

// Changes are written in order, equal ones that wait once, and each waiter hears
// when its own are through.
func TestPushCoalesces(t *testing.T) {
	var p push
	gate := make(chan struct{})
	var mu sync.Mutex
	var wrote []change
	p.start(func(c change) error {
		<-gate
		mu.Lock()
		defer mu.Unlock()
		wrote = append(wrote, c)
		return nil
	}, func(uint64) bool { return true }, zap.NewNop())
	defer func() { p.close(); p.wait() }()
	a, b := change{id: 2, name: "a"}, change{id: 2}
	p.add(a)
	gate <- struct{}{} // a is written, nothing waits
	for p.waiter() != nil {
		time.Sleep(time.Millisecond)
	}
	p.add(b) // taken at once, and stuck
	for {
		p.mu.Lock()
		empty := len(p.queue) == 0
		p.mu.Unlock()
		if empty {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for range 1000 {
		p.add(a)
		p.add(b) // not dropped: the one being written may be older
	}
	done := p.waiter()
	close(gate)
	<-done
	mu.Lock()
	defer mu.Unlock()
	if want := fmt.Sprint([]change{a, b, a, b}); fmt.Sprint(wrote) != want {
		t.Errorf("wrote %v, want %v", wrote, want)
	}
}

// A number that the kernel does not know yet is tried again, one that has been
// forgotten is not.
func TestPushRetriesUnknown(t *testing.T) {
	for _, known := range []bool{true, false} {
		var p push
		var tries atomic.Int32
		p.start(func(change) error { tries.Add(1); return fuse.ErrNotCached }, func(uint64) bool { return known }, zap.NewNop())
		p.add(change{id: 9})
		if done := p.waiter(); done != nil {
			<-done
		}
		p.close()
		p.wait()
		want := int32(1)
		if known {
			want = 1 + unknownRetries
		}
		if n := tries.Load(); n != want {
			t.Errorf("known=%v: %d tries, want %d", known, n, want)
		}
	}
}

// After close nothing is taken, and who waits is let go.
func TestPushClose(t *testing.T) {
	var p push
	gate := make(chan struct{})
	p.start(func(change) error { <-gate; return nil }, func(uint64) bool { return true }, zap.NewNop())
	p.add(change{id: 1})
	p.add(change{id: 2})
	done := p.waiter()
	p.close()
	if done != nil {
		<-done
	}
	p.add(change{id: 3})
	if p.waiter() != nil {
		t.Error("waits after close")
	}
	close(gate)
	p.wait()
}

// flock(2): a conversion gives the old lock back first, so two that hold it
// shared can both try.
func TestFlockConversion(t *testing.T) {
	var tab locks
	ino := &inode{id: 2}
	a, b := &handle{id: 1, ino: ino}, &handle{id: 2, ino: ino}
	set := func(h *handle, typ int16) error {
		return tab.set(context.Background(), h, &vnode.Lock{Owner: h.id, Flock: true, Type: typ, End: 1<<63 - 1})
	}
	if err := errors.Join(set(a, syscall.F_RDLCK), set(b, syscall.F_RDLCK)); err != nil {
		t.Fatal(err)
	}
	if err := set(a, syscall.F_WRLCK); !fault.Is(err, fault.Again) {
		t.Errorf("first conversion: %v", err)
	}
	if err := set(b, syscall.F_WRLCK); err != nil {
		t.Errorf("second conversion: %v", err)
	}
}

// Attributes that a change came in between are not to be kept.
func TestChangedAttributesAreNotKept(t *testing.T) {
	var s Server
	a := vnode.Attr{Valid: time.Hour}
	seq := s.push.changes.Load()
	if got := s.export(2, a, seq).Valid; got != time.Hour {
		t.Errorf("valid for %v", got)
	}
	s.push.changes.Add(1)
	if got := s.export(2, a, seq).Valid; got != 0 {
		t.Errorf("after a change valid for %v", got)
	}
}

// The library's connection still has the fields that adopt sets.
func TestAdopt(t *testing.T) {
	c, err := adopt(nil, fuse.InitBigWrites)
	if err != nil {
		t.Fatal(err)
	}
	if c.Features() != fuse.InitBigWrites || c.Protocol().Minor != protoMinor {
		t.Errorf("adopted %v, %v", c.Features(), c.Protocol())
	}
}

// Access without the kernel's own check goes by owner, group, others.
func TestAllowed(t *testing.T) {
	a := vnode.Attr{Mode: 0o640, UID: 5, GID: 6}
	for _, c := range []struct {
		uid, gid, mask uint32
		want           bool
	}{
		{5, 0, 6, true}, {5, 0, 1, false}, {7, 6, 4, true}, {7, 6, 2, false},
		{7, 7, 4, false}, {0, 0, 6, true}, {0, 0, 1, false}, {7, 7, 0, true},
	} {
		if got := allowed(a, c.uid, c.gid, c.mask); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
