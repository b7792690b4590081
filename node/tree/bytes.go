package tree

import (
	"io"
	"sync"

	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

// maxIdle is how many executables stay open although nobody has them open: an
// exec opens its file more than once, and the next call of the tool is near.
const maxIdle = 32

// openFiles shares one descriptor among all who have the same content open. Its
// mutex is a leaf and held over no I/O but a close.
type openFiles struct {
	mu    sync.Mutex
	files map[content]*sharedFile
	idle  []*sharedFile // oldest first
}

// content names bytes that never change: a path at one generation.
type content struct {
	path string
	gen  uint64
}

type sharedFile struct {
	key  content
	f    *store.File
	refs int
}

// open pins the bytes with a generation; Stale when the path has others by now.
func (o *openFiles) open(st *store.Store, path string, gen uint64) (*sharedFile, error) {
	key := content{path, gen}
	if s := o.take(key); s != nil {
		return s, nil
	}
	f, err := st.OpenFile(path)
	if err != nil {
		return nil, err
	}
	if f.Info().Gen != gen {
		f.Close()
		return nil, fault.Newf(fault.Stale, "the file was replaced")
	}
	if s := o.take(key); s != nil { // somebody was faster
		f.Close()
		return s, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &sharedFile{key: key, f: f, refs: 1}
	if o.files[key] == nil {
		o.files[key] = s
	}
	return s, nil
}

func (o *openFiles) take(key content) *sharedFile {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.files[key]
	if s == nil {
		return nil
	}
	if s.refs == 0 {
		o.unidleLocked(s)
	}
	s.refs++
	return s
}

func (o *openFiles) unidleLocked(s *sharedFile) {
	for i, x := range o.idle {
		if x == s {
			o.idle = append(o.idle[:i], o.idle[i+1:]...)
			return
		}
	}
}

// put gives a reference back; the last one makes the file idle, and the oldest
// idle one is closed.
func (o *openFiles) put(s *sharedFile) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.refs--
	if s.refs > 0 {
		return
	}
	if o.files[s.key] != s {
		s.f.Close()
		return
	}
	o.idle = append(o.idle, s)
	if len(o.idle) > maxIdle {
		o.dropLocked(o.idle[0])
	}
}

func (o *openFiles) dropLocked(s *sharedFile) {
	o.unidleLocked(s)
	delete(o.files, s.key)
	s.f.Close()
}

// forget closes what is idle under a path that has other bytes now, so that a
// deleted file gives its space back; path "": everything idle.
func (o *openFiles) forget(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := len(o.idle) - 1; i >= 0; i-- {
		if s := o.idle[i]; path == "" || s.key.path == path {
			o.dropLocked(s)
		}
	}
}

// bytesHandle reads one content for ever: a running program keeps its bytes
// whatever happens to the name or to the right to execute it.
type bytesHandle struct {
	t  *Tree
	c  *counted
	s  *sharedFile
	of *execFile // of the main tree; told of the end
}

// openBytes makes a handle over the bytes with a generation; c may be nil.
func (t *Tree) openBytes(path string, gen uint64, c *counted) (*bytesHandle, error) {
	s, err := t.open.open(t.st, path, gen)
	if err != nil {
		return nil, err
	}
	return &bytesHandle{t: t, c: c, s: s}, nil
}

// Read reads at an offset.
func (h *bytesHandle) Read(_ *vnode.Req, p []byte, off int64) (int, error) {
	n, err := h.s.f.ReadAt(p, off)
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// Release gives the bytes back.
func (h *bytesHandle) Release(*vnode.Req) {
	h.t.open.put(h.s)
	if h.of != nil {
		h.of.closed()
	}
	if h.c != nil {
		h.c.done()
	}
}
