// Package jsonl reads lines of JSON as protocols need them: strictly. One line is
// one object; keys keep their order and their exact case, and a repeated key is
// an error, because two readers of such a text could see two different values.
//
// It also writes JSON without the escapes that encoding/json adds for HTML, so
// that a text is as long as it has to be and digests over it can be made by
// others. It holds no state and does no I/O.
package jsonl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Field is one member of an object, its value as it was written.
type Field struct {
	Key   string
	Value json.RawMessage
}

// Object is a JSON object in the order of its text.
type Object []Field

// Parse reads exactly one JSON object from UTF-8 text. Blanks around it are
// allowed, a repeated key at its top level is not.
func Parse(b []byte) (Object, error) {
	if !utf8.Valid(b) {
		return nil, errors.New("not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	t, err := d.Token()
	if err != nil {
		return nil, notJSON(err)
	}
	if t != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	var o Object
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		key, ok := t.(string)
		if !ok {
			return nil, errors.New("not a JSON object")
		}
		if _, twice := o.Get(key); twice {
			return nil, fmt.Errorf("key %.64q stands twice", key)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, notJSON(err)
		}
		o = append(o, Field{key, v})
	}
	if _, err := d.Token(); err != nil {
		return nil, notJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the JSON object")
	}
	return o, nil
}

// notJSON keeps the text of the input out of the message.
func notJSON(err error) error {
	var syn *json.SyntaxError
	if errors.As(err, &syn) {
		return fmt.Errorf("no JSON at byte %d", syn.Offset)
	}
	return errors.New("no complete JSON")
}

// Get finds a key by its exact bytes.
func (o Object) Get(key string) (json.RawMessage, bool) {
	for _, f := range o {
		if f.Key == key {
			return f.Value, true
		}
	}
	return nil, false
}

// String is the value of key where that is a JSON string.
func (o Object) String(key string) (string, bool) {
	v, ok := o.Get(key)
	if !ok || len(v) == 0 || v[0] != '"' {
		return "", false
	}
	var s string
	if json.Unmarshal(v, &s) != nil {
		return "", false
	}
	return s, true
}

// Append appends the object's text, without blanks between its members.
func (o Object) Append(b []byte) []byte {
	b = append(b, '{')
	for i, f := range o {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, Marshal(f.Key)...), ':'), f.Value...)
	}
	return append(b, '}')
}

// Marshal is the JSON text of a value of plain types, without blanks, HTML
// escapes and LF. It panics on a value that has no JSON text, which is a mistake
// of the caller and no input.
func Marshal(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("jsonl: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Unique says whether no object anywhere in the JSON text repeats a key.
func Unique(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return unique(d)
}

func unique(d *json.Decoder) error {
	t, err := d.Token()
	if err != nil {
		return notJSON(err)
	}
	delim, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for d.More() {
		if delim == '{' {
			t, err := d.Token()
			if err != nil {
				return notJSON(err)
			}
			key, _ := t.(string)
			if seen[key] {
				return fmt.Errorf("key %.64q stands twice", key)
			}
			seen[key] = true
		}
		if err := unique(d); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return notJSON(err)
	}
	return nil
}
