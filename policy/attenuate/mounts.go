package attenuate

import (
	pathpkg "path"
	"slices"
	"strings"

	"cortexfs/node"
)

// Origin says through which line of the parent a line of the child is seen. What
// the child's source leads to when it is opened has to lie inside what From's
// source leads to.
type Origin struct {
	Line Mount // of the child
	From Mount // of the parent
	// Own: it is the child's own, as the parent has its own; there is nothing to
	// compare when it is opened.
	Own bool
	// Granted: From is root's grant.
	Granted bool
}

// The kinds of sources. A line shows sources of its own kind only: the view's
// entries for homes and shared data are links to where the table mounts them, so
// having /ctx is not having them.
type kind uint8

const (
	host   kind = iota // a path of the host
	view               // the agent's view: /ctx and below
	stored             // of the store: an agent's home, a space's data
	tmp                // the line /tmp /tmp: a private directory of the agent, never the host's
	bad                // no clean absolute path: shown by nothing
)

func (m *Mount) kind() kind {
	if m.Source == "/tmp" && m.Target == "/tmp" {
		return tmp
	}
	return kindOf(m.Source)
}

func kindOf(source string) kind {
	if !clean(source) {
		return bad
	}
	rel, ok := below(source, node.Root)
	if !ok {
		return host
	}
	parts := strings.Split(strings.TrimPrefix(rel, "/"), "/")
	switch {
	case parts[0] == "home" && len(parts) >= 4 && parts[2] == "agent",
		parts[0] == "shared" && (len(parts) == 2 || len(parts) >= 3 && parts[2] == "data"):
		return stored
	}
	return view
}

// clean says whether p is absolute and spelt in the one way that is compared.
func clean(p string) bool {
	return strings.HasPrefix(p, "/") && pathpkg.Clean(p) == p && !strings.ContainsRune(p, 0)
}

// below cuts dir off p: "" when they are equal, else "/rest".
func below(p, dir string) (rest string, ok bool) {
	if dir == "/" {
		if p == "/" {
			return "", true
		}
		return p, strings.HasPrefix(p, "/")
	}
	rest, ok = strings.CutPrefix(p, dir)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// join puts rest, as below returns it, under dir.
func join(dir, rest string) string {
	if dir == "/" && rest != "" {
		return rest
	}
	return dir + rest
}

// mounts compares the tables.
func (c *pair) mounts() *Offence {
	for _, m := range c.child.Mounts {
		if _, o := c.origin(m); o != nil {
			return o
		}
	}
	return nil
}

// Lines tells for each line of the child, and each ancestor, through which line of
// that ancestor it is seen; an error for the first that is not. The outer slice is
// in the order of the child's lines, the inner one nearest ancestor first.
func Lines(child *Agent, above []*Agent, g *Grants) ([][]Origin, *Offence) {
	all := make([][]Origin, len(child.Mounts))
	for i, p := range above {
		c := &pair{child, p, above[:i], g, true}
		for j, m := range child.Mounts {
			from, o := c.origin(m)
			if o != nil {
				return nil, o
			}
			all[j] = append(all[j], from)
		}
	}
	return all, nil
}

// origin finds the line of the parent that shows all of what m shows, or the
// offence of the line that comes closest.
func (c *pair) origin(m Mount) (Origin, *Offence) {
	offence := func(format string, args ...any) *Offence {
		o := c.offence("mount", m.Line, "the line for %q "+format, append([]any{m.Target}, args...)...)
		o.Grant = "mount '" + m.words() + "'"
		return o
	}
	if granted, ok := c.grants.mount(m); ok {
		if why := wider(m, granted, granted.RW); why != "" {
			return Origin{}, offence("%s, in the grant it is not", why)
		}
		return Origin{Line: m, From: granted, Granted: true}, nil
	}
	if m.kind() == bad || !clean(m.Target) {
		return Origin{}, offence("is no clean absolute path")
	}
	source, own := c.stands(m.Source)
	best := offence("has a source that it does not see")
	for _, p := range c.parent.Mounts {
		rest, ok := below(source, p.Source)
		if p.kind() != m.kind() || !ok {
			continue
		}
		at := join(p.Target, rest)
		if cover, ok := c.parent.covers(at); ok && cover.Target != p.Target {
			best = offence("has a source that it does not see: its line for %q lies over it", cover.Target)
			continue
		}
		// Only in its own home is an agent kept from what the host process writes.
		whole := !own && source == c.parent.Home
		if why := wider(m, p, p.RW && !whole && !c.parent.guarded(p, rest)); why != "" {
			best = offence("%s, its own line for %q is not", why, p.Target)
			continue
		}
		if q, ok := c.uncovered(at, m.Target); ok && c.whole {
			best = offence("uncovers what its line for %q lies over", q.Target)
			continue
		}
		return Origin{Line: m, From: p, Own: own}, nil
	}
	return Origin{}, best
}

// stands is the source that a source of the child stands for in the parent's
// table: the home of an agent below the parent is to that agent what the parent's
// is to the parent.
func (c *pair) stands(source string) (string, bool) {
	if rest, ok := c.ownHome(c.child, source); ok {
		return join(c.parent.Home, rest), true
	}
	for _, b := range c.between {
		if rest, ok := c.ownHome(b, source); ok {
			return join(c.parent.Home, rest), true
		}
	}
	return source, false
}

func (c *pair) ownHome(a *Agent, source string) (rest string, ok bool) {
	if a.Home == "" || c.parent.Home == "" {
		return "", false
	}
	return below(source, a.Home)
}

// covers is the line that decides what the agent sees at a path of its sandbox:
// the one with the longest target that leads there.
func (a *Agent) covers(at string) (Mount, bool) {
	best, found := Mount{}, false
	for _, m := range a.Mounts {
		if _, ok := below(at, m.Target); ok && (!found || len(m.Target) > len(best.Target)) {
			best, found = m, true
		}
	}
	return best, found
}

// uncovered finds a line of the parent that lies below at, where the child, who
// gets all that is there at its own place to, has nothing over it.
func (c *pair) uncovered(at, to string) (Mount, bool) {
	for _, q := range c.parent.Mounts {
		rest, ok := below(q.Target, at)
		if !ok || rest == "" {
			continue
		}
		if cover, ok := c.child.covers(join(to, rest)); !ok || len(cover.Target) <= len(to) {
			return q, true
		}
	}
	return Mount{}, false
}

// guarded says whether what lies at rest below a rw line is read-only all the
// same: what only the host process writes in the agent's home, and .git (spec
// 10.3). A line of its own for that place is another line and never asked here.
func (a *Agent) guarded(p Mount, rest string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if a.Home != "" && p.Source == a.Home && (first == "session" || first == "log" || first == "root") {
		return true
	}
	return first == ".git"
}

// wider says in what a line is wider than p, whose mode at that place is rw or
// not; "" where it is not.
func wider(m, p Mount, rw bool) string {
	switch {
	case m.RW && !rw:
		return "is rw"
	case m.Recursive && !p.Recursive:
		return "is rbind"
	case p.NoSuid && !m.NoSuid:
		return "is without nosuid"
	case p.NoDev && !m.NoDev:
		return "is without nodev"
	case p.NoExec && !m.NoExec:
		return "is without noexec"
	}
	return ""
}

// words is the line as an argument of ctx agent grant: blanks for TABs.
func (m *Mount) words() string {
	mode := "ro"
	if m.RW {
		mode = "rw"
	}
	return m.Source + " " + m.Target + " " + mode
}

// root compares what appears in the sandbox's /. Nothing of its own and what is
// its own by name is always allowed; anything else has to be the parent's own root
// or to lie inside what the parent sees, and what the parent's table puts over an
// entry of it has to be there in the child too.
func (c *pair) root() *Offence {
	child, parent := c.child, c.parent
	if child.Root == "/" || child.Root == child.DefaultRoot() {
		return nil
	}
	if kindOf(child.Root) == bad {
		return c.offence("root", 1, "the root is no clean absolute path")
	}
	source, _ := c.stands(child.Root)
	if source == parent.Root && parent.Root != parent.DefaultRoot() {
		return c.tops("/")
	}
	best := c.offence("root", 1, "it does not see the directory that root names")
	for _, p := range parent.Mounts {
		rest, ok := below(source, p.Source)
		if !ok || p.kind() != kindOf(source) || p.NoExec || !p.Recursive {
			continue
		}
		at := join(p.Target, rest)
		if cover, ok := parent.covers(at); !ok || cover.Target != p.Target {
			continue
		}
		if best = c.tops(at); best == nil {
			return nil
		}
	}
	return best
}

// tops finds a line of the parent below at whose place would show through in the
// child's /: the table provides a name there as a whole.
func (c *pair) tops(at string) *Offence {
	for _, q := range c.parent.Mounts {
		rest, ok := below(q.Target, at)
		if !ok || rest == "" {
			continue
		}
		top, _, _ := strings.Cut(rest[1:], "/")
		if !slices.ContainsFunc(c.child.Mounts, func(m Mount) bool { _, ok := below(m.Target, "/"+top); return ok }) {
			return c.offence("root", 1, "the root would uncover what its line for %q lies over", q.Target)
		}
	}
	return nil
}
