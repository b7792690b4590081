package control

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"cortexfs/node/fault"
)

// Formats of one thing a line.
var (
	groupsFormat = &lineFormat{name: "group list", new: func() judge { return &groupsJudge{} }}
	toolsFormat  = &lineFormat{name: "tool list", finalLF: true, new: func() judge { return &toolsJudge{} }}
	pathFormat   = &lineFormat{name: "search path", new: func() judge { return &pathJudge{} }}
	wordsFormat  = &lineFormat{name: "word list", new: func() judge { return &wordsJudge{value: plainWord} }}
)

// groupsJudge: one number a line, no repeats, no blank lines.
type groupsJudge struct {
	seen map[uint32]int
	out  []uint32
}

func (j *groupsJudge) line(n int, s string) error {
	if s == "" {
		return fault.Text(n, 1, "blank line")
	}
	if col, why := number(s, true); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	v, _ := strconv.ParseUint(s, 10, 32)
	g := uint32(v)
	if at := j.seen[g]; at > 0 {
		return fault.Text(n, 1, "repeats line %d", at)
	}
	if j.seen == nil {
		j.seen = map[uint32]int{}
	}
	j.seen[g] = n
	j.out = append(j.out, g)
	return nil
}

func (j *groupsJudge) part(n int, s string) error {
	if col, why := number(s, false); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	v, _ := strconv.ParseUint(s, 10, 32)
	if at := j.seen[uint32(v)]; at > 0 && numberIsLast(uint32(v)) {
		return fault.Text(n, 1, "repeats line %d", at)
	}
	return nil
}

func (j *groupsJudge) end() error { return nil }

// toolsJudge: one tool name a line. A lone LF is the empty text, because that is
// what `echo > tools` writes.
type toolsJudge struct {
	blank bool
	seen  map[string]int
	out   []string
}

func (j *toolsJudge) line(n int, s string) error {
	if err := j.after(); err != nil {
		return err
	}
	if s == "" {
		if n > 1 {
			return fault.Text(n, 1, "blank line")
		}
		j.blank = true
		return nil
	}
	if strings.TrimSpace(s) != s {
		return fault.Text(n, 1, "blank before or after the name")
	}
	if col, why := objectName(s, true); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	if s == Reserved {
		return fault.Text(n, 1, "tsh is reserved: it always counts as declared")
	}
	if at := j.seen[s]; at > 0 {
		return fault.Text(n, 1, "repeats line %d", at)
	}
	if j.seen == nil {
		j.seen = map[string]int{}
	}
	j.seen[s] = n
	j.out = append(j.out, s)
	return nil
}

func (j *toolsJudge) part(n int, s string) error {
	if err := j.after(); err != nil {
		return err
	}
	if s[0] == ' ' || s[0] == '\t' {
		return fault.Text(n, 1, "blank before or after the name")
	}
	if col, why := objectName(s, false); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	if at := j.seen[s]; at > 0 && len(s) == maxName {
		return fault.Text(n, 1, "repeats line %d", at)
	}
	return nil
}

// after refuses anything after a lone LF.
func (j *toolsJudge) after() error {
	if j.blank {
		return fault.Text(1, 1, "blank line")
	}
	return nil
}

func (j *toolsJudge) end() error { return nil }

// pathJudge: absolute directories, one a line or joined by colons.
type pathJudge struct {
	seen map[string]int
	out  []string
}

func (j *pathJudge) line(n int, s string) error { return j.dirs(n, s, true) }
func (j *pathJudge) part(n int, s string) error { return j.dirs(n, s, false) }
func (j *pathJudge) end() error                 { return nil }

// dirs judges the directories of a line; what it finds counts for later lines
// only when the line is finished.
func (j *pathJudge) dirs(n int, s string, whole bool) error {
	col := 1
	var found []string
	parts := strings.Split(s, ":")
	for i, p := range parts {
		done := whole || i < len(parts)-1
		if at, why := badDir(p, done); why != "" {
			return fault.Text(n, col+at-1, "%s", why)
		}
		if done && p != "" { // empty components are dropped
			dir := path.Clean(p)
			if at := j.seen[dir]; at > 0 {
				return fault.Text(n, col, "repeats a directory of line %d", at)
			}
			if slices.Contains(found, dir) {
				return fault.Text(n, col, "repeats a directory of the same line")
			}
			found = append(found, dir)
		}
		col += len(p) + 1
	}
	if whole {
		j.keep(n, found)
	}
	return nil
}

func (j *pathJudge) keep(n int, dirs []string) {
	if j.seen == nil {
		j.seen = map[string]int{}
	}
	for _, d := range dirs {
		j.seen[d] = n
	}
	j.out = append(j.out, dirs...)
}

func badDir(p string, done bool) (int, string) {
	if p == "" {
		return 0, ""
	}
	if at, why := absPath(p, done, false); why != "" {
		return at, why
	}
	if t := strings.TrimSpace(p); done && t != p {
		return len(t) + 1, "blank after the directory"
	}
	return 0, ""
}

// wordsJudge: one word a line, no repeats; with comments also blank lines and
// lines that begin with #.
type wordsJudge struct {
	value    valueFunc
	closed   []string // if set, the only words there are
	comments bool
	seen     map[string]int
	out      []string
}

func (j *wordsJudge) line(n int, s string) error {
	switch {
	case j.comments && (s == "" || s[0] == '#'):
		return nil
	case s == "":
		return fault.Text(n, 1, "blank line")
	}
	if col, why := j.value(s, true); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	if at := j.seen[s]; at > 0 {
		return fault.Text(n, 1, "repeats line %d", at)
	}
	if j.seen == nil {
		j.seen = map[string]int{}
	}
	j.seen[s] = n
	j.out = append(j.out, s)
	return nil
}

func (j *wordsJudge) part(n int, s string) error {
	if j.comments && s[0] == '#' {
		return nil
	}
	if col, why := j.value(s, false); why != "" {
		return fault.Text(n, col, "%s", why)
	}
	if j.closed == nil {
		return nil
	}
	for _, w := range j.closed {
		if j.seen[w] == 0 && strings.HasPrefix(w, s) {
			return nil
		}
	}
	return fault.Text(n, 1, "repeats an earlier line")
}

func (j *wordsJudge) end() error { return nil }

// plainWord is anything without blanks.
func plainWord(s string, _ bool) (int, string) {
	if i := strings.IndexFunc(s, isSpace); i >= 0 {
		return i + 1, "blank in a word: one word a line"
	}
	return 0, ""
}
