package peer

import (
	"bufio"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// TestMain lets the test program be its own client process.
func TestMain(m *testing.M) {
	if sock := os.Getenv("PEER_TEST_SOCKET"); sock != "" {
		os.Exit(client(sock))
	}
	os.Exit(m.Run())
}

// client connects, and in mode "leave" hands the connection to a child and goes.
func client(sock string) int {
	c, err := net.Dial("unix", sock)
	if err != nil {
		return 1
	}
	f, err := c.(*net.UnixConn).File()
	if err != nil {
		return 1
	}
	if os.Getenv("PEER_TEST_MODE") == "leave" {
		cmd := exec.Command("/bin/cat")
		cmd.Stdin = f // keeps the connection open
		cmd.Env = []string{}
		if cmd.Start() != nil {
			return 1
		}
		return 0
	}
	_, _ = bufio.NewReader(c).ReadString('\n')
	return 0
}

// connect starts a client process and accepts its connection.
func connect(t *testing.T, l *net.UnixListener, mode string, attr *syscall.SysProcAttr) (*net.UnixConn, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"PEER_TEST_SOCKET=" + l.Addr().String(), "PEER_TEST_MODE=" + mode}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		t.Skip("cannot start the client:", err)
	}
	nc, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); _ = cmd.Wait() })
	return nc, cmd
}

func listen(t *testing.T) *net.UnixListener {
	t.Helper()
	dir, err := os.MkdirTemp("", "peer")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); os.RemoveAll(dir) })
	return l
}

func TestHostProcess(t *testing.T) {
	l := listen(t)
	nc, cmd := connect(t, l, "", nil)
	p, err := Host(nc)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.PID != cmd.Process.Pid || p.UID != uint32(os.Getuid()) || !p.Alive() {
		t.Errorf("%+v", p)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if p.Alive() {
		t.Error("a dead peer lives")
	}
}

// TestConnectionHandedOn (notes-security X11): the process that connected is
// gone, somebody else holds the connection.
func TestConnectionHandedOn(t *testing.T) {
	l := listen(t)
	nc, cmd := connect(t, l, "leave", nil)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := Host(nc); !fault.Is(err, fault.Access) || !strings.Contains(err.Error(), "gone") {
		t.Errorf("%v", err)
	}
}

// TestOtherNamespaces: a process in another pid or user namespace is no person,
// whatever its uid.
func TestOtherNamespaces(t *testing.T) {
	for name, flags := range map[string]uintptr{"pid": unix.CLONE_NEWPID, "user": unix.CLONE_NEWUSER} {
		if os.Getuid() != 0 && name == "pid" {
			flags |= unix.CLONE_NEWUSER
		}
		attr := &syscall.SysProcAttr{Cloneflags: flags}
		if flags&unix.CLONE_NEWUSER != 0 {
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		}
		l := listen(t)
		nc, _ := connect(t, l, "", attr)
		if p, err := Host(nc); err == nil {
			p.Close()
			t.Errorf("a process in another %s namespace passes", name)
		} else if !fault.Is(err, fault.Access) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAliveOfNothing(t *testing.T) {
	if Alive(-1) {
		t.Error("a bad descriptor lives")
	}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if errors.Is(err, unix.ENOSYS) {
		t.Skip("no pidfd")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if !Alive(fd) {
		t.Error("we are dead")
	}
}
