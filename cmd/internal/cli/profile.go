package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"cortexfs/node/control"
	"cortexfs/node/fault"
)

// maxProfile bounds the file of `ctx agent new --from`.
const maxProfile = 1 << 20

// readTexts reads the control texts of a profile, a YAML or JSON mapping of control
// names to texts, strictly: an unknown or repeated name, another value than one
// text, or a text that its control does not take, is refused with its line.
func (s *State) readTexts(file string, texts map[string]string) error {
	in := s.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return fault.FromOS("read", file, err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxProfile+1))
	if err != nil {
		return fault.FromOS("read", file, err)
	}
	if len(b) > maxProfile {
		return fault.E("read", file, fault.TooBig, fmt.Errorf("over %d bytes", maxProfile))
	}
	pairs, err := decodeTexts(b)
	if err != nil {
		return fault.E("read", file, fault.Invalid, err)
	}
	for _, p := range pairs {
		bad := func(format string, args ...any) error {
			return &fault.Error{Op: "read", Path: file, Line: p.line, Col: 1, Kind: fault.Invalid, Err: fmt.Errorf(format, args...)}
		}
		e := control.Agent.Lookup(p.name)
		if e == nil || !e.Writable() {
			return bad("%q is not a control of an agent that can be written; there are %s", p.name, strings.Join(writable(), " "))
		}
		if _, twice := texts[p.name]; twice {
			return bad("%s is there twice", p.name)
		}
		if err := e.Judge([]byte(p.text)); err != nil {
			return &fault.Error{Op: "read", Path: file, Line: p.line, Col: 1, Kind: fault.KindOf(err), Err: fmt.Errorf("%s: %w", p.name, err)}
		}
		texts[p.name] = p.text
	}
	return nil
}

// pair is one member of a profile. A text gets the last LF that it lacks.
type pair struct {
	name, text string
	line       int
}

func newPair(name, text string, line int) pair {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return pair{name, text, line}
}

// decodeTexts reads YAML, or JSON where the file begins like an object: YAML takes
// no TABs before a value, JSON does.
func decodeTexts(b []byte) ([]pair, error) {
	if bytes.HasPrefix(bytes.TrimSpace(b), []byte("{")) {
		if pairs, err := decodeJSON(b); err == nil || json.Valid(b) {
			return pairs, err
		}
	}
	return decodeYAML(b)
}

var errMapping = errors.New("expected one mapping of control names to texts")

// decodeYAML takes scalars as they are written (uid: 1000, approval: ask).
func decodeYAML(b []byte) ([]pair, error) {
	d := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	if err := d.Decode(&doc); err != nil {
		if err == io.EOF {
			return nil, errMapping
		}
		return nil, fmt.Errorf("neither YAML nor JSON: %w", err)
	}
	if err := d.Decode(&more); err != io.EOF {
		return nil, errMapping
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errMapping
	}
	var pairs []pair
	nodes := doc.Content[0].Content
	for i := 0; i+1 < len(nodes); i += 2 {
		key, value := nodes[i], nodes[i+1]
		if key.Kind != yaml.ScalarNode || value.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: %q: expected one text", value.Line, key.Value)
		}
		text := value.Value
		if value.Tag == "!!null" {
			text = ""
		}
		pairs = append(pairs, newPair(key.Value, text, key.Line))
	}
	return pairs, nil
}

// decodeJSON takes strings, and numbers and words as they are written.
func decodeJSON(b []byte) ([]pair, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	line := func() int { return 1 + bytes.Count(b[:d.InputOffset()], []byte("\n")) }
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errMapping
	}
	var pairs []pair
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string)
		at := line()
		if t, err = d.Token(); err != nil {
			return nil, err
		}
		var text string
		switch v := t.(type) {
		case string:
			text = v
		case json.Number, bool:
			text = fmt.Sprint(v)
		case nil:
		default:
			return nil, fmt.Errorf("line %d: %q: expected one text", line(), name)
		}
		pairs = append(pairs, newPair(name, text, at))
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errMapping
	}
	return pairs, nil
}

func writable() []string {
	var names []string
	for _, e := range control.Agent.Entries() {
		if e.Writable() {
			names = append(names, e.Name)
		}
	}
	slices.Sort(names)
	return names
}
