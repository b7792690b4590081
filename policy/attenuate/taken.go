package attenuate

import (
	"fmt"
	"slices"
)

// Loss is a right that a running agent holds as a mount, an id or a group, which
// the kernel does not ask us about again, and that its texts give it no longer.
type Loss struct {
	Control string // that gave it
	Line    int    // of the text that it was started with, from 1; 0: no line says it
	What    string // what is gone
}

// String names control and line.
func (l Loss) String() string {
	if l.Line > 0 {
		return fmt.Sprintf("%s, line %d: %s", l.Control, l.Line, l.What)
	}
	return l.Control + ": " + l.What
}

// Taken compares what a running agent was started with with what its texts say
// now: what was removed or narrowed since. What was added or widened is no loss,
// nor is another order. Unlike Check it goes line by line: the same source at
// another target is another right, for the running agent has it at the first.
func Taken(was, now *Agent) []Loss {
	var all []Loss
	lose := func(control string, line int, format string, args ...any) {
		all = append(all, Loss{control, line, fmt.Sprintf(format, args...)})
	}
	if was.UID != now.UID {
		lose("uid", 1, "it runs as %d, which is %s now", was.UID, id(now.UID))
	}
	if was.GID != now.GID {
		lose("gid", 1, "it runs with %d, which is %s now", was.GID, id(now.GID))
	}
	if was.Iso != now.Iso && now.Iso != isoShared {
		lose("iso", 1, "it runs with %s, which is %s now", was.Iso, orUnreadable(now.Iso))
	}
	for i, g := range was.Groups {
		if !slices.Contains(now.Groups, g) {
			lose("groups", i+1, "group %d was taken away", g)
		}
	}
	for _, m := range was.Mounts {
		i := slices.IndexFunc(now.Mounts, func(n Mount) bool { return n.Source == m.Source && n.Target == m.Target })
		if i < 0 {
			lose("mount", m.Line, "the line %q was taken away", m.words())
			continue
		}
		if why := narrowed(m, now.Mounts[i]); why != "" {
			lose("mount", m.Line, "the line %q %s now", m.words(), why)
		}
	}
	return all
}

// narrowed says in what now gives less than was; "" where it does not. nosuid and
// nodev are set on every mount whatever a line says, and the view is read-only
// always (spec 9, 10.3): to write that down takes nothing away.
func narrowed(was, now Mount) string {
	switch {
	case was.RW && !now.RW && was.kind() != view:
		return "is ro"
	case was.Recursive && !now.Recursive:
		return "is bind, not rbind,"
	case now.NoExec && !was.NoExec:
		return "is noexec"
	}
	return ""
}

// id is a number, or says that nobody knows it: no file and no process has this
// one.
func id(n uint32) string {
	if n == 1<<32-1 {
		return "unknown"
	}
	return fmt.Sprint(n)
}

func orUnreadable(word string) string {
	if word == "" {
		return "unreadable"
	}
	return word
}
