package nodetest

import (
	"context"
	"os"
	"syscall"

	"cortexfs/node/vnode"
)

// Dup is dup(2).
func (p *Proc) Dup(fd FD) (FD, error) {
	o, err := p.get(fd)
	if err != nil {
		return -1, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o.refs++
	made := p.next
	p.next++
	p.fds[made] = o
	return made, nil
}

// Close sends a FLUSH, and a RELEASE after the last one. The release is answered
// before Close returns, which a kernel does not promise.
func (p *Proc) Close(fd FD) error {
	o, err := p.get(fd)
	if err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.fds, fd)
	o.refs--
	last := o.refs == 0
	p.mu.Unlock()
	if f, ok := o.h.(vnode.Flusher); ok {
		err = errno(f.Flush(p.req(), uint64(p.tid)))
	}
	if last {
		if o.h != nil {
			o.h.Release(&vnode.Req{Ctx: context.Background()})
		}
		unref(o.node)
	}
	return err
}

// CloseAll closes what is left, as the end of a process does.
func (p *Proc) CloseAll() {
	p.mu.Lock()
	var all []FD
	for fd := range p.fds {
		all = append(all, fd)
	}
	p.mu.Unlock()
	for _, fd := range all {
		_ = p.Close(fd)
	}
}

func (p *Proc) Read(fd FD, b []byte) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := p.Pread(fd, b, o.pos)
	o.pos += int64(n)
	return n, err
}

func (p *Proc) Pread(fd FD, b []byte, off int64) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	r, ok := o.h.(vnode.Reader)
	if !ok || !vnode.OpenFlags(o.flags).Read() {
		return 0, syscall.EBADF
	}
	n, err := r.Read(p.req(), b, off)
	return n, errno(err)
}

// Write writes at the position: with O_APPEND at the size that stat shows, as the
// kernel believes it.
func (p *Proc) Write(fd FD, b []byte) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.flags&os.O_APPEND != 0 {
		a, err := o.node.Attr(p.req())
		if err != nil {
			return 0, errno(err)
		}
		o.pos = int64(a.Size)
	}
	n, err := p.Pwrite(fd, b, o.pos)
	o.pos += int64(n)
	return n, err
}

func (p *Proc) Pwrite(fd FD, b []byte, off int64) (int, error) {
	o, err := p.get(fd)
	if err != nil {
		return 0, err
	}
	w, ok := o.h.(vnode.Writer)
	if !ok || !vnode.OpenFlags(o.flags).Write() {
		return 0, syscall.EBADF
	}
	done := 0
	for done < len(b) { // requests are at most 128 KiB
		part := b[done:min(len(b), done+128<<10)]
		n, err := w.Write(p.req(), part, off+int64(done))
		done += n
		if err != nil {
			if done > 0 {
				return done, nil
			}
			return 0, errno(err)
		}
	}
	return done, nil
}

func (p *Proc) Fsync(fd FD) error {
	o, err := p.get(fd)
	if err != nil {
		return err
	}
	if s, ok := o.h.(vnode.Syncer); ok {
		return errno(s.Fsync(p.req(), false))
	}
	return nil
}

// Take gives p a descriptor of another process, as a Unix socket or exec would.
func (p *Proc) Take(from *Proc, fd FD) FD {
	o, err := from.get(fd)
	if err != nil {
		return -1
	}
	from.mu.Lock()
	o.refs++
	from.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	made := p.next
	p.next++
	p.fds[made] = o
	return made
}

// SetThread makes another thread of the host the one that asks.
func (p *Proc) SetThread(tid uint32) { p.tid = tid }
