// Package fault is the one error type of the tree and the one table that turns
// an error into the errno a system call answers (spec section 23).
//
// The idea is upspin's: an error carries the operation, the path, the place in
// the text and a Kind; the Kind exists so that the edge of the program can pick
// an errno without reading words. Errors are wrapped with %w on the way up and
// become a number in Errno, nowhere else. The package does no I/O and knows no
// file system.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Kind is the class of an error; each kind has exactly one errno.
type Kind uint8

// The kinds, after the table of spec section 23. The zero value is a fault that
// nobody classified: EIO.
const (
	IO           Kind = iota // a real fault of the store or of ours
	Invalid                  // text not valid, bad name, cycle
	TooBig                   // over a size limit
	Access                   // mode bits, another owner's object, policy
	Perm                     // forbidden by design
	ReadOnly                 // anything below a view, or a ro mount
	NotExist                 // absent, or invisible to this agent
	CrossDevice              // rename or link across a border
	Exist                    // already there
	NotEmpty                 // directory not empty
	IsDir                    // is a directory
	NotDir                   // is not a directory
	TextBusy                 // executable in use
	NameTooLong              // over 255 bytes
	Busy                     // agent runs
	Stale                    // object gone under an open handle
	NoDevice                 // open of a socket
	NoSpace                  // store or quota full
	Again                    // a limit that passes
	NotSupported             // no such operation on this object
	NoData                   // no such extended attribute
	TooMany                  // too many open handles of one uid
	Loop                     // a symlink where none may be
	Range                    // buffer too small
	Interrupted              // the caller gave up
	BadHandle                // handle not open for this
	Deadlock                 // a lock would wait for itself
	Unavailable              // a needed facility or peer is missing
	TimedOut                 // a bounded wait ended
	NoProcess                // no such process or run
	kinds                    // number of kinds, keep last
)

var table = [kinds]struct {
	errno syscall.Errno
	name  string
}{
	IO:           {syscall.EIO, "i/o fault"},
	Invalid:      {syscall.EINVAL, "invalid"},
	TooBig:       {syscall.EFBIG, "too big"},
	Access:       {syscall.EACCES, "refused"},
	Perm:         {syscall.EPERM, "not permitted"},
	ReadOnly:     {syscall.EROFS, "read-only"},
	NotExist:     {syscall.ENOENT, "not found"},
	CrossDevice:  {syscall.EXDEV, "crosses a border of the tree"},
	Exist:        {syscall.EEXIST, "exists"},
	NotEmpty:     {syscall.ENOTEMPTY, "not empty"},
	IsDir:        {syscall.EISDIR, "is a directory"},
	NotDir:       {syscall.ENOTDIR, "not a directory"},
	TextBusy:     {syscall.ETXTBSY, "executable is in use"},
	NameTooLong:  {syscall.ENAMETOOLONG, "name too long"},
	Busy:         {syscall.EBUSY, "busy"},
	Stale:        {syscall.ESTALE, "object is gone"},
	NoDevice:     {syscall.ENXIO, "cannot be opened"},
	NoSpace:      {syscall.ENOSPC, "no space"},
	Again:        {syscall.EAGAIN, "limit reached"},
	NotSupported: {syscall.ENOTSUP, "not supported"},
	NoData:       {syscall.ENODATA, "no such attribute"},
	TooMany:      {syscall.EMFILE, "too many open files"},
	Loop:         {syscall.ELOOP, "symlink"},
	Range:        {syscall.ERANGE, "out of range"},
	Interrupted:  {syscall.EINTR, "interrupted"},
	BadHandle:    {syscall.EBADF, "bad handle"},
	Deadlock:     {syscall.EDEADLK, "deadlock"},
	Unavailable:  {syscall.EHOSTDOWN, "unavailable"},
	TimedOut:     {syscall.ETIMEDOUT, "timed out"},
	NoProcess:    {syscall.ESRCH, "no such process"},
}

// Kinds returns every kind, for tests that walk the table.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// Errno is the number a system call answers for this kind.
func (k Kind) Errno() syscall.Errno {
	if k >= kinds {
		return syscall.EIO
	}
	return table[k].errno
}

func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind(%d)", k)
	}
	return table[k].name
}

// Error is an error with its place. Any field but Kind may be empty. Line and
// Col count from 1; 0 means unknown.
type Error struct {
	Op   string // what was tried, e.g. "write", "parse mount"
	Path string // the file in the tree, or the object
	Line int    // line of the text
	Col  int    // column (bytes) in the line
	Kind Kind
	Err  error // cause; its text names the token, never a secret
}

// E makes an Error.
func E(op, path string, kind Kind, err error) *Error {
	return &Error{Op: op, Path: path, Kind: kind, Err: err}
}

// Text makes the error of a bad text: kind Invalid at a line and column.
func Text(line, col int, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Line: line, Col: col, Err: fmt.Errorf(format, args...)}
}

// Newf makes an Error whose cause is a formatted message.
func Newf(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Error joins the filled fields: "op path:line:col: message".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Path != "" {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(e.Path)
	}
	if e.Line > 0 {
		if b.Len() > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%d:%d", e.Line, e.Col)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if e.Err != nil {
		b.WriteString(e.Err.Error())
	} else {
		b.WriteString(e.Kind.String())
	}
	return b.String()
}

// Place is the form of the xattr user.cortexfs.error: "LINE:COLUMN: message",
// or the message alone where no place is known (spec section 4.9).
func (e *Error) Place() string {
	msg := e.Kind.String()
	if e.Err != nil {
		msg = e.Err.Error()
	}
	if e.Line == 0 {
		return msg
	}
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Col, msg)
}

func (e *Error) Unwrap() error { return e.Err }

// Errno is the errno of the error's kind; with kind IO, that of a wrapped errno
// is not used: a fault nobody classified stays EIO.
func (e *Error) Errno() syscall.Errno { return e.Kind.Errno() }

// At returns err with operation and path filled in where they are missing. A
// nil err stays nil; a foreign error is wrapped by FromOS.
func At(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		return FromOS(op, path, err)
	}
	c := *e
	if c.Op == "" {
		c.Op = op
	}
	if c.Path == "" {
		c.Path = path
	}
	return &c
}

// FromOS classifies an error of a system call by its errno; one that is not in
// the table is IO.
func FromOS(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var num syscall.Errno
	if errors.As(err, &num) {
		switch num {
		case syscall.EDQUOT:
			num = syscall.ENOSPC
		case syscall.ENFILE:
			num = syscall.EMFILE
		}
		for k := Kind(0); k < kinds; k++ {
			if table[k].errno == num {
				return &Error{Op: op, Path: path, Kind: k, Err: err}
			}
		}
	}
	return &Error{Op: op, Path: path, Kind: IO, Err: err}
}

// KindOf is the kind of the outermost Error in err's chain. Context errors are
// Interrupted, everything else IO.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Interrupted
	}
	return IO
}

// Is says whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// Errno is the one place that turns an error into a number; nil is 0. It never
// answers ENOSYS, which would switch an operation off for a whole FUSE
// connection.
func Errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return KindOf(err).Errno()
}
