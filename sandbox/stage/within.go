package stage

import (
	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// Within bounds a row of a child: what its source leads to lies inside what a line
// of an agent above leads to, at the place that the texts say (spec sections 10.3
// and 17). Texts alone cannot tell: a symlink below the parent's source leads
// elsewhere, to what the parent's table hides for example; a mount of the host shows
// another directory, or hides one.
type Within struct {
	Agent     string `json:"agent"`  // the agent above, for messages
	Source    string `json:"source"` // of its line; the row's source lies below it
	Recursive bool   `json:"recursive,omitempty"`
}

// bounded holds an opened source to its bounds.
func (s *stager) bounded(src *source, who *opener) error {
	for _, w := range src.Within {
		refuse := func(format string, args ...any) error {
			return src.fail(fault.Perm, "name it as it is, without links", format, append([]any{src.Source, w.Agent}, args...)...)
		}
		rest, ok := below(src.Source, w.Source)
		if !ok {
			return refuse("%s does not lie in what agent %s sees")
		}
		got, err := who.do(ask{Path: w.Source}, -1)
		if err != nil {
			return refuse("%s: what agent %s sees cannot be compared: %v", err)
		}
		loc, err := s.table.locate(got.fd)
		unix.Close(got.fd)
		if err != nil {
			return refuse("%s: what agent %s sees cannot be compared: %v", err)
		}
		at := loc.host
		if rest != "" {
			at = join(loc.host, rest)
		}
		switch {
		case src.loc.host != at:
			return refuse("%s leads out of what agent %s sees, to %s", src.loc.host)
		case !w.Recursive && src.loc.mount.ID != loc.mount.ID:
			return refuse("%s lies on a mount that agent %s does not see: its line is bind, not rbind")
		case w.Recursive && !src.Recursive && len(s.table.inside(src.loc)) > 0:
			return refuse("%s has mounts in it that hide something from agent %s: rbind shows it likewise")
		}
	}
	return nil
}
