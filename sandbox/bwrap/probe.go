package bwrap

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"cortexfs/node/fault"
)

var places = []string{"/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"}

// Locate returns the absolute path of bubblewrap: want when it is given, else
// the first of the fixed places. PATH is not asked.
func Locate(want string) (string, error) {
	list := places
	if want != "" {
		if !strings.HasPrefix(want, "/") {
			return "", fault.Newf(fault.Invalid, "bwrap path %q is not absolute", want)
		}
		list = []string{want}
	}
	for _, p := range list {
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fault.Newf(fault.Unavailable, "bubblewrap not found at %s: install the package bubblewrap", strings.Join(list, ", "))
}

type probeKey struct {
	path     string
	dev, ino uint64
	mtime    time.Time
	root     bool
}

var probed sync.Map // probeKey → nil error; failures are tried again

// Probe says whether this bubblewrap really makes a sandbox here, with every
// option that we use, run as uid and gid. It asks what happens, not what version
// it is. A success is remembered for the file.
func Probe(ctx context.Context, path string, uid, gid uint32) error {
	st, err := os.Stat(path)
	if err != nil {
		return fault.FromOS("probe", path, err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	key := probeKey{path, uint64(sys.Dev), sys.Ino, st.ModTime(), os.Geteuid() == 0}
	if _, ok := probed.Load(key); ok {
		return nil
	}
	if err := probe(ctx, path, uid, gid); err != nil {
		return err
	}
	probed.Store(key, true)
	return nil
}

func probe(ctx context.Context, path string, uid, gid uint32) error {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	r, w, err := StatusPipe()
	if err != nil {
		return fault.FromOS("probe", path, err)
	}
	defer r.Close()
	args := Options{Root: "/", Hostname: "probe", Cwd: "/", TmpSize: 1 << 20, ShmSize: 1 << 20, Status: 3, Command: []string{"/usr/bin/true"}}.Args()
	for i, a := range args { // the probe needs no seccomp program
		if a == "--seccomp" {
			args = append(args[:i:i], args[i+2:]...)
			break
		}
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir, cmd.ExtraFiles, cmd.Stderr = []string{}, "/", []*os.File{w}, &said
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fault.Newf(fault.Unavailable, "%s cannot be executed: %w", path, err)
	}
	first, readErr := NewReader(r).Next()
	if err := cmd.Wait(); err != nil {
		return fault.Newf(fault.Unavailable, "%s does not work here: %s", path, Explain(said.String(), err))
	}
	if readErr != nil || first.ChildPID == 0 {
		return fault.Newf(fault.Unavailable, "%s is no bubblewrap: it gave no status", path)
	}
	return nil
}

// Explain turns what bwrap said into a sentence with its likely cause.
func Explain(said string, err error) string {
	said = strings.TrimSpace(strings.ReplaceAll(said, "bwrap: ", ""))
	cause := ""
	for _, k := range known {
		if strings.Contains(said, k.words) {
			cause = ": " + k.cause
			break
		}
	}
	switch {
	case said == "" && err != nil:
		return fmt.Sprintf("it ended without a word (%v)", err)
	case said == "":
		return "it ended without a word"
	}
	return said + cause
}

// known are bubblewrap's words for the troubles people really have.
var known = []struct{ words, cause string }{
	{"setting up uid map", "user namespaces are restricted on this system (AppArmor or user.max_user_namespaces)"},
	{"RTM_NEWADDR", "user namespaces are restricted on this system (AppArmor): allow bwrap in a profile"},
	{"Creating new namespace failed", "user namespaces are switched off on this system"},
	{"No permissions to create", "user namespaces are switched off on this system"},
	{"Unknown option", "this bubblewrap is too old; 0.8.0 or newer is needed"},
}
