package fs_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/fs"
	"cortexfs/fs/fstest"
	"cortexfs/fs/fstest/toy"
)

// lockStep is what one client does: kind "flock", "posix" or "ofd".
type lockStep struct {
	Kind  string
	Write bool
	Wait  bool
	// Hold stops at a Sync with the lock; then Leave it by: "close" the
	// descriptor, "unlock", "exit".
	Hold  bool
	Leave string
	From  int64
	Len   int64
}

var lockClient = fstest.Client("lock", func(dir string, l lockStep) (struct{}, error) {
	fd, err := unix.Open(filepath.Join(dir, "f"), unix.O_RDWR, 0)
	if err != nil {
		return struct{}{}, err
	}
	err = l.set(fd, l.Write, l.Wait, false)
	if err != nil || !l.Hold {
		return struct{}{}, err
	}
	if err := fstest.Sync(); err != nil {
		return struct{}{}, err
	}
	switch l.Leave {
	case "close":
		err = unix.Close(fd)
	case "other": // POSIX: the first close of any descriptor gives the locks back
		var other int
		if other, err = unix.Open(filepath.Join(dir, "f"), unix.O_RDONLY, 0); err == nil {
			err = unix.Close(other)
		}
	case "unlock":
		err = l.set(fd, false, false, true)
	case "exit":
		return struct{}{}, nil
	}
	if err != nil {
		return struct{}{}, err
	}
	return struct{}{}, fstest.Sync()
})

func (l lockStep) set(fd int, write, wait, unlock bool) error {
	if l.Kind == "flock" {
		how := unix.LOCK_SH
		if write {
			how = unix.LOCK_EX
		}
		if unlock {
			how = unix.LOCK_UN
		}
		if !wait {
			how |= unix.LOCK_NB
		}
		return unix.Flock(fd, how)
	}
	lk := unix.Flock_t{Type: unix.F_RDLCK, Start: l.From, Len: l.Len}
	if write {
		lk.Type = unix.F_WRLCK
	}
	if unlock {
		lk.Type = unix.F_UNLCK
	}
	cmd := map[string][2]int{
		"posix": {unix.F_SETLK, unix.F_SETLKW},
		"ofd":   {unix.F_OFD_SETLK, unix.F_OFD_SETLKW},
	}[l.Kind][0]
	if wait {
		cmd++ // F_SETLKW and F_OFD_SETLKW follow
	}
	for {
		err := unix.FcntlFlock(uintptr(fd), cmd, &lk)
		if err != unix.EINTR {
			return err
		}
	}
}

// Locks on nodes that bring none of their own: they exclude, wait, and go the way
// each kind goes.
func TestLocks(t *testing.T) {
	for _, kind := range []string{"flock", "posix", "ofd"} {
		for _, leave := range []string{"close", "unlock", "exit", "other"} {
			if leave == "other" && kind != "posix" {
				continue
			}
			t.Run(kind+"/"+leave, func(t *testing.T) {
				tree := toy.New()
				tree.Dir().AddFile("f", "text", 0o666)
				m := fstest.Mount(t, tree, fs.Options{})
				hold := lockClient.Start(t, m.Dir, lockStep{Kind: kind, Write: true, Hold: true, Leave: leave})
				hold.Ready()
				if _, err := lockClient.Run(t, m.Dir, lockStep{Kind: kind}); !errors.Is(err, syscall.EAGAIN) {
					t.Errorf("second lock: %v", err)
				}
				waiter := lockClient.Start(t, m.Dir, lockStep{Kind: kind, Write: true, Wait: true})
				hold.Go()
				if leave != "exit" {
					hold.Ready()
				}
				if _, err := waiter.Wait(); err != nil {
					t.Errorf("waiting lock: %v", err)
				}
				if leave != "exit" {
					hold.Go()
				}
				if _, err := hold.Wait(); err != nil {
					t.Errorf("holder: %v", err)
				}
			})
		}
	}
}

// Shared locks share; ranges that do not meet do not matter; a client that waits
// can be killed and leaves nothing.
func TestLockSharingAndRanges(t *testing.T) {
	tree := toy.New()
	tree.Dir().AddFile("f", "text", 0o666)
	m := fstest.Mount(t, tree, fs.Options{})
	hold := lockClient.Start(t, m.Dir, lockStep{Kind: "posix", Hold: true, Leave: "exit", From: 10, Len: 10})
	hold.Ready()
	for _, c := range []struct {
		l    lockStep
		want error
	}{
		{lockStep{Kind: "posix", From: 10, Len: 10}, nil},
		{lockStep{Kind: "posix", Write: true, From: 0, Len: 10}, nil},
		{lockStep{Kind: "posix", Write: true, From: 20}, nil},
		{lockStep{Kind: "posix", Write: true, From: 19, Len: 1}, syscall.EAGAIN},
		{lockStep{Kind: "posix", Write: true}, syscall.EAGAIN},
		{lockStep{Kind: "flock", Write: true}, nil}, // another kind of lock
	} {
		if _, err := lockClient.Run(t, m.Dir, c.l); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.l, err, c.want)
		}
	}
	killed := lockClient.Start(t, m.Dir, lockStep{Kind: "posix", Write: true, Wait: true})
	killed.Kill(syscall.SIGKILL)
	hold.Go()
	if _, err := hold.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := lockClient.Run(t, m.Dir, lockStep{Kind: "posix", Write: true}); err != nil {
		t.Errorf("after all have gone: %v", err)
	}
}

// Two that would wait for each other: one is told.
func TestLockDeadlock(t *testing.T) {
	tree := toy.New()
	tree.Dir().AddFile("f", "text", 0o666)
	m := fstest.Mount(t, tree, fs.Options{})
	a := crossLock.Start(t, m.Dir, [2]int64{0, 10})
	b := crossLock.Start(t, m.Dir, [2]int64{10, 0})
	a.Ready()
	b.Ready()
	a.Go()
	b.Go()
	outA, errA := a.Wait()
	outB, errB := b.Wait()
	if errA != nil || errB != nil || outA == outB {
		t.Errorf("got %q, %v and %q, %v", outA, errA, outB, errB)
	}
}

// crossLock takes the first byte, then waits for the second.
var crossLock = fstest.Client("cross", func(dir string, at [2]int64) (string, error) {
	f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	l := lockStep{Kind: "posix", From: at[0], Len: 1}
	if err := l.set(int(f.Fd()), true, false, false); err != nil {
		return "", err
	}
	if err := fstest.Sync(); err != nil {
		return "", err
	}
	l.From = at[1]
	switch err := l.set(int(f.Fd()), true, true, false); err {
	case nil:
		return "got it", nil
	case unix.EDEADLK:
		return "deadlock", nil
	default:
		return "", fmt.Errorf("second lock: %w", err)
	}
})
