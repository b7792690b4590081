package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// runDir is the runtime directory of one store (design section 2): sockets,
// locks and the skeletons of running agents. It outlives the daemon, so that
// the next one can adopt what runs.
type runDir struct {
	path   string
	shared bool // mounts made below it reach running sandboxes
	bound  bool // we made it a mount of its own
}

// longest is as long as a name gets in a socket's path.
const longest = "sixteen bytes..."

// runID names the runtime directory after the store's real path.
func runID(store string) string {
	sum := sha256.Sum256([]byte(store))
	return hex.EncodeToString(sum[:8])
}

// openRunDir makes or checks the runtime directory for the store: 0711 at the
// top, because strangers connect to the sockets, 0700 for what is per agent.
// Every directory must be ours and writable by nobody else: adoption believes
// what lies here.
func openRunDir(store string) (*runDir, error) {
	base, err := runBase()
	if err != nil {
		return nil, err
	}
	r := &runDir{path: filepath.Join(base, runID(store))}
	if n := len(r.socket(longest, longest)); n > 107 {
		return nil, fault.E("runtime directory", r.path, fault.NameTooLong,
			fmt.Errorf("sockets below it would have paths of %d bytes, the system takes 107; set XDG_RUNTIME_DIR to a short one", n))
	}
	if err = r.make(base); fault.Is(err, fault.NotExist) {
		err = r.make(base) // another daemon's clean end took the base away
	}
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 {
		if err := sandbox.ShareRuntime(r.path); err != nil {
			return nil, fault.At("share the runtime directory", r.path, err)
		}
		r.bound = true
	}
	r.shared, err = sandbox.Propagates(r.path)
	return r, err
}

func (r *runDir) make(base string) error {
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		{base, 0o711},
		{r.path, 0o711},
		{r.sockDir(), 0o711},
		{r.agentsDir(), 0o700},
	} {
		if err := ownDir(d.path, d.mode); err != nil {
			return err
		}
	}
	return nil
}

// runBase is where runtime directories lie: /run/cortexfs for root, the user's
// runtime directory otherwise, a state directory of theirs where the system has
// none; never /tmp, where names can be planted.
func runBase() (string, error) {
	if os.Geteuid() == 0 {
		return "/run/cortexfs", nil
	}
	uid := os.Getuid()
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), fmt.Sprintf("/run/user/%d", uid)} {
		if filepath.IsAbs(dir) && checkOwn(dir) == nil {
			return filepath.Join(dir, "cortexfs"), nil
		}
	}
	state := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(state) {
		u, err := user.LookupId(fmt.Sprint(uid))
		if err != nil || !filepath.IsAbs(u.HomeDir) {
			return "", fault.E("runtime directory", "", fault.Unavailable,
				fmt.Errorf("uid %d has neither XDG_RUNTIME_DIR nor a home directory", uid))
		}
		state = filepath.Join(u.HomeDir, ".local", "state")
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return "", fault.FromOS("make", state, err)
	}
	return filepath.Join(state, "cortexfs"), nil
}

// ownDir makes dir with exactly mode, or checks that it is ours alone.
func ownDir(dir string, mode os.FileMode) error {
	switch err := os.Mkdir(dir, mode); {
	case err == nil:
		return os.Chmod(dir, mode)
	case !errors.Is(err, os.ErrExist):
		return fault.FromOS("make", dir, err)
	}
	if err := checkOwn(dir); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}

// checkOwn: a real directory, owned by us, writable by no other.
func checkOwn(dir string) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fault.FromOS("stat", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fault.E("check", dir, fault.NotDir, errors.New("not a directory"))
	case st.Uid != uint32(os.Geteuid()):
		return fault.E("check", dir, fault.Perm, fmt.Errorf("belongs to uid %d, not to this daemon", st.Uid))
	case st.Mode&0o022 != 0:
		return fault.E("check", dir, fault.Perm, fmt.Errorf("others can write it; repair with: chmod go-w %s", dir))
	}
	return nil
}

func (r *runDir) sockDir() string           { return filepath.Join(r.path, "sock") }
func (r *runDir) agentsDir() string         { return filepath.Join(r.path, "agent") }
func (r *runDir) control() string           { return filepath.Join(r.sockDir(), "control.sock") }
func (r *runDir) agent(key string) string   { return filepath.Join(r.agentsDir(), key) }
func (r *runDir) sockets(key string) string { return filepath.Join(r.sockDir(), short(key)) }

// socket is the path of an agent's terminal socket, short enough for a socket
// address whatever the names.
func (r *runDir) socket(key, session string) string {
	name := short(session) + ".sock"
	if name == agentSocket { // a session may have any name
		name = short(session+longest) + ".sock"
	}
	return filepath.Join(r.sockets(key), name)
}

// short is name itself, or a digest of one that would not fit into the 107
// bytes of a socket address together with everything before it.
func short(name string) string {
	if len(name) <= len(longest) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// remove takes the directory away after a clean end. As long as an agent has
// something in it, it stays as it is, for the next daemon: above all the shared
// mount, without which no view reaches a running sandbox again.
func (r *runDir) remove() {
	_ = os.Remove(r.control())
	if left, err := os.ReadDir(r.agentsDir()); err != nil || len(left) > 0 {
		return
	}
	for _, dir := range []string{r.agentsDir(), r.sockDir()} {
		_ = os.Remove(dir)
	}
	if r.bound {
		_ = sandbox.UnshareRuntime(r.path)
	}
	_ = os.Remove(r.path)
	_ = os.Remove(filepath.Dir(r.path)) // if it was the last one
}
