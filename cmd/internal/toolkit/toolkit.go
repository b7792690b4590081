// Package toolkit is the core tools that bootstrap installs: fs.read, fs.list,
// fs.stat, fs.write, fs.replace, shell.exec and bash (spec sections 6 and 18).
//
// One table has a row for each tool: description, parameters, function. The
// JSON schema, the usage line and both call modes (argv, or one JSON object)
// are derived from the parameters. A tool runs inside the sandbox with the
// agent's rights and has no authority of its own: what it may touch is decided
// by mounts, ids and the view that let it start.
//
// Exit codes are those of spec section 23: 0 ok, 1 error, 2 bad input, 13
// refused by permissions.
package toolkit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"cortexfs/node"
)

// Exit codes of a tool (spec section 23).
const (
	exitError   = 1
	exitUsage   = 2
	exitRefused = 13
)

// Tool is one core tool.
type Tool struct {
	Name        string
	Description string
	Params      []Param
	run         func(c *call) error
}

// Param is one parameter, in the order of the argv form.
type Param struct {
	Name     string
	Type     string // string, integer, strings (the rest of argv)
	Doc      string
	Required bool
	Stdin    bool // argv form: taken from standard input when left out
}

// call is one invocation.
type call struct {
	args   values
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

// Tools returns the core tools in the order in which bootstrap installs them.
func Tools() []*Tool { return tools }

// Find returns the tool of that name, or nil.
func Find(name string) *Tool {
	for _, t := range tools {
		if t.Name == name {
			return t
		}
	}
	return nil
}

var tools = []*Tool{
	{
		Name:        "fs.read",
		Description: "Print a text file, whole or some lines of it.",
		Params: []Param{
			{Name: "path", Type: "string", Required: true, Doc: "file to read"},
			{Name: "line", Type: "integer", Doc: "first line, counted from 1 (default 1)"},
			{Name: "lines", Type: "integer", Doc: "how many lines (default all)"},
		},
		run: fsRead,
	},
	{
		Name:        "fs.list",
		Description: "List a directory, one name a line; directories end in /, symlinks in @.",
		Params:      []Param{{Name: "path", Type: "string", Doc: "directory (default .)"}},
		run:         fsList,
	},
	{
		Name:        "fs.stat",
		Description: "Show type, size, mode, owner and time of a path.",
		Params:      []Param{{Name: "path", Type: "string", Required: true, Doc: "path to look at; a symlink is not followed"}},
		run:         fsStat,
	},
	{
		Name:        "fs.write",
		Description: "Write a whole file: it is replaced at once, or made.",
		Params: []Param{
			{Name: "path", Type: "string", Required: true, Doc: "file to write"},
			{Name: "content", Type: "string", Required: true, Stdin: true, Doc: "the whole new text"},
		},
		run: fsWrite,
	},
	{
		Name:        "fs.replace",
		Description: "Replace one piece of text in a file; it must occur exactly once.",
		Params: []Param{
			{Name: "path", Type: "string", Required: true, Doc: "file to change"},
			{Name: "old", Type: "string", Required: true, Doc: "text that occurs exactly once"},
			{Name: "new", Type: "string", Required: true, Doc: "text to put in its place"},
		},
		run: fsReplace,
	},
	{
		Name:        "shell.exec",
		Description: "Run a command line with bash and print its output.",
		Params:      []Param{{Name: "cmd", Type: "string", Required: true, Doc: "command line"}},
		run:         shellExec,
	},
	{
		Name:        "bash",
		Description: "Run bash: interactive without arguments, else with the arguments given.",
		Params:      []Param{{Name: "args", Type: "strings", Doc: "arguments of bash"}},
		run:         bash,
	},
}

// Main runs the tool name and returns its exit code. args are argv without the
// program's name; mode is CTX_TOOL_MODE (cli, native or empty).
func Main(name string, args []string, mode string, stdin io.Reader, stdout, stderr io.Writer) int {
	t := Find(name)
	if t == nil {
		fmt.Fprintf(stderr, "%s: this program was built without a tool name\n", node.Escape(name))
		return exitUsage
	}
	c := &call{stdin: stdin, stdout: stdout, stderr: stderr}
	v, err := t.parse(args, mode, stdin)
	if err == nil {
		c.args = v
		err = t.run(c)
	}
	if err == nil {
		return 0
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code)
	}
	fmt.Fprintf(stderr, "%s: %s\n", t.Name, node.Escape(err.Error()))
	var usage usageError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "usage: %s\n", t.Usage())
		return exitUsage
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return exitRefused
	}
	return exitError
}

// exitCode ends a tool with a code and no message of ours: the exit code of a
// program is passed through.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// usageError is bad input: exit 2 and the usage line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// openRegular opens a regular file without waiting: a FIFO or device in a
// workspace must not hang the tool.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	default:
		return f, info, nil
	}
	f.Close()
	return nil, nil, err
}
