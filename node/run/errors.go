package run

import (
	"context"
	"errors"
	"strings"

	"cortexfs/node/jsonl"
	"cortexfs/node/model"
)

// RunError ends a run, or is what a call was refused with. Code is an errno name.
type RunError struct {
	Code    string
	Message string
	Detail  string // for who wrote the agent's program
}

func (e *RunError) Error() string {
	if e.Detail != "" {
		return e.Message + ": " + e.Detail
	}
	return e.Message
}

// frame is the terminal error of a run.
func (e *RunError) frame(run string) []byte {
	return jsonl.Marshal(struct {
		Type    string `json:"type"`
		Run     string `json:"run"`
		Code    string `json:"code"`
		Message string `json:"message"`
		Detail  string `json:"detail,omitempty"`
	}{"error", run, e.Code, model.Printable(e.Message, 512), model.Printable(e.Detail, 512)})
}

// codeOf is the errno name of an error.
func codeOf(err error) string {
	var r *RunError
	var h *hookError
	var v *Violation
	switch {
	case errors.As(err, &r):
		return r.Code
	case errors.As(err, &h):
		return h.code
	case errors.As(err, &v):
		return "EIO"
	case errors.Is(err, context.DeadlineExceeded):
		return "ETIMEDOUT"
	}
	return model.Code(err)
}

// toRunError makes any error one that can end a run.
func toRunError(err error) *RunError {
	var r *RunError
	if errors.As(err, &r) {
		return r
	}
	var v *Violation
	if errors.As(err, &v) {
		return &RunError{Code: "EIO", Message: "the agent's program broke the wire format", Detail: v.Detail}
	}
	return &RunError{Code: codeOf(err), Message: err.Error()}
}

// firstLine is the first line of what a program said on its standard error, with
// what looks like a secret masked.
func firstLine(stderr []byte) string {
	text := strings.TrimSpace(string(stderr[:min(len(stderr), 4096)]))
	text, _, _ = strings.Cut(text, "\n")
	return model.Printable(maskSecrets(text), 512)
}

// markers are what stands before a secret in common messages. Those that end a
// word of their own are one only at its beginning.
var markers = []string{"bearer ", "basic ", "token=", "token:", "key=", "key:", "password=", "password:", "secret=", "secret:",
	"sk-", "ghp_", "github_pat_", "xoxb-", "akia"}

func wordStart(s string, at int) bool {
	if at == 0 {
		return true
	}
	c := s[at-1]
	return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9')
}

// maskSecrets replaces the word behind each marker.
func maskSecrets(s string) string {
	lower := strings.ToLower(s)
	if len(lower) != len(s) {
		lower = s // letters whose lower case has another length: no places to rely on
	}
	for _, m := range markers {
		for at := 0; ; {
			i := strings.Index(lower[at:], m)
			if i < 0 {
				break
			}
			start := at + i + len(m)
			if strings.IndexByte("= :", m[len(m)-1]) < 0 && !wordStart(s, at+i) {
				at = start
				continue
			}
			for start < len(s) && strings.IndexByte(` ="':`, s[start]) >= 0 {
				start++
			}
			end := start
			for end < len(s) && strings.IndexByte(" \t\n\"',;&", s[end]) < 0 {
				end++
			}
			s = s[:start] + model.Hidden + s[end:]
			lower = lower[:start] + model.Hidden + lower[end:]
			at = start + len(model.Hidden)
		}
	}
	return s
}
