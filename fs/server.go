package fs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"bazil.org/fuse"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// A Server is one mount and its connection. It serves from Mount on, until
// somebody unmounts it or Abort.
type Server struct {
	opt  Options
	log  *zap.Logger
	path string  // the resolved mountpoint
	at   mounted // what Mount mounted; zero if it could not be found
	dev  *os.File
	conn *fuse.Conn

	epoch bool // the kernel can be told to ask for all names again, and is

	nodes   nodes
	handles handles
	dirs    dirUse
	live    live
	locks   locks
	push    push
	polls   polls

	base context.Context // ends with the connection
	stop context.CancelFunc
	crew crew

	endOnce sync.Once
	devMu   sync.Mutex // cutting or closing the device: its number must be its own
	endErr  error
	ending  chan struct{} // the device has ended
	done    chan struct{} // everything is put away
	closed  chan struct{} // the device is closed
}

var _ vnode.Notifier = (*Server)(nil)

// Mount mounts o.FS at o.Mountpoint and serves it. When it returns, the mount
// answers.
func Mount(o Options) (*Server, error) {
	o.fill()
	if o.FS == nil {
		return nil, errors.New("fs: no tree to mount")
	}
	path, err := mountPath(o.Mountpoint)
	if err != nil {
		return nil, fmt.Errorf("mountpoint: %w", err)
	}
	dev, err := mountDevice(path, &o)
	if err != nil {
		return nil, err
	}
	s := &Server{
		opt: o, log: o.Log, path: path, dev: dev,
		ending: make(chan struct{}), done: make(chan struct{}), closed: make(chan struct{}),
	}
	if err := s.connect(); err != nil {
		_ = detach(path, true) // the first error says more
		dev.Close()
		return nil, fmt.Errorf("mount on %s: %w", path, err)
	}
	s.base, s.stop = context.WithCancel(context.Background())
	s.nodes.init(o.FS.Root())
	s.push.start(s.writeChange, s.nodes.known, s.log)
	s.polls.start(s.conn.NotifyPollWakeup)
	s.crew.start(o.Readers, s.read, s.base.Done())
	go s.finishServing()
	return s, nil
}

// connect does the INIT and finds the mount's own line.
func (s *Server) connect() error {
	flags, err := handshake(s.dev)
	if err != nil {
		return err
	}
	if s.conn, err = adopt(s.dev, flags); err != nil {
		return err
	}
	s.epoch = s.opt.View && incEpoch(s.dev) == nil
	if m, ok, err := mountAt(s.path); err == nil && ok && m.fstype == "fuse."+s.opt.Subtype {
		s.at = m
	}
	return nil
}

// Mountpoint is the resolved path of the mount.
func (s *Server) Mountpoint() string { return s.path }

// Done is closed when the connection has ended and everything is put away.
func (s *Server) Done() <-chan struct{} { return s.done }

// Wait waits for that and returns why it ended: nil for an unmount or Abort.
func (s *Server) Wait() error {
	<-s.done
	return s.endErr
}

// ours says whether the topmost mount at the path is still the one we made.
func (s *Server) ours() (bool, error) {
	m, ok, err := mountAt(s.path)
	if err != nil || !ok {
		return false, err
	}
	return s.at.id == "" || m.id == s.at.id, nil
}

// TryUnmount unmounts if nobody uses the mount; else Busy. A mount that somebody
// else has already taken away is no error.
func (s *Server) TryUnmount() error {
	ours, err := s.ours()
	if err != nil || !ours {
		return err
	}
	err = detach(s.path, false)
	if err == nil {
		return nil
	}
	// fusermount3 says it in words.
	if errors.Is(err, unix.EBUSY) || strings.Contains(err.Error(), "busy") {
		return fault.E("unmount", s.path, fault.Busy, err)
	}
	return fault.At("unmount", s.path, err)
}

// Unmount unmounts, asking politely for up to 2 s and then detaching: the name is
// free at once, those inside go on until they leave (see Abort). It does not
// wait for the end of the connection.
func (s *Server) Unmount() error {
	deadline := time.Now().Add(unmountBound)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := s.TryUnmount()
		if err == nil || !fault.Is(err, fault.Busy) {
			return err
		}
		if time.Now().Add(pause).After(deadline) {
			break
		}
		select {
		case <-s.ending:
			return nil
		case <-time.After(pause):
		}
	}
	s.log.Info("unmount: still in use, detaching", zap.String("mountpoint", s.path))
	ours, err := s.ours()
	if err != nil || !ours {
		return err
	}
	return fault.At("unmount", s.path, detach(s.path, true))
}

// Abort ends the connection at once: every request that waits and every later
// one fails (ENOTCONN, ECONNABORTED), in every copy of the mount, and the
// mountpoint is detached. It waits for nothing but, where the kernel's control
// file system is out of reach (a plain user without /sys/fs/fuse/connections),
// up to a second for an invalidation that is being written. See Wait.
func (s *Server) Abort() error {
	s.abortConnection()
	ours, err := s.ours()
	if err != nil || !ours {
		return err
	}
	return fault.At("abort", s.path, detach(s.path, true))
}

// abortConnection tells the kernel, or where it does not listen to us takes the
// device away from ourselves: with its last user gone the connection ends.
func (s *Server) abortConnection() {
	if abortByControl(s.at.dev) == nil {
		return
	}
	s.stop() // lookups end, so that a push that waits for them does
	s.push.close()
	select {
	case <-s.push.stopped:
	case <-time.After(time.Second):
	}
	s.devMu.Lock()
	defer s.devMu.Unlock()
	select {
	case <-s.closed: // the number may be another file by now
		return
	default:
	}
	if err := cutDevice(s.dev); err != nil {
		s.log.Warn("abort", zap.String("mountpoint", s.path), zap.Error(err))
	}
}
