package tsh

import (
	"errors"
	"fmt"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// errShell is the answer to everything a shell would do and tsh does not.
var errShell = errors.New("one tool and its words a line: no pipes, redirections, globs, variables or ;")

// maxLine bounds one line of input, in bytes (interop A12).
const maxLine = 1 << 20

// Words splits a line as POSIX sh quotes it. Anything beyond one simple command
// of literal words is an error; an empty or comment line has no words.
func Words(line string) ([]string, error) {
	if len(line) > maxLine {
		return nil, fmt.Errorf("line of over %d bytes", maxLine)
	}
	if strings.IndexByte(line, 0) >= 0 {
		return nil, errors.New("NUL byte in the line")
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(strings.NewReader(line), "")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimPrefix(err.Error(), ":"), errShell)
	}
	switch len(file.Stmts) {
	case 0:
		return nil, nil
	case 1:
	default:
		return nil, errShell
	}
	st := file.Stmts[0]
	call, ok := st.Cmd.(*syntax.CallExpr)
	if !ok || st.Negated || st.Background || st.Coprocess || len(st.Redirs) > 0 || st.Semicolon.IsValid() || len(call.Assigns) > 0 {
		return nil, errShell
	}
	var words []string
	for _, w := range call.Args {
		s, err := literal(w)
		if err != nil {
			return nil, err
		}
		words = append(words, s)
	}
	return words, nil
}

func literal(w *syntax.Word) (string, error) {
	var b strings.Builder
	for _, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			s, err := unquoted(p.Value)
			if err != nil {
				return "", err
			}
			b.WriteString(s)
		case *syntax.SglQuoted:
			if p.Dollar {
				return "", errShell
			}
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			if p.Dollar {
				return "", errShell
			}
			for _, inner := range p.Parts {
				lit, ok := inner.(*syntax.Lit)
				if !ok {
					return "", errShell
				}
				b.WriteString(unescape(lit.Value, "$`\"\\"))
			}
		default:
			return "", errShell
		}
	}
	return b.String(), nil
}

// unquoted resolves the backslashes of an unquoted piece and refuses what a
// shell would expand there.
func unquoted(s string) (string, error) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '*', '?', '[', '$':
			return "", errShell
		}
	}
	return unescape(s, ""), nil
}

// unescape removes a backslash before one of set (empty: before any character)
// and joins lines at a backslash-newline.
func unescape(s, set string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		next := s[i+1]
		switch {
		case next == '\n':
			i++
		case set == "" || strings.IndexByte(set, next) >= 0:
			b.WriteByte(next)
			i++
		default:
			b.WriteByte('\\')
		}
	}
	return b.String()
}
