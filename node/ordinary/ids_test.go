package ordinary

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

func TestParseStatus(t *testing.T) {
	const head = "Name:\tsh\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\n"
	for _, c := range []struct {
		text   string
		groups []uint32
		fsuid  uint32
		bad    bool
	}{
		{head + "Groups:\t10 20 4294967294 \nNStgid:\t1\n", []uint32{10, 20, 4294967294}, 4, false},
		{head + "Groups:\t \nNStgid:\t1\n", nil, 4, false},
		{head, nil, 0, true},
		{"Groups:\t1\n", nil, 0, true},
		{head + "Groups:\tx\n", nil, 0, true},
		{"", nil, 0, true},
		// A process chooses its name; the kernel escapes a newline in it.
		{"Name:\t\\nGroups:\t0\n" + head + "Groups:\t7\n", []uint32{7}, 4, false},
	} {
		groups, fsuid, err := parseStatus([]byte(c.text))
		if (err != nil) != c.bad || !slices.Equal(groups, c.groups) || fsuid != c.fsuid {
			t.Errorf("%q: %v %d %v", c.text, groups, fsuid, err)
		}
	}
}

// TestTwoUsers: the kernel decides, as it would for a process of each.
func TestTwoUsers(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	a, b := as(alice), as(bob)
	w.home(a)
	w.home(b)
	if err := w.fs.MakeShared("team", alice, alice, 0o777); err != nil {
		t.Fatal(err)
	}
	dir := w.node(a, "shared/team/data")
	secret := put(t, a, dir, "secret", "s", 0o600)
	open := put(t, a, dir, "open", "o", 0o644)
	suid := put(t, a, dir, "suid", "x", 0o666)
	if _, err := suid.Setattr(a, vnode.SetAttr{Mode: ptr[uint32](0o4777)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		do   func() error
		want fault.Kind // IO: none
	}{
		{"foreign home", func() error { _, err := w.fs.Node(b, "home/2001/agent"); return err }, fault.Access},
		{"own home", func() error { w.node(b, "home/2002/agent"); return nil }, 0},
		{"read a private file", func() error { _, err := slurp(b, secret); return err }, fault.Access},
		{"read a public file", func() error { _, err := slurp(b, open); return err }, 0},
		{"write a public file", func() error { _, _, err := open.Open(b, unix.O_WRONLY); return err }, fault.Access},
		{"truncate", func() error { _, err := open.Setattr(b, vnode.SetAttr{Size: ptr[uint64](0)}); return err }, fault.Access},
		{"chmod", func() error { _, err := open.Setattr(b, vnode.SetAttr{Mode: ptr[uint32](0o777)}); return err }, fault.Perm},
		{"steal", func() error { _, err := open.Setattr(b, vnode.SetAttr{UID: ptr[uint32](bob)}); return err }, fault.Perm},
		{"give away", func() error { _, err := open.Setattr(a, vnode.SetAttr{UID: ptr[uint32](bob)}); return err }, fault.Perm},
		{"foreign group", func() error { _, err := open.Setattr(a, vnode.SetAttr{GID: ptr[uint32](bob)}); return err }, fault.Perm},
		{"touch a file one may write", func() error {
			_, err := suid.Setattr(b, vnode.SetAttr{Atime: ptr(time.Now()), Mtime: ptr(time.Now())})
			return err
		}, 0},
		{"touch a file one may read", func() error {
			_, err := open.Setattr(b, vnode.SetAttr{Atime: ptr(time.Now()), Mtime: ptr(time.Now())})
			return err
		}, fault.Access},
		{"forge a time", func() error {
			_, err := suid.Setattr(b, vnode.SetAttr{Atime: ptr(time.Now()), Mtime: ptr(time.Unix(1, 0))})
			return err
		}, fault.Perm},
		{"xattr", func() error { return open.Setxattr(b, "user.x", []byte("x"), 0) }, fault.Access},
		{"take setuid away from a file one may write", func() error {
			_, err := suid.Setattr(b, vnode.SetAttr{Mode: ptr[uint32](0o777)})
			return err
		}, 0},
		{"take more away", func() error { _, err := suid.Setattr(b, vnode.SetAttr{Mode: ptr[uint32](0o700)}); return err }, fault.Perm},
		{"root may", func() error {
			_, err := open.Setattr(as(0), vnode.SetAttr{UID: ptr[uint32](bob), GID: ptr[uint32](bob)})
			return err
		}, 0},
		{"no such uid", func() error { _, err := w.fs.Node(as(^uint32(0)), "home"); return err }, fault.Access},
	} {
		err := c.do()
		if c.want == 0 && err != nil || c.want != 0 && !fault.Is(err, c.want) {
			t.Errorf("%s: %v, want kind %v", c.name, err, c.want)
		}
	}
}

func TestSetgidDirectory(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	if err := w.fs.MakeShared("team", alice, 3000, 0o2777); err != nil {
		t.Fatal(err)
	}
	dir := w.node(nil, "shared/team/data")
	n := put(t, as(bob), dir, "f", "", 0o640)
	e, err := dir.Mkdir(as(bob), "d", 0o750)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Node.(*dnode).Unref()
	if a, _ := n.Attr(nil); a.UID != bob || a.GID != 3000 || a.Mode != 0o640 {
		t.Errorf("file: %+v", a)
	}
	if a, _ := e.Node.Attr(nil); a.UID != bob || a.GID != 3000 || a.Mode != 0o2750 {
		t.Errorf("directory: %+v", a)
	}
}

// TestWriteDropsSetuid: the daemon writes as the opener, not as root, for whom
// the kernel keeps the bit.
func TestWriteDropsSetuid(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	r := as(alice)
	n := put(t, r, w.home(r), "prog", "x", 0o755)
	if _, err := n.Setattr(r, vnode.SetAttr{Mode: ptr[uint32](0o6755)}); err != nil {
		t.Fatal(err)
	}
	h, _, err := n.Open(r, unix.O_WRONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release(r)
	// The request may carry another id: a descriptor can be handed on.
	if _, err := h.(vnode.Writer).Write(as(0), []byte("y"), 0); err != nil {
		t.Fatal(err)
	}
	if a, _ := n.Attr(r); a.Mode != 0o755 {
		t.Errorf("mode %o", a.Mode)
	}
}

func TestExecWithoutRead(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	if err := w.fs.MakeShared("team", alice, alice, 0o755); err != nil {
		t.Fatal(err)
	}
	n := put(t, as(alice), w.node(as(alice), "shared/team/data"), "prog", "x", 0o711)
	if _, err := slurp(as(bob), n); !fault.Is(err, fault.Access) {
		t.Errorf("read: %v", err)
	}
	h, _, err := n.Open(as(bob), vnode.FlagExec)
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	h.Release(nil)
	if _, err := n.Setattr(as(alice), vnode.SetAttr{Mode: ptr[uint32](0o700)}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := n.Open(as(bob), vnode.FlagExec); !fault.Is(err, fault.Access) {
		t.Errorf("exec without the bit: %v", err)
	}
}

// sleeper is a process with the given ids, to be named by a request.
func sleeper(t *testing.T, uid uint32, groups ...uint32) uint32 {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return uint32(cmd.Process.Pid)
}

func TestCallersGroups(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	if err := w.fs.MakeShared("team", 0, 4242, 0o2770); err != nil {
		t.Fatal(err)
	}
	member, outsider := sleeper(t, alice, 4242, 77), sleeper(t, alice, 77)
	with := func(uid, tid uint32) *vnode.Req {
		return &vnode.Req{Ctx: context.Background(), UID: uid, GID: uid, TID: tid}
	}
	dir := w.node(nil, "shared/team/data")
	for _, c := range []struct {
		name string
		r    *vnode.Req
		want fault.Kind
	}{
		{"member", with(alice, member), 0},
		{"not a member", with(alice, outsider), fault.Access},
		{"member, thread unknown", with(alice, 0), fault.Access},
		{"another's thread", with(bob, member), fault.Access},
		{"no such thread", with(alice, 1<<22-1), fault.Access},
	} {
		err := drop(dir.Mkdir(c.r, "made-by-"+strings.ReplaceAll(c.name, " ", "-"), 0o700))
		if c.want == 0 && err != nil || c.want != 0 && !fault.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	err := drop(dir.Mkdir(&vnode.Req{Ctx: gone, UID: alice, GID: alice, TID: member}, "x", 0o700))
	if !fault.Is(err, fault.Interrupted) {
		t.Errorf("a caller who is gone: %v", err)
	}
}

// TestThreadsKeepRoot (spec section 24, notes-security X4): while operations of
// users run, every thread's real, effective and saved ids stay 0, and afterwards
// the file-system ids and groups do too.
func TestThreadsKeepRoot(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	dirs := map[uint32]*dnode{alice: w.home(as(alice)), bob: w.home(as(bob))}
	member := sleeper(t, alice, 4242)
	var stop atomic.Bool
	var users, looker sync.WaitGroup
	var sawUser atomic.Int64
	looker.Go(func() {
		for !stop.Load() {
			for task, line := range taskLines(t) {
				ids := strings.Fields(line[0])[1:]
				if ids[0] != "0" || ids[1] != "0" || ids[2] != "0" {
					t.Errorf("task %s: %s", task, line[0])
				}
				if ids[3] != "0" {
					sawUser.Add(1)
				}
			}
		}
	})
	for g := range 4 {
		for uid, dir := range dirs {
			users.Go(func() {
				r := as(uid)
				if uid == alice {
					r.TID = member
				}
				for i := range 150 {
					name := fmt.Sprint("d", g, ".", i)
					if err := drop(dir.Mkdir(r, name, 0o700)); err != nil {
						t.Error(err)
					}
					if _, err := dir.ReadDir(r); err != nil {
						t.Error(err)
					}
					if err := dir.Rmdir(r, name); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	users.Wait()
	stop.Store(true)
	looker.Wait()
	want, caps := taskGroups(t), ""
	for task, line := range taskLines(t) {
		if caps == "" {
			caps = line[2]
		}
		if line[2] != caps {
			t.Errorf("task %s afterwards: %q, another has %q", task, line[2], caps)
		}
		if ids := strings.Fields(line[0])[1:]; strings.Join(ids, " ") != "0 0 0 0" {
			t.Errorf("task %s afterwards: %s", task, line[0])
		}
		if line[1] != want {
			t.Errorf("task %s afterwards: %q, want %q", task, line[1], want)
		}
	}
	t.Logf("%d looks at a thread with a user's fsuid", sawUser.Load())
}

// taskLines are the Uid, Groups and CapEff lines of every thread.
func taskLines(t *testing.T) map[string][3]string {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Error(err)
	}
	out := map[string][3]string{}
	for _, task := range tasks {
		text, err := os.ReadFile(filepath.Join("/proc/self/task", task.Name(), "status"))
		if err != nil {
			continue // ended meanwhile
		}
		var l [3]string
		for line := range strings.SplitSeq(string(text), "\n") {
			if strings.HasPrefix(line, "Uid:") {
				l[0] = line
			}
			if strings.HasPrefix(line, "Groups:") {
				l[1] = line
			}
			if strings.HasPrefix(line, "CapEff:") {
				l[2] = line
			}
		}
		out[task.Name()] = l
	}
	return out
}

// taskGroups is the Groups line of the thread that this process began with, which
// ran no operation if the test has its own.
func taskGroups(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	line := "Groups:\t"
	slices.Sort(groups)
	for _, g := range groups {
		line += fmt.Sprint(g, " ")
	}
	if len(groups) == 0 {
		line += " "
	}
	return line
}

// TestNoCapabilities: what runs for a user has none at all.
func TestNoCapabilities(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	effective := func() (caps [2]unix.CapUserData) {
		if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
			t.Error(err)
		}
		return caps
	}
	look := func() error {
		if caps := effective(); caps[0].Effective|caps[1].Effective != 0 {
			t.Errorf("as a user: %x", caps)
		}
		return nil
	}
	before := effective()
	if err := w.fs.as(as(alice), look); err != nil {
		t.Error(err)
	}
	if err := w.fs.asUID(alice, look); err != nil {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = w.fs.as(as(alice), func() error { panic("in a handler") })
	}()
	if after := effective(); after != before || unix.Getuid() != 0 {
		t.Errorf("before %x, after %x", before, after)
	}
}
