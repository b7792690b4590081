// Package peer tells who is at the other end of a Unix socket, and whether it
// is a process of the host or one of a sandbox (spec section 13).
//
// A uid proves little here: an agent with iso=shared has its owner's. So a
// process counts as the person only if it is alive now, by a pidfd that the
// kernel took when it connected, and if its pid and user namespaces are our own.
// The namespaces are read between two looks at the pidfd, because a pid may be
// given to somebody else at any moment (notes-security X11).
package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node/fault"
)

// Peer is a checked process.
type Peer struct {
	UID, GID uint32
	PID      int
	FD       int // pidfd; the holder calls Close
}

// Close drops the pidfd.
func (p *Peer) Close() { unix.Close(p.FD) }

// Alive says whether the process still runs.
func (p *Peer) Alive() bool { return Alive(p.FD) }

// Host checks the process that connected nc: Access unless it is alive and in
// our own pid and user namespaces.
func Host(nc *net.UnixConn) (*Peer, error) {
	cred, err := ctlproto.PeerCred(nc)
	if err != nil {
		return nil, fault.Newf(fault.Access, "peer credentials: %v", err)
	}
	fd, err := ctlproto.PeerPIDFD(nc)
	if errors.Is(err, unix.ENOPROTOOPT) {
		// Before Linux 6.5. The pid may have been reused since the connect; the
		// namespaces below are then those of a stranger with the same pid. The uid
		// is checked against it as the best that such a kernel offers.
		fd, err = openSame(cred)
	}
	if err != nil {
		return nil, fault.Newf(fault.Access, "the peer process is gone")
	}
	p := &Peer{UID: cred.Uid, GID: cred.Gid, PID: int(cred.Pid), FD: fd}
	if err := p.sameNamespaces(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// openSame opens a pidfd of cred's pid if that process has cred's uid now.
func openSame(cred unix.Ucred) (int, error) {
	fd, err := unix.PidfdOpen(int(cred.Pid), 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(int(cred.Pid)), &st); err != nil || (st.Uid != cred.Uid && st.Uid != 0) {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

func (p *Peer) sameNamespaces() error {
	for _, ns := range []string{"pid", "user"} {
		ours, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			return fault.Newf(fault.Access, "own %s namespace: %v", ns, err)
		}
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.PID, ns))
		switch {
		case err == nil && theirs == ours:
		case err == nil:
			return fault.Newf(fault.Access, "the peer is in another %s namespace (a sandbox or a container)", ns)
		case errors.Is(err, os.ErrPermission) && p.UID == 0 && os.Getuid() != 0:
			// A user's daemon may not look at root's processes. No sandbox of such a
			// daemon has a process with host uid 0, so this is root itself.
		case errors.Is(err, os.ErrPermission):
			return fault.Newf(fault.Access, "the peer's %s namespace cannot be read", ns)
		default:
			return fault.Newf(fault.Access, "the peer process is gone")
		}
	}
	if !p.Alive() {
		return fault.Newf(fault.Access, "the peer process is gone")
	}
	return nil
}

// Alive says whether the process of a pidfd has not ended.
func Alive(fd int) bool {
	if fd < 0 {
		return false // poll would skip it and say nothing
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		return err == nil && n == 0
	}
}
