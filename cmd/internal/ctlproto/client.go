package ctlproto

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// Client is a connection to a daemon whose identity has been checked.
type Client struct {
	Conn   *Conn
	Server unix.Ucred // who listens there
	nc     *net.UnixConn
}

// Dial connects to the control socket and checks, before a byte is sent, that
// the server runs as root, as the caller, or as owner (the uid that owns the
// mount); anybody else's listener is Access. Unavailable if nobody answers.
func Dial(path string, owner uint32) (*Client, error) {
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fault.E("connect", path, fault.Unavailable, fmt.Errorf("no daemon answers: %w", err))
	}
	cred, err := PeerCred(nc)
	if err != nil {
		nc.Close()
		return nil, fault.At("connect", path, err)
	}
	if cred.Uid != 0 && cred.Uid != owner && cred.Uid != uint32(os.Getuid()) {
		nc.Close()
		return nil, fault.E("connect", path, fault.Access, fmt.Errorf("the server there runs as uid %d", cred.Uid))
	}
	return &Client{Conn: NewConn(nc), Server: cred, nc: nc}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.nc.Close() }

// CloseWrite says that nothing more will be asked.
func (c *Client) CloseWrite() error { return c.nc.CloseWrite() }

// PIDFD opens a descriptor of the serving process, to wait for or signal it.
// The caller closes it.
func (c *Client) PIDFD() (int, error) { return PeerPIDFD(c.nc) }

// PeerCred is SO_PEERCRED of a connection.
func PeerCred(nc *net.UnixConn) (unix.Ucred, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) {
		cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return unix.Ucred{}, err
	}
	if serr != nil {
		return unix.Ucred{}, serr
	}
	return *cred, nil
}

// PeerPIDFD is SO_PEERPIDFD of a connection: a descriptor of the very process
// that connected (or listens), which a reused pid cannot stand in for. The error
// is ENOPROTOOPT on kernels before 6.5 and ESRCH or EINVAL for a process that
// is gone.
func PeerPIDFD(nc *net.UnixConn) (int, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd, serr := -1, error(nil)
	if err := raw.Control(func(s uintptr) {
		fd, serr = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return -1, err
	}
	if serr != nil {
		return -1, serr
	}
	unix.CloseOnExec(fd)
	return fd, nil
}

// Do sends q and hands every frame before the last to each (may be nil). It
// returns the result's data, or the server's error as a *RemoteError.
func (c *Client) Do(q Request, each func(*Frame) error) (json.RawMessage, error) {
	line, err := EncodeRequest(q)
	if err != nil {
		return nil, err
	}
	if err := c.Conn.WriteLine(line); err != nil {
		return nil, fault.E(q.Op(), "", fault.Unavailable, fmt.Errorf("send: %w", err))
	}
	for {
		f, err := c.Read()
		if err != nil {
			return nil, fault.At(q.Op(), "", err)
		}
		if err := f.Remote(); err != nil {
			return nil, err
		}
		if f.Last() {
			return f.Data, nil
		}
		if each != nil {
			if err := each(f); err != nil {
				return nil, err
			}
		}
	}
}

// Read returns the next frame. Unknown keys of an answer are ignored, so that a
// newer daemon may say more. Unavailable when the daemon goes away.
func (c *Client) Read() (*Frame, error) {
	line, err := c.Conn.ReadLine()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return nil, fault.Newf(fault.Unavailable, "the daemon closed the connection before its answer")
	case err != nil:
		return nil, err
	}
	var f Frame
	if err := json.Unmarshal(line, &f); err != nil {
		return nil, fault.Newf(fault.IO, "the daemon's answer is not a frame: %v", err)
	}
	return &f, nil
}
