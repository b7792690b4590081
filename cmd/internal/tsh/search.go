package tsh

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"

	"cortexfs/node"
)

// maxMeta bounds what is read of a description, schema or configuration.
const maxMeta = node.MaxText

// Search is the tool search path: CTX_PATH or its replacements, left to right
// (spec sections 8 and 12). PATH is never looked at.
type Search struct{ Dirs []string }

// NewSearch finds the search path of an environment. In an agent the process
// CTX_PATH is authoritative; without it `.tshrc` may reorder the default
// directories or leave some out, never add one. A person's .tshrc may name any
// absolute directory: it lists, and cannot execute.
func NewSearch(getenv func(string) string) Search {
	root := or(getenv("CTX_ROOT"), node.Root)
	home := getenv("CTX_HOME")
	standard := []string{filepath.Join(root, "tool")}
	if home != "" {
		standard = append(standard, filepath.Join(home, "tool"))
	}
	agent := getenv("CTX_AGENT") != ""
	if p := getenv("CTX_PATH"); p != "" && agent {
		return Search{split(p)}
	}
	if rc := rcPath(home); rc != "" {
		dirs := split(rc)
		if !agent {
			return Search{dirs}
		}
		var kept []string
		for _, d := range dirs {
			for _, s := range standard {
				if filepath.Clean(d) == s {
					kept = append(kept, s)
				}
			}
		}
		return Search{kept}
	}
	if p := getenv("CTX_PATH"); p != "" {
		return Search{split(p)}
	}
	return Search{standard}
}

func or(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

// split drops empty components and those that are not absolute: the working
// directory is never searched.
func split(path string) []string {
	var dirs []string
	for _, d := range strings.Split(path, ":") {
		if strings.HasPrefix(d, "/") {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// rcPath reads CTX_PATH= from .tshrc: data, not shell; the last line wins.
func rcPath(home string) string {
	if home == "" {
		return ""
	}
	text, err := readSmall(filepath.Join(home, ".tshrc"))
	if err != nil {
		return ""
	}
	value := ""
	sc := bufio.NewScanner(strings.NewReader(text))
	sc.Buffer(nil, maxMeta+1)
	for sc.Scan() {
		if v, ok := strings.CutPrefix(sc.Text(), "CTX_PATH="); ok {
			value = v
		}
	}
	return value
}

// Hit is a tool that was found.
type Hit struct {
	Name string
	Dir  string
}

// Path of the executable.
func (h Hit) Path() string { return filepath.Join(h.Dir, h.Name) }

// Meta reads a control of the tool from the .d beside the executable that was
// found, never another tier's; an absent one is empty.
func (h Hit) Meta(control string) string {
	text, err := readSmall(filepath.Join(h.Dir, h.Name+".d", control))
	if err != nil {
		return ""
	}
	return text
}

// Find returns every hit of name, the one that would run first. The error of a
// directory that could not be searched is returned when nothing was found.
func (s Search) Find(name string) ([]Hit, error) {
	if err := node.CheckName(name); err != nil {
		return nil, err
	}
	var hits []Hit
	var trouble error
	for _, dir := range s.Dirs {
		info, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err == nil && executable(info.Mode()):
			hits = append(hits, Hit{name, dir})
		case err != nil && !errors.Is(err, fs.ErrNotExist) && trouble == nil:
			trouble = err
		}
	}
	if len(hits) > 0 {
		return hits, nil
	}
	return nil, trouble
}

func executable(m fs.FileMode) bool { return m.IsRegular() && m&0o111 != 0 }

// List returns the tools of the whole path by name, each as its first hit.
func (s Search) List() []Hit {
	seen := map[string]bool{}
	var all []Hit
	for _, dir := range s.Dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // an absent tier has no tools
		}
		for _, e := range entries {
			if seen[e.Name()] || !node.IsName(e.Name()) {
				continue
			}
			if info, err := e.Info(); err == nil && executable(info.Mode()) {
				seen[e.Name()] = true
				all = append(all, Hit{e.Name(), dir})
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// readSmall reads a regular file of at most maxMeta bytes without waiting for a
// FIFO.
func readSmall(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", fs.ErrInvalid
	}
	text, err := io.ReadAll(io.LimitReader(f, maxMeta))
	return string(text), err
}
