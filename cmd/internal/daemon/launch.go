package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// Exit codes of the cortexfs command (spec section 21).
const (
	exitOK    = 0
	exitUsage = 2
	exitMount = 32
	// exitAgain asks a supervisor for the next daemon: cortexfs.service restarts
	// for it (SIGHUP, spec section 21).
	exitAgain = 75
)

// startBound is how long a caller waits for the tree to answer.
const startBound = 10 * time.Second

// verdict is what the daemon process tells the waiting parent, once.
type verdict struct {
	OK      bool     `json:"ok"`
	Message string   `json:"message,omitempty"`
	Notes   []string `json:"notes,omitempty"`
}

// Main runs the cortexfs command and returns its exit code.
func Main(args []string) int {
	seal()
	c, err := ParseCommand(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "cortexfs: %s\ntry cortexfs --help\n", node.Escape(err.Error()))
		return exitUsage
	}
	switch {
	case c.Help:
		fmt.Print(Usage())
		return exitOK
	case c.Version:
		fmt.Println("cortexfs", node.Version)
		return exitOK
	}
	if c.Store, err = filepath.Abs(c.Store); err == nil {
		c.Mountpoint, err = filepath.Abs(c.Mountpoint)
	}
	if err != nil {
		return failed(err)
	}
	switch {
	case c.ready >= 0:
		return serveBehind(c)
	case c.Foreground:
		return serveFront(c)
	}
	return launch(c)
}

func failed(err error) int {
	fmt.Fprintf(os.Stderr, "cortexfs: %s\n", node.EscapeLines(err.Error()))
	return exitMount
}

// seal keeps the caller's descriptors out of every program that we start: the
// daemon process lives long, and a pipe of the caller held open by it would make
// `mount -a | cat` wait for ever (notes-fuse 1h).
func seal() {
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}

// serveFront is -f: this process is the daemon and logs to stderr.
func serveFront(c *Command) int {
	tell := func(v verdict) {
		for _, n := range v.Notes {
			fmt.Fprintf(os.Stderr, "cortexfs: note: %s\n", node.Escape(n))
		}
	}
	c.notify = newNotifier()
	switch err := serve(c, newLog(os.Stderr, c.Mount.Debug), tell); {
	case errors.Is(err, errKept) && c.notify != nil:
		return exitAgain
	case err != nil && !errors.Is(err, errKept):
		return failed(err)
	}
	return exitOK
}

// serveBehind is the daemon process of a parent that waits on a pipe.
func serveBehind(c *Command) int {
	pipe := os.NewFile(uintptr(c.ready), "ready")
	told := false
	tell := func(v verdict) {
		if told {
			return
		}
		told = true
		b, _ := json.Marshal(v)
		_, _ = pipe.Write(append(b, '\n'))
		pipe.Close()
	}
	// This program was executed by its descriptor's name, "exe"; ps and pidof are
	// to find it by its own.
	_ = os.WriteFile("/proc/self/comm", []byte("cortexfs"), 0)
	if err := serve(c, nil, tell); err != nil && !errors.Is(err, errKept) {
		tell(verdict{Message: err.Error()})
		return exitMount
	}
	return exitOK
}

// launch starts the daemon process and waits until the tree answers. Go cannot
// fork, so the daemon is this program again, with everything of the caller left
// behind: session, directory, terminal, descriptors, environment.
func launch(c *Command) int {
	deadline := time.Now().Add(startBound)
	r, w, err := os.Pipe()
	if err != nil {
		return failed(err)
	}
	argv := []string{c.Store, c.Mountpoint, readyFlag + "3"}
	for _, o := range c.Raw {
		argv = append(argv, "-o", o)
	}
	cmd := exec.Command("/proc/self/exe", argv...)
	cmd.Args[0] = "cortexfs"
	cmd.Dir = "/"
	cmd.Env = daemonEnv()
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return failed(fmt.Errorf("start the daemon process: %w", err))
	}
	w.Close()
	v, err := await(r, deadline)
	if err == nil && v.OK {
		err = answers(c.Mountpoint, deadline)
	}
	if err != nil {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return failed(err)
	}
	if !v.OK {
		_ = cmd.Wait()
		return failed(errors.New(v.Message))
	}
	for _, n := range v.Notes {
		fmt.Fprintf(os.Stderr, "cortexfs: note: %s\n", node.Escape(n))
	}
	_ = cmd.Process.Release()
	return exitOK
}

// daemonEnv is the daemon's environment: nothing, save for a user's daemon the
// places that the XDG specification keeps in variables.
func daemonEnv() []string {
	env := []string{}
	if os.Getuid() == 0 {
		return env
	}
	for _, k := range []string{"XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"} {
		if v := os.Getenv(k); filepath.IsAbs(v) {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// await reads the daemon's verdict from its pipe.
func await(r *os.File, deadline time.Time) (verdict, error) {
	defer r.Close()
	if err := r.SetReadDeadline(deadline); err != nil {
		return verdict{}, err
	}
	b, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return verdict{}, fmt.Errorf("the daemon did not come up within %v", startBound)
	}
	var v verdict
	if json.Unmarshal(b, &v) != nil {
		return verdict{}, errors.New("the daemon process ended without a word; its log may say why")
	}
	return v, nil
}

// answers reads MOUNTPOINT/status. It is the parent that looks: a daemon that
// touches its own mount waits for itself. The read runs beside us, because a
// mount that does not answer cannot be interrupted from here.
func answers(mountpoint string, deadline time.Time) error {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		b, err := os.ReadFile(filepath.Join(mountpoint, "status"))
		done <- result{b, err}
	}()
	select {
	case got := <-done:
		if got.err != nil {
			return fmt.Errorf("mounted, but it does not answer: %w", got.err)
		}
		if s := strings.TrimSuffix(string(got.text), "\n"); s != "ready" && s != "degraded" {
			return fault.Newf(fault.IO, "mounted, but its status is %q", s)
		}
		return nil
	case <-time.After(time.Until(deadline)):
		return fmt.Errorf("mounted, but it did not answer within %v", startBound)
	}
}
