package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/stage"
)

// members are the processes of the sandbox's pid namespace, as the host has them.
func (b *box) members() []int {
	b.t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.Init))
	if err != nil {
		return nil
	}
	return inNamespace(b.t, ns)
}

func inNamespace(t testing.TB, ns string) []int {
	t.Helper()
	list, err := os.ReadDir("/proc")
	check(t, err)
	var pids []int
	for _, e := range list {
		if have, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err == nil && have == ns {
			var pid int
			fmt.Sscan(e.Name(), &pid)
			// A dead process that its new parent has not reaped yet is none.
			if f, err := statFields(pid); err == nil && f[0] != "Z" {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// gone waits for the end of a sandbox and looks for what it left.
func (b *box) gone(ns string) {
	b.t.Helper()
	select {
	case <-b.Done():
	case <-time.After(20 * time.Second):
		b.t.Fatal("the sandbox is still there")
	}
	if left := inNamespace(b.t, ns); len(left) > 0 {
		b.t.Errorf("processes %v are left", left)
	}
}

// Whichever process is killed, and with whatever the agent left running, nothing
// of the sandbox survives.
func TestDeath(t *testing.T) {
	w := newWorld(t)
	for name, kill := range map[string]func(b *box) error{
		"kill":  func(b *box) error { return b.Kill(t.Context()) },
		"init":  func(b *box) error { return unix.Kill(b.Init, unix.SIGKILL) },
		"bwrap": func(b *box) error { return unix.Kill(b.PID, unix.SIGKILL) },
		"term":  func(b *box) error { return unix.Kill(b.PID, unix.SIGTERM) },
		"exit":  func(b *box) error { return b.in.Close() },
		"record": func(b *box) error {
			return KillRecord(t.Context(), b.Record())
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := w.start(w.spec())
			b.sh("for i in 1 2 3 4 5 6 7 8 9 10; do setsid nohup sleep 1000 >/dev/null 2>&1 & done")
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.Init))
			check(t, err)
			if n := len(b.members()); n < 11 {
				t.Errorf("%d processes before", n)
			}
			check(t, kill(b))
			b.gone(ns)
			if name == "exit" {
				if e := b.Exit(); e.Code != 0 || !e.Started || e.Err() != nil {
					t.Errorf("exit: %+v", e)
				}
			}
		})
	}
}

func TestDeathUser(t *testing.T) {
	if asUser(t) {
		TestDeath(t)
	}
}

// A start that fails, at whatever step, leaves no process, no mount and nothing
// in the owner's directories.
func TestFailureLeavesNothing(t *testing.T) {
	w := newWorld(t)
	before := tree(t, w.work)
	for name, c := range map[string]struct {
		change  func(*Spec)
		exit    int
		control string
		words   string
	}{
		"a missing source":  {func(s *Spec) { s.Rows[1].Source = w.base + "/none" }, 1, "workspace", "no such file"},
		"a missing cwd":     {func(s *Spec) { s.Cwd = "/none/here" }, 1, "cwd", "Can't chdir"},
		"a missing command": {func(s *Spec) { s.Command = []string{"/none"} }, 1, "", "execvp"},
		"a file on a directory": {func(s *Spec) {
			s.Rows = append(s.Rows, Row{Line: 4, Kind: Host, Source: w.self, Target: "/tmp", Recursive: true})
		}, 1, "mount", "a file goes on a file"},
		"a store not handed in": {func(s *Spec) { s.Rows[0].Store = "other" }, 2, "mount", "handed in"},
	} {
		t.Run(name, func(t *testing.T) {
			s := w.spec()
			s.Command = []string{TermPath, "probe", "serve"}
			c.change(&s)
			p := w.plan(s)
			b, err := w.run(p)
			if err == nil {
				t.Fatal("it started")
			}
			wantFault(t, err, c.exit, c.control, c.words)
			if b != nil && b.Exit().Started {
				t.Errorf("exit: %+v", b.Exit())
			}
		})
	}
	if kids := children(os.Getpid()); len(kids) > 0 {
		t.Errorf("children %v are left", kids)
	}
	if now := tree(t, w.work); now != before {
		t.Errorf("the workspace:\n%s", now)
	}
}

func TestFailureLeavesNothingUser(t *testing.T) {
	if asUser(t) {
		TestFailureLeavesNothing(t)
	}
}

// kill -9 of whatever runs at any moment of a start, by giving the start up:
// nothing is left.
func TestGivenUp(t *testing.T) {
	w := newWorld(t)
	s := w.spec()
	s.Command = []string{TermPath, "probe", "serve"}
	p := w.plan(s)
	f, done := w.files()
	defer done()
	begin := time.Now()
	r, err := Start(t.Context(), p, f)
	check(t, err)
	step := time.Since(begin) / 25 // so that some moments lie before the end and some after
	check(t, r.Kill(t.Context()))
	<-r.Done()
	started := 0
	for i := range 40 {
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(i)*step)
		r, err := Start(ctx, p, f)
		stop()
		if err == nil {
			started++
			check(t, r.Kill(t.Context()))
			<-r.Done()
		} else if !fault.Is(err, fault.TimedOut) && !errors.Is(err, context.DeadlineExceeded) && !fault.Is(err, fault.Unavailable) {
			t.Errorf("at step %d: %v", i, err)
		}
		if kids := children(os.Getpid()); len(kids) > 0 {
			t.Fatalf("at step %d: children %v", i, kids)
		}
	}
	t.Logf("%d of 40 had started", started)
	for _, pid := range processesWith(t, w.base) {
		t.Errorf("process %d is left", pid)
	}
}

// processesWith are processes whose mount table names the scratch directory and
// that are not in our namespace, and helpers that have lost their daemon.
func processesWith(t testing.TB, base string) []int {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/mnt")
	check(t, err)
	list, err := os.ReadDir("/proc")
	check(t, err)
	var pids []int
	for _, e := range list {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil {
			continue
		}
		if text, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && strings.HasPrefix(string(text), "cortexfs-") {
			if up, err := parentOf(pid); err == nil && up == 1 { // an orphan that has not mounted anything yet
				pids = append(pids, pid)
			}
			continue
		}
		if ns, err := os.Readlink("/proc/" + e.Name() + "/ns/mnt"); err != nil || ns == own {
			continue
		}
		mounts, err := stage.ReadMounts("/proc/" + e.Name() + "/mountinfo")
		if err != nil {
			continue
		}
		for i := range mounts {
			if strings.HasPrefix(mounts[i].Root, base) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// A daemon that comes back finds the sandbox by its record, and only that one.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.spec())
	rec := b.Record()
	r, err := Adopt(rec)
	check(t, err)
	check(t, r.Verify(b.plan))
	other := rec
	other.Init.Start++
	if _, err := Adopt(other); !fault.Is(err, fault.NoProcess) {
		t.Errorf("a process that started at another time: %v", err)
	}
	// A record that names somebody else's process ends nobody.
	sleep := exec.Command("sleep", "1000")
	check(t, sleep.Start())
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	wrong := Record{Bwrap: Process{sleep.Process.Pid, 1}, Init: Process{sleep.Process.Pid, 2}}
	check(t, KillRecord(t.Context(), wrong))
	if err := sleep.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("somebody else's process: %v", err)
	}
	check(t, r.Kill(t.Context()))
	<-r.Done()
	<-b.Done()
	if _, err := Adopt(rec); !fault.Is(err, fault.NoProcess) {
		t.Errorf("a sandbox that is gone: %v", err)
	}
}

// The read-back is about the running process: another plan is told apart.
func TestVerifyDiffers(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.spec())
	check(t, b.Verify(b.plan))
	p := *b.plan
	p.Spec.UID, p.Spec.GID = 2002, 2003
	err := b.Verify(&p)
	for _, words := range []string{`Uid is "2001 2001 2001 2001", not "2002`, `Gid is "2001`} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is not in %v", words, err)
		}
	}
	wantFault(t, err, 13, "uid", "read back")
	// A process of the host in its place shares every namespace.
	sleep := exec.Command("sleep", "1000")
	check(t, sleep.Start())
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	h, err := hold(sleep.Process.Pid)
	check(t, err)
	fake := &Running{Init: sleep.Process.Pid, init: h, Table: b.Table}
	err = fake.Verify(b.plan)
	for _, words := range append([]string{"NoNewPrivs", "Seccomp", "nothing is mounted"}, spaces...) {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q is not in %v", words, err)
		}
	}
}
