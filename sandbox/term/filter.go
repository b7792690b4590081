package term

import (
	"unicode/utf8"
)

// tokenKind classes what comes out of a PTY.
type tokenKind uint8

const (
	tokText    tokenKind = iota // printable, valid UTF-8
	tokControl                  // one C0 byte
	tokEscape                   // ESC, intermediates, final
	tokCSI                      // ESC [ … final
	tokOSC                      // ESC ] … without its terminator
)

// Bounds of what is kept of one sequence. A longer one is dropped whole.
const (
	maxSeq = 256
	maxOSC = 2048
)

type filterState uint8

const (
	inGround filterState = iota
	inEscape
	inCSI
	inOSC
	inString // DCS, SOS, PM, APC: dropped whole, nobody keeps images or device strings
)

// Filter cuts a byte stream into tokens. It keeps an unfinished sequence or
// character until the rest comes, so a caller never sees half of one. 8-bit
// controls are no controls here: the PTY speaks UTF-8, and some viewers obey them.
type Filter struct {
	state  filterState
	seq    []byte // of the unfinished sequence, with ESC
	over   bool   // seq is too long: drop it at its end
	strEsc bool   // ESC seen in a string: ST if '\' follows
	part   [utf8.UTFMax]byte
	nPart  int // bytes of an unfinished character
	text   []byte
}

// feed cuts p. The bytes of a token are valid only during emit.
func (f *Filter) feed(p []byte, emit func(tokenKind, []byte)) {
	for len(p) > 0 {
		if f.state == inGround {
			p = f.ground(p, emit)
			continue
		}
		f.step(p[0], emit)
		p = p[1:]
	}
	f.flush(emit)
}

func (f *Filter) flush(emit func(tokenKind, []byte)) {
	if len(f.text) > 0 {
		emit(tokText, f.text)
		f.text = f.text[:0]
	}
}

// ground takes text up to the next control and returns the rest.
func (f *Filter) ground(p []byte, emit func(tokenKind, []byte)) []byte {
	if f.nPart > 0 {
		return f.finishRune(p)
	}
	i := 0
	for i < len(p) && p[i] >= 0x20 && p[i] < 0x7f {
		i++
	}
	f.text = append(f.text, p[:i]...)
	if p = p[i:]; len(p) == 0 {
		return nil
	}
	if p[0] >= utf8.RuneSelf {
		if !utf8.FullRune(p) {
			f.nPart = copy(f.part[:], p)
			return nil
		}
		r, n := utf8.DecodeRune(p)
		f.rune(r)
		return p[n:]
	}
	f.flush(emit)
	f.control(p[0], emit)
	return p[1:]
}

func (f *Filter) finishRune(p []byte) []byte {
	for len(p) > 0 && !utf8.FullRune(f.part[:f.nPart]) {
		f.part[f.nPart] = p[0]
		f.nPart++
		p = p[1:]
	}
	if !utf8.FullRune(f.part[:f.nPart]) {
		return nil
	}
	rest := append([]byte(nil), f.part[:f.nPart]...)
	f.nPart = 0
	r, n := utf8.DecodeRune(rest)
	f.rune(r)
	if n < len(rest) { // a broken character; what follows it is read again
		return append(rest[n:], p...)
	}
	return p
}

func (f *Filter) rune(r rune) {
	if r >= 0x80 && r < 0xa0 {
		return
	}
	f.text = utf8.AppendRune(f.text, r)
}

// control handles a C0 byte or DEL, which act in the middle of a sequence too.
func (f *Filter) control(b byte, emit func(tokenKind, []byte)) {
	switch {
	case b == 0x1b:
		f.state, f.seq, f.over = inEscape, append(f.seq[:0], b), false
	case b == 0x18 || b == 0x1a: // CAN, SUB end a sequence
		f.state = inGround
	case b < 0x20:
		emit(tokControl, []byte{b})
	}
}

func (f *Filter) step(b byte, emit func(tokenKind, []byte)) {
	switch f.state {
	case inEscape:
		f.escape(b, emit)
	case inCSI:
		switch {
		case b < 0x20 || b == 0x7f:
			f.control(b, emit)
		case b >= 0x40 && b < 0x7f:
			f.keep(b, maxSeq)
			f.end(tokCSI, emit)
		case b >= 0x80:
			f.over = true
		default:
			f.keep(b, maxSeq)
		}
	case inOSC, inString:
		f.inString(b, emit)
	}
}

func (f *Filter) escape(b byte, emit func(tokenKind, []byte)) {
	if len(f.seq) == 1 {
		switch b {
		case '[':
			f.state = inCSI
			f.keep(b, maxSeq)
			return
		case ']':
			f.state, f.strEsc = inOSC, false
			f.keep(b, maxSeq)
			return
		case 'P', 'X', '^', '_':
			f.state, f.strEsc = inString, false
			return
		}
	}
	switch {
	case b < 0x20 || b == 0x7f:
		f.control(b, emit)
	case b < 0x30:
		f.keep(b, maxSeq)
	case b < 0x7f:
		f.keep(b, maxSeq)
		f.end(tokEscape, emit)
	default:
		f.state = inGround
	}
}

func (f *Filter) inString(b byte, emit func(tokenKind, []byte)) {
	switch {
	case f.strEsc && b == '\\':
		f.endString(emit)
	case f.strEsc: // no terminator: the string is aborted, a new sequence begins
		f.state, f.seq, f.over, f.strEsc = inEscape, append(f.seq[:0], 0x1b), false, false
		f.step(b, emit)
	case b == 0x1b:
		f.strEsc = true
	case b == 0x07 && f.state == inOSC:
		f.endString(emit)
	case b == 0x18 || b == 0x1a:
		f.state = inGround
	case f.state == inOSC && b >= 0x20:
		f.keep(b, maxOSC)
	}
}

func (f *Filter) endString(emit func(tokenKind, []byte)) {
	f.strEsc = false
	if f.state == inString {
		f.state = inGround
		return
	}
	f.end(tokOSC, emit)
}

func (f *Filter) end(kind tokenKind, emit func(tokenKind, []byte)) {
	f.state = inGround
	if !f.over {
		emit(kind, f.seq)
	}
}

func (f *Filter) keep(b byte, limit int) {
	if len(f.seq) >= limit {
		f.over = true
		return
	}
	f.seq = append(f.seq, b)
}
