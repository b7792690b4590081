package term

import (
	"strconv"

	uv "github.com/charmbracelet/ultraviolet"
)

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
	if s.wrap {
		// Printed once more, the last cell leaves the cursor where it is.
		if c := s.emu.CellAt(pos.X, pos.Y); c != nil && !c.IsZero() {
			b = append(b, c.Style.Diff(&uv.Style{})...)
			b = append(b, c.Content...)
			b = append(b, "\x1b[m"...)
		}
	}
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
