package prompt

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	yaml "go.yaml.in/yaml/v3"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// Limits of the search for skills (interop A13).
const (
	skillDepth   = 8
	skillsPer    = 256  // SKILL.md files of one root
	dirsPer      = 1024 // directories of one root that are looked into
	skillHead    = 16 << 10
	maxSkillName = 64 // characters
	skillName    = "SKILL.md"
	skillDir     = ".agents/skills"
)

// Skills is the value of {{skills}} and what it was made of.
type Skills struct {
	Text   string
	Budget int     // characters
	Found  []Skill // all, in the order of precedence
}

// Skill is one SKILL.md that was found.
type Skill struct {
	Name, Description string
	Path              string
	Shown             int    // characters of the description in the text
	Status            string // listed, shortened, left out, shadowed, skipped
	Note              string
}

// Budget is how many characters the list may have: 2 % of the context window at 4
// characters a token, 8,000 when the window (in tokens) is unknown.
func Budget(window int) int {
	if window <= 0 {
		return 8000
	}
	return window * 4 * 2 / 100
}

// ReadSkills finds SKILL.md below .agents/skills of cwd and its ancestors, nearest
// first, then of home. Of one name the nearest wins. window is the model's
// context window in tokens, 0 when unknown.
func ReadSkills(fsys FS, home, cwd string, window int) *Skills {
	s := &Skills{Budget: Budget(window)}
	dirs := ancestors(cwd)
	slices.Reverse(dirs)
	if home = path.Clean("/" + home); !slices.Contains(dirs, home) {
		dirs = append(dirs, home)
	}
	for _, dir := range dirs {
		w := walker{fs: fsys, seen: map[string]bool{}}
		w.walk(path.Join(dir, skillDir), 0)
		slices.SortStableFunc(w.found, func(a, b Skill) int { return strings.Compare(a.Path, b.Path) })
		s.Found = append(s.Found, w.found...)
	}
	winner := map[string]string{}
	for i := range s.Found {
		one := &s.Found[i]
		if one.Status != "" {
			continue
		}
		if first, ok := winner[one.Name]; ok {
			one.Status, one.Note = "shadowed", "by "+first
			continue
		}
		winner[one.Name] = one.Path
	}
	s.fit()
	return s
}

// walker looks into one root.
type walker struct {
	fs    FS
	seen  map[string]bool // directories, by identity: links can lead in a circle
	dirs  int
	found []Skill
}

func (w *walker) skip(p, format string, args ...any) {
	w.found = append(w.found, Skill{Path: p, Status: "skipped", Note: fmt.Sprintf(format, args...)})
}

func (w *walker) walk(dir string, depth int) {
	l, err := w.fs.ReadDir(dir)
	if err != nil {
		if depth == 0 && fault.Is(err, fault.NotExist) || fault.Is(err, fault.NotDir) {
			return
		}
		w.skip(dir, "%s", why(err))
		return
	}
	if w.seen[l.ID] {
		return
	}
	w.seen[l.ID] = true
	if w.dirs++; w.dirs > dirsPer {
		if w.dirs == dirsPer+1 {
			w.skip(dir, "over %d directories", dirsPer)
		}
		return
	}
	slices.SortFunc(l.Names, func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range l.Names {
		p := path.Join(dir, n.Name)
		switch {
		case n.Name == skillName:
			if len(w.found) >= skillsPer {
				if len(w.found) == skillsPer {
					w.skip(p, "over %d skills in one place", skillsPer)
				}
				return
			}
			w.found = append(w.found, readSkill(w.fs, p))
		case n.Dir && depth < skillDepth:
			w.walk(p, depth+1)
		}
	}
}

func readSkill(fsys FS, p string) Skill {
	s := Skill{Path: p}
	bad := func(format string, args ...any) Skill {
		return Skill{Path: p, Status: "skipped", Note: fmt.Sprintf(format, args...)}
	}
	file, err := fsys.ReadFile(p, skillHead, false)
	if err != nil {
		return bad("%s", why(err))
	}
	head, ok := frontMatter(plainText(file.Data))
	switch {
	case !ok && file.Size > skillHead:
		return bad("its front matter does not end within %d bytes", skillHead)
	case !ok:
		return bad("no front matter between two lines of ---")
	case !utf8.ValidString(head):
		return bad("front matter is not UTF-8")
	}
	name, description, err := nameAndDescription(head)
	if err != nil {
		name, description = byLine(head)
		if name == "" && description == "" {
			return bad("front matter: %s", err)
		}
		s.Note = "front matter is not YAML; read line by line"
	}
	if name == "" {
		name = path.Base(path.Dir(p))
		s.Note = "no name; the directory's is taken"
	}
	if n := utf8.RuneCountInString(name); n > maxSkillName {
		return bad("name of %d characters, at most %d", n, maxSkillName)
	}
	if name != node.Escape(name) {
		return bad("name has characters that cannot be shown")
	}
	s.Name, s.Description = name, oneLine(description)
	if s.Description == "" {
		s.Note = strings.TrimPrefix(s.Note+"; no description", "; ")
	}
	return s
}

// oneLine keeps a text within its line.
func oneLine(s string) string { return node.Escape(strings.Join(strings.Fields(s), " ")) }

// frontMatter is what stands between the first line, ---, and the next one.
func frontMatter(text string) (string, bool) {
	rest, ok := strings.CutPrefix(text, "---\n")
	if !ok {
		return "", false
	}
	if strings.HasPrefix(rest, "---\n") || rest == "---" {
		return "", true
	}
	head, _, ok := strings.Cut(rest, "\n---\n")
	if !ok {
		head, ok = strings.CutSuffix(rest, "\n---")
	}
	return head, ok
}

// nameAndDescription reads two plain values of a YAML mapping. Nothing else of
// YAML is used: no aliases are followed, no types are made.
func nameAndDescription(head string) (name, description string, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(head), &doc); err != nil {
		return "", "", errors.New("not YAML")
	}
	if len(doc.Content) == 0 {
		return "", "", nil
	}
	m := doc.Content[0]
	if m.Kind != yaml.MappingNode {
		return "", "", errors.New("not a mapping")
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		if v.Kind != yaml.ScalarNode {
			if k.Value == "name" || k.Value == "description" {
				return "", "", errors.New(k.Value + " is not a plain text")
			}
			continue
		}
		switch k.Value {
		case "name":
			name = strings.TrimSpace(v.Value)
		case "description":
			description = v.Value
		}
	}
	return name, description, nil
}

// byLine reads `key: rest of the line`, as other readers of these files do.
func byLine(head string) (name, description string) {
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		switch key {
		case "name":
			name = value
		case "description":
			description = value
		}
	}
	return name, description
}

// Report is SKILLS.md of the session.
func (s *Skills) Report() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# Skills of this run\n\nBudget %d characters, %d used.\n", s.Budget, utf8.RuneCountInString(s.Text))
	if len(s.Found) == 0 {
		b.WriteString("\nNo SKILL.md was found.\n")
		return []byte(b.String())
	}
	b.WriteByte('\n')
	for _, one := range s.Found {
		fmt.Fprintf(&b, "- %s: %s", node.Escape(one.Path), one.Status)
		if one.Name != "" {
			fmt.Fprintf(&b, ", %s, description %d of %d characters", one.Name, one.Shown, utf8.RuneCountInString(one.Description))
		}
		if one.Note != "" {
			b.WriteString("; " + node.Escape(one.Note))
		}
		b.WriteByte('\n')
	}
	return []byte(b.String())
}

// Warnings name what is not in the list as it was written.
func (s *Skills) Warnings() []string {
	var out []string
	for _, one := range s.Found {
		if one.Status != "listed" {
			out = append(out, strings.TrimSuffix(one.Path+": "+one.Status+" "+one.Note, " "))
		}
	}
	return out
}
