package tsh

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"cortexfs/node"
)

// builtinDocs names every built-in, for help and completion; run is in builtin.
var builtinDocs = []struct{ name, args, doc string }{
	{"help", "[TOOL]", "this list, or a tool's description and schema"},
	{"tools", "[-l] [PREFIX]", "the tools that may run now; -l with path and description"},
	{"which", "[-a] NAME", "where a tool is found; -a shows shadowed ones too"},
	{"type", "NAME", "built-in or tool?"},
	{"find", "WORD", "tools whose name or description has WORD"},
	{"load", "TOOL…", "put a tool's metadata into the prompt"},
	{"unload", "TOOL…", "take it out"},
	{"loads", "", "what is loaded"},
	{"pin", "TOOL…", "load and protect from eviction"},
	{"unpin", "TOOL…", "end the protection"},
	{"pins", "", "what is pinned"},
	{"history", "", "the lines of this session"},
	{"exit", "[N]", "leave, with code N"},
	{"quit", "", "leave"},
}

func isBuiltin(name string) bool {
	for _, b := range builtinDocs {
		if b.name == name {
			return true
		}
	}
	return false
}

func (s *Shell) builtin(words []string) int {
	name, args := words[0], words[1:]
	switch name {
	case "help":
		return s.help(args)
	case "tools":
		return s.tools(args)
	case "which":
		return s.which(args)
	case "type":
		return s.typeOf(args)
	case "find":
		return s.find(args)
	case "load", "unload", "pin", "unpin":
		return s.change(name, args)
	case "loads", "pins":
		for _, n := range s.loads.Names() {
			if name == "loads" || s.loads.Pinned(n) {
				fmt.Fprintln(s.Stdout, n)
			}
		}
		return 0
	case "history":
		for i, l := range s.history {
			fmt.Fprintf(s.Stdout, "%5d  %s\n", i+1, node.Escape(l))
		}
		return 0
	}
	return s.exit(args)
}

func (s *Shell) exit(args []string) int {
	code := s.last
	if len(args) > 1 {
		return s.fail(exitUsage, "exit: one code at most")
	}
	if len(args) == 1 {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 0 || n > 255 {
			return s.fail(exitUsage, "exit: %q is not a code from 0 to 255", args[0])
		}
		code = n
	}
	s.done = true
	return code
}

func (s *Shell) printBuiltins() {
	w := tabwriter.NewWriter(s.Stdout, 0, 8, 2, ' ', 0)
	for _, b := range builtinDocs {
		fmt.Fprintf(w, "  %s\t%s\n", strings.TrimSpace(b.name+" "+b.args), b.doc)
	}
	w.Flush()
}

func (s *Shell) help(args []string) int {
	if len(args) == 0 {
		s.printBuiltins()
		return 0
	}
	for _, name := range args {
		hit, code := s.lookup(name)
		if code != 0 {
			return code
		}
		fmt.Fprintf(s.Stdout, "%s\n", hit.Path())
		if d := strings.TrimSpace(hit.Meta("description")); d != "" {
			fmt.Fprintf(s.Stdout, "%s\n", node.EscapeLines(d))
		}
		if schema := strings.TrimSpace(hit.Meta("schema")); schema != "" {
			fmt.Fprintf(s.Stdout, "schema: %s\n", node.EscapeLines(schema))
		}
	}
	return 0
}

// lookup finds the one tool of a name or says that there is none.
func (s *Shell) lookup(name string) (Hit, int) {
	hits, err := s.search.Find(name)
	if err != nil {
		return Hit{}, s.fail(exitUsage, "%s: %v", name, err)
	}
	if len(hits) == 0 {
		return Hit{}, s.fail(exitUnavailable, "%s: no such tool here", name)
	}
	return hits[0], 0
}

func (s *Shell) tools(args []string) int {
	long := len(args) > 0 && args[0] == "-l"
	if long {
		args = args[1:]
	}
	if len(args) > 1 {
		return s.fail(exitUsage, "tools: one prefix at most")
	}
	for _, h := range s.search.List() {
		if len(args) == 1 && !strings.HasPrefix(h.Name, args[0]) {
			continue
		}
		if long {
			fmt.Fprintf(s.Stdout, "%s\t%s\t%s\n", h.Name, node.Escape(h.Path()), firstLine(h.Meta("description")))
		} else {
			fmt.Fprintln(s.Stdout, h.Name)
		}
	}
	return 0
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return node.Escape(line)
}

func (s *Shell) which(args []string) int {
	all := len(args) > 0 && args[0] == "-a"
	if all {
		args = args[1:]
	}
	if len(args) != 1 {
		return s.fail(exitUsage, "which: one tool")
	}
	hits, err := s.search.Find(args[0])
	if err != nil {
		return s.fail(exitUsage, "%s: %v", args[0], err)
	}
	if len(hits) == 0 {
		return s.fail(exitUnavailable, "%s: no such tool here", args[0])
	}
	for i, h := range hits {
		if i == 0 {
			fmt.Fprintln(s.Stdout, node.Escape(h.Path()))
		} else if all {
			fmt.Fprintf(s.Stdout, "%s (shadowed)\n", node.Escape(h.Path()))
		}
	}
	return 0
}

func (s *Shell) typeOf(args []string) int {
	if len(args) != 1 {
		return s.fail(exitUsage, "type: one name")
	}
	if isBuiltin(args[0]) {
		fmt.Fprintf(s.Stdout, "%s is a built-in\n", args[0])
		return 0
	}
	hit, code := s.lookup(args[0])
	if code == 0 {
		fmt.Fprintf(s.Stdout, "%s is the tool %s\n", hit.Name, node.Escape(hit.Path()))
	}
	return code
}

func (s *Shell) find(args []string) int {
	if len(args) != 1 {
		return s.fail(exitUsage, "find: one word")
	}
	word := strings.ToLower(args[0])
	found := 0
	for _, h := range s.search.List() {
		d := h.Meta("description")
		if strings.Contains(strings.ToLower(h.Name), word) || strings.Contains(strings.ToLower(d), word) {
			fmt.Fprintf(s.Stdout, "%s\t%s\n", h.Name, firstLine(d))
			found++
		}
	}
	if found == 0 {
		return exitError
	}
	return 0
}

func (s *Shell) change(what string, args []string) int {
	if len(args) == 0 {
		return s.fail(exitUsage, "%s: which tool?", what)
	}
	for _, name := range args {
		var evicted string
		var err error
		switch what {
		case "unload":
			err = s.loads.Unload(name)
		case "unpin":
			err = s.loads.Unpin(name)
		default: // only what is visible can be loaded
			if _, code := s.lookup(name); code != 0 {
				return code
			}
			if what == "pin" {
				evicted, err = s.loads.Pin(name)
			} else {
				evicted, err = s.loads.Load(name)
			}
		}
		if err != nil {
			return s.fail(exitUnavailable, "%s: %v", what, err)
		}
		if evicted != "" {
			fmt.Fprintf(s.Stdout, "unloaded %s (least recently used)\n", evicted)
		}
	}
	return 0
}

// complete returns the names that a word can become: built-ins and tools for the
// first word, tools after a built-in.
func (s *Shell) complete(prefix string) []string {
	var names []string
	for _, b := range builtinDocs {
		names = append(names, b.name)
	}
	for _, h := range s.search.List() {
		names = append(names, h.Name)
	}
	sort.Strings(names)
	var fit []string
	for i, n := range names {
		if strings.HasPrefix(n, prefix) && (i == 0 || names[i-1] != n) {
			fit = append(fit, n)
		}
	}
	return fit
}
