package toolkit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxStdin bounds a JSON object on standard input (spec section 6: arguments
// over 8 KiB come that way, over 1 MiB are refused).
const maxStdin = 1 << 20

// values holds the arguments by parameter name: string, int64 or []string.
type values map[string]any

func (v values) str(name string) string    { s, _ := v[name].(string); return s }
func (v values) list(name string) []string { l, _ := v[name].([]string); return l }
func (v values) num(name string, or int64) int64 {
	if n, ok := v[name].(int64); ok {
		return n
	}
	return or
}

// Usage is the argv form in one line.
func (t *Tool) Usage() string {
	var b strings.Builder
	b.WriteString(t.Name)
	for _, p := range t.Params {
		word := strings.ToUpper(p.Name)
		if p.Type == "strings" {
			word = strings.ToUpper(strings.TrimSuffix(p.Name, "s")) + "…"
		}
		if !p.Required || p.Stdin {
			word = "[" + word + "]"
		}
		b.WriteString(" " + word)
	}
	return b.String()
}

// Schema is the JSON Schema of the native form, one line with a final LF.
func (t *Tool) Schema() string {
	props := &bytes.Buffer{}
	var required []string
	for i, p := range t.Params {
		if i > 0 {
			props.WriteByte(',')
		}
		typ := map[string]any{"type": p.Type, "description": p.Doc}
		switch p.Type {
		case "strings":
			typ["type"] = "array"
			typ["items"] = map[string]string{"type": "string"}
		case "integer":
			typ["minimum"] = 1
		}
		text, err := json.Marshal(typ)
		if err != nil {
			panic(err) // a literal of this package
		}
		fmt.Fprintf(props, "%q:%s", p.Name, text)
		if p.Required {
			required = append(required, strconv.Quote(p.Name))
		}
	}
	return fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":false}`+"\n",
		props, strings.Join(required, ","))
}

// parse reads both call modes. One argument that is a JSON object is the native
// form in either mode: no path or command line of use looks like one.
func (t *Tool) parse(args []string, mode string, stdin io.Reader) (values, error) {
	switch {
	case mode == "native" && len(args) == 0:
		text, err := io.ReadAll(io.LimitReader(stdin, maxStdin+1))
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		if len(text) > maxStdin {
			return nil, usagef("arguments of over %d bytes", maxStdin)
		}
		return t.parseJSON(text)
	case mode == "native" && len(args) > 1:
		return nil, usagef("the native form is one JSON object, not %d arguments", len(args))
	case len(args) == 1 && (mode == "native" || looksLikeObject(args[0])):
		return t.parseJSON([]byte(args[0]))
	}
	return t.parseArgv(args, stdin)
}

func looksLikeObject(s string) bool {
	return strings.HasPrefix(strings.TrimLeft(s, " \t\n"), "{") && json.Valid([]byte(s))
}

func (t *Tool) parseJSON(text []byte) (values, error) {
	var raw map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&raw); err != nil {
		return nil, usagef("arguments are not a JSON object: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, usagef("text after the JSON object")
	}
	v := values{}
	for _, p := range t.Params {
		field, ok := raw[p.Name]
		delete(raw, p.Name)
		if !ok {
			if p.Required {
				return nil, usagef("/%s is missing", p.Name)
			}
			continue
		}
		val, err := p.decode(field)
		if err != nil {
			return nil, err
		}
		v[p.Name] = val
	}
	for name := range raw {
		return nil, usagef("unknown key /%s", name)
	}
	return v, nil
}

func (p *Param) decode(text json.RawMessage) (any, error) {
	var err error
	switch p.Type {
	case "integer":
		var n int64
		if err = json.Unmarshal(text, &n); err == nil && string(text) != "null" {
			return n, p.checkInt(n)
		}
	case "strings":
		var l []*string
		if err = json.Unmarshal(text, &l); err == nil && l != nil {
			out := make([]string, len(l))
			for i, s := range l {
				if s == nil {
					return nil, usagef("/%s/%d is not a string", p.Name, i)
				}
				out[i] = *s
			}
			return out, nil
		}
	default:
		var s *string
		if err = json.Unmarshal(text, &s); err == nil && s != nil {
			return *s, nil
		}
	}
	return nil, usagef("/%s is not of type %s", p.Name, p.Type)
}

func (p *Param) checkInt(n int64) error {
	if n < 1 {
		return usagef("/%s is %d, the least is 1", p.Name, n)
	}
	return nil
}

func (t *Tool) parseArgv(args []string, stdin io.Reader) (values, error) {
	v := values{}
	if len(t.Params) > 0 && t.Params[0].Type != "strings" && len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	for _, p := range t.Params {
		if p.Type == "strings" {
			v[p.Name], args = args, nil
			continue
		}
		if len(args) == 0 {
			if p.Stdin {
				text, err := io.ReadAll(stdin)
				if err != nil {
					return nil, fmt.Errorf("read standard input: %w", err)
				}
				v[p.Name] = string(text)
			} else if p.Required {
				return nil, usagef("%s is missing", strings.ToUpper(p.Name))
			}
			continue
		}
		if p.Type == "integer" {
			n, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return nil, usagef("%s: %q is not a number", strings.ToUpper(p.Name), args[0])
			}
			if err := p.checkInt(n); err != nil {
				return nil, err
			}
			v[p.Name] = n
		} else {
			v[p.Name] = args[0]
		}
		args = args[1:]
	}
	if len(args) > 0 {
		return nil, usagef("%d arguments too many", len(args))
	}
	return v, nil
}
