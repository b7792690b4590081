package term

import (
	"bytes"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/vt"
)

// maxCluster bounds what one cell can hold: the emulator joins combining
// characters without end, and only a break between two writes stops it.
const maxCluster = 128

// scrollback is what the emulator keeps above the screen. Nobody reads it; one
// line is the least that the library takes.
const scrollback = 1

// maxHidden bounds, in cells, what may pile up above the alternate screen, where
// the library keeps 10,000 lines that nobody can take from it: then the emulator
// is replaced by a fresh one that gets the replay.
const maxHidden = 64 << 10

// Screen is the state of one PTY's screen. It is not safe for concurrent use.
type Screen struct {
	size   Size
	filter Filter
	track  tracker
	emu    *vt.Emulator
	answer func([]byte) // what the emulator replies to the program; must not block
	under  []byte       // the main screen as it was when the alternate one came up
	wrap   bool         // the next character wraps
	hidden int          // cells that may have scrolled off the alternate screen
	panics int

	// Of the Write under way.
	toks  []token
	buf   []byte
	clean []byte
}

// token is one piece of a Write; its bytes are buf[from:to].
type token struct {
	kind     tokenKind
	from, to int
	unseen   bool // scrolled away before anybody can see it
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
	s.emu, s.hidden = emu, 0
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
	s.size, s.wrap = size, false
	s.guard(func() { s.emu.Resize(size.Cols, size.Rows) })
	s.track.margins = ""
}

// Write takes what the PTY said and returns what clients may see of it; the
// result is valid until the next call. Larger pieces cost less: what scrolls off
// within one piece never becomes cells.
func (s *Screen) Write(p []byte) []byte {
	s.clean, s.buf, s.toks = s.clean[:0], s.buf[:0], s.toks[:0]
	s.filter.feed(p, func(kind tokenKind, b []byte) {
		from := len(s.buf)
		s.buf = append(s.buf, b...)
		s.toks = append(s.toks, token{kind: kind, from: from, to: len(s.buf)})
	})
	run := 0 // end of the run of plain lines under way
	for i := range s.toks {
		if i >= run {
			run = s.markUnseen(i)
		}
		t := &s.toks[i]
		s.token(t.kind, s.buf[t.from:t.to], t.unseen)
	}
	return s.clean
}

// markUnseen looks at the run of plain lines that begins at token i and marks
// what will have left the screen at its end: two screens full of line feeds
// after a point, and nothing from before it is left. It returns the run's end.
func (s *Screen) markUnseen(i int) int {
	end, lines := i, 0
	for ; end < len(s.toks) && s.plain(s.toks[end]); end++ {
		if s.newline(i, end) {
			lines++
		}
	}
	lines -= 2 * s.size.Rows
	if lines <= 0 || s.track.margins != "" {
		return max(end, i+1)
	}
	for k := i; lines > 0; k++ {
		if s.newline(i, k) {
			lines--
			if lines == 0 {
				// This CR LF stays, so that the column is what it would have been.
				s.toks[k].unseen, s.toks[k-1].unseen = false, false
				break
			}
		}
		s.toks[k].unseen = s.toks[k].kind != tokCSI
	}
	return max(end, i+1)
}

// plain says whether a token only prints, moves on or colours.
func (s *Screen) plain(t token) bool {
	b := s.buf[t.from:t.to]
	switch t.kind {
	case tokText:
		return true
	case tokControl:
		return b[0] >= 0x07 && b[0] <= 0x0d
	case tokCSI:
		return b[len(b)-1] == 'm' && (len(b) == 3 || b[2] < '<')
	}
	return false
}

// newline says whether token k of the run from i is the LF of a CR LF.
func (s *Screen) newline(i, k int) bool {
	return k > i && s.toks[k].kind == tokControl && s.buf[s.toks[k].from] == '\n' &&
		s.toks[k-1].kind == tokControl && s.buf[s.toks[k-1].from] == '\r'
}

func (s *Screen) token(kind tokenKind, b []byte, unseen bool) {
	v := both
	switch kind {
	case tokText:
		s.clean = append(s.clean, b...)
		if !unseen {
			s.text(b)
		}
		return
	case tokControl:
		v = judgeControl(b[0])
	case tokEscape:
		v = judgeEscape(b)
	case tokCSI:
		if v, b = judgeCSI(b); v == both && b[len(b)-1] == 'r' {
			v, b = s.fitMargins(b)
		}
	case tokOSC:
		v = judgeOSC(b)
	}
	switch {
	case v == drop:
	case kind == tokOSC:
		s.osc(v, b)
	case v == emuOnly:
		s.emulate(b)
	case unseen:
		s.clean = append(s.clean, b...)
	default:
		s.pass(kind, b)
	}
}

// osc handles what is left of operating system commands. Links stay out of the
// emulator: cells would keep their text.
func (s *Screen) osc(v verdict, b []byte) {
	if v == emuOnly {
		s.emulate(append(bytes.Clone(b), 0x07))
		return
	}
	s.track.token(tokOSC, b)
	s.clean = append(append(s.clean, b...), 0x1b, '\\')
}

// pass gives a token to the emulator and to clients.
func (s *Screen) pass(kind tokenKind, b []byte) {
	wasAlt := s.track.alt()
	var main []byte
	if kind == tokCSI && !wasAlt && bytes.HasPrefix(b, []byte("\x1b[?104")) {
		s.guard(func() { main = s.cells() })
		pos := s.emu.CursorPosition()
		main = appendGoto(main, pos.Y+1, pos.X+1)
	}
	if kind != tokCSI || b[len(b)-1] != 'm' {
		s.wrap = false
	}
	s.emulate(b)
	if kind == tokEscape && b[1] == 'c' {
		// A full reset of a person's terminal does more than the program may.
		s.clean = append(s.clean, s.track.undo()...)
		s.clean = append(s.clean, "\x1b[!p\x1b[m\x1b[H\x1b[2J"...)
		s.track.token(kind, b)
		s.under = nil
		return
	}
	s.track.token(kind, b)
	s.clean = append(s.clean, b...)
	if alt := s.track.alt(); alt != wasAlt {
		s.under, s.hidden = main, 0
	}
	if s.track.alt() {
		s.scrolled(kind, b)
	}
}

// scrolled counts what may have gone above the alternate screen.
func (s *Screen) scrolled(kind tokenKind, b []byte) {
	switch {
	case kind == tokText:
		s.hidden += len(b) + s.size.Cols
	case kind == tokCSI && strings.IndexByte("SML", b[len(b)-1]) >= 0:
		s.hidden += s.size.Rows * s.size.Cols
	case kind != tokCSI:
		s.hidden += s.size.Cols
	}
	if s.hidden > maxHidden+4*s.size.Cols*s.size.Rows {
		replay := s.Replay()
		closeEmulator(s.emu)
		s.renew()
		s.emulate(replay)
	}
}

// fitMargins makes a scroll region lie on the screen: the emulator fails on
// others, and terminals ignore them.
func (s *Screen) fitMargins(b []byte) (verdict, []byte) {
	c, _ := parseCSI(b)
	top, bottom := 1, s.size.Rows
	n := c.numbers(0)
	if len(n) > 0 && n[0] > 0 {
		top = n[0]
	}
	if len(n) > 1 && n[1] > 0 {
		bottom = min(n[1], bottom)
	}
	if top >= bottom {
		return drop, nil
	}
	c.params = ""
	if top != 1 || bottom != s.size.Rows {
		c.params = strconv.Itoa(top) + ";" + strconv.Itoa(bottom)
	}
	return both, c.bytes()
}

// emulate is a Write to the emulator.
func (s *Screen) emulate(b []byte) {
	s.guard(func() { s.emu.Write(b) })
}

// text prints, in pieces that bound a cell's content. A piece ends before a
// character that starts a cell of its own where there is one.
func (s *Screen) text(b []byte) {
	b = s.fold(b)
	if s.track.alt() {
		s.scrolled(tokText, b)
	}
	for len(b) > maxCluster {
		cut := lastCell(b[:maxCluster])
		if cut == 0 {
			cut = maxCluster
		}
		s.emulate(b[:cut])
		b = b[cut:]
	}
	// The last character goes alone: only from before and after it can be told
	// whether it left the cursor behind the last column, about to wrap.
	cut := lastCell(b)
	s.emulate(b[:cut])
	before := s.emu.CursorPosition()
	s.emulate(b[cut:])
	after := s.emu.CursorPosition()
	s.wrap = before == after && after.X == s.size.Cols-1
}

// fold takes whole lines out of the middle of a text that wraps over more than two
// screens: they are gone when it ends, and the column is the same without them.
func (s *Screen) fold(b []byte) []byte {
	cols, keep := s.size.Cols, 2*s.size.Rows*s.size.Cols
	n := (len(b) - keep - cols) / cols * cols
	_, noWrap := s.track.private[7]
	if n <= 0 || noWrap || s.track.margins != "" || bytes.ContainsFunc(b, func(r rune) bool { return r >= 0x7f }) {
		return b
	}
	return slices.Concat(b[:cols], b[cols+n:])
}

// lastCell is where the last character begins that has a cell of its own.
func lastCell(b []byte) int {
	for i := len(b); i > 0; {
		r, n := utf8.DecodeLastRune(b[:i])
		i -= n
		if r < utf8.RuneSelf || !unicode.Is(unicode.M, r) && r != '\u200d' {
			return i
		}
	}
	return 0
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
