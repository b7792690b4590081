package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// defaultDeadline is how long all opens of one helper may take together; a source
// in a hanging file system of a user must not hold up a process of ours.
const defaultDeadline = 5 * time.Second

// ask is one request to the open helper. A descriptor to start from travels
// beside it.
type ask struct {
	Path    string `json:"path"`
	Beneath bool   `json:"beneath,omitempty"` // below the given descriptor, no symlinks at all
	Last    bool   `json:"last,omitempty"`    // below the given descriptor; a symlink as last component is opened itself
	List    bool   `json:"list,omitempty"`    // names of the given directory
	Git     bool   `json:"git,omitempty"`     // the text of a gitfile, at most gitfileMax bytes
}

// answer is what the helper found.
type answer struct {
	Errno syscall.Errno `json:"errno,omitempty"`
	Mode  uint32        `json:"mode,omitempty"`
	UID   uint32        `json:"uid,omitempty"`
	GID   uint32        `json:"gid,omitempty"`
	Nlink uint64        `json:"nlink,omitempty"`
	Link  string        `json:"link,omitempty"` // text of a symlink
	Names []string      `json:"names,omitempty"`
	Text  string        `json:"text,omitempty"`
	Cut   bool          `json:"cut,omitempty"` // more names than fit

	fd int // an O_PATH descriptor of ours, or -1
}

func (a *answer) isDir() bool     { return a.Mode&unix.S_IFMT == unix.S_IFDIR }
func (a *answer) isLink() bool    { return a.Mode&unix.S_IFMT == unix.S_IFLNK }
func (a *answer) isRegular() bool { return a.Mode&unix.S_IFMT == unix.S_IFREG }

// maxAnswer bounds one message of the helper.
const maxAnswer = 32 << 10

// opener is our end of one open helper.
type opener struct {
	who  Account
	proc *os.Process
	conn *net.UnixConn
	wait time.Duration // what all asks together may take
	end  time.Time
	lost bool
}

// startOpener starts an open helper that takes the ids who. It begins with our
// own ids and drops them itself: a process that changed its ids is not dumpable,
// one that was executed with them would be for a moment.
func startOpener(who Account, drop bool, wait time.Duration) (*opener, error) {
	if wait <= 0 {
		wait = defaultDeadline
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "opener"), os.NewFile(uintptr(pair[1]), "opener")
	defer ours.Close()
	defer theirs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	text, err := json.Marshal(openerParams{who, drop})
	if err != nil {
		return nil, err
	}
	proc, err := os.StartProcess("/proc/self/exe", []string{OpenName, string(text)},
		&os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{null, null, null, theirs}})
	if err != nil {
		return nil, fmt.Errorf("start open helper: %w", err)
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		proc.Kill()
		return nil, err
	}
	return &opener{who: who, proc: proc, conn: conn.(*net.UnixConn), wait: wait, end: time.Now().Add(wait)}, nil
}

// do sends a and waits for the answer until the helper's deadline. The
// descriptor in it is the caller's to close; at is one to start from, or -1.
func (o *opener) do(a ask, at int) (*answer, error) {
	if o.lost {
		return nil, fault.Newf(fault.TimedOut, "the open helper of uid %d is stuck", o.who.UID)
	}
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	var rights []byte
	if at >= 0 {
		rights = unix.UnixRights(at)
	}
	if err := o.conn.SetDeadline(o.end); err != nil {
		return nil, err
	}
	if _, _, err := o.conn.WriteMsgUnix(text, rights, nil); err != nil {
		return nil, o.broken(err)
	}
	buf, oob := make([]byte, maxAnswer), make([]byte, unix.CmsgSpace(4))
	n, on, flags, _, err := o.conn.ReadMsgUnix(buf, oob)
	if err != nil || n == 0 {
		return nil, o.broken(err)
	}
	reply := &answer{}
	fds, err := received(oob[:on])
	if err == nil && (flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1) {
		err = errors.New("odd message")
	}
	if err == nil {
		err = json.Unmarshal(buf[:n], reply)
	}
	for _, fd := range fds {
		// Closing an ordinary descriptor of a user's file system can hang for ever;
		// an O_PATH one never asks its server.
		if mode, e := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err == nil && (e != nil || mode&unix.O_PATH == 0) {
			err = errors.New("a descriptor that is not O_PATH")
		}
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("open helper: %w", err)
	}
	reply.fd = -1
	if len(fds) == 1 {
		reply.fd = fds[0]
	}
	if reply.Errno != 0 {
		return reply, reply.Errno
	}
	return reply, nil
}

// broken says why the helper does not answer.
func (o *opener) broken(err error) error {
	o.lost = true
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fault.Newf(fault.TimedOut, "no answer within %v: its file system hangs", o.wait)
	}
	return fault.Newf(fault.IO, "the open helper ended (%v)", err)
}

// close ends the helper. One that waits in a user's file system cannot be
// killed; its pid is returned then, and it is left behind.
func (o *opener) close() (stuck int) {
	o.conn.Close()
	if !o.lost {
		o.proc.Wait()
		return 0
	}
	o.proc.Kill()
	ended := make(chan struct{})
	go func() { o.proc.Wait(); close(ended) }()
	select {
	case <-ended:
		return 0
	case <-time.After(200 * time.Millisecond):
		return o.proc.Pid
	}
}

func received(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, got...)
	}
	return fds, nil
}
