package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/companion"
	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

func upCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "start your own daemon on ~/ctx",
		Long: "Start a daemon of your own in the background: the store is ~/.local/share/cortexfs ($XDG_DATA_HOME), the\n" +
			"tree appears at ~/ctx, which must be empty or not there yet. Needs no root. For the system's tree use\n" +
			"the cortexfs command or fstab.",
		Example: "  ctx up\n  ctx status",
		Args:    argsN(0, 0),
		RunE:    func(*cobra.Command, []string) error { return s.up() },
	}
}

func (s *State) up() error {
	home, err := s.homeDir()
	if err != nil {
		return err
	}
	mp := filepath.Join(home, "ctx")
	if t, err := openTree(mp); err == nil {
		return s.print(map[string]string{"root": t.root}, func(w io.Writer) {
			fmt.Fprintf(w, "%s: up already\n", node.Escape(mp))
		})
	}
	store := s.Getenv("XDG_DATA_HOME")
	if !filepath.IsAbs(store) {
		store = filepath.Join(home, ".local", "share")
	}
	store = filepath.Join(store, "cortexfs")
	if err := emptyDir(mp); err != nil {
		return err
	}
	if err := os.MkdirAll(store, 0o700); err != nil {
		return fault.FromOS("make", store, err)
	}
	bin, err := companion.Find("cortexfs")
	if err != nil {
		return err
	}
	cmd := exec.Command(bin, store, mp)
	cmd.Stdout, cmd.Stderr = s.Out, s.Err
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exitError(ctlproto.ExitError) // it has said why
		}
		return fault.FromOS("run", bin, err)
	}
	return s.print(map[string]string{"root": mp, "store": store}, func(w io.Writer) {
		fmt.Fprintf(w, "%s: up (store %s)\n", node.Escape(mp), node.Escape(store))
	})
}

// emptyDir makes the mount point, or refuses one with something in it. A dead
// mount of an earlier daemon is the new daemon's to clear.
func emptyDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err == nil || errors.Is(err, unix.ENOTCONN) {
		return nil
	} else if !errors.Is(err, fs.ErrExist) {
		return fault.FromOS("make", dir, err)
	}
	names, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, unix.ENOTCONN):
		return nil
	case err != nil:
		return fault.FromOS("list", dir, err)
	case len(names) > 0:
		return fault.E("up", dir, fault.NotEmpty, fmt.Errorf("not empty: it holds %s", names[0].Name()))
	}
	return nil
}

func downCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "down",
		Short:   "stop the tree's daemon and all its agents",
		Long:    "End the daemon of the tree in good order: all agents are stopped, children first, then it unmounts.",
		Example: "  ctx down\n  CTX_ROOT=/tmp/tree ctx down",
		Args:    argsN(0, 0),
		RunE:    func(*cobra.Command, []string) error { return s.down() },
	}
}

// downBound is how long a clean end may take: 10 s for the agents, the rest for
// the mount.
const downBound = 15 * time.Second

func (s *State) down() error {
	t, err := s.tree()
	if err != nil {
		return err
	}
	c, err := t.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	fd, err := c.PIDFD()
	if errors.Is(err, unix.ENOPROTOOPT) {
		fd, err = unix.PidfdOpen(int(c.Server.Pid), 0)
	}
	if err != nil {
		return fault.FromOS("find the daemon", t.root, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return fault.FromOS("stop the daemon of", t.root, err)
	}
	deadline := time.Now().Add(downBound)
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fault.E("down", t.root, fault.TimedOut, fmt.Errorf("the daemon (pid %d) still ends; its log says what it waits for", c.Server.Pid))
		}
		n, err := unix.Poll(fds, int(left.Milliseconds())+1)
		if err == unix.EINTR || err == nil && n == 0 {
			continue
		}
		if err != nil {
			return fault.FromOS("wait for the daemon of", t.root, err)
		}
		break
	}
	if _, err := xattr(t.root, xattrVersion); err == nil {
		return fault.E("down", t.root, fault.Busy, errors.New("the daemon ended but the tree is still mounted"))
	}
	return s.print(map[string]string{"root": t.root}, func(w io.Writer) { fmt.Fprintf(w, "%s: down\n", node.Escape(t.root)) })
}

func reloadCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "reload",
		Short:   "wait until edits of the store are read",
		Long:    "Wait until the daemon has read everything that was changed in the store behind its back.",
		Example: "  git -C /var/lib/cortexfs/object pull && ctx reload",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			_, err := s.ask(&ctlproto.Reload{}, nil, nil)
			return err
		},
	}
}
