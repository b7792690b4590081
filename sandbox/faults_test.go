package sandbox

import (
	"errors"
	"strings"
	"testing"

	"cortexfs/sandbox/stage"
)

// wantFault checks exit code, control and words of the error of a start; any of
// several joined ones may be it.
func wantFault(t testing.TB, err error, exit int, control, words string) {
	t.Helper()
	for _, e := range faults(err) {
		if e.Exit == exit && e.Control == control && strings.Contains(e.Message+" "+e.Cure, words) {
			return
		}
	}
	t.Errorf("error %v; want exit %d, control %q, words %q", err, exit, control, words)
}

func faults(err error) []*StartError {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*StartError
		for _, e := range many.Unwrap() {
			all = append(all, faults(e)...)
		}
		return all
	}
	var e *stage.StartError
	if errors.As(err, &e) {
		return []*StartError{e}
	}
	return nil
}
