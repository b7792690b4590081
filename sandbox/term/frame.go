package term

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"cortexfs/node/fault"
)

// Frames of the watch2/attach2 protocol: type byte, 32-bit big-endian length,
// data. All numbers in data are decimal text.
const (
	frameData   = 'd' // PTY bytes, or what the person types
	frameSize   = 'w' // COLSxROWS: of the client's window, or of the PTY
	frameSkip   = 's' // bytes that this client did not get
	frameExit   = 'e' // the session's exit code, last frame
	frameHeader = 5
	maxFrame    = 1 << 20
	chunk       = 32 << 10 // bytes of one data frame that we make
)

// The mode line of a client (spec section 12).
const (
	maxModeLine  = 64
	modeDeadline = 5 // seconds
)

// Bounds of a terminal's size. A cell costs the emulator about 200 bytes.
const (
	MinRows, MaxRows = 1, 500
	MinCols, MaxCols = 2, 1000
	maxCells         = 120_000
)

// Size is a terminal's size in character cells.
type Size struct{ Cols, Rows int }

func (s Size) String() string { return strconv.Itoa(s.Cols) + "x" + strconv.Itoa(s.Rows) }

// Usable says whether a PTY may get this size.
func (s Size) Usable() bool {
	return s.Rows >= MinRows && s.Rows <= MaxRows && s.Cols >= MinCols && s.Cols <= MaxCols && s.Rows*s.Cols <= maxCells
}

// parseSize reads COLSxROWS. 0x0 and sizes that no PTY gets are well formed:
// they say that the client has no usable window.
func parseSize(s string) (Size, error) {
	c, r, ok := strings.Cut(s, "x")
	cols, err1 := strconv.ParseUint(c, 10, 16)
	rows, err2 := strconv.ParseUint(r, 10, 16)
	if !ok || err1 != nil || err2 != nil {
		return Size{}, fault.Newf(fault.Invalid, "%q is not COLSxROWS", s)
	}
	return Size{Cols: int(cols), Rows: int(rows)}, nil
}

// mode is a parsed mode line.
type mode struct {
	attach bool
	framed bool
	raw    bool // unfiltered
	size   Size
}

// parseMode reads `watch`, `attach`, `watch2 COLSxROWS` or `attach2 COLSxROWS`,
// each optionally followed by the word raw (our extension for --raw).
func parseMode(line string) (mode, error) {
	words := strings.Split(line, " ")
	var m mode
	if n := len(words); n > 1 && words[n-1] == "raw" {
		m.raw = true
		words = words[:n-1]
	}
	m.attach = words[0] == "attach" || words[0] == "attach2"
	m.framed = words[0] == "watch2" || words[0] == "attach2"
	switch {
	case !m.attach && !m.framed && words[0] != "watch":
		return m, fault.Newf(fault.Invalid, "no such mode: watch, attach, watch2 COLSxROWS or attach2 COLSxROWS")
	case m.framed && len(words) == 2:
		var err error
		m.size, err = parseSize(words[1])
		return m, err
	case m.framed || len(words) != 1:
		return m, fault.Newf(fault.Invalid, "bad mode line")
	}
	return m, nil
}

func (m mode) line() string {
	s := "watch"
	if m.attach {
		s = "attach"
	}
	if m.framed {
		s += "2 " + m.size.String()
	}
	if m.raw {
		s += " raw"
	}
	return s + "\n"
}

// appendFrame adds one frame; data over maxFrame is the caller's mistake.
func appendFrame(b []byte, kind byte, data []byte) []byte {
	b = append(b, kind)
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// appendData adds data as frames of at most chunk bytes.
func appendData(b, data []byte) []byte {
	for len(data) > 0 {
		n := min(len(data), chunk)
		b = appendFrame(b, frameData, data[:n])
		data = data[n:]
	}
	return b
}

// readFrame reads one frame of at most maxFrame bytes.
func readFrame(r *bufio.Reader) (kind byte, data []byte, err error) {
	var h [frameHeader]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, nil, fault.Newf(fault.TooBig, "frame of %d bytes", n)
	}
	switch h[0] {
	case frameData, frameSize, frameSkip, frameExit:
	default:
		return 0, nil, fault.Newf(fault.Invalid, "unknown frame type %#02x", h[0])
	}
	data = make([]byte, n)
	_, err = io.ReadFull(r, data)
	return h[0], data, err
}

// ended is the one line that tells a person how a session ended.
func ended(code int) string { return fmt.Sprintf("session ended (code %d)", code) }

// printable replaces what could move a person's cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
