package control

import (
	"bytes"
	"encoding/json"

	"cortexfs/node/fault"
	"cortexfs/node/text"
)

// maxJSONDepth is what encoding/json reads.
const maxJSONDepth = 10000

// jsonFormat is one JSON object. Its Prefix refuses a text as soon as a byte
// cannot stand where it does; once the object is closed, it judges the object
// itself, because only blanks can follow.
type jsonFormat struct {
	name   string
	depth  int                         // containers in one another
	key    func(key string) string     // judges a top-level key, or nil
	object func(b []byte) (why string) // judges the whole object, or nil
}

// objectFormat is any JSON object. Repeated keys are accepted and the last one
// counts, as in encoding/json.
var objectFormat = &jsonFormat{name: "JSON object", depth: maxJSONDepth}

func (f *jsonFormat) Name() string { return f.name }

func (f *jsonFormat) Check(b []byte) error { return f.judge(b, true) }

func (f *jsonFormat) Prefix(b []byte) error { return f.judge(b, false) }

func (f *jsonFormat) judge(b []byte, whole bool) error {
	s := f.scanner()
	at, why := s.feed(b, 0)
	chars := text.Prefix
	if whole {
		chars = text.Check
		if why == "" && s.state != sEnd {
			at, why = len(b), "the text ends inside the object: "+expected[s.state]
		}
	}
	if why == "" {
		at, why = f.whole(s, b)
	}
	var err error
	if why != "" {
		err = placed(b, at, why)
	}
	return text.First(chars(b, text.Tab), err)
}

func (f *jsonFormat) scanner() *scanner { return &scanner{maxDepth: f.depth, key: f.key} }

// whole judges the object, if it is closed.
func (f *jsonFormat) whole(s *scanner, b []byte) (at int, why string) {
	if s.state != sEnd || f.object == nil {
		return 0, ""
	}
	return bytes.IndexByte(b, '{'), f.object(b)
}

// placed is the error at byte i of b.
func placed(b []byte, i int, why string) error {
	line := bytes.Count(b[:i], []byte{'\n'}) + 1
	return fault.Text(line, i-bytes.LastIndexByte(b[:i], '\n'), "%s", why)
}

// scanner accepts JSON byte by byte (RFC 8259), without recursion. A text that
// it took can always be continued to a whole object, or is one.
type scanner struct {
	maxDepth int
	key      func(string) string
	state    state
	stack    []byte // the open containers: '{' or '['
	isKey    bool   // the string being read is a key
	keyStart int
	rest     string // of a literal
	hex      int    // digits still to come of \u
}

type state uint8

const (
	sStart      state = iota // before the object
	sKeyOrClose              // after {
	sKey                     // after , in an object
	sColon                   // after a key
	sValue                   // after : and after , in an array
	sValueOrEnd              // after [
	sNext                    // after a value
	sString                  // in a string
	sEscape                  // after \
	sHex                     // in \uXXXX
	sLiteral                 // in true, false, null
	sMinus                   // after - of a number
	sZero                    // after a leading 0
	sInt                     // in the digits before the point
	sPoint                   // after the point
	sFrac                    // in the digits after it
	sExp                     // after e
	sExpSign                 // after the sign of the exponent
	sExpInt                  // in its digits
	sEnd                     // the object is closed
)

// expected is what may stand at a state, for messages.
var expected = [...]string{
	sStart:      "a JSON object begins with {",
	sKeyOrClose: "a key in quotes or } is expected",
	sKey:        "a key in quotes is expected",
	sColon:      ": is expected",
	sValue:      "a value is expected",
	sValueOrEnd: "a value or ] is expected",
	sNext:       ", or the closing bracket is expected",
	sString:     "a string is not closed, or has a control byte in it",
	sEscape:     "unknown escape in a string",
	sHex:        "four hexadecimal digits are expected after \\u",
	sLiteral:    "true, false or null is expected",
	sMinus:      "a digit is expected",
	sZero:       "a number with a leading zero",
	sInt:        "a number is not finished properly",
	sPoint:      "a digit is expected after the point",
	sFrac:       "a number is not finished properly",
	sExp:        "a digit or a sign is expected in the exponent",
	sExpSign:    "a digit is expected in the exponent",
	sExpInt:     "a number is not finished properly",
	sEnd:        "nothing may follow the object",
}

// feed reads b from the byte where the last call ended; a reason comes with the
// index of the byte that cannot stand there.
func (s *scanner) feed(b []byte, from int) (int, string) {
	for i := from; i < len(b); i++ {
		if why := s.step(b, i); why != "" {
			return i, why
		}
	}
	return 0, ""
}

func (s *scanner) step(b []byte, i int) string {
	c := b[i]
	switch s.state {
	case sString, sEscape, sHex:
		return s.inString(b, i)
	case sLiteral:
		if c != s.rest[0] {
			return expected[sLiteral]
		}
		if s.rest = s.rest[1:]; s.rest == "" {
			s.state = sNext
		}
		return ""
	case sMinus, sZero, sInt, sPoint, sFrac, sExp, sExpSign, sExpInt:
		took, why := s.inNumber(c)
		if took || why != "" {
			return why
		}
		s.state = sNext // a number ends at the byte that follows it
	}
	if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		return ""
	}
	return s.token(c, i)
}

// token reads a byte that begins or separates values.
func (s *scanner) token(c byte, i int) string {
	bad := expected[s.state]
	switch s.state {
	case sStart:
		if c != '{' {
			return bad
		}
		return s.open(c)
	case sKeyOrClose, sKey:
		switch {
		case c == '"':
			s.state, s.isKey, s.keyStart = sString, true, i
		case c == '}' && s.state == sKeyOrClose:
			s.close()
		default:
			return bad
		}
		return ""
	case sColon:
		if c != ':' {
			return bad
		}
		s.state = sValue
		return ""
	case sValueOrEnd, sValue:
		if c == ']' && s.state == sValueOrEnd {
			s.close()
			return ""
		}
		return s.value(c, bad)
	case sNext:
		object := s.stack[len(s.stack)-1] == '{'
		switch {
		case c == ',' && object:
			s.state = sKey
		case c == ',':
			s.state = sValue
		case c == '}' && object, c == ']' && !object:
			s.close()
		default:
			return bad
		}
		return ""
	}
	return bad
}

func (s *scanner) value(c byte, bad string) string {
	switch c {
	case '{', '[':
		return s.open(c)
	case '"':
		s.state, s.isKey = sString, false
	case 't':
		s.state, s.rest = sLiteral, "rue"
	case 'f':
		s.state, s.rest = sLiteral, "alse"
	case 'n':
		s.state, s.rest = sLiteral, "ull"
	case '-':
		s.state = sMinus
	case '0':
		s.state = sZero
	default:
		if c < '1' || c > '9' {
			return bad
		}
		s.state = sInt
	}
	return ""
}

func (s *scanner) open(c byte) string {
	if len(s.stack) == s.maxDepth {
		return "nested more than " + itoa(s.maxDepth) + " deep"
	}
	s.stack = append(s.stack, c)
	s.state = sKeyOrClose
	if c == '[' {
		s.state = sValueOrEnd
	}
	return ""
}

func (s *scanner) close() {
	s.stack = s.stack[:len(s.stack)-1]
	s.state = sNext
	if len(s.stack) == 0 {
		s.state = sEnd
	}
}

func (s *scanner) inString(b []byte, i int) string {
	c := b[i]
	switch s.state {
	case sEscape:
		switch c {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.state = sString
		case 'u':
			s.state, s.hex = sHex, 4
		default:
			return expected[sEscape]
		}
		return ""
	case sHex:
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
			return expected[sHex]
		}
		if s.hex--; s.hex == 0 {
			s.state = sString
		}
		return ""
	}
	switch {
	case c == '\\':
		s.state = sEscape
	case c < ' ':
		return expected[sString]
	case c == '"' && s.isKey:
		s.state = sColon
		if s.key != nil && len(s.stack) == 1 {
			return s.key(unquote(b[s.keyStart : i+1]))
		}
	case c == '"':
		s.state = sNext
	}
	return ""
}

// unquote reads a JSON string that the scanner took.
func unquote(b []byte) string {
	var s string
	_ = json.Unmarshal(b, &s) // it is a string: the scanner has read it
	return s
}

// inNumber reads a byte of a number; took is false for one that is not part of
// it and ends a number that is complete.
func (s *scanner) inNumber(c byte) (took bool, why string) {
	digit := c >= '0' && c <= '9'
	switch s.state {
	case sMinus:
		switch {
		case c == '0':
			s.state = sZero
		case digit:
			s.state = sInt
		default:
			return false, expected[sMinus]
		}
		return true, ""
	case sPoint, sExp, sExpSign:
		switch {
		case digit && s.state == sPoint:
			s.state = sFrac
		case digit:
			s.state = sExpInt
		case s.state == sExp && (c == '+' || c == '-'):
			s.state = sExpSign
		default:
			return false, expected[s.state]
		}
		return true, ""
	}
	switch {
	case digit && s.state == sZero:
		return false, expected[sZero]
	case digit:
	case c == '.' && (s.state == sZero || s.state == sInt):
		s.state = sPoint
	case (c == 'e' || c == 'E') && s.state != sExpInt:
		s.state = sExp
	default:
		return false, ""
	}
	return true, ""
}
