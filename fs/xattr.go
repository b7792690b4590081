package fs

import (
	"syscall"

	"bazil.org/fuse"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// getxattr answers GETXATTR. On a view's connection it answers ENOSYS once and
// the kernel asks no more: the first write of every open costs one request for
// security.capability otherwise.
func (q *request) getxattr(r *fuse.GetxattrRequest) {
	if q.s.opt.View {
		q.failNo(syscall.ENOSYS)
		return
	}
	n := q.node()
	if n == nil {
		return
	}
	x, ok := n.node.(vnode.Xattrer)
	if !ok {
		q.fail(fault.E("", "", fault.NotSupported, nil))
		return
	}
	q.waitUnless(n.mem)
	value, err := x.Getxattr(&q.v, r.Name)
	if err != nil {
		q.fail(err)
		return
	}
	if !q.fits(len(value), r.Size) {
		return
	}
	q.answer()
	r.Respond(&fuse.GetxattrResponse{Xattr: value})
}

// fits answers ERANGE where the caller's buffer is too small. Size 0 asks for
// the length.
func (q *request) fits(have int, size uint32) bool {
	if size != 0 && uint64(have) > uint64(size) {
		q.fail(fault.E("", "", fault.Range, nil))
		return false
	}
	return true
}

func (q *request) listxattr(r *fuse.ListxattrRequest) {
	n := q.node()
	if n == nil {
		return
	}
	var resp fuse.ListxattrResponse
	if x, ok := n.node.(vnode.Xattrer); ok && !q.s.opt.View {
		q.waitUnless(n.mem)
		names, err := x.Listxattr(&q.v)
		if err != nil {
			q.fail(err)
			return
		}
		resp.Append(names...)
	}
	if !q.fits(len(resp.Xattr), r.Size) {
		return
	}
	q.answer()
	r.Respond(&resp)
}

func (q *request) setxattr(r *fuse.SetxattrRequest) {
	n := q.node()
	if n == nil {
		return
	}
	x, ok := n.node.(vnode.XattrSetter)
	if !ok {
		q.fail(fault.E("", "", fault.NotSupported, nil))
		return
	}
	q.wait()
	q.done(x.Setxattr(&q.v, r.Name, r.Xattr, r.Flags), r.Respond)
}

func (q *request) removexattr(r *fuse.RemovexattrRequest) {
	n := q.node()
	if n == nil {
		return
	}
	x, ok := n.node.(vnode.XattrSetter)
	if !ok {
		q.fail(fault.E("", "", fault.NotSupported, nil))
		return
	}
	q.wait()
	q.done(x.Removexattr(&q.v, r.Name), r.Respond)
}
