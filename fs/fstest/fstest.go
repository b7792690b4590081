// Package fstest mounts a vnode.FS in a temporary directory for a test and runs
// the client's side in a child process: a Go process that opens files of its own
// mount waits for itself, beyond kill -9.
//
// A client function is registered in a package variable of the test, and
// TestMain hands over to Main:
//
//	var readFile = fstest.Client("read", func(dir string, name string) (string, error) {
//		b, err := os.ReadFile(filepath.Join(dir, name))
//		return string(b), err
//	})
//
//	func TestMain(m *testing.M) { fstest.Main(m) }
//
//	func TestRead(t *testing.T) {
//		m := fstest.Mount(t, tree, fs.Options{})
//		text, err := readFile.Run(t, m.Dir, "file")
//	}
//
// Argument and result travel as JSON. An error comes back as an *Error with its
// errno, so that errors.Is(err, syscall.EACCES) works.
package fstest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"cortexfs/fs"
	"cortexfs/node/vnode"
)

// Names of the environment of a child.
const (
	envName = "CORTEXFS_FSTEST_CLIENT"
	envDir  = "CORTEXFS_FSTEST_DIR"
)

// clientBound ends a child that hangs: a test of a file system must fail, not
// wait.
const clientBound = 60 * time.Second

var clients = map[string]func(dir string, in []byte) (any, error){}

// A Func is a registered client: a function that runs in a child process.
type Func[In, Out any] struct{ name string }

// Client registers f under a name, which must be unique in the test binary. Call
// it in a package variable's initialiser.
func Client[In, Out any](name string, f func(dir string, in In) (Out, error)) Func[In, Out] {
	if _, taken := clients[name]; taken {
		panic("fstest: client " + name + " is registered twice")
	}
	clients[name] = func(dir string, text []byte) (any, error) {
		var in In
		if err := json.Unmarshal(text, &in); err != nil {
			return nil, err
		}
		return f(dir, in)
	}
	return Func[In, Out]{name}
}

// Main runs a client if this process is a child, else the tests. It does not
// return.
func Main(m *testing.M) {
	switch name := os.Getenv(envName); name {
	case "":
	case reaper:
		os.Exit(reap(os.Getenv(envDir)))
	default:
		os.Exit(runClient(name))
	}
	os.Exit(m.Run())
}

// Error is an error of a client.
type Error struct {
	Text  string
	Errno syscall.Errno // 0: not from a system call
}

func (e *Error) Error() string { return e.Text }

// Unwrap gives the errno.
func (e *Error) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

type answer struct {
	Out   json.RawMessage
	Error *Error
}

// runClient is the child: argument on stdin, answer on descriptor 3.
func runClient(name string) int {
	f := clients[name]
	if f == nil {
		fmt.Fprintln(os.Stderr, "fstest: no client", name)
		return 2
	}
	dir := os.Getenv(envDir)
	os.Unsetenv(envName)
	os.Unsetenv(envDir)
	var in bytes.Buffer
	if _, err := in.ReadFrom(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "fstest:", err)
		return 2
	}
	out, err := f(dir, in.Bytes())
	var a answer
	if err != nil {
		a.Error = &Error{Text: err.Error()}
		errors.As(err, &a.Error.Errno)
	}
	if a.Out, err = json.Marshal(out); err != nil {
		a.Error = &Error{Text: "fstest: " + err.Error()}
	}
	if err := json.NewEncoder(os.NewFile(3, "answer")).Encode(a); err != nil {
		fmt.Fprintln(os.Stderr, "fstest:", err)
		return 2
	}
	return 0
}

// Sync is for clients: it tells the test that the client has come so far (Ready)
// and waits until the test lets it go on (Go).
func Sync() error {
	if _, err := syscall.Write(4, []byte{'r'}); err != nil {
		return err
	}
	n, err := syscall.Read(5, make([]byte, 1))
	if err == nil && n == 0 {
		err = errors.New("fstest: the test has ended")
	}
	return err
}

// An Option changes the child process.
type Option func(*exec.Cmd)

// As runs the child with a uid, a gid and no other groups.
func As(uid, gid uint32) Option {
	return func(c *exec.Cmd) {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
	}
}

// Program runs a copy of the test's binary, one that the child's uid can reach.
func Program(path string) Option {
	return func(c *exec.Cmd) { c.Path = path }
}

// OwnMounts gives the child a mount namespace of its own.
func OwnMounts() Option {
	return func(c *exec.Cmd) { c.SysProcAttr.Unshareflags |= syscall.CLONE_NEWNS }
}

// Run runs the client in a child process with dir and in. A child that dies or
// hangs ends the test; the error is the function's own.
func (f Func[In, Out]) Run(t testing.TB, dir string, in In, options ...Option) (Out, error) {
	t.Helper()
	r := f.Start(t, dir, in, options...)
	return r.Wait()
}

// Must is Run for a client that has to succeed.
func (f Func[In, Out]) Must(t testing.TB, dir string, in In, options ...Option) Out {
	t.Helper()
	out, err := f.Run(t, dir, in, options...)
	if err != nil {
		t.Fatalf("%s: %v", f.name, err)
	}
	return out
}

// Call is Run for a client that starts another one, where there is no test.
func (f Func[In, Out]) Call(dir string, in In, options ...Option) (out Out, err error) {
	r, err := f.start(dir, in, options)
	if err != nil {
		return out, err
	}
	defer r.stop()
	out, err, broken := r.result()
	if broken != nil {
		return out, broken
	}
	return out, err
}

// Running is a client that runs.
type Running[Out any] struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	answer chan []byte
	stderr *bytes.Buffer
	done   bool
	ready  *os.File // a byte for each Sync of the client
	goOn   *os.File
}

// Start starts the client and does not wait for it. It is killed at the end of
// the test.
func (f Func[In, Out]) Start(t testing.TB, dir string, in In, options ...Option) *Running[Out] {
	t.Helper()
	r, err := f.start(dir, in, options)
	if err != nil {
		t.Fatalf("start of client %s: %v", f.name, err)
	}
	r.t = t
	t.Cleanup(r.stop)
	return r
}

func (f Func[In, Out]) start(dir string, in In, options []Option) (*Running[Out], error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var pr, pw, readyR, readyW, goR, goW *os.File
	for _, p := range []struct{ r, w **os.File }{{&pr, &pw}, {&readyR, &readyW}, {&goR, &goW}} {
		if *p.r, *p.w, err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), clientBound)
	r := &Running[Out]{name: f.name, cancel: cancel, answer: make(chan []byte, 1), stderr: &bytes.Buffer{}, ready: readyR, goOn: goW}
	r.cmd = exec.CommandContext(ctx, exe)
	r.cmd.Dir = "/"
	// A child with the race detector would sleep a second before it ends.
	r.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", envName+"="+f.name, envDir+"="+dir)
	r.cmd.Stdin = bytes.NewReader(text)
	r.cmd.Stderr = r.stderr
	r.cmd.ExtraFiles = []*os.File{pw, readyW, goR}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.cmd.WaitDelay = time.Second
	for _, o := range options {
		o(r.cmd)
	}
	err = r.cmd.Start()
	for _, f := range r.cmd.ExtraFiles {
		f.Close()
	}
	if err != nil {
		cancel()
		for _, f := range []*os.File{pr, readyR, goW} {
			f.Close()
		}
		return nil, err
	}
	go func() {
		var b bytes.Buffer
		_, _ = b.ReadFrom(pr) // ends with the child
		pr.Close()
		r.answer <- b.Bytes()
	}()
	return r, nil
}

// PID is the child's process id.
func (r *Running[Out]) PID() int { return r.cmd.Process.Pid }

// Kill sends the child a signal.
func (r *Running[Out]) Kill(sig syscall.Signal) { _ = r.cmd.Process.Signal(sig) }

// Ready waits until the client is at its next Sync.
func (r *Running[Out]) Ready() {
	r.t.Helper()
	if _, err := r.ready.Read(make([]byte, 1)); err != nil {
		_, err := r.Wait()
		r.t.Fatalf("client %s ended before its Sync: %v", r.name, err)
	}
}

// Go lets it go on.
func (r *Running[Out]) Go() {
	r.t.Helper()
	if _, err := r.goOn.Write([]byte{'g'}); err != nil {
		r.t.Fatalf("client %s: %v", r.name, err)
	}
}

func (r *Running[Out]) stop() {
	defer r.ready.Close()
	defer r.goOn.Close()
	if !r.done {
		r.cancel()
		_ = r.cmd.Wait()
		<-r.answer
	}
}

// Wait waits for the child and gives its result.
func (r *Running[Out]) Wait() (Out, error) {
	r.t.Helper()
	out, err, broken := r.result()
	if broken != nil {
		r.t.Fatal(broken)
	}
	return out, err
}

// result is what the child answered; broken says that it did not.
func (r *Running[Out]) result() (out Out, err, broken error) {
	werr := r.cmd.Wait()
	r.done = true
	r.cancel()
	text := <-r.answer
	if werr != nil {
		return out, nil, fmt.Errorf("client %s: %w\n%s", r.name, werr, r.stderr)
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return out, nil, fmt.Errorf("client %s: bad answer %q: %w\n%s", r.name, text, err, r.stderr)
	}
	if a.Error != nil {
		err = a.Error
	}
	if len(a.Out) > 0 {
		if uerr := json.Unmarshal(a.Out, &out); uerr != nil && err == nil {
			return out, nil, fmt.Errorf("client %s: %w", r.name, uerr)
		}
	}
	return out, err, nil
}

// M is a mounted tree.
type M struct {
	Dir    string
	Server *fs.Server
}

// Mount mounts tree in a temporary directory and takes it away at the end of the
// test, however that ends; the test binary must hand over to Main. What o leaves open: AllowOther and DefaultPermissions
// where the test runs as root, and a log that goes to the test.
func Mount(t testing.TB, tree vnode.FS, o fs.Options) *M {
	t.Helper()
	Require(t)
	o.Mountpoint = t.TempDir()
	o.FS = tree
	if os.Geteuid() == 0 {
		o.AllowOther = true
		Open(t, o.Mountpoint)
	}
	o.DefaultPermissions = true
	if o.Log == nil {
		o.Log = zaptest.NewLogger(t)
	}
	s, err := fs.Mount(o)
	if err != nil {
		t.Fatal(err)
	}
	callOff := startReaper(t, s.Mountpoint())
	t.Cleanup(func() {
		defer callOff()
		if err := s.TryUnmount(); err != nil {
			if err := s.Abort(); err != nil {
				t.Errorf("unmount: %v", err)
			}
		}
		if err := s.Wait(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return &M{Dir: s.Mountpoint(), Server: s}
}

// Open lets other uids reach a temporary directory of a test.
func Open(t testing.TB, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// reaper is the name of the child that takes a mount away when the test process
// dies without its cleanups: a timeout, a crash, a kill.
const reaper = "fstest: reaper"

// reap waits for the end of the test process, or for the byte that says that
// there is nothing to do.
func reap(dir string) int {
	if n, _ := os.Stdin.Read(make([]byte, 1)); n == 1 {
		return 0
	}
	if _, err := fs.ClearDead(dir, "cortexfs"); err != nil {
		fmt.Fprintln(os.Stderr, "fstest:", err)
		return 1
	}
	_ = os.Remove(dir)
	_ = os.Remove(filepath.Dir(dir))
	return 0
}

// startReaper returns what calls it off.
func startReaper(t testing.TB, dir string) func() {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), envName+"="+reaper, envDir+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_, _ = in.Write([]byte{1})
		in.Close()
		_ = cmd.Wait()
	}
}

// Require skips a test where there is no usable FUSE, or fails it where the
// environment says that there must be (CTX_REQUIRE contains "fuse").
func Require(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
		return
	}
	if strings.Contains(os.Getenv("CTX_REQUIRE"), "fuse") {
		t.Fatalf("no FUSE, but CTX_REQUIRE asks for it: %v", err)
	}
	t.Skipf("no FUSE: %v", err)
}
