package daemon

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	cfs "cortexfs/fs"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// listenAt makes a listening Unix socket and returns its descriptor alone: the
// name stays when it is closed here, because the process that inherits it
// listens on.
func listenAt(path string, mode os.FileMode) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.FromOS("remove the old socket", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fault.FromOS("listen", path, err)
	}
	l.SetUnlinkOnClose(false)
	defer l.Close()
	if err := os.Chmod(path, mode); err != nil {
		return nil, fault.FromOS("chmod", path, err)
	}
	f, err := l.File()
	if err != nil {
		return nil, fault.FromOS("listen", path, err)
	}
	noRights(f)
	return f, nil
}

// listenIn is listenAt in a directory whose path may be too long for an address.
func listenIn(dir, name string, mode os.FileMode) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fault.FromOS("open", dir, err)
	}
	defer d.Close()
	return listenAt(filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), name), mode)
}

// soPassRights is SO_PASSRIGHTS (Linux 6.16): switched off, nobody can send us a
// descriptor, whose close could hang on its sender's file system (notes-security
// X1). Older kernels do not know it; there no control buffer is ever given, and a
// descriptor that is sent is dropped unseen.
const soPassRights = 83

func noRights(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, soPassRights, 0) })
}

// lock takes the lock file of an agent: who holds it is its host process, which
// inherits the descriptor. Busy if somebody holds it.
func (r *runDir) lock(key string) (*os.File, error) {
	path := filepath.Join(r.agent(key), "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fault.FromOS("open", path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == unix.EWOULDBLOCK {
			return nil, fault.E("lock", path, fault.Busy, errors.New("a host process holds it"))
		}
		return nil, fault.FromOS("lock", path, err)
	}
	return f, nil
}

// hostLog is where the host process writes what went wrong. It outlives the
// daemon as the process does.
func (r *runDir) hostLog(key string) (*os.File, error) {
	path := filepath.Join(r.agent(key), "host.log")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	return f, fault.FromOS("open", path, err)
}

// hostSaid is the end of what it wrote, at most 4 KiB.
func (r *runDir) hostSaid(key string) string {
	f, err := os.OpenFile(filepath.Join(r.agent(key), "host.log"), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(st.Size(), 4096)) // the file may be long
	n, _ := f.ReadAt(b, st.Size()-int64(len(b)))
	return string(b[:n])
}

// locked says whether somebody holds the agent's lock.
func (r *runDir) locked(key string) bool {
	f, err := r.lock(key)
	if err == nil {
		f.Close()
	}
	return fault.Is(err, fault.Busy)
}

// clear removes what one agent has in the runtime directory. A view that is
// still mounted there is taken away first; nothing below a mount is touched.
func (r *runDir) clear(key string) error {
	dir := r.agent(key)
	if _, err := os.Lstat(dir); err == nil {
		root := filepath.Join(dir, "rootfs")
		for range 16 { // one for each crash that nobody cleaned up after
			if more, err := cfs.ClearDead(filepath.Join(root, "ctx"), "cortexfs"); err != nil || !more {
				break
			}
		}
		if err := sandbox.RemoveSkeleton(root); err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return fault.FromOS("remove", dir, err)
		}
	}
	if err := os.RemoveAll(r.sockets(key)); err != nil {
		return fault.FromOS("remove", r.sockets(key), err)
	}
	return nil
}
