package tsh

import (
	"fmt"
	"strconv"
	"strings"
)

// Loads is the set of tools whose metadata the agent's prompt carries beside
// the declared ones. It is context, never authority (spec sections 8 and 12).
// Over the limit the least recently used tool that is not pinned goes first.
type Loads struct {
	max   int
	names []string // least recently used first
	pins  map[string]bool
}

// NewLoads makes an empty set from the text of tool/tsh.d/config.
func NewLoads(config string) *Loads {
	l := &Loads{max: 64, pins: map[string]bool{}}
	for _, line := range strings.Split(config, "\n") {
		if v, ok := strings.CutPrefix(line, "max_loaded_tools="); ok {
			if n, err := strconv.Atoi(v); err == nil && n >= 1 && n <= 1024 {
				l.max = n
			}
		}
	}
	return l
}

// Load adds a tool or makes it the most recently used, and returns what went in
// its place ("" for nothing).
func (l *Loads) Load(name string) (evicted string, err error) {
	if l.touch(name) {
		return "", nil
	}
	if len(l.names) >= l.max {
		i := l.oldest()
		if i < 0 {
			return "", fmt.Errorf("%d tools are pinned, the limit is %d; unpin one", len(l.names), l.max)
		}
		evicted = l.names[i]
		l.names = append(l.names[:i], l.names[i+1:]...)
	}
	l.names = append(l.names, name)
	return evicted, nil
}

func (l *Loads) touch(name string) bool {
	for i, n := range l.names {
		if n == name {
			l.names = append(append(l.names[:i], l.names[i+1:]...), name)
			return true
		}
	}
	return false
}

func (l *Loads) oldest() int {
	for i, n := range l.names {
		if !l.pins[n] {
			return i
		}
	}
	return -1
}

// Unload takes a tool out; a pinned one stays.
func (l *Loads) Unload(name string) error {
	if l.pins[name] {
		return fmt.Errorf("%s is pinned; unpin it first", name)
	}
	for i, n := range l.names {
		if n == name {
			l.names = append(l.names[:i], l.names[i+1:]...)
			return nil
		}
	}
	return fmt.Errorf("%s is not loaded", name)
}

// Pin loads a tool and protects it from eviction.
func (l *Loads) Pin(name string) (evicted string, err error) {
	if evicted, err = l.Load(name); err == nil {
		l.pins[name] = true
	}
	return evicted, err
}

// Unpin takes the protection away; the tool stays loaded.
func (l *Loads) Unpin(name string) error {
	if !l.pins[name] {
		return fmt.Errorf("%s is not pinned", name)
	}
	delete(l.pins, name)
	return nil
}

// Names lists the loaded tools, least recently used first.
func (l *Loads) Names() []string { return append([]string(nil), l.names...) }

// Pinned says whether a tool is protected.
func (l *Loads) Pinned(name string) bool { return l.pins[name] }
