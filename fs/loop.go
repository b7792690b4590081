package fs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"bazil.org/fuse"
	"go.uber.org/zap"

	"cortexfs/node/vnode"
)

// A request is one request of the kernel on its way through this package. It
// belongs to one goroutine.
type request struct {
	s   *Server
	req fuse.Request
	hdr *fuse.Header
	v   vnode.Req // what the tree is told of the caller

	waits    bool // wait was called
	answered bool
	cancel   context.CancelFunc
	since    time.Time // of wait
}

// read is a reader goroutine: it reads requests and answers them until the
// connection ends or enough others are listening.
func (s *Server) read() {
	defer s.crew.all.Done()
	for {
		req, err := s.conn.ReadRequest()
		if err != nil {
			if retryRead(err) {
				continue
			}
			s.ended(err)
			return
		}
		if !s.serve(req) {
			return
		}
	}
}

// retryRead says whether a failed read says nothing about the connection: a
// signal, a request that was interrupted while it was being read, a message
// that bazil could not decode.
func retryRead(err error) bool {
	var num syscall.Errno
	if errors.As(err, &num) {
		return num == syscall.EINTR || num == syscall.EAGAIN || num == syscall.ENOENT
	}
	return !errors.Is(err, io.EOF)
}

// serve answers one request and says whether this goroutine is to read on.
func (s *Server) serve(req fuse.Request) (readOn bool) {
	q := &request{s: s, req: req, hdr: req.Hdr()}
	q.v = vnode.Req{Ctx: s.base, UID: q.hdr.Uid, GID: q.hdr.Gid, TID: q.hdr.Pid}
	s.crew.leave()
	defer func() {
		q.finish(recover())
		readOn = s.crew.join()
	}()
	q.dispatch()
	return
}

// finish answers what the handler did not, and takes the request out of the
// interrupt table.
func (q *request) finish(panicked any) {
	if panicked != nil {
		q.s.log.Error("panic in a request", zap.String("request", q.name()),
			zap.Any("panic", panicked), zap.ByteString("stack", debug.Stack()))
	}
	if !q.answered {
		q.failNo(syscall.EIO)
	}
	if q.waits {
		q.s.live.remove(q.hdr.ID)
		q.cancel()
	}
}

// wait is called before anything that may take time: an INTERRUPT ends v.Ctx from
// now on, and another reader listens (crew).
func (q *request) wait() {
	if q.waits {
		return
	}
	q.waits = true
	q.v.Ctx, q.cancel = context.WithCancel(q.s.base)
	q.s.live.add(q.hdr.ID, q.cancel)
	q.since = time.Now()
	q.s.crew.cover()
}

// answer is called right before the reply is written. How long a request waited
// is measured here: the reply wakes the client, which may take this very CPU.
func (q *request) answer() {
	q.answered = true
	if q.waits {
		q.s.crew.waited(time.Since(q.since))
	}
}

// waitUnless waits unless the operation is known to be one in memory.
func (q *request) waitUnless(mem bool) {
	if !mem {
		q.wait()
	}
}

// name describes a request for the log: its operation and node, never its data.
func (q *request) name() string {
	return fmt.Sprintf("%T node=%d uid=%d", q.req, uint64(q.hdr.Node), q.hdr.Uid)
}

// ended is called by each reader when the device has nothing more to give.
// Handlers that still wait are told to give up.
func (s *Server) ended(err error) {
	s.endOnce.Do(func() {
		if !errors.Is(err, io.EOF) {
			s.endErr = fmt.Errorf("reading requests: %w", err)
		}
		s.stop()
		close(s.ending)
	})
}

// finishServing runs once, after Mount: it waits for the end and puts everything
// away.
func (s *Server) finishServing() {
	defer close(s.done)
	<-s.ending
	quiet := make(chan struct{})
	go func() { s.crew.all.Wait(); close(quiet) }()
	bound := time.NewTimer(drainBound)
	defer bound.Stop()
	select {
	case <-quiet:
		s.drain()
	case <-bound.C:
		// A handler that ignores its context keeps what it uses; the rest of the
		// process must not wait for it.
		s.log.Error("a request does not end; left behind", zap.String("mountpoint", s.opt.Mountpoint))
		go func() { <-quiet; s.drain() }()
	}
}

// drain gives the tree back every handle and node.
func (s *Server) drain() {
	s.push.close()
	s.polls.close()
	r := vnode.Req{Ctx: context.Background()}
	for _, h := range s.handles.drain() {
		s.guard("release at the end", func() {
			if h.file != nil {
				s.locks.drop(h)
				h.file.Release(&r)
			}
		})
	}
	s.guard("forget at the end", s.nodes.drain)
	// A push that the kernel does not finish holds the connection's lock; the
	// descriptor then goes with it.
	go func() {
		s.push.wait()
		s.polls.wait()
		s.devMu.Lock()
		defer s.devMu.Unlock()
		if err := s.conn.Close(); err != nil {
			s.log.Warn("closing the device", zap.Error(err))
		}
		close(s.closed)
	}()
	select {
	case <-s.closed:
	case <-time.After(time.Second):
	}
}

// guard runs f and logs a panic of it.
func (s *Server) guard(what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic: "+what, zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		}
	}()
	f()
}

// live is the interrupt table: the requests that wait, by the kernel's id.
type live struct {
	mu   sync.Mutex
	byID map[fuse.RequestID]context.CancelFunc
}

func (l *live) add(id fuse.RequestID, cancel context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID == nil {
		l.byID = map[fuse.RequestID]context.CancelFunc{}
	}
	l.byID[id] = cancel
}

func (l *live) remove(id fuse.RequestID) {
	l.mu.Lock()
	delete(l.byID, id)
	l.mu.Unlock()
}

// interrupt cancels a request and says whether it was there.
func (l *live) interrupt(id fuse.RequestID) bool {
	l.mu.Lock()
	cancel := l.byID[id]
	l.mu.Unlock()
	if cancel == nil {
		return false
	}
	cancel()
	return true
}

// interrupt answers an INTERRUPT. It may have overtaken its request, or the
// request may be one that is being answered at this moment: EAGAIN makes the
// kernel send it again, unless the answer was there first.
func (q *request) interrupt(r *fuse.InterruptRequest) {
	if q.s.live.interrupt(r.IntrID) {
		q.answer()
		r.Respond()
		return
	}
	q.failNo(syscall.EAGAIN)
}

// dispatch calls the handler. Handlers answer by themselves.
func (q *request) dispatch() {
	switch r := q.req.(type) {
	case *fuse.LookupRequest:
		q.lookup(r)
	case *fuse.GetattrRequest:
		q.getattr(r)
	case *fuse.OpenRequest:
		q.open(r)
	case *fuse.ReadRequest:
		q.readData(r)
	case *fuse.WriteRequest:
		q.write(r)
	case *fuse.FlushRequest:
		q.flush(r)
	case *fuse.ReleaseRequest:
		q.release(r)
	case *fuse.ForgetRequest:
		q.forget(r.Respond, fuse.BatchForgetItem{NodeID: q.hdr.Node, N: r.N})
	case *fuse.BatchForgetRequest:
		q.forget(r.Respond, r.Forget...)
	case *fuse.InterruptRequest:
		q.interrupt(r)
	case *fuse.ReadlinkRequest:
		q.readlink(r)
	case *fuse.SetattrRequest:
		q.setattr(r)
	case *fuse.CreateRequest:
		q.create(r)
	case *fuse.MkdirRequest:
		q.mkdir(r)
	case *fuse.MknodRequest:
		q.mknod(r)
	case *fuse.SymlinkRequest:
		q.symlink(r)
	case *fuse.LinkRequest:
		q.link(r)
	case *fuse.RemoveRequest:
		q.remove(r)
	case *fuse.RenameRequest:
		q.rename(r)
	case *fuse.FsyncRequest:
		q.fsync(r)
	case *fuse.GetxattrRequest:
		q.getxattr(r)
	case *fuse.ListxattrRequest:
		q.listxattr(r)
	case *fuse.SetxattrRequest:
		q.setxattr(r)
	case *fuse.RemovexattrRequest:
		q.removexattr(r)
	case *fuse.PollRequest:
		q.poll(r)
	case *fuse.LockRequest:
		q.lock(r, false)
	case *fuse.LockWaitRequest:
		q.lock((*fuse.LockRequest)(r), true)
	case *fuse.UnlockRequest:
		q.lock((*fuse.LockRequest)(r), false)
	case *fuse.QueryLockRequest:
		q.queryLock(r)
	case *fuse.AccessRequest:
		q.access(r)
	case *fuse.StatfsRequest:
		q.statfs(r)
	case *fuse.DestroyRequest:
		q.answer()
		r.Respond()
	case *fuse.UnrecognizedRequest:
		q.failNo(unknownErrno(r.Opcode))
	default:
		q.failNo(syscall.EOPNOTSUPP) // FALLOCATE, and what bazil may learn
	}
}
