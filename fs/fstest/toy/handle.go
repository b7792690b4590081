package toy

import (
	"time"

	"cortexfs/node/vnode"
)

// file is an open file.
type file struct{ n *Node }

// The faces of a handle: in memory or not, pollable or not.
type (
	fastFile struct{ *file }
	fastPoll struct {
		*file
		poller
	}
	slowPoll struct {
		*file
		poller
	}
	poller struct{ n *Node }
)

func (fastFile) InMemory() {}
func (fastPoll) InMemory() {}

// Poll implements vnode.Poller.
func (p poller) Poll(r *vnode.Req, wake func()) (bool, error) { return p.n.OnPoll(r, wake) }

func (n *Node) handle() vnode.Handle {
	n.fs.Open.Add(1)
	f := &file{n}
	switch {
	case n.OnPoll != nil && n.Waits:
		return slowPoll{f, poller{n}}
	case n.OnPoll != nil:
		return fastPoll{f, poller{n}}
	case n.Waits:
		return f
	}
	return fastFile{f}
}

// Open implements vnode.Opener.
func (n *Node) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	n.fs.count("open")
	if n.OnOpen != nil {
		if err := n.OnOpen(r, flags); err != nil {
			return nil, vnode.Mode{}, err
		}
	}
	return n.handle(), n.Mode, nil
}

// Read implements vnode.Reader.
func (f *file) Read(r *vnode.Req, p []byte, off int64) (int, error) {
	f.n.fs.count("read")
	if f.n.OnRead != nil {
		if handled, n, err := f.n.OnRead(r, p, off); handled {
			return n, err
		}
	}
	f.n.fs.mu.RLock()
	defer f.n.fs.mu.RUnlock()
	if off >= int64(len(f.n.data)) {
		return 0, nil
	}
	return copy(p, f.n.data[off:]), nil
}

// Write implements vnode.Writer.
func (f *file) Write(r *vnode.Req, p []byte, off int64) (int, error) {
	f.n.fs.count("write")
	if f.n.OnWrite != nil {
		if err := f.n.OnWrite(r, p, off); err != nil {
			return 0, err
		}
	}
	f.n.fs.mu.Lock()
	defer f.n.fs.mu.Unlock()
	if end := int(off) + len(p); end > len(f.n.data) {
		f.n.resize(end)
	}
	copy(f.n.data[off:], p)
	f.n.attr.Mtime = time.Now()
	return len(p), nil
}

// Flush implements vnode.Flusher.
func (f *file) Flush(r *vnode.Req, owner uint64) error {
	f.n.fs.count("flush")
	if f.n.OnFlush != nil {
		return f.n.OnFlush(r, owner)
	}
	return nil
}

// Fsync implements vnode.Syncer.
func (f *file) Fsync(*vnode.Req, bool) error {
	f.n.fs.count("fsync")
	return nil
}

// Release implements vnode.Handle.
func (f *file) Release(*vnode.Req) {
	f.n.fs.count("release")
	f.n.fs.Open.Add(-1)
}
