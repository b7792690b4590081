package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// daemonRows starts the product on a store on tmpfs with 10,000 tools, and a
// running agent for what a view is measured by.
func (w *world) daemonRows(bin string, p peers) ([]row, error) {
	d, err := w.startDaemon(bin)
	if err != nil {
		return nil, err
	}
	// The tree shows a directory beside each tool; so does the tmpfs here.
	full, err := w.tmpfs("tmpfs-full")
	if err != nil {
		return nil, err
	}
	if err := w.fill(full, true); err != nil {
		return nil, err
	}
	view, err := d.viewMount()
	if err != nil {
		return nil, err
	}
	tool := "/tool/" + benchTool
	rows := w.readRows(d.at, p)
	rows = append(rows,
		row{"open+write+close, control¹", apart(w.client("owc", d.at, control), w.client("commit", d.store, ".")),
			"go-fuse", w.client("owc", p.gofuse, control), 1.3},
		w.pair("ls -f, 10,000 tools", "rd", d.at, "tmpfs", full, "/tool", 1),
		w.pair("ls -l, 10,000 tools", "rdl", d.at, "tmpfs", full, "/tool", 1),
		w.pair("missing name in a view's tool/", "missing", view, "go-fuse", p.gofuse, "/tool/none", 20),
		w.pair("stat, tool in a view", "stat", view, "tmpfs", p.tmpfs, tool, 0.8),
		row{"exec of a tool inside, warm", d.inside("exec", "/ctx"+tool), "tmpfs", d.inside("exec", "/tmp"+tool), 0.75},
	)
	fmt.Println("¹ the durable commit apart: what a replacement of a file in the store costs by itself is taken off")
	return rows, nil
}

// viewMount is where the running agent's own connection is mounted on the host.
func (d *daemon) viewMount() (string, error) {
	dir := make([]byte, 4096)
	n, err := unix.Getxattr(d.at, "user.cortexfs.runtime", dir)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if strings.HasPrefix(f[1], string(dir[:n])+"/") && strings.HasSuffix(f[1], ".coder/rootfs/ctx") {
			return f[1], nil
		}
	}
	return "", errors.New("the agent's view is not mounted")
}

// apart takes the time of one operation off that of another that contains it.
func apart(whole, part func() (float64, error)) func() (float64, error) {
	return func() (float64, error) {
		a, err := whole()
		if err != nil {
			return 0, err
		}
		b, err := part()
		if err != nil {
			return 0, err
		}
		rest := 1/a - 1/b
		if rest <= 0 {
			return 0, errors.New("the part took longer than the whole")
		}
		return 1 / rest, nil
	}
}

// A daemon is the product, mounted, with the agent coder running.
type daemon struct {
	w              *world
	bin, at, store string
}

func (w *world) startDaemon(bin string) (*daemon, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	base, err := w.tmpfs("store")
	if err != nil {
		return nil, err
	}
	d := &daemon{w: w, bin: bin, store: base + "/store"}
	if d.at, err = w.mountpoint("ctx"); err != nil {
		return nil, err
	}
	project := w.path("project")
	if err := errors.Join(os.Mkdir(d.store, 0o700), os.Mkdir(project, 0o755)); err != nil {
		return nil, err
	}
	cmd := exec.Command(bin+"/cortexfs", d.store, d.at, "-f")
	cmd.Dir = "/"
	log, err := os.Create(w.path("daemon.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr, cmd.Stdout = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w.procs = append(w.procs, &server{cmd, d.at})
	if err := d.ready(); err != nil {
		return nil, err
	}
	if _, err := d.ctx("bootstrap"); err != nil {
		return nil, err
	}
	return d, d.populate(project)
}

func (d *daemon) ready() error {
	for range 200 {
		if text, err := os.ReadFile(d.at + "/status"); err == nil && string(text) == "ready\n" {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	text, _ := os.ReadFile(d.w.path("daemon.log"))
	return fmt.Errorf("the daemon does not get ready:\n%s", text)
}

// ctx runs the command line.
func (d *daemon) ctx(args ...string) (string, error) {
	cmd := exec.Command(d.bin+"/ctx", args...)
	cmd.Dir = d.w.path("project")
	cmd.Env = append(os.Environ(), "CTX_ROOT="+d.at)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ctx %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// populate makes the tools, allows the measured one, and starts the agent.
func (d *daemon) populate(project string) error {
	for i := range manyTools {
		if err := os.WriteFile(d.at+"/tool/"+toolName(i), []byte("#!/bin/sh\n"), 0o755); err != nil {
			return err
		}
	}
	tool := d.at + "/tool/" + benchTool
	if err := os.WriteFile(tool, d.w.tool, 0o755); err != nil {
		return err
	}
	// A child may have no rule that its parent has not.
	rules := ""
	for _, agent := range []string{"architect", "coder"} {
		rule := "allow " + agent + "_t tool:" + benchTool + " execute\n"
		if err := appendTo(d.at+"/agent/"+agent+".d/policy", rule); err != nil {
			return err
		}
		rules += rule
	}
	if err := os.WriteFile(tool+".d/policy", []byte(rules), 0o644); err != nil {
		return err
	}
	client, err := os.ReadFile(d.w.path("client"))
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"client": client, "tool": d.w.tool} {
		if err := os.WriteFile(filepath.Join(project, name), data, 0o755); err != nil {
			return err
		}
	}
	if _, err := d.ctx("agent", "start", "coder"); err != nil {
		return err
	}
	_, err = d.ctx("agent", "exec", "coder", "--", "/usr/bin/install", "-D", "/workspace/tool", "/tmp/tool/"+benchTool)
	return err
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// inside is a measurement in the sandbox.
func (d *daemon) inside(op, path string) func() (float64, error) {
	return func() (float64, error) {
		cmd := exec.Command(d.bin+"/ctx", "agent", "exec", "coder", "--", "/workspace/client", op, path, fmt.Sprint(d.w.ms))
		cmd.Env = append(os.Environ(), "CTX_ROOT="+d.at)
		return rate(cmd)
	}
}
