package ordinary

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

const toEnd = 1<<63 - 1

func posix(owner uint64, typ int16, start, end uint64) vnode.Lock {
	return vnode.Lock{Owner: owner, Type: typ, Start: start, End: end}
}

func flock(owner uint64, typ int16) vnode.Lock {
	return vnode.Lock{Owner: owner, Flock: true, Type: typ, End: toEnd}
}

func openRW(t *testing.T, r *vnode.Req, n *dnode) *handle {
	t.Helper()
	h, _, err := n.Open(r, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Release(r) })
	return h.(*handle)
}

func TestLockTable(t *testing.T) {
	w, r := newWorld(t), me()
	n := put(t, r, w.home(r), "f", "0123456789", 0o600)
	h1, h2 := openRW(t, r, n), openRW(t, r, n)
	steps := []struct {
		name string
		h    *handle
		l    vnode.Lock
		want fault.Kind // IO: none
	}{
		{"1 writes 0-4", h1, posix(1, unix.F_WRLCK, 0, 4), 0},
		{"2 reads 4-9", h2, posix(2, unix.F_RDLCK, 4, 9), fault.Again},
		{"2 reads 5-9", h2, posix(2, unix.F_RDLCK, 5, 9), 0},
		{"1 reads 5-9", h1, posix(1, unix.F_RDLCK, 5, 9), 0},
		{"1 upgrades to write 5-9", h1, posix(1, unix.F_WRLCK, 5, 9), fault.Again},
		{"2 gives 5-6 back", h2, posix(2, unix.F_UNLCK, 5, 6), 0},
		{"1 upgrades 5-6", h1, posix(1, unix.F_WRLCK, 5, 6), 0},
		{"1 upgrades 7", h1, posix(1, unix.F_WRLCK, 7, 7), fault.Again},
		{"1 locks the rest", h1, posix(1, unix.F_WRLCK, 10, toEnd), 0},
		{"2 wants the far end", h2, posix(2, unix.F_RDLCK, 1<<40, toEnd), fault.Again},
		{"BSD locks are others", h2, flock(20, unix.F_WRLCK), 0},
		{"BSD locks conflict", h1, flock(10, unix.F_RDLCK), fault.Again},
		{"downgrade", h2, flock(20, unix.F_RDLCK), 0},
		{"shared", h1, flock(10, unix.F_RDLCK), 0},
		{"unlock", h2, flock(20, unix.F_UNLCK), 0},
		{"alone", h1, flock(10, unix.F_WRLCK), 0},
		{"unlock what one has not", h2, posix(99, unix.F_UNLCK, 0, toEnd), 0},
	}
	for _, s := range steps {
		err := s.h.SetLock(r, s.l)
		if s.want == 0 && err != nil || s.want != 0 && !fault.Is(err, s.want) {
			t.Errorf("%s: %v", s.name, err)
		}
	}
	got, err := h2.GetLock(r, posix(2, unix.F_WRLCK, 0, toEnd))
	if err != nil || got.Type != unix.F_WRLCK || got.Start != 0 || got.End != 6 && got.End != 4 {
		t.Errorf("GetLock: %+v, %v", got, err)
	}
	if got, err := h2.GetLock(r, posix(3, unix.F_RDLCK, 9, 9)); err != nil || got.Type != unix.F_UNLCK {
		t.Errorf("GetLock of a free range: %+v, %v", got, err)
	}
	// A close by 1, of whatever handle, ends the POSIX locks of 1 and no others.
	if err := h2.Flush(r, 1); err != nil {
		t.Fatal(err)
	}
	if err := h2.SetLock(r, posix(3, unix.F_WRLCK, 0, 6)); err != nil {
		t.Errorf("after the flush of 1: %v", err)
	}
	if err := h2.SetLock(r, posix(3, unix.F_WRLCK, 7, 9)); !fault.Is(err, fault.Again) {
		t.Errorf("the lock of 2 is gone: %v", err)
	}
	if err := h2.SetLock(r, flock(30, unix.F_RDLCK)); !fault.Is(err, fault.Again) {
		t.Errorf("the flock of 10 is gone: %v", err)
	}
	h1.Release(r)
	if err := h2.SetLock(r, flock(30, unix.F_WRLCK)); err != nil {
		t.Errorf("after the release: %v", err)
	}
	if err := h1.SetLock(r, flock(10, unix.F_WRLCK)); !fault.Is(err, fault.BadHandle) {
		t.Errorf("lock on a released handle: %v", err)
	}
}

// TestLocksAgainstDirectUse: processes in a sandbox lock the same file through a
// bind of the directory.
func TestLocksAgainstDirectUse(t *testing.T) {
	w, r := newWorld(t), me()
	n := put(t, r, w.home(r), "f", "x", 0o600)
	h := openRW(t, r, n)
	f, err := os.OpenFile(w.direct(r, "f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	// POSIX locks of this process, as another program takes them, and flock.
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &whole); err != nil {
		t.Fatal(err)
	}
	if err := h.SetLock(r, posix(1, unix.F_RDLCK, 0, toEnd)); !fault.Is(err, fault.Again) {
		t.Errorf("against a direct lock: %v", err)
	}
	if got, err := h.GetLock(r, posix(1, unix.F_RDLCK, 0, toEnd)); err != nil || got.PID != uint32(os.Getpid()) {
		t.Errorf("GetLock names %+v, %v", got, err)
	}
	free := unix.Flock_t{Type: unix.F_UNLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &free); err != nil {
		t.Fatal(err)
	}
	if err := h.SetLock(r, posix(1, unix.F_WRLCK, 0, toEnd)); err != nil {
		t.Fatal(err)
	}
	whole.Type = unix.F_RDLCK
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &whole); err != unix.EAGAIN && err != unix.EACCES {
		t.Errorf("a direct lock against ours: %v", err)
	}
	if err := h.SetLock(r, flock(1, unix.F_WRLCK)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("a direct flock against ours: %v", err)
	}
}

func TestWaitingLocks(t *testing.T) {
	w, r := newWorld(t), me()
	n := put(t, r, w.home(r), "f", "x", 0o600)
	h := openRW(t, r, n)
	if err := h.SetLock(r, posix(1, unix.F_WRLCK, 0, toEnd)); err != nil {
		t.Fatal(err)
	}
	// The wait ends with its request,
	ctx, cancel := context.WithCancel(context.Background())
	gaveUp := make(chan error)
	go func() {
		l := posix(2, unix.F_WRLCK, 0, toEnd)
		l.Wait = true
		gaveUp <- h.SetLock(&vnode.Req{Ctx: ctx, UID: r.UID, GID: r.GID}, l)
	}()
	cancel()
	if err := <-gaveUp; !fault.Is(err, fault.Interrupted) {
		t.Errorf("cancelled wait: %v", err)
	}
	// or with an unlock through us,
	got := make(chan error)
	go func() {
		l := posix(3, unix.F_WRLCK, 0, toEnd)
		l.Wait = true
		got <- h.SetLock(r, l)
	}()
	if err := h.Flush(r, 1); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("wait after an unlock: %v", err)
	}
	if err := h.Flush(r, 3); err != nil {
		t.Fatal(err)
	}
	// or with one that we do not hear of.
	f, err := os.OpenFile(w.direct(r, "f"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	go func() {
		l := flock(4, unix.F_WRLCK)
		l.Wait = true
		got <- h.SetLock(r, l)
	}()
	f.Close()
	if err := <-got; err != nil {
		t.Errorf("wait for a direct lock: %v", err)
	}
}

func TestDeadlock(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	a, b := put(t, r, dir, "a", "x", 0o600), put(t, r, dir, "b", "x", 0o600)
	ha, hb := openRW(t, r, a), openRW(t, r, b)
	hold := func(h *handle, owner uint64) {
		t.Helper()
		l := posix(owner, unix.F_WRLCK, 0, 9)
		l.PID = uint32(owner) + 100
		if err := h.SetLock(r, l); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(h *handle, owner uint64) error {
		l := posix(owner, unix.F_RDLCK, 5, 5)
		l.Wait = true
		return h.SetLock(r, l)
	}
	hold(ha, 1)
	hold(hb, 2)
	if got, err := ha.GetLock(r, posix(2, unix.F_WRLCK, 0, 0)); err != nil || got.PID != 101 {
		t.Errorf("GetLock: %+v, %v", got, err)
	}
	// Whoever closes the circle is refused and gives up, as a program would; then
	// the other goes on.
	ends := make(chan error, 2)
	run := func(owner uint64, own, other *handle) {
		err := wait(other, owner)
		if err != nil {
			_ = own.Flush(r, owner)
		}
		ends <- err
	}
	go run(1, ha, hb)
	go run(2, hb, ha)
	one, two := <-ends, <-ends
	if one == nil {
		one, two = two, one
	}
	if !fault.Is(one, fault.Deadlock) || two != nil {
		t.Errorf("the waiters end with %v and %v", one, two)
	}
}

func TestSpans(t *testing.T) {
	f := &lockFile{}
	for _, l := range []vnode.Lock{
		posix(1, unix.F_WRLCK, 0, toEnd), posix(1, unix.F_RDLCK, 10, 19), posix(1, unix.F_UNLCK, 15, 29),
		posix(1, unix.F_WRLCK, 12, 12), posix(1, unix.F_UNLCK, 100, toEnd),
	} {
		f.note(l)
	}
	for at, want := range map[uint64]int16{0: unix.F_WRLCK, 9: unix.F_WRLCK, 10: unix.F_RDLCK, 12: unix.F_WRLCK, 13: unix.F_RDLCK, 15: unix.F_UNLCK, 29: unix.F_UNLCK, 30: unix.F_WRLCK, 99: unix.F_WRLCK, 100: unix.F_UNLCK} {
		rd, wr := f.conflicts(posix(2, unix.F_RDLCK, at, at)), f.conflicts(posix(2, unix.F_WRLCK, at, at))
		if wr != (want != unix.F_UNLCK) || rd != (want == unix.F_WRLCK) {
			t.Errorf("byte %d: read conflicts %v, write %v", at, rd, wr)
		}
	}
}

// Each owner of a lock costs a descriptor of the daemon's, and a process that
// inherited a handle is an owner: one uid has so many (notes-security 98).
func TestLockDescriptorsAreBounded(t *testing.T) {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) != nil || lim.Cur < 2*maxHandles {
		t.Skip("too few descriptors")
	}
	w, r := newWorld(t), me()
	h := openRW(t, r, put(t, r, w.home(r), "f", "0123456789", 0o600))
	alice, bob := &vnode.Req{UID: 2001}, &vnode.Req{UID: 2002}
	for owner := range uint64(maxHandles) {
		if err := h.SetLock(alice, posix(owner, unix.F_RDLCK, 0, 0)); err != nil {
			t.Fatalf("owner %d: %v", owner, err)
		}
	}
	if err := h.SetLock(alice, posix(maxHandles, unix.F_RDLCK, 0, 0)); !fault.Is(err, fault.TooMany) {
		t.Errorf("one too many: %v", err)
	}
	if err := h.SetLock(bob, posix(maxHandles+1, unix.F_RDLCK, 0, 0)); err != nil {
		t.Errorf("another uid: %v", err)
	}
	for owner := range uint64(maxHandles + 2) { // those processes end
		if err := h.Flush(alice, owner); err != nil {
			t.Fatal(err)
		}
	}
	if len(h.owners) > 0 || len(h.node.fs.lockFDs) > 0 {
		t.Errorf("left: %d owners, descriptors %v", len(h.owners), h.node.fs.lockFDs)
	}
	if err := h.SetLock(alice, posix(1, unix.F_WRLCK, 0, 0)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
