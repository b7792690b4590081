package tsh

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/term"
)

// script reads lines from a pipe or file; the exit code is the last line's.
func (s *Shell) script() int {
	sc := bufio.NewScanner(s.Stdin)
	sc.Buffer(make([]byte, 0, 4096), maxLine+1)
	for !s.done && sc.Scan() {
		s.last = s.Line(sc.Text())
	}
	if err := sc.Err(); err != nil {
		return s.fail(exitUsage, "%v", err)
	}
	return s.last
}

// interactive reads lines from a terminal with editing, history and completion.
// The terminal is raw only while a line is read, so that a tool finds it as any
// program would.
func (s *Shell) interactive() int {
	fd := int(s.Stdin.Fd())
	prompt := "tsh> "
	if a := s.Getenv("CTX_AGENT"); a != "" {
		prompt = a + "> "
	}
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{interruptReader{s.Stdin}, s.Stdin}, prompt)
	t.AutoCompleteCallback = s.autoComplete(t)
	size := func() {
		if w, h, err := term.GetSize(fd); err == nil && w > 0 && h > 0 {
			_ = t.SetSize(w, h) // an error is a failed redraw: the next one comes
		}
	}
	size()
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, syscall.SIGWINCH)
	defer signal.Stop(winch)
	end := make(chan struct{})
	defer close(end)
	go func() {
		for {
			select {
			case <-winch:
				size()
			case <-end:
				return
			}
		}
	}()
	for !s.done {
		state, err := term.MakeRaw(fd)
		if err != nil {
			return s.fail(exitError, "terminal: %v", err)
		}
		line, err := t.ReadLine()
		if rerr := term.Restore(fd, state); rerr != nil {
			return s.fail(exitError, "terminal: %v", rerr)
		}
		switch {
		case errors.Is(err, io.EOF):
			fmt.Fprintln(s.Stdout)
			return s.last
		case err != nil && !errors.Is(err, term.ErrPasteIndicator):
			return s.fail(exitError, "terminal: %v", err)
		}
		s.last = s.Line(line)
	}
	return s.last
}

// interruptReader makes Ctrl-C at the prompt clear the line: the line editor
// itself would take it for the end of input.
type interruptReader struct{ io.Reader }

const (
	ctrlC     = 0x03
	clearLine = 0x15 // Ctrl-U: to the line editor, kill to the start
)

func (r interruptReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	for i := range p[:n] {
		if p[i] == ctrlC {
			p[i] = clearLine
		}
	}
	return n, err
}

// autoComplete completes the word before the cursor at TAB: as far as it is
// unique, and a list when it is not.
func (s *Shell) autoComplete(t *term.Terminal) func(string, int, rune) (string, int, bool) {
	return func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		start := strings.LastIndexByte(line[:pos], ' ') + 1
		first, _, _ := strings.Cut(line, " ")
		if start > 0 && !isBuiltin(first) {
			return line, pos, true
		}
		fit := s.complete(line[start:pos])
		if len(fit) == 0 {
			return line, pos, true
		}
		common := fit[0]
		for _, f := range fit[1:] {
			for !strings.HasPrefix(f, common) {
				common = common[:len(common)-1]
			}
		}
		if len(fit) == 1 {
			common += " "
		} else if common == line[start:pos] {
			fmt.Fprintln(t, strings.Join(fit, "  "))
		}
		return line[:start] + common + line[pos:], start + len(common), true
	}
}
