package term

import (
	"slices"
	"strconv"
	"strings"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"
)

// tracker remembers what a stream of passed tokens has switched on in a
// terminal, so that a new client's terminal can be brought to the same point
// (setup) and anybody's back to normal (undo). The emulator keeps the cells;
// these are the things that it does not tell.
type tracker struct {
	filter  Filter
	private map[int]bool // only values that differ from privateModes
	ansi    map[int]bool
	keypad  bool // application keypad
	cursor  string
	pen     uv.Style
	penSet  bool
	margins string
	g       [2]byte // G0, G1; 0 is ASCII
	shift   bool    // G1 is in use
	link    bool
}

// watch follows a filtered stream from outside.
func (t *tracker) watch(p []byte) {
	t.filter.feed(p, func(kind tokenKind, b []byte) { t.token(kind, b) })
}

// token follows one token that clients get.
func (t *tracker) token(kind tokenKind, b []byte) {
	switch kind {
	case tokControl:
		switch b[0] {
		case 0x0e:
			t.shift = true
		case 0x0f:
			t.shift = false
		}
	case tokEscape:
		t.escape(b)
	case tokCSI:
		if c, ok := parseCSI(b); ok {
			t.csi(c, b)
		}
	case tokOSC:
		if strings.HasPrefix(string(b), "\x1b]8;") {
			t.link = b[len(b)-1] != ';'
		}
	}
}

func (t *tracker) escape(b []byte) {
	switch {
	case len(b) == 2 && b[1] == '=':
		t.keypad = true
	case len(b) == 2 && b[1] == '>':
		t.keypad = false
	case len(b) == 2 && b[1] == 'c':
		*t = tracker{filter: t.filter}
	case len(b) == 3 && (b[1] == '(' || b[1] == ')'):
		t.g[b[1]-'('] = b[2]
		if b[2] == 'B' {
			t.g[b[1]-'('] = 0
		}
	}
}

func (t *tracker) csi(c csi, raw []byte) {
	switch {
	case c.final == 'm' && c.prefix == 0 && c.inter == 0:
		uv.ReadStyle(ansiParams(raw), &t.pen)
		t.penSet = !t.pen.IsZero()
	case c.final == 'r' && c.prefix == 0:
		t.margins = c.params
	case c.final == 'q' && c.inter == ' ':
		t.cursor = c.params
	case c.final == 'p' && c.inter == '!':
		*t = tracker{filter: t.filter, private: t.screenModes()}
	case c.final == 'h' || c.final == 'l':
		list, have := privateModes, &t.private
		if c.prefix == 0 {
			list, have = ansiModes, &t.ansi
		}
		for _, n := range c.numbers(0) {
			def, known := list[n]
			if !known || n == 1048 {
				continue
			}
			if *have == nil {
				*have = map[int]bool{}
			}
			if on := c.final == 'h'; on == def {
				delete(*have, n)
			} else {
				(*have)[n] = on
			}
		}
	}
}

// screenModes are what a soft reset leaves alone.
func (t *tracker) screenModes() map[int]bool {
	keep := map[int]bool{}
	for n, on := range t.private {
		if n >= 1000 || n == 9 {
			keep[n] = on
		}
	}
	return keep
}

// ansiParams parses the parameters of a sequence with the library's own parser,
// colon forms of colours included.
func ansiParams(seq []byte) ansi.Params {
	p := ansi.GetParser()
	defer ansi.PutParser(p)
	for _, b := range seq {
		p.Advance(b)
	}
	return slices.Clone(p.Params())
}

func (t *tracker) alt() bool { return t.private[1049] || t.private[1047] }

// setup brings a terminal in its normal state to this point, but for alternate
// screen, margins, origin mode and cursor, which the replay does in its order.
func (t *tracker) setup() []byte {
	var b []byte
	for _, n := range sorted(t.private) {
		if n != 1047 && n != 1049 && n != 6 && n != 7 {
			b = appendMode(b, "?", n, t.private[n])
		}
	}
	for _, n := range sorted(t.ansi) {
		b = appendMode(b, "", n, t.ansi[n])
	}
	if t.keypad {
		b = append(b, "\x1b="...)
	}
	if t.cursor != "" {
		b = append(b, "\x1b["+t.cursor+" q"...)
	}
	for i, set := range t.g {
		if set != 0 {
			b = append(b, 0x1b, "()"[i], set)
		}
	}
	if t.shift {
		b = append(b, 0x0e)
	}
	if t.penSet {
		b = append(b, t.pen.String()...)
	}
	return b
}

// undo brings a terminal at this point back to normal; the alternate screen is
// left last, so that the reset cannot change what the person had before.
func (t *tracker) undo() []byte {
	var b []byte
	if t.link {
		b = append(b, "\x1b]8;;\x1b\\"...)
	}
	if t.penSet {
		b = append(b, "\x1b[m"...)
	}
	if t.g != [2]byte{} || t.shift {
		b = append(b, "\x1b(B\x1b)B\x0f"...)
	}
	if t.margins != "" && t.margins != ";" {
		b = append(b, "\x1b7\x1b[r\x1b8"...) // setting margins moves the cursor
	}
	if t.cursor != "" {
		b = append(b, "\x1b[0 q"...)
	}
	if t.keypad {
		b = append(b, "\x1b>"...)
	}
	for _, n := range sorted(t.ansi) {
		b = appendMode(b, "", n, !t.ansi[n])
	}
	alt := 0
	for _, n := range sorted(t.private) {
		if n == 1047 || n == 1049 {
			alt = n
			continue
		}
		b = appendMode(b, "?", n, !t.private[n])
	}
	if alt != 0 {
		b = appendMode(b, "?", alt, false)
	}
	return b
}

func appendMode(b []byte, prefix string, n int, on bool) []byte {
	b = append(b, "\x1b["+prefix+strconv.Itoa(n)...)
	if on {
		return append(b, 'h')
	}
	return append(b, 'l')
}

func sorted(m map[int]bool) []int {
	keys := make([]int, 0, len(m))
	for n := range m {
		keys = append(keys, n)
	}
	slices.Sort(keys)
	return keys
}
