package main

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

//go:embed c/*.c
var sources embed.FS

// Names and sizes of the tree that every server serves.
const (
	controlText = "auto\n"
	statusText  = "idle\n"
	manyTools   = 10000
	benchTool   = "bench.tool"
	control     = "/agent/coder.d/approval"
	status      = "/agent/coder.d/status"
)

// A world is the temporary directory with the C programs, the mountpoints and
// the processes behind them.
type world struct {
	dir   string
	ms    int
	tool  []byte // the static program
	procs []*server
}

type server struct {
	cmd *exec.Cmd
	at  string
}

func newWorld(ms int) (*world, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root: it mounts file systems")
	}
	dir, err := os.MkdirTemp("", "cortexfs-bench")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, ms: ms}
	for name, flags := range map[string][]string{"client": nil, "loop": nil, "tool": {"-static"}} {
		if err := w.compile(name, flags); err != nil {
			w.close()
			return nil, err
		}
	}
	if w.tool, err = os.ReadFile(w.path("tool")); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *world) path(parts ...string) string {
	return filepath.Join(append([]string{w.dir}, parts...)...)
}

func (w *world) compile(name string, flags []string) error {
	text, err := sources.ReadFile("c/" + name + ".c")
	if err != nil {
		return err
	}
	src := w.path(name + ".c")
	if err := os.WriteFile(src, text, 0o600); err != nil {
		return err
	}
	args := append([]string{"-O2", "-o", w.path(name), src}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc %s: %w\n%s", name, err, out)
	}
	return nil
}

// close ends every server and takes everything away.
func (w *world) close() {
	for i := len(w.procs) - 1; i >= 0; i-- {
		p := w.procs[i]
		if p.cmd != nil {
			_ = p.cmd.Process.Signal(syscall.SIGTERM)
		}
		if err := unix.Unmount(p.at, 0); err != nil {
			_ = unix.Unmount(p.at, unix.MNT_DETACH)
		}
		if p.cmd != nil {
			kill := time.AfterFunc(15*time.Second, func() { _ = p.cmd.Process.Kill() })
			_ = p.cmd.Wait()
			kill.Stop()
		}
	}
	_ = os.RemoveAll(w.dir)
}

// mountpoint makes an empty directory.
func (w *world) mountpoint(name string) (string, error) {
	at := w.path(name)
	return at, os.Mkdir(at, 0o755)
}

// start runs a server at a new mountpoint and waits until it says "ready".
func (w *world) start(name string, program string, args ...string) (string, error) {
	at, err := w.mountpoint(name)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(program, append(args, at)...)
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	w.procs = append(w.procs, &server{cmd, at})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return "", fmt.Errorf("%s did not start: %q %v", name, line, err)
	}
	return at, nil
}

// tmpfs mounts an empty one.
func (w *world) tmpfs(name string) (string, error) {
	at, err := w.mountpoint(name)
	if err != nil {
		return "", err
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return "", err
	}
	w.procs = append(w.procs, &server{nil, at})
	return at, nil
}

// fill makes the tree that every server serves; dirs: also the directory beside
// each tool that the product shows.
func (w *world) fill(at string, dirs bool) error {
	files := map[string]string{
		"agent/coder.d/approval": controlText, "agent/coder.d/status": statusText, "tool/" + benchTool: string(w.tool),
	}
	if err := errors.Join(os.MkdirAll(at+"/agent/coder.d", 0o755), os.Mkdir(at+"/tool", 0o755)); err != nil {
		return err
	}
	for i := range manyTools {
		files["tool/"+toolName(i)] = ""
		if dirs {
			if err := os.Mkdir(at+"/tool/"+toolName(i)+".d", 0o755); err != nil {
				return err
			}
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func toolName(i int) string { return fmt.Sprintf("tool%05d", i) }

// client is one measurement: an operation on a path below base for the world's
// time. The client stands in base, so that what lies above costs neither side.
func (w *world) client(op, base, path string) func() (float64, error) {
	return func() (float64, error) {
		cmd := exec.Command(w.path("client"), op, strings.TrimPrefix(path, "/"), fmt.Sprint(w.ms), controlText)
		cmd.Dir = base
		return rate(cmd)
	}
}

// rate runs a client and reads its counts.
func rate(cmd *exec.Cmd) (float64, error) {
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	var count, ns float64
	if _, err := fmt.Sscan(string(out), &count, &ns); err != nil {
		return 0, err
	}
	return count / ns * 1e9, nil
}

// measure takes the medians of the rounds: of each side and of the ratio. Which
// side goes first alternates.
func (r row) measure(rounds int) (ours, theirs, ratio float64, err error) {
	var a, b, q []float64
	for i := range rounds {
		var x, y float64
		if i%2 == 0 {
			if x, err = r.ours(); err == nil {
				y, err = r.theirs()
			}
		} else if y, err = r.theirs(); err == nil {
			x, err = r.ours()
		}
		if err != nil {
			return 0, 0, 0, err
		}
		a, b, q = append(a, x), append(b, y), append(q, x/y)
	}
	return median(a), median(b), median(q), nil
}

func median(v []float64) float64 {
	sort.Float64s(v)
	if len(v)%2 == 1 {
		return v[len(v)/2]
	}
	return (v[len(v)/2-1] + v[len(v)/2]) / 2
}
