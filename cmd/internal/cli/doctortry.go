package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/companion"
)

// tryBound is how long one step of the trial may take.
const tryBound = 30 * time.Second

// tryIt takes the product through its own steps on a scratch store: mount,
// bootstrap, start, look inside, stop, unmount. The first step that fails ends it;
// nothing of it is left.
func (s *State) tryIt() (list []finding) {
	dir, err := scratch()
	if err != nil {
		return []finding{invalid("trial", err.Error(), "")}
	}
	store, mnt := filepath.Join(dir, "store"), filepath.Join(dir, "ctx")
	defer func() {
		_ = unix.Unmount(mnt, unix.MNT_DETACH) // only if a step left it
		if err := os.RemoveAll(dir); err != nil {
			list = append(list, invalid("trial", "left behind: "+err.Error(), "rm -r "+dir))
		}
	}()
	if err := errors.Join(os.Mkdir(store, 0o700), os.Mkdir(mnt, 0o755)); err != nil {
		return []finding{invalid("trial", err.Error(), "")}
	}
	daemon, err1 := companion.Find("cortexfs")
	self, err2 := companion.Find("ctx")
	if err := errors.Join(err1, err2); err != nil {
		return []finding{missing("trial", err, "make install")}
	}
	agent := "coder"
	steps := []struct {
		what string
		argv []string
	}{
		{"trial: mount", []string{daemon, store, mnt}},
		{"trial: bootstrap", []string{self, "bootstrap"}},
		{"trial: start an agent", []string{self, "agent", "start", agent, "--no-default-workspace"}},
		{"trial: look at its tree from inside", []string{self, "agent", "exec", agent, "--", "cat", "/ctx/status"}},
		{"trial: stop it", []string{self, "agent", "stop", agent}},
		{"trial: unmount", []string{self, "down"}},
	}
	for i, step := range steps {
		began := time.Now()
		if out, err := s.try(mnt, step.argv); err != nil {
			list = append(list, invalid(step.what, out, "see the lines above; "+strings.Join(step.argv[1:], " ")+" has the details"))
			if i > 0 && i < len(steps)-1 {
				_, _ = s.try(mnt, steps[len(steps)-1].argv)
			}
			return list
		}
		list = append(list, ok(step.what, fmt.Sprintf("%d ms", time.Since(began).Milliseconds())))
	}
	return list
}

// try runs one step and returns what it said if it failed.
func (s *State) try(root string, argv []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tryBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"CTX_ROOT=" + root}
	for _, k := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"} {
		if v := s.Getenv(k); v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", nil
	}
	said := strings.TrimSpace(string(out))
	if said == "" {
		said = err.Error()
	}
	return said, err
}

// scratch is a directory of our own, where sockets have short names and nobody
// else writes.
func scratch() (string, error) {
	base := os.Getenv("XDG_RUNTIME_DIR")
	if os.Geteuid() == 0 {
		base = "/run"
	}
	if st, err := os.Stat(base); err != nil || !st.IsDir() {
		base = ""
	}
	return os.MkdirTemp(base, "cortexfs-doctor-")
}
