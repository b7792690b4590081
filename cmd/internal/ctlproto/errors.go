package ctlproto

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// Exit codes of spec section 23.
const (
	ExitOK          = 0
	ExitError       = 1
	ExitUsage       = 2
	ExitPolicy      = 13
	ExitUnavailable = 69
	ExitInternal    = 70
	ExitCancelled   = 130
)

// ExitCode is the exit code of an error: its own, if it or one that it wraps has
// a method ExitCode, else by its kind.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	var own interface{ ExitCode() int }
	if errors.As(err, &own) {
		return own.ExitCode()
	}
	switch fault.KindOf(err) {
	case fault.Invalid, fault.TooBig, fault.NameTooLong:
		return ExitUsage
	case fault.Access, fault.Perm:
		return ExitPolicy
	case fault.Unavailable:
		return ExitUnavailable
	case fault.Interrupted:
		return ExitCancelled
	}
	return ExitError
}

// ErrorFrame is the last frame of a failed request. Of err it carries the kind
// and the message, nothing else.
func ErrorFrame(err error) *Frame {
	return &Frame{
		Type: "error",
		Code: unix.ErrnoName(fault.Errno(err)),
		Msg:  err.Error(),
		Exit: ExitCode(err),
	}
}

// RemoteError is an error frame as the client sees it.
type RemoteError struct {
	Code    string // errno name
	Message string
	Exit    int
	Detail  json.RawMessage
}

func (e *RemoteError) Error() string {
	if e.Message == "" {
		return e.Code
	}
	return e.Message
}

// ExitCode is the server's word, which knows more than the errno says.
func (e *RemoteError) ExitCode() int { return e.Exit }

// Unwrap gives the kind to fault.KindOf.
func (e *RemoteError) Unwrap() error {
	for _, k := range fault.Kinds() {
		if unix.ErrnoName(k.Errno()) == e.Code {
			return fault.Newf(k, "%s", e.Message)
		}
	}
	return fault.Newf(fault.IO, "%s", e.Message)
}

// Remote turns an error frame into an error.
func (f *Frame) Remote() error {
	if f.Type != "error" {
		return nil
	}
	exit := f.Exit
	if exit <= 0 || exit > 255 {
		exit = ExitError
	}
	return &RemoteError{Code: f.Code, Message: f.Msg, Exit: exit, Detail: f.Detail}
}

// Result makes the last frame of a request that went well.
func Result(v any) (*Frame, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return &Frame{Type: "result", Data: data, Done: true}, nil
}
