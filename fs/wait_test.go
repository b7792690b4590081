package fs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"cortexfs/fs"
	"cortexfs/fs/fstest"
	"cortexfs/fs/fstest/toy"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// blocking makes a file whose reads wait for ever, or until their caller gives
// up, and counts those.
func blocking(d *toy.Node, name string) (f *toy.Node, given *atomic.Int64) {
	given = new(atomic.Int64)
	f = d.AddFile(name, "", 0o644)
	f.Waits = true
	f.Mode = vnode.Mode{Direct: true}
	f.OnRead = func(r *vnode.Req, _ []byte, _ int64) (bool, int, error) {
		<-r.Ctx.Done()
		given.Add(1)
		return true, 0, fault.E("read", name, fault.Interrupted, r.Ctx.Err())
	}
	return f, given
}

// Interrupts are lossless: a read that is interrupted at any moment, from before
// the request is read to long after, ends with EINTR. One lost would leave the
// child unkillable, and the test with it.
func TestInterruptStorm(t *testing.T) {
	tree := toy.New()
	_, given := blocking(tree.Dir(), "block")
	m := fstest.Mount(t, tree, fs.Options{})
	const reads = 3000
	if n := storm.Must(t, m.Dir, reads); n != reads {
		t.Errorf("%d of %d reads were interrupted", n, reads)
	}
	if n := given.Load(); n == 0 {
		t.Error("no read reached the tree")
	}
}

// storm reads a file that blocks and has a thread of its own send a signal to
// the reading one until the read has ended.
var storm = fstest.Client("storm", func(dir string, reads int) (int, error) {
	fd, err := unix.Open(filepath.Join(dir, "block"), unix.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	runtime.LockOSThread() // the reading thread is the one that gets the signals
	// os/signal installs a handler with SA_RESTART, but FUSE answers EINTR.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	tid := unix.Gettid()
	var inRead atomic.Bool
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := 0; !stop.Load(); i++ {
			if inRead.Load() {
				for range i % 200 { // a different moment each time
					_ = unix.Getpid()
				}
				_ = unix.Tgkill(unix.Getpid(), tid, unix.SIGUSR1)
			}
		}
	}()
	n := 0
	buf := make([]byte, 10)
	for range reads {
		inRead.Store(true)
		_, err := unix.Read(fd, buf)
		inRead.Store(false)
		if err != unix.EINTR {
			stop.Store(true)
			return n, fmt.Errorf("read: %v", err)
		}
		n++
	}
	stop.Store(true)
	wg.Wait()
	return n, nil
})

// However many requests wait, others are answered; a killed client's request is
// given up.
func TestManyWaiting(t *testing.T) {
	tree := toy.New()
	_, given := blocking(tree.Dir(), "block")
	tree.Dir().AddFile("f", "text", 0o644)
	m := fstest.Mount(t, tree, fs.Options{})
	const waiting = 60
	r := blockMany.Start(t, m.Dir, waiting)
	r.Ready()
	for range 20 {
		if got := readFile.Must(t, m.Dir, "f"); got != "text" {
			t.Fatalf("read %q", got)
		}
	}
	r.Kill(syscall.SIGKILL)
	for range 1000 {
		if given.Load() == waiting {
			return
		}
		time.Sleep(5 * time.Millisecond) // the tree has no event for it
	}
	t.Errorf("%d of %d reads were given up", given.Load(), waiting)
}

var blockMany = fstest.Client("block many", func(dir string, n int) (struct{}, error) {
	for range n {
		fd, err := unix.Open(filepath.Join(dir, "block"), unix.O_RDONLY, 0)
		if err != nil {
			return struct{}{}, err
		}
		go func() { _, _ = unix.Read(fd, make([]byte, 1)) }()
	}
	// Reads of their own file: the last one has been sent when this one is asked.
	time.Sleep(50 * time.Millisecond)
	_ = fstest.Sync()
	return struct{}{}, nil
})

// A panic in a request is EIO for that request, and one stack in the log.
func TestPanic(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprintf("waits=%v", waits), func(t *testing.T) {
			tree := toy.New()
			tree.Dir().Waits = waits
			tree.Dir().AddFile("f", "text", 0o644)
			bad := tree.Dir().AddFile("bad", "text", 0o644)
			bad.OnRead = func(*vnode.Req, []byte, int64) (bool, int, error) { panic("of the test") }
			tree.Dir().OnLookup = func(_ *vnode.Req, name string) (bool, error) {
				if name == "worse" {
					panic("of the test")
				}
				return false, nil
			}
			core, logs := observer.New(zap.ErrorLevel)
			m := fstest.Mount(t, tree, fs.Options{Log: zap.New(core)})
			for _, name := range []string{"bad", "worse"} {
				if _, err := readFile.Run(t, m.Dir, name); !errors.Is(err, syscall.EIO) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if got := readFile.Must(t, m.Dir, "f"); got != "text" {
				t.Errorf("afterwards: %q", got)
			}
			if n := logs.Len(); n < 2 || n > 3 { // a read may be asked twice
				t.Errorf("%d log lines", n)
			}
			for _, l := range logs.All() {
				if l.ContextMap()["stack"] == nil {
					t.Errorf("no stack in %v", l)
				}
			}
		})
	}
}

// poll(2) waits on a pollable file and wakes when the tree says so; any other
// file is always ready.
func TestPoll(t *testing.T) {
	tree := toy.New()
	tree.Dir().AddFile("plain", "", 0o644)
	f := tree.Dir().AddFile("state", "dead", 0o644)
	f.Mode = vnode.Mode{Direct: true}
	var mu sync.Mutex
	ready, asked := false, make(chan struct{}, 100)
	var wakes []func()
	f.OnPoll = func(_ *vnode.Req, wake func()) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		wakes = append(wakes, wake)
		asked <- struct{}{}
		return ready, nil
	}
	m := fstest.Mount(t, tree, fs.Options{})
	r := pollFile.Start(t, m.Dir, "state")
	r.Ready()
	for len(asked) > 0 {
		<-asked
	}
	r.Go()
	<-asked // it is in poll(2) now, or on its way
	mu.Lock()
	ready = true
	for _, w := range wakes {
		w()
		w() // twice does no harm
	}
	mu.Unlock()
	if got, err := r.Wait(); err != nil || got != 1 {
		t.Errorf("poll: %d, %v", got, err)
	}
	plain := pollFile.Start(t, m.Dir, "plain")
	plain.Ready()
	plain.Go()
	if got, err := plain.Wait(); err != nil || got != 1 {
		t.Errorf("poll of a plain file: %d, %v", got, err)
	}
}

var pollFile = fstest.Client("poll", func(dir, name string) (int, error) {
	fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	if err := fstest.Sync(); err != nil {
		return 0, err
	}
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 30000)
		if err == unix.EINTR {
			continue
		}
		return n, err
	}
})

// An unmount ends the server and leaves nothing: no mount, no goroutine, no
// descriptor.
func TestUnmountLeavesNothing(t *testing.T) {
	fstest.Require(t)
	defer goleak.VerifyNone(t)
	before := descriptors(t)
	for _, how := range []struct {
		name string
		end  func(*fs.Server) error
	}{
		{"unmount", (*fs.Server).Unmount},
		{"try unmount", (*fs.Server).TryUnmount},
		{"abort", (*fs.Server).Abort},
		{"by another process", func(s *fs.Server) error {
			if os.Geteuid() != 0 {
				return exec.Command("fusermount3", "-u", s.Mountpoint()).Run()
			}
			return unix.Unmount(s.Mountpoint(), 0)
		}},
	} {
		t.Run(how.name, func(t *testing.T) {
			s, err := fs.Mount(fs.Options{Mountpoint: t.TempDir(), FS: toy.New(), NoExec: true, ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			if opts := mountOptions(t, s.Mountpoint()); opts != "ro,nosuid,nodev,noexec,relatime cortexfs fuse.cortexfs" {
				t.Errorf("mounted as %q", opts)
			}
			if err := how.end(s); err != nil {
				t.Fatal(err)
			}
			if err := s.Wait(); err != nil {
				t.Error(err)
			}
			if opts := mountOptions(t, s.Mountpoint()); opts != "" {
				t.Errorf("still mounted: %q", opts)
			}
			// A second end is no error.
			if err := s.Abort(); err != nil {
				t.Error(err)
			}
			if err := s.Unmount(); err != nil {
				t.Error(err)
			}
		})
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// A mount in use is Busy; Unmount detaches it after its bound and the client
// goes on, Abort ends the client's calls at once.
func TestUnmountInUse(t *testing.T) {
	tree := toy.New()
	_, given := blocking(tree.Dir(), "block")
	m := fstest.Mount(t, tree, fs.Options{})
	r := blockOne.Start(t, m.Dir, struct{}{})
	r.Ready()
	r.Go()
	if err := m.Server.TryUnmount(); !fault.Is(err, fault.Busy) {
		t.Errorf("unmount in use: %v", err)
	}
	if err := m.Server.Unmount(); err != nil {
		t.Error(err)
	}
	if opts := mountOptions(t, m.Dir); opts != "" {
		t.Errorf("still mounted: %q", opts)
	}
	select {
	case <-m.Server.Done():
		t.Error("the connection ended with a user in it")
	default:
	}
	if err := m.Server.Abort(); err != nil {
		t.Error(err)
	}
	if _, err := r.Wait(); !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.EINTR) {
		t.Errorf("the waiting read: %v", err)
	}
	if err := m.Server.Wait(); err != nil {
		t.Error(err)
	}
	if given.Load() == 0 { // Go reads again after EINTR
		t.Error("the tree's read was not told")
	}
}

var blockOne = fstest.Client("block one", func(dir string, _ struct{}) (struct{}, error) {
	f, err := os.Open(filepath.Join(dir, "block"))
	if err != nil {
		return struct{}{}, err
	}
	if err := fstest.Sync(); err != nil {
		return struct{}{}, err
	}
	_, err = io.ReadFull(f, make([]byte, 1))
	return struct{}{}, err
})

// A dead mount (its server killed, everything ENOTCONN) is cleared if it is of
// our type, and only then.
func TestClearDead(t *testing.T) {
	fstest.Require(t)
	dir := t.TempDir()
	dead := deadMount.Start(t, dir, "cortexfstest")
	dead.Ready()
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if done, err := fs.ClearDead(dir, "cortexfstest"); done || err != nil {
		t.Errorf("a live mount was cleared: %v, %v", done, err)
	}
	dead.Kill(syscall.SIGKILL)
	for range 1000 {
		var st unix.Stat_t
		if unix.Stat(dir, &st) == unix.ENOTCONN {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if done, err := fs.ClearDead(dir, "other"); done || err != nil {
		t.Errorf("a foreign mount was cleared: %v, %v", done, err)
	}
	if done, err := fs.ClearDead(dir, "cortexfstest"); !done || err != nil {
		t.Errorf("not cleared: %v, %v", done, err)
	}
	if opts := mountOptions(t, dir); opts != "" {
		t.Errorf("still mounted: %q", opts)
	}
}

var deadMount = fstest.Client("serve", func(dir, subtype string) (struct{}, error) {
	if _, err := fs.Mount(fs.Options{Mountpoint: dir, FS: toy.New(), Subtype: subtype}); err != nil {
		return struct{}{}, err
	}
	return struct{}{}, fstest.Sync()
})

// WaitPushed is bounded by the context too.
func TestWaitPushedContext(t *testing.T) {
	m := fstest.Mount(t, toy.New(), fs.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m.Server.WaitPushed(ctx)
	if !m.Server.WaitPushed(context.Background()) {
		t.Error("an empty queue is not pushed")
	}
}
