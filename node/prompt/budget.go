package prompt

import (
	"fmt"
	"sort"
	"strings"
	"unicode/utf8"

	"cortexfs/node"
)

// fit makes the text of the skills that are neither skipped nor shadowed, in at
// most Budget characters.
//
// Descriptions are shortened to one level, so that the longest lose first and no
// more than needed; what is left below one more character for each goes to the
// first ones. If the names and paths alone are too long, skills are left out from
// the end. The warning is part of the count.
func (s *Skills) fit() {
	var list []*Skill
	for i := range s.Found {
		if s.Found[i].Status == "" {
			list = append(list, &s.Found[i])
		}
	}
	if len(list) == 0 {
		return
	}
	b := newBudget(list)
	if b.total(b.whole()) <= s.Budget {
		b.set(b.whole(), len(list))
		s.Text = b.text(list)
		return
	}
	if none := make([]int, len(list)); b.warned(none, len(list)) > s.Budget {
		kept := sort.Search(len(list), func(n int) bool { return b.warned(none, n+1) > s.Budget })
		if kept == 0 && utf8.RuneCountInString(warning(0, len(list))) > s.Budget {
			b.set(none, 0) // not even the warning fits
			return
		}
		b.set(none, kept)
		s.Text = b.text(list)
		return
	}
	// The largest level that fits.
	level := sort.Search(b.longest+1, func(l int) bool { return b.warned(b.level(l+1), len(list)) > s.Budget })
	caps := b.level(level)
	for i := range caps {
		if caps[i] == level && caps[i] < b.full[i] {
			caps[i]++
			if b.warned(caps, len(list)) > s.Budget {
				caps[i]--
				break
			}
		}
	}
	b.set(caps, len(list))
	s.Text = b.text(list)
}

// budget counts characters of a list of skills.
type budget struct {
	list    []*Skill
	head    []int // characters of the line without a description
	full    []int // of the description
	longest int
}

func newBudget(list []*Skill) *budget {
	b := &budget{list: list}
	for _, one := range list {
		b.head = append(b.head, utf8.RuneCountInString(line(one, "")))
		n := utf8.RuneCountInString(one.Description)
		b.full = append(b.full, n)
		b.longest = max(b.longest, n)
	}
	return b
}

func (b *budget) whole() []int { return b.full }

// level is how long each description is when none is longer than l.
func (b *budget) level(l int) []int {
	caps := make([]int, len(b.full))
	for i, n := range b.full {
		caps[i] = min(n, l)
	}
	return caps
}

// total is the length of the first lines, LF between them included.
func (b *budget) total(caps []int) int {
	n := len(caps) - 1
	for i, c := range caps {
		n += b.head[i]
		if c > 0 {
			n += 2 + c // ": "
		}
	}
	return n
}

// warned is the length of the first kept lines below a warning.
func (b *budget) warned(caps []int, kept int) int {
	n := utf8.RuneCountInString(warning(b.shortened(caps, kept), len(b.list)-kept))
	if kept > 0 {
		n += 1 + b.total(caps[:kept])
	}
	return n
}

func (b *budget) shortened(caps []int, kept int) int {
	n := 0
	for i := range kept {
		if caps[i] < b.full[i] {
			n++
		}
	}
	return n
}

// set records the decision in the skills.
func (b *budget) set(caps []int, kept int) {
	for i, one := range b.list {
		switch one.Shown = caps[i]; {
		case i >= kept:
			one.Shown, one.Status = 0, "left out"
		case caps[i] < b.full[i]:
			one.Status = "shortened"
		default:
			one.Status = "listed"
		}
	}
}

func (b *budget) text(list []*Skill) string {
	var lines []string
	short, out := 0, 0
	for _, one := range list {
		switch one.Status {
		case "shortened":
			short++
		case "left out":
			out++
			continue
		}
		lines = append(lines, line(one, shorten(one.Description, one.Shown)))
	}
	if short+out > 0 {
		lines = append([]string{warning(short, out)}, lines...)
	}
	return strings.Join(lines, "\n")
}

func warning(short, out int) string {
	return fmt.Sprintf("(warning: %d descriptions shortened, %d skills left out; the session's SKILLS.md names them)", short, out)
}

func line(s *Skill, description string) string {
	head := "- " + s.Name
	if description != "" {
		head += ": " + description
	}
	return head + " (" + node.Escape(s.Path) + ")"
}

// shorten is s in exactly n characters, the last of them an ellipsis, or s where
// it is no longer.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	at := 0
	for range n - 1 {
		_, size := utf8.DecodeRuneInString(s[at:])
		at += size
	}
	return s[:at] + "…"
}
