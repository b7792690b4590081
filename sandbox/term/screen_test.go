package term

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "client-under-test" {
		os.Exit(clientMain(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// What clients may see of each sequence, whole and cut at every byte.
func TestFilter(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"text", "hello\r\n", "hello\r\n"},
		{"utf-8", "é漢字🙂", "é漢字🙂"},
		{"broken utf-8", "a\xffb\xc3(", "a\ufffdb\ufffd("},
		{"8-bit controls", "a\xc2\x9b31mb", "a31mb"},
		{"colour", "\x1b[1;38:2::1:2:3mx\x1b[m", "\x1b[1;38:2::1:2:3mx\x1b[m"},
		{"cursor", "\x1b[3;4H\x1b[2J", "\x1b[3;4H\x1b[2J"},
		{"huge count", "\x1b[99999999b", "\x1b[1000b"},
		{"device attributes", "a\x1b[c\x1b[>c\x1b[=cb", "ab"},
		{"status and position", "a\x1b[5n\x1b[6n\x1b[?6nb", "ab"},
		{"mode query", "a\x1b[?2004$p\x1b[4$pb", "ab"},
		{"settings query", "a\x1bP$qm\x1b\\b", "ab"},
		{"termcap query", "a\x1bP+q544e\x1b\\b", "ab"},
		{"version query", "a\x1b[>qb", "ab"},
		{"keyboard query", "a\x1b[?u\x1b[>1ub", "ab"},
		{"identify", "a\x1bZb", "ab"},
		{"answerback", "a\x05b", "ab"},
		{"title", "a\x1b]0;evil\x07\x1b]2;x\x1b\\b", "ab"},
		{"title report", "a\x1b[21t\x1b[20tb", "ab"},
		{"window", "a\x1b[8;10;10t\x1b[18tb", "ab"},
		{"clipboard", "a\x1b]52;c;ZXZpbA==\x07b", "ab"},
		{"clipboard query", "a\x1b]52;c;?\x1b\\b", "ab"},
		{"colour query", "a\x1b]10;?\x07\x1b]4;1;?\x07b", "ab"},
		{"colour set", "a\x1b]11;#000000\x07b", "ab"},
		{"notification", "a\x1b]9;hi\x07\x1b]777;notify;a;b\x07b", "ab"},
		{"link", "\x1b]8;;https://x/\x07l\x1b]8;;\x07", "\x1b]8;;https://x/\x1b\\l\x1b]8;;\x1b\\"},
		{"link with an id", "\x1b]8;id=a;https://x/\x07l", "\x1b]8;id=a;https://x/\x1b\\l"},
		{"clipboard in a link's parameters", "\x1b]8;\u009c\u009d52;https://x;AAAA\x07l", "l"},
		{"question in a link's parameters", "\x1b]8;\u009c\u009b6n;https://x/\x07l", "l"},
		{"8-bit bytes in a link's parameters", "\x1b]8;\x9c\x9b6n;https://x/\x07l", "l"},
		{"link to a file", "\x1b]8;;file:///etc\x07l", "l"},
		{"images", "a\x1b_Gi=1;AAAA\x1b\\b\x1bPq#0\x1b\\c", "abc"},
		{"printer", "a\x1b[5ib", "ab"},
		{"checksum", "a\x1b[1;1;1;1;2;2*yb", "ab"},
		{"7 and 8 bit", "a\x1b Gb\x1b%@c", "abc"},
		{"modes", "\x1b[?1049;52;2004h", "\x1b[?1049;2004h"},
		{"old alternate screen", "\x1b[?47h", "\x1b[?1047h"},
		{"132 columns", "a\x1b[?3hb", "ab"},
		{"reports by itself", "a\x1b[?2031h\x1b[?2048hb", "ab"},
		{"ansi modes", "\x1b[4h\x1b[2hx", "\x1b[4hx"},
		{"margins", "\x1b[2;10r\x1b[0;0r\x1b[1;24r\x1b[3;99r", "\x1b[2;10r\x1b[r\x1b[r\x1b[3;24r"},
		{"margins off the screen", "a\x1b[30;40r\x1b[5;5rb", "ab"},
		{"cursor shape", "\x1b[5 q", "\x1b[5 q"},
		{"line drawing", "\x1b(0q\x1b(B", "\x1b(0q\x1b(B"},
		{"control inside", "\x1b[3\r1m", "\r\x1b[31m"},
		{"cancelled", "\x1b[3\x18x", "x"},
		{"aborted string", "\x1b]0;x\x1b[1mb", "\x1b[1mb"},
		{"string in string", "\x1bPtmux;\x1b\x1b]52;c;?\x07\x1b\\a", ""},
		{"too long", "\x1b[" + strings.Repeat("1;", 200) + "mx", "x"},
		{"too long string", "\x1b]8;;https://" + strings.Repeat("x", 5000) + "\x07x", "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "string in string" {
				// Where the inner one ends is a matter of taste; that it does not get
				// through is not.
				if got := feedAll(c.in, len(c.in)); strings.Contains(got, "52") {
					t.Errorf("got %q", got)
				}
				return
			}
			for n := 1; n <= len(c.in); n++ {
				if n > 40 && n < len(c.in) {
					continue
				}
				if got := feedAll(c.in, n); got != c.want {
					t.Fatalf("in pieces of %d: got %q, want %q", n, got, c.want)
				}
			}
		})
	}
}

func feedAll(in string, n int) string {
	s := NewScreen(Size{80, 24}, func([]byte) {})
	defer s.Close()
	var out bytes.Buffer
	for len(in) > 0 {
		k := min(n, len(in))
		out.Write(s.Write([]byte(in[:k])))
		in = in[k:]
	}
	return out.String()
}

// answersOf is what the emulator replies to p.
func TestEmulatorAnswers(t *testing.T) {
	got := make(chan string, 10)
	s := NewScreen(Size{80, 24}, func(p []byte) { got <- string(p) })
	defer s.Close()
	s.Write([]byte("ab\x1b[6n"))
	if r := <-got; r != "\x1b[1;3R" {
		t.Errorf("position: %q", r)
	}
	s.Write([]byte("\x1b[c"))
	if r := <-got; !strings.HasPrefix(r, "\x1b[?62") {
		t.Errorf("attributes: %q", r)
	}
}

// A fresh screen that gets the replay shows the same and goes on the same.
func TestReplay(t *testing.T) {
	for _, c := range []struct{ name, in string }{
		{"text", "one\r\ntwo"},
		{"colours", "\x1b[31;44mred\x1b[m plain \x1b[1munfinished"},
		{"wide", "漢字 x\r\n\x1b[7m ab \x1b[m\x1b[5;80Hz"},
		{"full line", strings.Repeat("x", 80)},
		{"alternate", "main\x1b[?1049h\x1b[2;2Halt"},
		{"back from alternate", "main\x1b[?1049hgone\x1b[?1049l!"},
		{"modes", "\x1b[?1h\x1b[?2004h\x1b[?1000;1006h\x1b=\x1b[?25l"},
		{"margins", "\x1b[3;5r\x1b[5;1Hx"},
		{"line drawing", "\x1b(0lqk"},
		{"no wrap", "\x1b[?7labc"},
		{"shape", "\x1b[4 q"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := NewScreen(Size{80, 24}, func([]byte) {})
			defer a.Close()
			a.Write([]byte(c.in))
			b := NewScreen(Size{80, 24}, func([]byte) {})
			defer b.Close()
			b.Write([]byte("old dirt\x1b[31m\x1b[?6h\x1b[4h"))
			replay := a.Replay()
			if got := b.Write(replay); !bytes.Equal(got, replay) {
				t.Errorf("the replay does not pass its own filter:\n%q\n%q", replay, got)
			}
			same(t, a, b)
			const more = "more\r\n\x1b[A+"
			a.Write([]byte(more))
			b.Write([]byte(more))
			same(t, a, b)
		})
	}
}

func same(t *testing.T, a, b *Screen) {
	t.Helper()
	if a.Text() != b.Text() {
		t.Errorf("screens differ:\n%q\n%q", a.Text(), b.Text())
	}
	if x, y := string(a.cells()), string(b.cells()); x != y {
		t.Errorf("cells differ:\n%q\n%q", x, y)
	}
	if x, y := a.emu.CursorPosition(), b.emu.CursorPosition(); x != y {
		t.Errorf("cursors differ: %v %v", x, y)
	}
	if x, y := string(a.track.setup()), string(b.track.setup()); x != y {
		t.Errorf("modes differ: %q %q", x, y)
	}
}

// After undo a terminal has nothing left of the session.
func TestUndo(t *testing.T) {
	var tr tracker
	tr.watch([]byte("\x1b[?1049h\x1b[?2004h\x1b[?1006h\x1b[?25l\x1b[?7l\x1b[4h\x1b=\x1b[31m\x1b[2;3r\x1b(0\x1b[3 q\x1b]8;;http://x\x1b\\"))
	undo := tr.undo()
	if !bytes.HasSuffix(undo, []byte("\x1b[?1049l")) {
		t.Errorf("the alternate screen is not left last: %q", undo)
	}
	tr.watch(undo)
	if tr.link || tr.penSet || tr.keypad || len(tr.private) > 0 || len(tr.ansi) > 0 || tr.g != [2]byte{} {
		t.Errorf("left over: %+v", tr)
	}
	if rest := (&tracker{}).undo(); len(rest) > 0 {
		t.Errorf("undo of nothing: %q", rest)
	}
}

// A long listing costs what is seen of it, and looks as if all had been drawn.
func TestUnseenLines(t *testing.T) {
	var in []byte
	for i := range 600 {
		in = fmt.Appendf(in, "\x1b[%dmline %d\x1b[m %s\r\n", 30+i%8, i, strings.Repeat("x", i%200))
	}
	in = append(in, strings.Repeat("no end ", 2000)...)
	for _, before := range []string{"", "\x1b[5;5H", "\x1b[?1049h", "\x1b[2;20r", "\x1b[31m"} {
		a := NewScreen(Size{80, 24}, func([]byte) {})
		b := NewScreen(Size{80, 24}, func([]byte) {})
		a.Write([]byte(before))
		b.Write([]byte(before))
		whole := a.Write(in)
		if !bytes.Equal(whole, in) {
			t.Error("clients do not get all")
		}
		for rest := in; len(rest) > 0; {
			n := min(100, len(rest))
			b.Write(rest[:n])
			rest = rest[n:]
		}
		same(t, a, b)
		a.Close()
		b.Close()
	}
}

// What scrolls off the alternate screen does not pile up.
func TestAlternateScreenIsBounded(t *testing.T) {
	s := NewScreen(Size{80, 24}, func([]byte) {})
	defer s.Close()
	s.Write([]byte("main\r\n$ \x1b[?1049h"))
	for i := range 2000 {
		s.Write(fmt.Appendf(nil, "line %d\r\n", i))
		if s.hidden > 2*maxHidden {
			t.Fatalf("%d cells are hidden", s.hidden)
		}
	}
	if !strings.Contains(s.Text(), "line 1999") || strings.Contains(s.Text(), "main") {
		t.Errorf("screen is %q", s.Text())
	}
	s.Write([]byte("\x1b[?1049lls"))
	if got := strings.TrimRight(s.Text(), "\n"); got != "main\n$ ls" {
		t.Errorf("afterwards the main screen is %q", got)
	}
}

func TestResizeKeepsGoing(t *testing.T) {
	s := NewScreen(Size{80, 24}, func([]byte) {})
	defer s.Close()
	s.Write([]byte("\x1b[24;80Hx"))
	s.Resize(Size{10, 3})
	s.Write([]byte("\x1b[24;80Hy"))
	s.Resize(Size{200, 60})
	s.Write([]byte("\x1b[60;200Hz"))
	if s.panics > 0 || !strings.Contains(s.Text(), "z") {
		t.Errorf("panics %d, text %q", s.panics, s.Text())
	}
}

// Long runs of combining characters cost no more than they weigh.
func TestCombiningRun(t *testing.T) {
	s := NewScreen(Size{80, 24}, func([]byte) {})
	defer s.Close()
	s.Write([]byte("e" + strings.Repeat("\u0301", 1<<17)))
	if n := len(s.Replay()); n > 80*24*(maxCluster+32) {
		t.Errorf("the replay has %d bytes", n)
	}
}

// hostile makes streams of sequences that programs do not write.
func hostile(r *rand.Rand) []byte {
	finals := "@ABCDEFGHIJKLMPSTXZ`abcdefghilmnpqrstux"
	var b []byte
	for range 200 {
		switch r.IntN(8) {
		case 0:
			b = append(b, byte(r.IntN(256)))
		case 1:
			b = append(b, "\x1b["...)
			for range r.IntN(4) {
				b = append(b, []string{"0", "1", ";", "99999", "?", "-", "4294967296", ":", "47", "1049"}[r.IntN(10)]...)
			}
			b = append(b, finals[r.IntN(len(finals))])
		case 2:
			b = append(b, 0x1b, byte(0x20+r.IntN(0x60)))
		case 3:
			b = append(b, "\x1b]8;;\x07漢\u0301é"...)
		case 4:
			b = append(b, "\x1b[?6h\x1b[3;7r"...)
		default:
			b = append(b, "text and\ttabs\r\n"...)
		}
	}
	return b
}

func TestHostileStreams(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := NewScreen(Size{2 + r.IntN(40), 1 + r.IntN(20)}, func([]byte) {})
		for range 5 {
			s.Write(hostile(r))
			s.Replay()
			s.Resize(Size{2 + r.IntN(40), 1 + r.IntN(20)})
		}
		if s.panics > 0 {
			t.Errorf("seed %d: the emulator failed %d times", seed, s.panics)
		}
		s.Close()
	}
}

func FuzzScreen(f *testing.F) {
	f.Add([]byte("a\x1b[6n\x1b]52;c;?\x07\x1b[?1049h漢"))
	f.Fuzz(func(t *testing.T, in []byte) {
		s := NewScreen(Size{20, 5}, func([]byte) {})
		defer s.Close()
		out := bytes.Clone(s.Write(in))
		for _, bad := range []string{"\x1b]52", "\x1b]0", "\x1b[c", "\x1b[6n", "\x1b[21t", "\x1bP", "\x05"} {
			if bytes.Contains(out, []byte(bad)) {
				t.Errorf("%q passed in %q", bad, out)
			}
		}
		if again := s.Write(s.Replay()); len(again) == 0 {
			t.Error("empty replay")
		}
	})
}

func BenchmarkScreen(b *testing.B) {
	s := NewScreen(Size{80, 24}, func([]byte) {})
	defer s.Close()
	p := bytes.Repeat([]byte("\x1b[32mThe quick brown fox\x1b[m jumps over the lazy dog 0123456789\r\n"), 3000)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		s.Write(p)
	}
}
