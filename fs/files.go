package fs

import (
	"errors"
	"io"
	"sync"

	"bazil.org/fuse"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// openNoFlush is FOPEN_NOFLUSH (kernel 5.16), which bazil has no name for.
const openNoFlush fuse.OpenResponseFlags = 1 << 5

func openFlags(m vnode.Mode) fuse.OpenResponseFlags {
	var f fuse.OpenResponseFlags
	if m.Direct {
		f |= fuse.OpenDirectIO
	}
	if m.KeepCache {
		f |= fuse.OpenKeepCache
	}
	if m.NoFlush {
		f |= openNoFlush
	}
	return f
}

// open answers OPEN and OPENDIR.
func (q *request) open(r *fuse.OpenRequest) {
	n := q.node()
	if n == nil {
		return
	}
	if r.Dir {
		q.openDir(n, r)
		return
	}
	o, ok := n.node.(vnode.Opener)
	if !ok {
		q.fail(fault.E("", "", fault.Access, nil))
		return
	}
	q.waitUnless(n.mem)
	file, mode, err := o.Open(&q.v, vnode.OpenFlags(r.Flags))
	if err != nil {
		q.fail(err)
		return
	}
	h := q.s.handles.add(&handle{ino: n, file: file, mem: inMemory(file)})
	q.answer()
	r.Respond(&fuse.OpenResponse{Handle: fuse.HandleID(h.id), Flags: openFlags(mode)})
}

// file is the handle of a request, or nil after it has been answered with EBADF.
func (q *request) file(id fuse.HandleID) *handle {
	h := q.s.handles.get(uint64(id))
	if h == nil {
		q.fail(fault.E("", "", fault.BadHandle, nil))
	}
	return h
}

// maxIO is the most that one READ or WRITE carries: what the kernel sends and
// bazil has buffers for.
const maxIO = 128 << 10

// readBuffers serve READs: a reader asks for 128 KiB of a file of 20 bytes, and
// the answer is copied into a message of its own anyway.
var readBuffers = sync.Pool{New: func() any { return new([maxIO]byte) }}

// readData answers READ and READDIR.
func (q *request) readData(r *fuse.ReadRequest) {
	h := q.file(r.Handle)
	if h == nil {
		return
	}
	if r.Dir {
		q.readDir(h, r)
		return
	}
	f, ok := h.file.(vnode.Reader)
	if !ok {
		q.fail(fault.E("", "", fault.BadHandle, nil))
		return
	}
	q.waitUnless(h.mem)
	buf := readBuffers.Get().(*[maxIO]byte)
	n, err := f.Read(&q.v, buf[:min(r.Size, maxIO)], r.Offset)
	if err != nil && n == 0 && !errors.Is(err, io.EOF) {
		readBuffers.Put(buf)
		q.fail(err)
		return
	}
	q.answer()
	r.Respond(&fuse.ReadResponse{Data: buf[:n]})
	readBuffers.Put(buf)
}

// write answers WRITE.
func (q *request) write(r *fuse.WriteRequest) {
	h := q.file(r.Handle)
	if h == nil {
		return
	}
	f, ok := h.file.(vnode.Writer)
	if !ok {
		q.fail(fault.E("", "", fault.BadHandle, nil))
		return
	}
	q.wait()
	n, err := f.Write(&q.v, r.Data, r.Offset)
	if err != nil && n == 0 {
		q.fail(err)
		return
	}
	q.answer()
	r.Respond(&fuse.WriteResponse{Size: n})
}

// flush answers FLUSH, one for each close of a descriptor: the closing process
// loses its POSIX locks on the file, then the handle hears of it.
func (q *request) flush(r *fuse.FlushRequest) {
	h := q.file(r.Handle)
	if h == nil {
		return
	}
	q.s.locks.dropOwner(h.ino, uint64(r.LockOwner))
	f, ok := h.file.(vnode.Flusher)
	if !ok {
		q.answer()
		r.Respond()
		return
	}
	q.wait()
	q.done(f.Flush(&q.v, uint64(r.LockOwner)), r.Respond)
}

// fsync answers FSYNC and FSYNCDIR. What has nothing to make durable is synced:
// an error here makes editors say that a save failed.
func (q *request) fsync(r *fuse.FsyncRequest) {
	h := q.file(r.Handle)
	if h == nil {
		return
	}
	if d, ok := h.ino.node.(vnode.DirSyncer); ok && r.Dir {
		q.wait()
		q.done(d.FsyncDir(&q.v), r.Respond)
		return
	}
	if f, ok := h.file.(vnode.Syncer); ok && !r.Dir {
		q.wait()
		q.done(f.Fsync(&q.v, r.Flags&1 != 0), r.Respond)
		return
	}
	q.answer()
	r.Respond()
}

// release answers RELEASE and RELEASEDIR: the last descriptor is gone. The
// kernel does not wait for it and names no caller.
func (q *request) release(r *fuse.ReleaseRequest) {
	h := q.s.handles.remove(uint64(r.Handle))
	if h != nil && h.file == nil {
		q.s.dirs.close(h)
	}
	if h != nil && h.file != nil {
		q.s.locks.drop(h)
		q.waitUnless(h.mem && r.Flags.IsReadOnly())
		h.file.Release(&q.v)
	}
	q.answer()
	r.Respond()
}

// poll answers POLL. A handle that is no Poller is always ready, as an ordinary
// file is; every os.Open of a Go program asks this once.
func (q *request) poll(r *fuse.PollRequest) {
	h := q.file(r.Handle)
	if h == nil {
		return
	}
	const in, out = fuse.PollIn | fuse.PollReadNormal, fuse.PollOut | fuse.PollWriteNormal
	ready := in | out
	if p, ok := h.file.(vnode.Poller); ok {
		q.waitUnless(h.mem)
		wake := func() {}
		if token, wanted := r.Wakeup(); wanted {
			wake = func() { q.s.polls.add(token) }
		}
		readable, err := p.Poll(&q.v, wake)
		if err != nil {
			q.fail(err)
			return
		}
		if !readable {
			ready &^= in
		}
	}
	q.answer()
	r.Respond(&fuse.PollResponse{REvents: ready & (r.Events | fuse.PollError | fuse.PollHangup)})
}
