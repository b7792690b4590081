// Package tsh is the tool shell: the program in an agent's terminal (spec
// section 12). It is not a host shell. The first word of a line is a built-in or
// a tool, found through the tool search path and never through PATH; the rest
// are the tool's words.
//
// tsh decides nothing: it runs what the agent's view lets it open, and the view
// is evaluated by the daemon at each lookup and exec. So tsh runs inside the
// sandbox, trusted by nobody. All metadata it prints is escaped.
package tsh

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/term"

	"cortexfs/node"
)

// Exit codes (spec section 23).
const (
	exitError       = 1
	exitUsage       = 2
	exitRefused     = 13
	exitUnavailable = 69
)

// Shell is one tsh.
type Shell struct {
	Getenv func(string) string
	Env    []string // what a tool gets
	Stdin  *os.File
	Stdout io.Writer
	Stderr io.Writer

	search  Search
	loads   *Loads
	history []string
	last    int // exit code of the last line
	done    bool
}

// New makes a shell on the process's own files and environment.
func New() *Shell {
	return &Shell{Getenv: os.Getenv, Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
}

const usage = `usage: tsh [--root DIR] [--list] [-h] [TOOL [WORD…]]

Without a tool: read lines, one tool or built-in each.
`

// Main runs tsh with argv (without the program's name) and returns its exit code.
func (s *Shell) Main(args []string) int {
	list := false
options:
	for len(args) > 0 {
		switch a := args[0]; {
		case a == "-h" || a == "--help":
			fmt.Fprint(s.Stdout, usage, "\n")
			s.printBuiltins()
			return 0
		case a == "--list":
			list = true
		case (a == "--root" || a == "-r") && len(args) > 1:
			root, getenv := args[1], s.Getenv
			s.Getenv = func(key string) string {
				if key == "CTX_ROOT" {
					return root
				}
				return getenv(key)
			}
			args = args[1:]
		case a == "--":
			args = args[1:]
			break options
		case strings.HasPrefix(a, "-"):
			fmt.Fprintf(s.Stderr, "tsh: unknown option %s\n%s", node.Escape(a), usage)
			return exitUsage
		default:
			break options
		}
		args = args[1:]
	}
	s.search = NewSearch(s.Getenv)
	s.loads = NewLoads(s.configText())
	switch {
	case list:
		return s.builtin([]string{"tools"})
	case len(args) > 0:
		return s.Run(args)
	case term.IsTerminal(int(s.Stdin.Fd())):
		return s.interactive()
	}
	return s.script()
}

func (s *Shell) configText() string {
	hits, err := s.search.Find("tsh")
	if err != nil || len(hits) == 0 {
		return ""
	}
	return hits[0].Meta("config")
}

// Line runs one line of input.
func (s *Shell) Line(line string) int {
	words, err := Words(line)
	switch {
	case err != nil:
		fmt.Fprintf(s.Stderr, "tsh: %s\n", node.Escape(err.Error()))
		s.last = exitUsage
	case len(words) > 0:
		s.history = append(s.history, line)
		s.last = s.Run(words)
	}
	return s.last
}

// Run runs a built-in or a tool.
func (s *Shell) Run(words []string) int {
	if words[0] == "" {
		return s.fail(exitUsage, "empty tool name")
	}
	if isBuiltin(words[0]) {
		return s.builtin(words)
	}
	if strings.Contains(words[0], "/") {
		return s.fail(exitUsage, "%s: tools are run by name, never by path", words[0])
	}
	hits, err := s.search.Find(words[0])
	switch {
	case errors.Is(err, fs.ErrPermission):
		return s.fail(exitRefused, "%s: %v", words[0], err)
	case err != nil && node.CheckName(words[0]) != nil:
		return s.fail(exitUsage, "%v", err)
	case len(hits) == 0:
		return s.fail(exitUnavailable, "%s: no such tool here (tools lists what may run now)", words[0])
	case s.Getenv("CTX_AGENT") == "":
		return s.fail(exitUnavailable, "%s: tools run inside an agent; attach to one: ctx agent attach NAME", words[0])
	}
	return s.execute(hits[0], words[1:])
}

func (s *Shell) fail(code int, format string, args ...any) int {
	fmt.Fprintf(s.Stderr, "tsh: %s\n", node.Escape(fmt.Sprintf(format, args...)))
	return code
}

// execute runs a tool in the foreground. SIGINT and SIGQUIT of the terminal go
// to the tool: tsh only outlives them. (Notify and not Ignore: an ignored signal
// would be ignored in the tool too.)
func (s *Shell) execute(h Hit, args []string) int {
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(sigs)
	cmd := &exec.Cmd{
		Path:   h.Path(),
		Args:   append([]string{h.Path()}, args...),
		Env:    append(withoutTool(s.Env), "CTX_TOOL="+h.Name, "CTX_TOOL_MODE=cli"),
		Stdin:  s.Stdin,
		Stdout: s.Stdout,
		Stderr: s.Stderr,
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return exit.ExitCode()
	case errors.Is(err, fs.ErrPermission):
		return s.fail(exitRefused, "%s: refused (the owner sees why with: ctx agent why %s %s)", h.Name, s.Getenv("CTX_AGENT"), h.Name)
	case errors.Is(err, fs.ErrNotExist):
		return s.fail(exitUnavailable, "%s: no such tool here", h.Name)
	case errors.Is(err, syscall.E2BIG):
		return s.fail(exitUsage, "%s: an argument of over 131072 bytes or too many of them; use standard input", h.Name)
	}
	return s.fail(exitError, "%s: %v", h.Name, err)
}

func withoutTool(env []string) []string {
	var kept []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "CTX_TOOL=") && !strings.HasPrefix(kv, "CTX_TOOL_MODE=") {
			kept = append(kept, kv)
		}
	}
	return kept
}
