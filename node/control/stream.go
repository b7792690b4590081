package control

import (
	"bytes"

	"cortexfs/node/text"
)

// Stream judges a text that grows: what JudgePrefixFor would say of each state
// of it, at the cost of the bytes that are new. A writer that writes 64 KiB byte
// by byte would otherwise have each byte judged up to 65,536 times.
//
// A text that does not begin with the lines judged before is judged anew, so a
// Stream never answers anything else than JudgePrefixFor. It is for one draft:
// not safe for concurrent use.
type Stream struct {
	entry  *Entry
	format Format
	seen   []byte // judged and good: whole lines, or for JSON all bytes
	lines  int    // in seen
	words  judge
	json   *scanner
}

// NewStream makes a Stream for a control of the object.
func (e *Entry) NewStream(o Object) *Stream { return &Stream{entry: e, format: e.formatFor(o)} }

// JudgePrefix is nil unless no text that begins with b passes Judge.
func (s *Stream) JudgePrefix(b []byte) error {
	if err := s.entry.writable(s.format, b); err != nil {
		return err
	}
	if !bytes.HasPrefix(b, s.seen) {
		s.reset()
	}
	var err error
	switch f := s.format.(type) {
	case *lineFormat:
		err = s.lineByLine(f, b)
	case *envFormat:
		err = s.lineByLine(&f.lineFormat, b)
	case *jsonFormat:
		err = s.byteByByte(f, b)
	default:
		return f.Prefix(b)
	}
	if err != nil {
		s.reset() // the judge has seen a part of b: nothing may build on it
	}
	return err
}

func (s *Stream) reset() {
	s.seen, s.lines, s.words, s.json = s.seen[:0], 0, nil, nil
}

func (s *Stream) lineByLine(f *lineFormat, b []byte) error {
	if s.words == nil {
		s.words = f.new()
	}
	from := len(s.seen)
	bad := text.PrefixFrom(b, from, s.lines+1, f.chars)
	if err := text.First(bad, text.LinesFrom(b[from:], s.lines+1, s.words.line, s.words.part)); err != nil {
		return err
	}
	fresh := b[from : bytes.LastIndexByte(b, '\n')+1]
	s.seen = append(s.seen, fresh...)
	s.lines += bytes.Count(fresh, []byte{'\n'})
	return nil
}

func (s *Stream) byteByByte(f *jsonFormat, b []byte) error {
	if s.json == nil {
		s.json = f.scanner()
	}
	at, why := s.json.feed(b, len(s.seen))
	if why == "" {
		at, why = f.whole(s.json, b)
	}
	var err error
	if why != "" {
		err = placed(b, at, why)
	}
	// characters are cheap to judge, and a broken one may lie before the new bytes
	if err := text.First(text.Prefix(b, text.Tab), err); err != nil {
		return err
	}
	s.seen = append(s.seen, b[len(s.seen):]...)
	return nil
}
