package bwrap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Status is what --json-status-fd says: a document when the namespaces are made,
// one more when the command has ended.
type Status struct {
	ChildPID int  `json:"child-pid"` // init of the pid namespace, in our numbers
	ExitCode *int `json:"exit-code"` // nil: the set-up failed before the command was executed
}

// Reader reads the documents of one bwrap.
type Reader struct{ dec *json.Decoder }

// maxStatus bounds what is read: the descriptor is held by a process of the
// agent's uid.
const maxStatus = 16 << 10

// NewReader reads from the other end of the status descriptor.
func NewReader(r io.Reader) *Reader {
	return &Reader{json.NewDecoder(io.LimitReader(r, maxStatus))}
}

// Next returns the next document; io.EOF when bwrap has ended.
func (r *Reader) Next() (Status, error) {
	var s Status
	err := r.dec.Decode(&s)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return s, io.EOF
	}
	if err != nil {
		return s, fmt.Errorf("bwrap status: %w", err)
	}
	return s, nil
}

// StatusPipe makes the pipe for bubblewrap's status descriptor: r is read here,
// w goes to bubblewrap. w can be read too, so that it never is a pipe without a
// reader: bubblewrap would die of SIGPIPE when the one who started it dies in
// the middle of a start, and leave the process behind that waits for its word,
// for ever. End of file comes as usual, when bubblewrap has closed its end.
func StatusPipe() (r, w *os.File, err error) {
	r, plain, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer plain.Close()
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(int(plain.Fd())), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		r.Close()
		return nil, nil, &os.PathError{Op: "open", Path: "status pipe", Err: err}
	}
	return r, os.NewFile(uintptr(fd), "status"), nil
}
