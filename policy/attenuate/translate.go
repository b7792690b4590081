package attenuate

import "fmt"

// Translate turns lines whose sources are paths of the parent's sandbox into
// lines with the sources that the parent's table has there: what a parent asks
// for a child is named as the parent sees it, what is stored is never (spec
// section 17). The safety flags of the parent's line are added and rbind is kept
// only where the parent has it: a parent does not know its own flags. Everything
// else is left to Check. The error is the offence of the first line whose source
// the parent does not see.
func Translate(parent *Agent, lines []Mount) ([]Mount, *Offence) {
	out := make([]Mount, 0, len(lines))
	for _, m := range lines {
		offence := func(what string) *Offence {
			return &Offence{Control: "mount", Line: m.Line, Ancestor: parent.Name, What: fmt.Sprintf("the line for %q %s", m.Target, what)}
		}
		if !clean(m.Source) {
			return nil, offence("has a source that is no clean absolute path")
		}
		p, ok := parent.covers(m.Source)
		if !ok {
			return nil, offence("has a source that it does not see")
		}
		rest, _ := below(m.Source, p.Target)
		if p.kind() == tmp {
			if rest != "" || m.Target != "/tmp" {
				return nil, offence("hands on its private directory")
			}
		}
		m.Source = join(p.Source, rest)
		if m.kind() != p.kind() {
			return nil, offence("has a source that it does not see")
		}
		m.NoSuid, m.NoDev, m.NoExec = m.NoSuid || p.NoSuid, m.NoDev || p.NoDev, m.NoExec || p.NoExec
		m.Recursive = m.Recursive && p.Recursive
		out = append(out, m)
	}
	return out, nil
}
