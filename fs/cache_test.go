package fs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cortexfs/fs"
	"cortexfs/fs/fstest"
	"cortexfs/fs/fstest/toy"
	"cortexfs/node/vnode"
)

const long = time.Hour

func waitPushed(t *testing.T, m *fstest.M) {
	t.Helper()
	for range 100 { // each call is bounded; a busy machine may need several
		if m.Server.WaitPushed(context.Background()) {
			return
		}
	}
	t.Fatal("the queue does not empty")
}

// lookTwice looks a name up before and after the test has changed the tree.
var lookTwice = fstest.Client("look twice", func(dir, name string) ([2]string, error) {
	var got [2]string
	look := func() string {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			var num syscall.Errno
			errors.As(err, &num)
			return num.Error()
		}
		return fmt.Sprint(st.Size())
	}
	got[0] = look()
	got[0] = look() // now from the cache
	if err := fstest.Sync(); err != nil {
		return got, err
	}
	got[1] = look()
	return got, nil
})

// A missing name is remembered for the validity that the directory gives, and
// EntryChanged makes a new one appear; a removed one disappears likewise, and
// NodeChanged renews attributes.
func TestCachedNamesAndPush(t *testing.T) {
	const none = "no such file or directory"
	for _, c := range []struct {
		name   string
		change func(*toy.FS, *fs.Server)
		want   [2]string
	}{
		{"missing, not told", func(t *toy.FS, _ *fs.Server) { t.Dir().AddFile("f", "abc", 0o644) }, [2]string{none, none}},
		{"missing, told", func(t *toy.FS, s *fs.Server) {
			t.Dir().AddFile("f", "abc", 0o644)
			s.EntryChanged(t.Root(), "f")
		}, [2]string{none, "3"}},
		{"there, removed, not told", func(t *toy.FS, _ *fs.Server) { t.Dir().Drop("g") }, [2]string{"2", "2"}},
		{"there, removed, told", func(t *toy.FS, s *fs.Server) {
			t.Dir().Drop("g")
			s.EntryChanged(t.Root(), "g")
		}, [2]string{"2", none}},
		{"grown, not told", func(t *toy.FS, _ *fs.Server) { g(t).SetText("12345") }, [2]string{"2", "2"}},
		{"grown, told", func(t *toy.FS, s *fs.Server) {
			g(t).SetText("12345")
			s.NodeChanged(g(t).Value())
		}, [2]string{"2", "5"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := toy.New()
			tree.Counting = true
			tree.Dir().MissValid = long
			n := tree.Dir().AddFile("g", "12", 0o644)
			n.AttrValid, n.EntryValid = long, long
			nodes[tree] = n
			defer delete(nodes, tree)
			m := fstest.Mount(t, tree, fs.Options{})
			name := "g"
			if strings.HasPrefix(c.name, "missing") {
				name = "f"
			}
			r := lookTwice.Start(t, m.Dir, name)
			r.Ready()
			if n := tree.Count("lookup"); n != 1 {
				t.Errorf("%d lookups for two stats", n)
			}
			c.change(tree, m.Server)
			waitPushed(t, m)
			r.Go()
			got, err := r.Wait()
			if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

var nodes = map[*toy.FS]*toy.Node{}

func g(t *toy.FS) *toy.Node { return nodes[t] }

// The listing of a directory in memory is kept by the kernel until NodeChanged.
func TestCachedListing(t *testing.T) {
	tree := toy.New()
	tree.Counting = true
	tree.Dir().AttrValid = long
	for i := range 1000 {
		tree.Dir().AddFile(fmt.Sprintf("file%04d", i), "", 0o644)
	}
	m := fstest.Mount(t, tree, fs.Options{})
	r := listTwice.Start(t, m.Dir, 3)
	r.Ready()
	if n := tree.Count("readdir"); n != 1 {
		t.Errorf("%d listings made for 3 reads", n)
	}
	tree.Dir().AddFile("new", "", 0o644)
	m.Server.NodeChanged(tree.Root())
	waitPushed(t, m)
	r.Go()
	if got, err := r.Wait(); err != nil || got != [2]int{1000, 1001} {
		t.Errorf("got %v, %v", got, err)
	}
	if n := tree.Count("readdir"); n != 2 {
		t.Errorf("%d listings made", n)
	}
}

// One that depends on who asks, or that may wait, is not kept.
func TestListingNotKept(t *testing.T) {
	for _, waits := range []bool{false, true} {
		tree := toy.New()
		tree.Counting = true
		tree.Dir().Private, tree.Dir().Waits = !waits, waits
		tree.Dir().AttrValid = long
		m := fstest.Mount(t, tree, fs.Options{})
		r := listTwice.Start(t, m.Dir, 3)
		r.Ready()
		tree.Dir().AddFile("new", "", 0o644)
		r.Go()
		if got, err := r.Wait(); err != nil || got != [2]int{0, 1} {
			t.Errorf("waits=%v: got %v, %v", waits, got, err)
		}
		if n := tree.Count("readdir"); n != 4 {
			t.Errorf("waits=%v: %d listings made for 4 reads", waits, n)
		}
	}
}

var listTwice = fstest.Client("list twice", func(dir string, times int) (got [2]int, err error) {
	for range times {
		names, err := os.ReadDir(dir)
		if err != nil {
			return got, err
		}
		got[0] = len(names)
	}
	if err := fstest.Sync(); err != nil {
		return got, err
	}
	names, err := os.ReadDir(dir)
	got[1] = len(names)
	return got, err
})

// A lookup that hangs keeps the directory's lock, and an invalidation there has
// to wait for it. Nothing else does: other requests are answered, new changes
// are taken, WaitPushed gives up, and with the lookup's end all is pushed.
func TestPushNeverBlocks(t *testing.T) {
	tree := toy.New()
	d := tree.Dir().AddDir("d", 0o755)
	d.Waits = true
	d.MissValid = long
	tree.Dir().AddFile("f", "text", 0o644)
	started, end := make(chan struct{}), make(chan struct{})
	d.OnLookup = func(_ *vnode.Req, name string) (bool, error) {
		if name == "slow" {
			close(started)
			<-end
		}
		return false, nil
	}
	m := fstest.Mount(t, tree, fs.Options{})
	slow := readFile.Start(t, m.Dir, "d/slow")
	<-started
	for i := range 1000 {
		m.Server.EntryChanged(d.Value(), fmt.Sprint("name", i))
	}
	m.Server.NodeChanged(tree.Root())
	if m.Server.WaitPushed(context.Background()) {
		t.Error("pushed although the directory is locked")
	}
	if text := readFile.Must(t, m.Dir, "f"); text != "text" {
		t.Errorf("other file: %q", text)
	}
	close(end)
	if _, err := slow.Wait(); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("slow lookup: %v", err)
	}
	waitPushed(t, m)
}

// On a view, the kernel is told to ask again for all names, which takes no lock:
// a hanging lookup in the directory does not even delay it.
func TestViewPushTakesNoLock(t *testing.T) {
	tree := toy.New()
	tree.Counting = true
	d := tree.Dir().AddDir("d", 0o755)
	d.Waits = true
	f := d.AddFile("f", "12", 0o644)
	f.EntryValid, f.AttrValid, d.EntryValid, d.AttrValid = long, long, long, long
	started, end := make(chan struct{}), make(chan struct{})
	d.OnLookup = func(_ *vnode.Req, name string) (bool, error) {
		if name == "slow" {
			close(started)
			<-end
		}
		return false, nil
	}
	m := fstest.Mount(t, tree, fs.Options{View: true})
	defer close(end)
	r := lookTwice.Start(t, m.Dir, "d/f")
	r.Ready()
	slow := readFile.Start(t, m.Dir, "d/slow")
	<-started
	before := tree.Count("lookup")
	m.Server.EntryChanged(d.Value(), "f")
	if !m.Server.WaitPushed(context.Background()) {
		r.Kill(syscall.SIGKILL) // its lookup would hang behind the invalidation
		if major, minor := kernel(t); major > 6 || major == 6 && minor >= 16 {
			t.Fatal("not pushed")
		}
		t.Skip("needs FUSE_NOTIFY_INC_EPOCH, kernel 6.16")
	}
	r.Go()
	if got, err := r.Wait(); err != nil || got != [2]string{"2", "2"} {
		t.Errorf("got %q, %v", got, err)
	}
	if tree.Count("lookup") == before {
		t.Error("the name was not asked for again")
	}
	slow.Kill(syscall.SIGKILL)
}
