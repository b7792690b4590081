package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
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
	rows := w.readRows(d.at, p)
	rows = append(rows,
		row{"open+write+close, control¹", apart(w.client("owc", d.at+control, controlText), w.client("commit", d.store, controlText)),
			"go-fuse", w.client("owc", p.gofuse+control, controlText), 1.3},
		w.pair("ls -f, 10,000 tools", "rd", d.at, "tmpfs", full, "/tool", 1),
		w.pair("ls -l, 10,000 tools", "rdl", d.at, "tmpfs", full, "/tool", 1),
		row{"missing name in a view's tool/", d.inside("missing", "/ctx/tool/none"), "go-fuse", w.client("missing", p.gofuse+"/tool/none"), 20},
		row{"stat, tool in a view", d.inside("stat", "/ctx/tool/"+benchTool), "tmpfs", d.inside("stat", "/tmp/tool"), 0.8},
		row{"exec of a tool in a view, warm", d.inside("exec", "/ctx/tool/"+benchTool), "tmpfs", d.inside("exec", "/tmp/tool"), 0.75},
	)
	fmt.Println("¹ the durable commit apart: what a replacement of a file in the store costs by itself is taken off")
	return rows, nil
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
	rule := "allow coder_t tool:" + benchTool + " execute\n"
	tool := d.at + "/tool/" + benchTool
	if err := os.WriteFile(tool, d.w.tool, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(tool+".d/policy", []byte(rule), 0o644); err != nil {
		return err
	}
	policy := d.at + "/agent/coder.d/policy"
	f, err := os.OpenFile(policy, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, werr := f.WriteString(rule)
	if err := errors.Join(werr, f.Close()); err != nil {
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
	_, err = d.ctx("agent", "exec", "coder", "--", "/usr/bin/cp", "/workspace/tool", "/tmp/tool")
	return err
}

// inside is a measurement in the sandbox.
func (d *daemon) inside(op, path string) func() (float64, error) {
	return func() (float64, error) {
		cmd := exec.Command(d.bin+"/ctx", "agent", "exec", "coder", "--", "/workspace/client", op, path, fmt.Sprint(d.w.ms))
		cmd.Env = append(os.Environ(), "CTX_ROOT="+d.at)
		return rate(cmd)
	}
}
