package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cortexfs/sandbox/wire"
)

// strange is the uid in the sandbox when the test is root: bwrap is never run as
// root.
const strange = 2001

// startSandboxed is startGuest below bwrap, as its init or as its init's child.
func startSandboxed(t *testing.T, asInit bool, start *wire.StartMsg) *fixture {
	t.Helper()
	bwrap, err := exec.LookPath("bwrap")
	if err == nil {
		probe := exec.Command(bwrap, "--unshare-all", "--ro-bind", "/", "/", "true")
		if os.Getuid() == 0 {
			probe.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strange, Gid: strange}}
		}
		err = probe.Run()
	}
	if err != nil {
		if strings.Contains(os.Getenv("CTX_REQUIRE"), "bwrap") {
			t.Fatalf("no working bwrap: %v", err)
		}
		t.Skipf("no working bwrap: %v", err)
	}
	// The test binary, where another uid can execute it.
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "ctxterm")
	if err := os.WriteFile(bin, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	conn, inside := pair(t)
	f := &fixture{t: t, start: start, done: make(chan error, 1), over: make(chan error, 1)}
	f.changed = sync.NewCond(&f.mu)
	f.host = wire.NewHost(conn, f)
	args := []string{"--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--ro-bind", bin, "/tmp/ctxterm",
		"--unshare-all", "--new-session", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "MARK", "inside"}
	if asInit {
		args = append(args, "--as-pid-1")
	}
	f.cmd = exec.Command(bwrap, append(args, "--argv0", "ctxterm-under-test", "/tmp/ctxterm")...)
	if out, _ := exec.Command(bwrap, "--help").CombinedOutput(); !bytes.Contains(out, []byte("--argv0")) {
		// Before 0.9: a shell that gives the name.
		f.cmd.Args = append([]string{bwrap}, append(args, "/usr/bin/bash", "-c", "exec -a ctxterm-under-test /tmp/ctxterm")...)
	}
	f.cmd.ExtraFiles = []*os.File{inside}
	var errs bytes.Buffer
	f.cmd.Stderr = &errs
	if os.Getuid() == 0 {
		f.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strange, Gid: strange}}
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inside.Close()
	go func() { f.done <- f.cmd.Wait() }()
	go func() {
		err := f.host.Serve()
		f.note(func() { f.ended = true })
		f.over <- err
	}()
	t.Cleanup(func() {
		f.host.Close()
		f.waitGone()
		if errs.Len() > 0 {
			t.Logf("ctxterm said: %s", errs.String())
		}
	})
	return f
}

func TestInSandbox(t *testing.T) {
	for _, asInit := range []bool{true, false} {
		t.Run(fmt.Sprintf("asInit=%v", asInit), func(t *testing.T) {
			t.Run("session", func(t *testing.T) {
				f := startSandboxed(t, asInit, shell(`tty; echo mark=$MARK; readlink /proc/1/exe >/dev/null; grep NoNewPrivs /proc/self/status; exit 5`))
				f.waitExit(5)
				for _, want := range []string{"/dev/pts/0", "mark=inside", "NoNewPrivs:\t1"} {
					if !strings.Contains(f.out.String(), want) {
						t.Errorf("output %q lacks %q", f.out.String(), want)
					}
				}
			})
			// Another process of the same uid gets nothing out of ctxterm (X20).
			t.Run("not dumpable", func(t *testing.T) {
				f := startSandboxed(t, asInit, shell(`
					p=$(grep PPid /proc/$$/status | tr -dc 0-9)
					for what in environ maps fd/3 mem exe; do
						if head -c1 /proc/$p/$what >/dev/null 2>&1; then echo reads $what; else echo refused $what; fi
					done`))
				f.waitExit(0)
				if strings.Contains(f.out.String(), "reads") || strings.Count(f.out.String(), "refused") != 5 {
					t.Errorf("output %q", f.out.String())
				}
			})
			for _, end := range []struct {
				name string
				do   func(f *fixture)
			}{
				{"terminate", func(f *fixture) { f.host.Terminate(100 * time.Millisecond) }},
				{"wire closed", func(f *fixture) { f.host.Close() }},
				{"exit", func(f *fixture) { f.input("\r") }},
				{"ctxterm killed", func(f *fixture) {
					for _, pid := range f.below() {
						cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
						if bytes.HasPrefix(cmdline, []byte("ctxterm-under-test")) {
							syscall.Kill(pid, syscall.SIGKILL)
						}
					}
				}},
			} {
				if end.name == "ctxterm killed" && !asInit {
					// bwrap's own init waits for the orphans then; the daemon kills it by its
					// pidfd. That is why the sandbox is started with --as-pid-1.
					continue
				}
				t.Run(end.name, func(t *testing.T) {
					f := startSandboxed(t, asInit, shell(strings.ReplaceAll(stubborn, "pid", "PID")+"read x"))
					f.until("all up", func() bool { return strings.Count(f.out.String(), "PID ") == 5 })
					pids := f.below()
					if len(pids) < 5 {
						t.Fatalf("only %d processes", len(pids))
					}
					end.do(f)
					f.waitGone()
					nobody(t, pids)
				})
			}
		})
	}
}

// below lists the processes below bwrap, as the host sees them.
func (f *fixture) below() []int {
	out, err := exec.CommandContext(context.Background(), "ps", "-eo", "pid=,ppid=").Output()
	if err != nil {
		f.t.Fatal(err)
	}
	parents := map[int]int{}
	for _, line := range strings.Split(string(out), "\n") {
		var pid, ppid int
		if n, _ := fmt.Sscan(line, &pid, &ppid); n == 2 {
			parents[pid] = ppid
		}
	}
	var pids []int
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if parents[p] == f.cmd.Process.Pid {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}
