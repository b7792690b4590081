package fs

import (
	"syscall"

	"go.uber.org/zap"

	"cortexfs/node/fault"
)

// errno is the one place where an error becomes the number that a system call
// answers. ENOSYS never comes out: to the kernel it does not mean "this call
// failed" but "never ask this connection for this operation again", and one
// ENOSYS from an OPEN makes every file of the mount ESTALE.
func errno(err error) syscall.Errno {
	n := fault.Errno(err)
	if n == syscall.ENOSYS || n == 0 {
		return syscall.EIO
	}
	return n
}

// Operations that bazil does not decode arrive as bare numbers.
const (
	opIoctl     = 39
	opRename2   = 45
	opLseek     = 46
	opCopyRange = 47
	opSyncfs    = 50
	opTmpfile   = 51
	opStatx     = 52
)

// unknownErrno answers an operation that this package cannot know. These are,
// with GETXATTR on a view, the only deliberate ENOSYS: the kernel has a fallback
// of its own for each (rename2 with flags becomes EINVAL and mv tries a plain
// one, lseek is computed, copy_file_range is a copy, O_TMPFILE EOPNOTSUPP, statx
// is stat) and asks only once per connection.
func unknownErrno(op uint32) syscall.Errno {
	switch op {
	case opRename2, opLseek, opCopyRange, opSyncfs, opTmpfile, opStatx:
		return syscall.ENOSYS
	case opIoctl:
		return syscall.ENOTTY
	}
	return syscall.EOPNOTSUPP
}

// fail answers the request with the error's number and logs real faults.
func (q *request) fail(err error) {
	n := errno(err)
	if n == syscall.EIO {
		q.s.log.Warn("request failed", zap.String("request", q.name()), zap.Error(err))
	}
	q.failNo(n)
}

// failNo answers with a number that was decided in this package.
func (q *request) failNo(n syscall.Errno) {
	q.answer()
	q.req.RespondError(n)
}
