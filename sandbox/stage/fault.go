package stage

import (
	"fmt"
	"strings"

	"cortexfs/node/fault"
)

// StartError says why a start ended (spec 10.1): the step, the control and its
// line, and the cure. It crosses the process border as JSON.
type StartError struct {
	Step    int        `json:"step"`              // of spec 10.1, 1–9
	Control string     `json:"control,omitempty"` // "mount", "cwd", "uid" …
	Line    int        `json:"line,omitempty"`
	Message string     `json:"message"`
	Cure    string     `json:"cure,omitempty"`
	Kind    fault.Kind `json:"kind"`
	Exit    int        `json:"exit"` // 1, 2 bad arguments, 13 refused, 69 a facility is missing
}

// Steps of spec 10.1 that this package takes.
const (
	StepIdentity  = 4
	StepNamespace = 5
	StepMount     = 6
	StepRoot      = 7
	StepCwd       = 8
	StepExec      = 9
)

func (e *StartError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "start, step %d", e.Step)
	if e.Control != "" {
		b.WriteString(": " + e.Control)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
	}
	b.WriteString(": " + e.Message)
	if e.Cure != "" {
		b.WriteString(" (" + e.Cure + ")")
	}
	return b.String()
}

// Unwrap gives fault.KindOf the kind.
func (e *StartError) Unwrap() error {
	return &fault.Error{Op: "start", Path: e.Control, Line: e.Line, Kind: e.Kind}
}

// ExitCode is the exit code of spec 23 for a kind.
func ExitCode(k fault.Kind) int {
	switch k {
	case fault.Perm, fault.Access:
		return 13
	case fault.Unavailable:
		return 69
	case fault.Invalid:
		return 2
	}
	return 1
}

// Fail makes a StartError with the exit code of its kind.
func Fail(step int, control string, line int, kind fault.Kind, cure, format string, args ...any) *StartError {
	return &StartError{Step: step, Control: control, Line: line, Message: fmt.Sprintf(format, args...), Cure: cure, Kind: kind, Exit: ExitCode(kind)}
}
