package daemon

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/node/agent"
	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// recordsDir is where, below the store's state directory, the records lie that
// decide about runs: which message was taken, which call is under way. They have to
// outlive a stop, and no sandbox has them.
const recordsDir = "records"

// runFiles opens what the runs of an agent need: its two sockets, and the
// directories of its sessions and records, which belong to the host process.
func (l *attempt) runFiles(f *agentd.Files) (err error) {
	w, key := l.u.m.w, l.u.key.RuntimeKey()
	defer func() {
		if err != nil {
			closeRunFiles(f)
		}
	}()
	if f.Agent, err = listenAt(w.run.agentSocket(key), 0o666); err != nil {
		return err
	}
	if f.Inner, err = listenIn(filepath.Join(w.run.agent(key), "rootfs", sandbox.RunPath), "control.sock", 0o666); err != nil {
		return err
	}
	uid, gid := w.uid, w.gid
	if id := w.hostIdentity(l.cfg); id != nil {
		uid, gid = id.UID, id.GID
	}
	if f.Sessions, err = w.sessions(l.cfg, uid, gid); err != nil {
		return err
	}
	f.Records, err = w.records(key, uid, gid)
	return err
}

func closeRunFiles(f *agentd.Files) {
	for _, one := range []*os.File{f.Agent, f.Inner, f.Sessions, f.Records} {
		if one != nil {
			one.Close()
		}
	}
}

// sessions opens the agent's session/ directory for its host process. Where that
// is not the owner, because the owner is root, the directory is handed over to it:
// inside it is read-only, so that everything below it is ours.
func (w *world) sessions(cfg *agent.Config, uid, gid uint32) (*os.File, error) {
	home := fmt.Sprintf("home/%d/agent/%s", cfg.Owner, cfg.Key.Name)
	if err := w.mkdirOwned(cfg.Owner, home, "session"); err != nil {
		return nil, fault.At("make", home+"/session", err)
	}
	fd, err := beneath.Open(int(w.st.DurableRoot().Fd()), home+"/session", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.FromOS("open", home+"/session", err)
	}
	if w.root && cfg.Owner == 0 {
		if err := handTree(fd, uid, gid, 0); err != nil {
			unix.Close(fd)
			return nil, fault.At("hand over", home+"/session", err)
		}
	}
	return os.NewFile(uintptr(fd), home+"/session"), nil
}

// handDepth is deeper than a session directory is.
const handDepth = 8

// handTree gives a directory and what lies below it to uid.
func handTree(fd int, uid, gid uint32, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fault.FromOS("stat", "", err)
	}
	if st.Uid != uid || st.Gid != gid {
		if err := unix.Fchown(fd, int(uid), int(gid)); err != nil {
			return fault.FromOS("chown", "", err)
		}
	}
	entries, err := beneath.ReadDir(fd)
	if err != nil {
		return fault.FromOS("read", "", err)
	}
	for _, e := range entries {
		switch {
		case e.Type == unix.DT_DIR && depth < handDepth:
			sub, err := beneath.Open(fd, e.Name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fault.FromOS("open", e.Name, err)
			}
			err = handTree(sub, uid, gid, depth+1)
			unix.Close(sub)
			if err != nil {
				return err
			}
		case e.Type == unix.DT_REG:
			if err := unix.Fstatat(fd, e.Name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fault.FromOS("stat", e.Name, err)
			}
			if st.Uid == uid && st.Gid == gid || st.Nlink != 1 || st.Mode&unix.S_IFMT != unix.S_IFREG {
				continue
			}
			if err := unix.Fchownat(fd, e.Name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
				return fault.FromOS("chown", e.Name, err)
			}
		}
	}
	return nil
}

// records opens the directory of the records of one agent, made if need be. Those
// above it are the daemon's alone: it is reached by its descriptor only.
func (w *world) records(key string, uid, gid uint32) (*os.File, error) {
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(w.st.StateRoot().Fd())))
	if err != nil {
		return nil, fault.FromOS("open", "state", err)
	}
	defer root.Close()
	p := filepath.Join(recordsDir, key)
	if err := root.MkdirAll(p, 0o700); err != nil {
		return nil, fault.FromOS("make", p, err)
	}
	f, err := root.Open(p)
	if err != nil {
		return nil, fault.FromOS("open", p, err)
	}
	if err := handTree(int(f.Fd()), uid, gid, 0); err != nil {
		f.Close()
		return nil, fault.At("hand over", p, err)
	}
	return f, nil
}

// dropRecords forgets the records of a removed agent: its sessions may stay, but
// an agent that is made anew under its name has taken no message yet.
func (w *world) dropRecords(key string) {
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(w.st.StateRoot().Fd())))
	if err != nil {
		return
	}
	defer root.Close()
	_ = root.RemoveAll(filepath.Join(recordsDir, key))
	_ = root.RemoveAll(filepath.Join(programsDir, key))
}

// agentSocket is the path of an agent's socket.
func (r *runDir) agentSocket(key string) string {
	return filepath.Join(r.sockets(key), agentSocket)
}

const agentSocket = "agent.sock"

// agentSocketOf is where an agent's socket listens now.
func (m *manager) agentSocketOf(k agent.Key) (string, bool) {
	u := m.lookup(k)
	if u == nil {
		return "", false
	}
	r := u.current()
	if r == nil || !r.runs {
		return "", false
	}
	return m.w.run.agentSocket(k.RuntimeKey()), true
}

// programsDir holds, below the store's state directory, the copies of agents'
// programs that their sandboxes have.
const programsDir = "programs"

// program is the host path of what runs the agent's steps: a copy of its exec that
// every uid may execute, as the file itself is its owner's alone; or our reference
// loop, which is ctxterm under another name.
func (w *world) program(k agent.Key, term string) (string, error) {
	f, err := w.st.OpenFile(k.StoreDir() + "/exec")
	if fault.Is(err, fault.NotExist) {
		return term, nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(w.st.StateRoot().Fd())))
	if err != nil {
		return "", fault.FromOS("open", "state", err)
	}
	defer root.Close()
	if err := root.MkdirAll(programsDir, 0o700); err != nil {
		return "", fault.FromOS("make", programsDir, err)
	}
	name := filepath.Join(programsDir, k.RuntimeKey())
	_ = root.Remove(name + ".new")
	out, err := root.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o555)
	if err != nil {
		return "", fault.FromOS("make", name, err)
	}
	_, err = io.Copy(out, io.NewSectionReader(f, 0, f.Info().Size))
	if err == nil {
		err = out.Chmod(0o555)
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil { // a running agent keeps the file that it has
		err = root.Rename(name+".new", name)
	}
	return filepath.Join(w.st.Path(), "state", name), fault.FromOS("write", name, err)
}
