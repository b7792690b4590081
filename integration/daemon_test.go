package integration

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// require skips a test whose facility this machine lacks, or fails it where
// CTX_REQUIRE names the facility.
func require(t *testing.T, facility string, have bool, why string) {
	t.Helper()
	if have {
		return
	}
	for _, word := range strings.Split(os.Getenv("CTX_REQUIRE"), ",") {
		if word == facility {
			t.Fatalf("%s is required: %s", facility, why)
		}
	}
	t.Skipf("no %s: %s", facility, why)
}

func needRootFUSE(t *testing.T) {
	t.Helper()
	require(t, "fuse", unix.Access("/dev/fuse", unix.R_OK|unix.W_OK) == nil, "/dev/fuse cannot be opened")
	if os.Geteuid() != 0 {
		t.Skip("this test changes uids: it runs as root")
	}
}

// daemon is a cortexfs under test with its store and mountpoint, both in a
// directory that vim and emacs do not take for a place of scratch files.
type daemon struct {
	t          *testing.T
	dir        string
	store, mnt string
	cmd        *exec.Cmd
	log        *bytes.Buffer
	done       chan error
	options    string
}

// newDaemon starts a root daemon on a new store; all is gone after the test.
func newDaemon(t *testing.T, options string) *daemon {
	t.Helper()
	needRootFUSE(t)
	dir, err := os.MkdirTemp("/run", "cortexfs-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, store: filepath.Join(dir, "store"), mnt: filepath.Join(dir, "ctx"), options: options}
	for path, mode := range map[string]os.FileMode{d.store: 0o700, d.mnt: 0o755} {
		if err := os.Mkdir(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		d.stop()
		if t.Failed() && d.log != nil {
			text := d.log.String()
			t.Logf("daemon's log (tail):\n%s", text[max(0, len(text)-4000):])
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("left behind: %v", err)
		}
		if text := mountsBelow(dir); text != "" {
			t.Errorf("mounts left behind:\n%s", text)
		}
	})
	d.start()
	return d
}

// start runs the daemon in the foreground and returns when its status answers.
func (d *daemon) start() {
	d.t.Helper()
	args := []string{d.store, d.mnt, "-f"}
	if d.options != "" {
		args = append(args, "-o", d.options)
	}
	d.log = &bytes.Buffer{}
	d.cmd = exec.Command(filepath.Join(bin, "cortexfs"), args...)
	d.cmd.Dir = "/"
	d.cmd.Env = []string{}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.done = make(chan error, 1)
	go func() { d.done <- d.cmd.Wait() }()
	deadline := time.Now().Add(patience)
	for {
		if text, err := os.ReadFile(filepath.Join(d.mnt, "status")); err == nil && string(text) == "ready\n" {
			return
		}
		select {
		case err := <-d.done:
			d.done <- err
			d.t.Fatalf("the daemon ended: %v\n%s", err, d.log)
		case <-time.After(5 * time.Millisecond): // a mount appearing is no event that can be waited for
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("no status after %v\n%s", patience, d.log)
		}
	}
}

// kill ends the daemon with SIGKILL and takes the dead mount away.
func (d *daemon) kill() {
	d.t.Helper()
	_ = d.cmd.Process.Kill()
	<-d.done
	d.done <- nil
	_ = unix.Unmount(d.mnt, unix.MNT_DETACH)
}

// stop ends the daemon with SIGTERM; afterwards nothing may be mounted.
func (d *daemon) stop() {
	if d.cmd == nil || d.cmd.Process == nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-d.done:
		d.done <- err
	case <-time.After(patience):
		d.t.Errorf("the daemon ignored SIGTERM for %v", patience)
		_ = d.cmd.Process.Signal(syscall.SIGQUIT)
		<-time.After(time.Second)
		_ = d.cmd.Process.Kill()
		<-d.done
		d.done <- nil
	}
	if text := mountsBelow(d.mnt); text != "" {
		d.t.Errorf("still mounted after the daemon's end:\n%s", text)
		_ = unix.Unmount(d.mnt, unix.MNT_DETACH)
	}
}

func mountsBelow(dir string) string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err.Error()
	}
	var found []string
	for _, line := range strings.Split(string(text), "\n") {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "\n")
}

// result of a program.
type result struct {
	code int
	out  string // both outputs
}

// who runs a program: ids of a caller. The zero value is root.
type who struct {
	uid, gid uint32
	groups   []uint32
}

// sh runs a bash script as somebody, with variables.
func (d *daemon) sh(as who, script string, vars ...string) result {
	d.t.Helper()
	return runProgram(d.t, as, vars, "bash", "-c", script)
}

func command(as who, vars []string, argv ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { defer cancel(); return cmd.Process.Kill() }
	cmd.WaitDelay = patience
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=" + bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8", "TERM=xterm"}, vars...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if as.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid, Groups: as.groups}
	}
	return cmd
}

func runProgram(t *testing.T, as who, vars []string, argv ...string) result {
	t.Helper()
	cmd := command(as, vars, argv...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%q: %v", argv, err)
	}
	return result{cmd.ProcessState.ExitCode(), string(out)}
}

// onTerminal runs a program on a PTY of its own and types keys when it has
// printed what comes before each of them.
func onTerminal(t *testing.T, as who, vars []string, keys []typed, argv ...string) result {
	t.Helper()
	cmd := command(as, vars, argv...)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	var seen bytes.Buffer
	deadline := time.Now().Add(patience)
	buf := make([]byte, 4096)
	from := 0
	for {
		for len(keys) > 0 {
			i := strings.Index(seen.String()[from:], keys[0].after)
			if i < 0 {
				break
			}
			from += i + len(keys[0].after)
			if _, err := io.WriteString(tty, keys[0].keys); err != nil {
				t.Fatal(err)
			}
			keys = keys[1:]
		}
		_ = tty.SetReadDeadline(deadline)
		n, err := tty.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				t.Fatalf("%q hangs; still to type %q; seen %q", argv, keys, seen.String())
			}
			break // EIO: the other side is closed
		}
	}
	_ = cmd.Wait()
	return result{cmd.ProcessState.ExitCode(), seen.String()}
}

// typed is what to type once something was printed.
type typed struct{ after, keys string }
