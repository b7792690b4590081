package agentd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/sandbox/guest"
)

// Host process and guest are processes of their own: the test binary runs
// itself under their names.
func TestMain(m *testing.M) {
	switch os.Args[0] {
	case "ctxagent":
		if err := Main(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "ctxterm-under-test":
		os.Exit(guest.Main())
	}
	if len(os.Args) == 3 && os.Args[1] == "dial-under-test" {
		os.Exit(dialOnce(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// dialOnce prints the first bytes that a watcher gets.
func dialOnce(path string) int {
	conn, err := net.Dial("unix", path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	io.WriteString(conn, "watch\n") // may find the server gone: it has refused already
	conn.SetReadDeadline(time.Now().Add(deadline))
	buf := make([]byte, 200)
	n, err := conn.Read(buf)
	fmt.Printf("%s", buf[:n])
	if err != nil {
		return 1
	}
	return 0
}

// deadline is for what must happen at all; no test measures with it.
const deadline = time.Minute

// strange is the uid of host process and guest when the test is root.
const strange = 2001

// world is one running agent without a sandbox around it.
type world struct {
	t                 *testing.T
	dir               string
	term              string
	ctl               string
	log               string
	client            *Client
	host              *os.Process
	guest             *exec.Cmd
	hostEnd, guestEnd chan struct{}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// binary is the test binary where another uid can execute it.
func binary(t *testing.T, dir string) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ctxagent")
	in, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, in, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func listen(t *testing.T, path string) *os.File {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func credential() *Credential {
	if os.Getuid() != 0 {
		return nil
	}
	return &Credential{UID: strange, GID: strange}
}

// start runs an agent whose session program is p.Program.
func start(t *testing.T, p Params) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "agentd")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, dir: dir,
		term: filepath.Join(dir, "term.sock"), ctl: filepath.Join(dir, "ctl.sock"), log: filepath.Join(dir, "log"),
		hostEnd: make(chan struct{}), guestEnd: make(chan struct{}),
	}
	t.Cleanup(w.cleanup)
	bin := binary(t, dir)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	hostWire, guestWire := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	defer hostWire.Close()
	defer guestWire.Close()
	logFile, err := os.Create(w.log)
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	f := Files{Wire: hostWire, Term: listen(t, w.term), Ctl: listen(t, w.ctl), Lock: lock, Log: logFile}
	defer f.Term.Close()
	defer f.Ctl.Close()

	p.Agent, p.Key, p.Session = "coder", "system.0.coder", "default"
	p.DaemonUID = uint32(os.Getuid())
	if p.Owner == 0 {
		p.Owner = strange
	}
	if w.host, err = Start(bin, &p, f, credential()); err != nil {
		t.Fatal(err)
	}
	go func() {
		w.host.Wait()
		close(w.hostEnd)
	}()
	w.guest = &exec.Cmd{
		Path: bin, Args: []string{"ctxterm-under-test"}, Dir: "/",
		Env:        []string{"PATH=/usr/bin:/bin", "TERM=xterm-256color"},
		ExtraFiles: []*os.File{guestWire}, Stderr: os.Stderr,
	}
	if c := credential(); c != nil {
		w.guest.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.UID, Gid: c.GID}}
	}
	if err := w.guest.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		w.guest.Wait()
		close(w.guestEnd)
	}()
	if w.client, err = Dial(testContext(t), w.ctl); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) cleanup() {
	if w.client != nil {
		w.client.Close()
		for range w.client.Events() {
		}
	}
	if w.host != nil {
		w.host.Kill()
		<-w.hostEnd
	}
	if w.guest != nil {
		w.gone(w.guestEnd, "ctxterm")
	}
	if w.t.Failed() {
		log, _ := os.ReadFile(w.log)
		w.t.Logf("log of the host process:\n%s", log)
	}
	os.RemoveAll(w.dir)
}

func (w *world) gone(end <-chan struct{}, what string) {
	w.t.Helper()
	select {
	case <-end:
	case <-time.After(deadline):
		w.t.Errorf("%s did not end", what)
	}
}

func (w *world) ready() {
	w.t.Helper()
	if err := w.client.WaitReady(testContext(w.t)); err != nil {
		w.t.Fatalf("not ready: %v", err)
	}
}

// dead reads events up to the last.
func (w *world) dead() Event {
	w.t.Helper()
	var last Event
	for {
		select {
		case ev, ok := <-w.client.Events():
			if !ok {
				if last.State != node.Dead {
					w.t.Errorf("last event is %+v", last)
				}
				w.gone(w.hostEnd, "ctxagent")
				w.gone(w.guestEnd, "ctxterm")
				return last
			}
			last = ev
		case <-time.After(deadline):
			w.t.Fatalf("never dead, last %+v", last)
		}
	}
}

func dash(script string) Params {
	return Params{Program: "/usr/bin/dash", Args: []string{"-c", script}}
}

// viewer is a raw client of the terminal socket.
type viewer struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
	got  bytes.Buffer
}

func (w *world) connect(line string) *viewer {
	w.t.Helper()
	conn, err := net.Dial("unix", w.term)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(conn, line); err != nil {
		w.t.Fatal(err)
	}
	return &viewer{t: w.t, conn: conn, in: bufio.NewReader(conn)}
}

func (v *viewer) until(want string) {
	v.t.Helper()
	buf := make([]byte, 32<<10)
	for !strings.Contains(v.got.String(), want) {
		n, err := v.in.Read(buf)
		v.got.Write(buf[:n])
		if err != nil {
			s := v.got.String()
			v.t.Fatalf("waiting for %q: %v; got %q", want, err, s[max(0, len(s)-300):])
		}
	}
}

func TestLife(t *testing.T) {
	w := start(t, dash(`echo hel""lo; read x; echo got $x; exit 7`))
	w.ready()
	v := w.connect("attach\n")
	v.until("hello")
	io.WriteString(v.conn, "word\n")
	v.until("got word")
	ev := w.dead()
	if ev.Exit == nil || *ev.Exit != 7 {
		t.Errorf("last event %+v has not exit code 7", ev)
	}
	if ev.Pid != w.host.Pid {
		t.Errorf("pid %d, want %d", ev.Pid, w.host.Pid)
	}
	if _, err := v.in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("client's stream ended with %v", err)
	}
}

func TestRefusedProgramIsNamed(t *testing.T) {
	w := start(t, Params{Program: "/usr/no-such-tool"})
	err := w.client.WaitReady(testContext(t))
	if !fault.Is(err, fault.NotExist) || !strings.Contains(err.Error(), "open /usr/no-such-tool inside") {
		t.Errorf("start ended with %v", err)
	}
	if ev := w.dead(); ev.Refused != "ENOENT" {
		t.Errorf("last event %+v", ev)
	}
}

func TestStop(t *testing.T) {
	w := start(t, dash(`trap "" TERM; echo up; while :; do sleep 1000; done`))
	w.ready()
	if err := w.client.Stop(testContext(t), 200*time.Millisecond); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if ev := w.dead(); !strings.Contains(ev.Reason, "stop asked for") {
		t.Errorf("last event %+v", ev)
	}
}

func TestSIGTERMIsAStop(t *testing.T) {
	w := start(t, dash(`echo up; exec sleep 1000`))
	w.ready()
	w.host.Signal(syscall.SIGTERM)
	if ev := w.dead(); ev.Exit == nil || *ev.Exit != 143 {
		t.Errorf("last event %+v", ev)
	}
}

func TestRunInside(t *testing.T) {
	w := start(t, dash(`echo up; exec sleep 1000`))
	w.ready()
	res, err := w.client.Run(testContext(t), RunRequest{Argv: []string{"sh", "-c", "id -u; exit 3"}})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintln(os.Getuid())
	if os.Getuid() == 0 {
		want = fmt.Sprintln(strange)
	}
	if res.Code != 3 || string(res.Stdout) != want {
		t.Errorf("got %+v", res)
	}
	if res, err := w.client.Run(testContext(t), RunRequest{Argv: []string{"nothing-here"}}); err != nil || res.Errno != "ENOENT" {
		t.Errorf("missing program: %+v, %v", res, err)
	}
	if _, err := w.client.Run(testContext(t), RunRequest{Argv: []string{"true"}, Timeout: time.Hour}); !fault.Is(err, fault.Invalid) {
		t.Errorf("an hour: %v", err)
	}
}

// The daemon goes away and comes back: the agent does not care, and the new
// connection begins with the current state.
func TestReconnect(t *testing.T) {
	w := start(t, dash(`echo up; exec sleep 1000`))
	w.ready()
	w.client.Close()
	for range w.client.Events() {
	}
	c, err := Dial(testContext(t), w.ctl)
	if err != nil {
		t.Fatal(err)
	}
	w.client = c
	if ev := <-c.Events(); ev.State != node.Ready || ev.Pid != w.host.Pid {
		t.Errorf("first event %+v", ev)
	}
	if err := c.Stop(testContext(t), 0); err != nil {
		t.Error(err)
	}
	w.dead()
}

// Each of the processes may be killed at any moment; the others follow, and the
// lock is free.
func TestKill(t *testing.T) {
	for _, c := range []struct {
		name string
		kill func(w *world)
	}{
		{"ctxagent", func(w *world) { w.host.Kill() }},
		{"ctxterm", func(w *world) { w.guest.Process.Kill() }},
		{"bwrap", func(w *world) {
			stand := exec.Command("sleep", "1000")
			if err := stand.Start(); err != nil {
				w.t.Fatal(err)
			}
			p, err := ProcOf(stand.Process.Pid)
			if err != nil {
				w.t.Fatal(err)
			}
			if err := w.client.Sandbox(testContext(w.t), Sandbox{Bwrap: p}); err != nil {
				w.t.Error(err)
			}
			stand.Process.Kill()
			stand.Wait()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := start(t, dash(`echo up; exec sleep 1000`))
			w.ready()
			v := w.connect("watch\n")
			v.until("up")
			c.kill(w)
			w.gone(w.hostEnd, "ctxagent")
			w.gone(w.guestEnd, "ctxterm")
			lock, err := os.Open(filepath.Join(w.dir, "lock"))
			if err != nil {
				t.Fatal(err)
			}
			defer lock.Close()
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
				t.Errorf("the lock of a dead agent: %v", err)
			}
			io.Copy(io.Discard, v.in) // the client's stream ended
		})
	}
}

func TestSandboxOfAnotherProcessIsRefused(t *testing.T) {
	w := start(t, dash(`echo up; exec sleep 1000`))
	w.ready()
	p, err := ProcOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	p.Start++
	if err := w.client.Sandbox(testContext(t), Sandbox{Bwrap: p}); !fault.Is(err, fault.NoProcess) {
		t.Errorf("a reused pid: %v", err)
	}
}

// Who is neither owner nor root, and who sits in a sandbox, gets one error line.
func TestWhoMayConnect(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	w := start(t, dash(`echo up; exec sleep 1000`))
	w.ready()
	self := filepath.Join(w.dir, "ctxagent") // the test binary, for other uids
	for _, c := range []struct {
		name string
		argv []string
		ok   bool
	}{
		{"owner", []string{"setpriv", "--reuid=2001", "--regid=2001", "--clear-groups"}, true},
		{"root", []string{"env"}, true},
		{"stranger", []string{"setpriv", "--reuid=2002", "--regid=2002", "--clear-groups"}, false},
		{"owner in a pid namespace", []string{"setpriv", "--reuid=2001", "--regid=2001", "--clear-groups", "unshare", "-Urpf"}, false},
		{"owner in a user namespace", []string{"setpriv", "--reuid=2001", "--regid=2001", "--clear-groups", "unshare", "-U"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv := append(c.argv, self, "dial-under-test", w.term)
			out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if refused := bytes.Contains(out, []byte(`"code":"EACCES"`)); refused == c.ok {
				t.Errorf("got %s", out)
			}
		})
	}
}

func TestHostProcessIsNeverRoot(t *testing.T) {
	for _, id := range []*Credential{{UID: 0, GID: 5}, {UID: 5, GID: 0}} {
		if _, err := Start("/nowhere", &Params{Key: "k"}, Files{}, id); err == nil || !strings.Contains(err.Error(), "never used") {
			t.Errorf("%+v: %v", *id, err)
		}
	}
}

func TestParamsAreStrict(t *testing.T) {
	for _, text := range []string{
		``, `{}`, `{"agent":"a"}`, `{"agent":"a","key":"k","more":1}`, `{"agent":"a","key":"k"} {}`,
		`{"agent":"a","key":"k","rows":70000}`, `{"agent":"` + strings.Repeat("a", maxParams) + `","key":"k"}`,
	} {
		if _, err := DecodeParams(strings.NewReader(text)); err == nil {
			t.Errorf("%.40q was taken", text)
		}
	}
	p, err := DecodeParams(strings.NewReader(`{"agent":"a","key":"k"}`))
	if err != nil || p.Program != DefaultProgram {
		t.Errorf("got %+v, %v", p, err)
	}
}
