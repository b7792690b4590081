package run

import (
	"encoding/json"
	"slices"
	"strings"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// Limits of a call's arguments (spec section 14).
const (
	MaxWords  = 64
	MaxWord   = 8 << 10
	maxInline = 8 << 10 // bytes of a native argument on argv; above it is stdin
)

// Args are the arguments of a call: words (CLI), or one JSON object (native).
type Args struct {
	Words  []string
	Native []byte // the exact text; nil: CLI
}

// ParseArgs reads the forms of arguments. An object whose only key is args or
// argv, command or input is the CLI form unless the tool's schema names that key.
// The error, Invalid or TooBig, is what the agent is told.
func ParseArgs(raw json.RawMessage, schema []byte) (*Args, error) {
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return nil, fault.Newf(fault.Invalid, "arguments are no text")
		}
		return words(Words(s))
	}
	o, err := jsonl.Parse(raw)
	if err != nil {
		return nil, fault.Newf(fault.Invalid, "arguments: %w", err)
	}
	if len(o) == 1 && !names(schema, o[0].Key) {
		switch key, value := o[0].Key, o[0].Value; key {
		case "args", "argv":
			return words(stringList(key, value))
		case "command", "input":
			s, ok := o.String(key)
			if !ok {
				return nil, fault.Newf(fault.Invalid, "%s is a string", key)
			}
			if key == "input" {
				return words([]string{s}, nil)
			}
			return words(Words(s))
		}
	}
	// Two readers of a repeated key could see two values: one judged, one used.
	if err := jsonl.Unique(raw); err != nil {
		return nil, fault.Newf(fault.Invalid, "arguments: %w", err)
	}
	return &Args{Native: raw}, nil
}

func stringList(key string, value json.RawMessage) ([]string, error) {
	var list []any
	all := []string{}
	if len(value) == 0 || value[0] != '[' || json.Unmarshal(value, &list) != nil {
		return nil, fault.Newf(fault.Invalid, "%s is a list of strings", key)
	}
	for _, v := range list {
		s, ok := v.(string)
		if !ok {
			return nil, fault.Newf(fault.Invalid, "%s is a list of strings", key)
		}
		all = append(all, s)
	}
	return all, nil
}

func words(all []string, err error) (*Args, error) {
	if err != nil {
		return nil, err
	}
	if len(all) > MaxWords {
		return nil, fault.Newf(fault.TooBig, "%d arguments, at most %d", len(all), MaxWords)
	}
	for i, w := range all {
		if len(w) > MaxWord {
			return nil, fault.Newf(fault.TooBig, "argument %d has %d bytes, at most %d", i+1, len(w), MaxWord)
		}
		if strings.IndexByte(w, 0) >= 0 {
			return nil, fault.Newf(fault.Invalid, "argument %d has a NUL byte", i+1)
		}
	}
	if all == nil {
		all = []string{}
	}
	return &Args{Words: all}, nil
}

// names says whether the schema names that key.
func names(schema []byte, key string) bool {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return false
	}
	_, ok := s.Properties[key]
	return ok || slices.Contains(s.Required, key)
}

// Exec is how the arguments reach the tool: words, and standard input.
func (a *Args) Exec() (words []string, stdin []byte) {
	switch {
	case a.Native == nil:
		return a.Words, nil
	case len(a.Native) <= maxInline:
		return []string{string(a.Native)}, nil
	}
	return nil, a.Native
}

// Shown is what a person is shown: the words, or the exact JSON.
func (a *Args) Shown() []string {
	if a.Native != nil {
		return []string{string(a.Native)}
	}
	return a.Words
}

// Words splits a text as a shell quotes: blanks part words, '…' is literal, "…"
// knows backslash before " \ $ ` and LF, a backslash takes the next character.
// Nothing is expanded and no character is an operator. Invalid: an open quote.
func Words(s string) ([]string, error) {
	if len(s) > MaxWords*(MaxWord+1) {
		return nil, fault.Newf(fault.TooBig, "command of %d bytes", len(s))
	}
	var all []string
	var w strings.Builder
	in := false // within a word, which may be empty
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case ' ', '\t', '\n', '\r':
			if in {
				all = append(all, w.String())
				w.Reset()
				in = false
			}
			continue
		case '\'':
			end := strings.IndexByte(s[i+1:], '\'')
			if end < 0 {
				return nil, fault.Newf(fault.Invalid, "a ' is not closed")
			}
			w.WriteString(s[i+1 : i+1+end])
			i += end + 1
		case '"':
			end, err := double(s[i+1:], &w)
			if err != nil {
				return nil, err
			}
			i += end + 1
		case '\\':
			if i++; i == len(s) {
				return nil, fault.Newf(fault.Invalid, "a backslash at the end")
			}
			if s[i] == '\n' { // joins two lines
				continue
			}
			w.WriteByte(s[i])
		default:
			w.WriteByte(c)
		}
		in = true
	}
	if in {
		all = append(all, w.String())
	}
	return all, nil
}

// double reads up to the closing quote and returns its place.
func double(s string, w *strings.Builder) (int, error) {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i, nil
		case c == '\\' && i+1 < len(s) && strings.IndexByte("\"\\$`\n", s[i+1]) >= 0:
			if i++; s[i] != '\n' {
				w.WriteByte(s[i])
			}
		default:
			w.WriteByte(c)
		}
	}
	return 0, fault.Newf(fault.Invalid, "a \" is not closed")
}
