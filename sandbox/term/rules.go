package term

import (
	"bytes"
	"strconv"
	"strings"
)

// verdict says who gets a token.
type verdict uint8

const (
	drop    verdict = iota
	emuOnly         // a question: the emulator answers it, no client sees it
	both            // harmless: emulator and clients
)

// privateModes are the DEC modes that may reach a viewer's terminal, with their
// value after a reset. All others are dropped: those that make a terminal report
// by itself, change its width or its character coding.
var privateModes = map[int]bool{
	1: false, 5: false, 6: false, 7: true, 9: false, 12: false, 25: true, 66: false,
	1000: false, 1002: false, 1003: false, 1004: false, 1005: false, 1006: false,
	1007: false, 1015: false, 1016: false,
	1047: false, 1048: false, 1049: false, 2004: false,
}

var ansiModes = map[int]bool{4: false, 20: false}

// maxParam bounds a number in a sequence: some are repeat counts, and a few
// bytes must not cost the host a million cell writes.
const maxParam = 1000

// csi is a parsed control sequence: ESC [ prefix params inter final.
type csi struct {
	prefix byte // one of <=>? or 0
	inter  byte // one intermediate, or 0
	final  byte
	params string
}

// parseCSI splits a sequence; ok is false for one that no rule knows.
func parseCSI(seq []byte) (c csi, ok bool) {
	body := seq[2 : len(seq)-1]
	c.final = seq[len(seq)-1]
	if len(body) > 0 && body[0] >= '<' && body[0] <= '?' {
		c.prefix = body[0]
		body = body[1:]
	}
	if n := len(body); n > 0 && body[n-1] < 0x30 {
		c.inter = body[n-1]
		body = body[:n-1]
	}
	for _, b := range body {
		if (b < '0' || b > '9') && b != ';' && b != ':' {
			return c, false
		}
	}
	c.params = string(body)
	return c, true
}

// numbers are the parameters; an empty one is def.
func (c csi) numbers(def int) []int {
	if c.params == "" {
		return nil
	}
	var out []int
	for _, f := range strings.FieldsFunc(strings.ReplaceAll(c.params, ";", " ; "), func(r rune) bool { return r == ' ' }) {
		if f == ";" {
			out = append(out, def)
			continue
		}
		n, err := strconv.Atoi(f)
		if err != nil {
			n = maxParam
		}
		if len(out) == 0 {
			out = append(out, n)
		} else {
			out[len(out)-1] = n
		}
	}
	return out
}

func (c csi) bytes() []byte {
	b := []byte{0x1b, '['}
	if c.prefix != 0 {
		b = append(b, c.prefix)
	}
	b = append(b, c.params...)
	if c.inter != 0 {
		b = append(b, c.inter)
	}
	return append(b, c.final)
}

// judgeCSI decides on a control sequence and returns what is to be sent in its
// place. Only what is listed passes.
func judgeCSI(seq []byte) (verdict, []byte) {
	c, ok := parseCSI(seq)
	if !ok {
		return drop, nil
	}
	switch {
	case c.prefix == 0 && c.inter == 0:
		switch {
		case c.final == 'm':
			return both, seq
		case c.final == 'h' || c.final == 'l':
			return c.keepModes(ansiModes)
		case c.final == 'c' || c.final == 'n':
			return emuOnly, seq
		case c.final == 'T' && strings.Contains(c.params, ";"):
			return drop, nil // highlight tracking
		case c.final == 's' && c.params != "":
			return drop, nil // left and right margins
		case strings.IndexByte("@ABCDEFGHIJKLMPSTXZ`abdefgrsu", c.final) >= 0:
			c.clamp()
			return both, c.bytes()
		}
	case c.prefix == '?' && c.inter == 0:
		switch c.final {
		case 'h', 'l':
			return c.keepModes(privateModes)
		case 'J', 'K':
			return both, seq
		case 'n':
			return emuOnly, seq
		}
	case c.prefix == '>' && c.inter == 0 && c.final == 'c':
		return emuOnly, seq
	case c.inter == '$' && c.final == 'p' && (c.prefix == 0 || c.prefix == '?'):
		return emuOnly, seq
	case c.prefix == 0 && c.inter == ' ' && c.final == 'q':
		return both, seq
	case c.prefix == 0 && c.inter == '!' && c.final == 'p':
		return both, seq
	}
	return drop, nil
}

// clamp bounds every number; 0 is what the standard makes of it, the default.
func (c *csi) clamp() {
	if len(c.params) == 0 {
		return
	}
	parts := strings.Split(c.params, ";")
	for i, p := range parts {
		if n, err := strconv.Atoi(p); p != "" && (err != nil || n > maxParam) {
			parts[i] = strconv.Itoa(maxParam)
		} else if n == 0 && strings.IndexByte("Jg", c.final) < 0 && c.final != 'K' {
			parts[i] = ""
		}
	}
	c.params = strings.Join(parts, ";")
}

// keepModes leaves the modes that are listed. 47 is an older name of 1047.
func (c csi) keepModes(list map[int]bool) (verdict, []byte) {
	var kept []string
	for _, n := range c.numbers(0) {
		if c.prefix == '?' && n == 47 {
			n = 1047
		}
		if _, ok := list[n]; ok {
			kept = append(kept, strconv.Itoa(n))
		}
	}
	if len(kept) == 0 {
		return drop, nil
	}
	c.params = strings.Join(kept, ";")
	return both, c.bytes()
}

// judgeEscape decides on ESC sequences.
func judgeEscape(seq []byte) verdict {
	switch len(seq) {
	case 2:
		if strings.IndexByte("78=>DEHMNOc", seq[1]) >= 0 {
			return both
		}
		if seq[1] == 'Z' {
			return emuOnly
		}
	case 3:
		set := strings.IndexByte("()*+", seq[1]) >= 0
		if set && strings.IndexByte("AB0", seq[2]) >= 0 || seq[1] == '#' && seq[2] == '8' {
			return both
		}
	}
	return drop
}

// judgeOSC decides on operating system commands (without terminator). Colour
// questions are the emulator's; links pass where they lead to the web or to a
// mailbox. Titles are dropped: a title can be asked back as typed text.
func judgeOSC(seq []byte) verdict {
	body := seq[2:]
	switch {
	case bytes.HasPrefix(body, []byte("8;")):
		// The parameters too: a control hidden in them (U+009C, U+009B) would end the
		// string in terminals that obey 8-bit controls, and begin another sequence.
		if params, url, ok := strings.Cut(string(body[2:]), ";"); ok && graphic(params) && safeLink(url) {
			return both
		}
	case bytes.HasPrefix(body, []byte("10;?")), bytes.HasPrefix(body, []byte("11;?")), bytes.HasPrefix(body, []byte("12;?")):
		return emuOnly
	}
	return drop
}

func safeLink(url string) bool {
	return graphic(url) && (url == "" || strings.HasPrefix(url, "https://") || strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "mailto:"))
}

// graphic says whether s is ASCII without blanks and controls.
func graphic(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= 0x20 || s[i] >= 0x7f {
			return false
		}
	}
	return true
}

// judgeControl decides on C0 bytes. ENQ asks for an answerback string.
func judgeControl(b byte) verdict {
	if b >= 0x07 && b <= 0x0f {
		return both
	}
	return drop
}
