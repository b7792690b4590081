package term

import (
	"bytes"
	"io"
	"strconv"
	"unicode"
	"unicode/utf8"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/vt"
)

// maxCluster bounds what one cell can hold: the emulator joins combining
// characters without end, and only a break between two writes stops it.
const maxCluster = 128

// scrollback is what the emulator keeps above the screen. Nobody reads it; one
// line is the least that the library takes.
const scrollback = 1

// Screen is the state of one PTY's screen. It is not safe for concurrent use.
type Screen struct {
	size   Size
	filter Filter
	track  tracker
	emu    *vt.Emulator
	answer func([]byte) // what the emulator replies to the program; must not block
	under  []byte       // the main screen as it was when the alternate one came up
	clean  []byte
	panics int
}

// NewScreen makes an empty screen. answer gets the emulator's replies to device
// and status queries, from another goroutine; it must neither block nor call the
// Screen.
func NewScreen(size Size, answer func([]byte)) *Screen {
	s := &Screen{size: size, answer: answer}
	s.renew()
	return s
}

// renew gives the screen a fresh emulator.
func (s *Screen) renew() {
	emu := vt.NewEmulator(s.size.Cols, s.size.Rows)
	emu.SetScrollbackSize(scrollback)
	emu.SetCallbacks(vt.Callbacks{AltScreen: func(bool) {}})
	s.emu = emu
	go func() {
		buf := make([]byte, 1024)
		for {
			n, err := emu.Read(buf)
			if n > 0 {
				s.answer(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
}

// Close ends the screen's goroutine.
func (s *Screen) Close() { closeEmulator(s.emu) }

// closeEmulator ends the reader through the pipe: the library's Close sets a
// flag that its Read looks at without a lock.
func closeEmulator(emu *vt.Emulator) {
	if w, ok := emu.InputPipe().(io.Closer); ok {
		w.Close()
	}
}

// Size is the current size.
func (s *Screen) Size() Size { return s.size }

// Resize changes the size, which must be Usable.
func (s *Screen) Resize(size Size) {
	s.size = size
	s.guard(func() { s.emu.Resize(size.Cols, size.Rows) })
	s.track.margins = ""
}

// Write takes what the PTY said and returns what clients may see of it; the
// result is valid until the next call.
func (s *Screen) Write(p []byte) []byte {
	s.clean = s.clean[:0]
	s.filter.feed(p, s.token)
	return s.clean
}

func (s *Screen) token(kind tokenKind, b []byte) {
	v := both
	switch kind {
	case tokText:
		s.text(b)
		return
	case tokControl:
		v = judgeControl(b[0])
	case tokEscape:
		v = judgeEscape(b)
	case tokCSI:
		v, b = judgeCSI(b)
	case tokOSC:
		v = judgeOSC(b)
	}
	if v == drop {
		return
	}
	wasAlt := s.track.alt()
	var main []byte
	if v == both && kind == tokCSI && !wasAlt && bytes.HasPrefix(b, []byte("\x1b[?104")) {
		s.guard(func() { main = s.cells() })
	}
	if kind == tokOSC {
		// Links stay out of the emulator: cells would keep their text.
		if v == emuOnly {
			s.guard(func() { s.emu.Write(append(append([]byte{}, b...), 0x07)) })
			return
		}
		s.track.token(kind, b)
		s.clean = append(append(s.clean, b...), 0x1b, '\\')
		return
	}
	s.guard(func() { s.emu.Write(b) })
	if v == emuOnly {
		return
	}
	if kind == tokEscape && b[1] == 'c' {
		// A full reset of a person's terminal does more than the program may.
		s.clean = append(s.clean, s.track.undo()...)
		s.clean = append(s.clean, "\x1b[!p\x1b[m\x1b[H\x1b[2J"...)
		s.track.token(kind, b)
		s.under = nil
		return
	}
	s.track.token(kind, b)
	if alt := s.track.alt(); alt != wasAlt {
		s.under = main
	}
	s.clean = append(s.clean, b...)
}

// text prints, in pieces that bound a cell's content. A piece ends before a
// character that starts a cell of its own where there is one.
func (s *Screen) text(b []byte) {
	s.clean = append(s.clean, b...)
	for len(b) > maxCluster {
		cut := 0
		for i := 0; i < maxCluster; {
			r, n := utf8.DecodeRune(b[i:])
			if r < utf8.RuneSelf || !unicode.Is(unicode.M, r) && r != '\u200d' {
				cut = i
			}
			i += n
			if cut == 0 && i >= maxCluster {
				cut = i
			}
		}
		piece := b[:cut]
		s.guard(func() { s.emu.Write(piece) })
		b = b[cut:]
	}
	s.guard(func() { s.emu.Write(b) })
}

// guard runs one step of the emulator. What comes out of a sandbox may find a
// fault in the library; then the screen starts afresh, and the agent goes on.
func (s *Screen) guard(step func()) {
	defer func() {
		if recover() != nil {
			s.panics++
			closeEmulator(s.emu)
			s.renew()
			s.under = nil
		}
	}()
	step()
}

// Replay draws the screen as it is now on a terminal in any state: cells, modes,
// pen, margins, cursor (spec section 12: a new client sees the current screen at
// once).
func (s *Screen) Replay() []byte {
	b := []byte("\x1b[!p\x1b[m\x1b(B\x1b)B\x0f\x1b[r\x1b[?6l\x1b[?7l\x1b[4l")
	if s.track.alt() {
		b = append(b, "\x1b[H\x1b[2J"...)
		b = append(b, s.under...)
		b = append(b, "\x1b[?1049h"...)
	}
	b = append(b, "\x1b[H\x1b[2J"...)
	s.guard(func() { b = append(b, s.cells()...) })
	if s.track.margins != "" {
		b = append(b, "\x1b["+s.track.margins+"r"...)
	}
	if on, changed := s.track.private[7]; !changed || on {
		b = append(b, "\x1b[?7h"...)
	}
	pos := s.emu.CursorPosition()
	b = appendGoto(b, pos.Y+1, pos.X+1)
	if s.track.private[6] {
		b = append(b, "\x1b[?6h"...)
		b = appendGoto(b, pos.Y+1, pos.X+1)
	}
	if !s.emu.CursorHidden() {
		b = append(b, "\x1b[?25h"...)
	}
	return append(b, s.track.setup()...)
}

// cells draws every line that is not blank, ending with a plain pen.
func (s *Screen) cells() []byte {
	var b []byte
	for y := 0; y < s.emu.Height(); y++ {
		b = s.line(b, y)
	}
	return b
}

func (s *Screen) line(b []byte, y int) []byte {
	var pen uv.Style
	blanks, started := 0, false
	for x := 0; x < s.emu.Width(); x++ {
		c := s.emu.CellAt(x, y)
		if c == nil || c.IsZero() { // the second half of a wide character
			continue
		}
		if c.Equal(&uv.EmptyCell) {
			blanks++
			continue
		}
		if !started {
			b = appendGoto(b, y+1, 1)
			started = true
		}
		if blanks > 0 {
			if !pen.IsZero() {
				b = append(b, "\x1b[m"...)
				pen = uv.Style{}
			}
			for ; blanks > 0; blanks-- {
				b = append(b, ' ')
			}
		}
		b = append(b, c.Style.Diff(&pen)...)
		pen = c.Style
		if c.Content == "" {
			b = append(b, ' ')
		}
		b = append(b, c.Content...)
	}
	if !pen.IsZero() {
		b = append(b, "\x1b[m"...)
	}
	return b
}

// Text is the screen as plain lines without trailing blanks (for tests and for
// people without a terminal).
func (s *Screen) Text() string {
	var out string
	s.guard(func() { out = s.emu.String() })
	return out
}

func appendGoto(b []byte, row, col int) []byte {
	b = append(b, 0x1b, '[')
	b = strconv.AppendInt(b, int64(row), 10)
	b = append(b, ';')
	b = strconv.AppendInt(b, int64(col), 10)
	return append(b, 'H')
}
