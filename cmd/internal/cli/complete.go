package cli

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/spf13/cobra"
)

// A completer lists candidates for a word that begins with prefix.
type completer func(s *State, prefix string) []string

// completers by the placeholder that a command's usage line has for an argument:
// the line is written for people, and completion cannot differ from it.
var completers = map[string]completer{
	"AGENT": (*State).agentNames, "CHILD": (*State).agentNames, "PARENT": (*State).agentNames,
	"TOOL":    (*State).toolNames,
	"CONTROL": func(*State, string) []string { return controlNames() },
	"PATH":    (*State).treePaths,
	"SPACE":   (*State).spaceNames,
}

// complete gives every command that lacks one a completion function.
func (s *State) complete(c *cobra.Command) {
	for _, sub := range c.Commands() {
		s.complete(sub)
	}
	if c.ValidArgsFunction != nil || len(c.ValidArgs) > 0 || c.HasSubCommands() {
		return
	}
	words := placeholders(c)
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		i := min(len(args), len(words)-1)
		if i < 0 || i < len(args) && !strings.HasSuffix(words[i], "...") {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return s.candidates(strings.TrimSuffix(words[i], "..."), prefix)
	}
}

// candidates are those of one placeholder, which may name several kinds.
func (s *State) candidates(placeholder, prefix string) (list []string, d cobra.ShellCompDirective) {
	d = cobra.ShellCompDirectiveNoFileComp
	for _, word := range strings.Split(placeholder, "|") {
		switch f := completers[word]; {
		case f != nil:
			list = append(list, f(s, prefix)...)
			if word == "PATH" {
				d |= cobra.ShellCompDirectiveNoSpace
			}
		case word == "FILE", word == "DIR", word == "CMD", word == "STORE":
			d = cobra.ShellCompDirectiveDefault
		case word == strings.ToLower(word) && word != "-":
			list = append(list, word) // a word to be written as it is
		}
	}
	return list, d
}

var flagPart = regexp.MustCompile(`\[-[^\]]*\](\.\.\.)?|(^| )--?[a-z][-a-z]* [A-Z]+`)

// placeholders are the words for a command's arguments. NAME means an agent
// below `ctx agent`, and elsewhere what the command is about.
func placeholders(c *cobra.Command) []string {
	_, use, _ := strings.Cut(c.Use, " ")
	var list []string
	for _, w := range strings.Fields(flagPart.ReplaceAllString(use, "")) {
		w = strings.ReplaceAll(w, "…", "...")
		more := strings.HasSuffix(w, "...")
		w = strings.Trim(strings.TrimSuffix(w, "..."), "[]")
		if w == "" || strings.HasPrefix(w, "-") {
			continue
		}
		path := c.CommandPath()
		if w == "NAME" {
			switch {
			case strings.HasPrefix(path, "ctx agent ") && c.Name() != "new", path == "ctx which agent":
				w = "AGENT"
			case strings.HasPrefix(path, "ctx tool "), path == "ctx which tool":
				w = "TOOL"
			case strings.HasPrefix(path, "ctx shared "):
				w = "SPACE"
			}
		}
		if more {
			w += "..."
		}
		list = append(list, w)
	}
	return list
}

// names lists a directory of the tree; directories of controls and sockets are no
// names. It reads the tree alone: completion must work when the daemon is busy.
func (s *State) names(dirs ...string) []string {
	t, err := s.tree()
	if err != nil {
		return nil
	}
	seen := map[string]bool{}
	for _, d := range dirs {
		entries, err := os.ReadDir(t.path(d))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if n := e.Name(); !strings.HasSuffix(n, ".d") && !strings.HasSuffix(n, ".sock") {
				seen[n] = true
			}
		}
	}
	var list []string
	for n := range seen {
		list = append(list, n)
	}
	sort.Strings(list)
	return list
}

func (s *State) agentNames(string) []string {
	t, err := s.tree()
	if err != nil {
		return nil
	}
	var list []string
	for _, d := range []string{"agent", s.home("agent")} {
		entries, _ := os.ReadDir(t.path(d))
		for _, e := range entries {
			if n, ok := strings.CutSuffix(e.Name(), ".d"); ok && !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
	}
	sort.Strings(list)
	return list
}

func (s *State) home(dir string) string { return fmt.Sprintf("home/%d/%s", s.UID, dir) }

func (s *State) toolNames(string) []string  { return s.names("tool", s.home("tool")) }
func (s *State) spaceNames(string) []string { return s.names("shared") }

func controlNames() []string {
	var list []string
	for _, t := range tables() {
		if t.set == nil {
			continue
		}
		for _, e := range t.set.Entries() {
			list = append(list, t.word+"/"+e.Name)
		}
	}
	return list
}

// treePaths completes a path below the root, one component at a time.
func (s *State) treePaths(prefix string) []string {
	t, err := s.tree()
	if err != nil {
		return nil
	}
	dir := ""
	if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
		dir = prefix[:i+1]
	}
	rel, err := t.rel(dir)
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir(t.path(rel))
	var list []string
	for _, e := range entries {
		name := dir + e.Name()
		if e.IsDir() {
			name += "/"
		}
		list = append(list, name)
	}
	return list
}
