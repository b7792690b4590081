package prompt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func statuses(s *Skills) map[string]string {
	out := map[string]string{}
	for _, one := range s.Found {
		out[one.Path] = strings.TrimSuffix(one.Status+": "+one.Note, ": ")
	}
	return out
}

// TestBadSkills: each one is a line of the report, and none of them reaches the
// list or breaks out of its line.
func TestBadSkills(t *testing.T) {
	const dir = "w/.agents/skills/"
	fsys, root := view(t, map[string]string{
		dir + "none/SKILL.md":      "# no head\n",
		dir + "open/SKILL.md":      "---\nname: x\n",
		dir + "long/SKILL.md":      skill(strings.Repeat("x", 5000), "d"),
		dir + "newline/SKILL.md":   skill(`"a\n# b"`, "d"),
		dir + "bidi/SKILL.md":      skill("\"a\u202eb\"", "d"),
		dir + "tab/SKILL.md":       "---\nname:\n\t- x\n---\n",
		dir + "tabbed/SKILL.md":    "---\n\tname: x\n---\n",
		dir + "list/SKILL.md":      "---\n- a\n---\n",
		dir + "map/SKILL.md":       "---\nname: {a: b}\n---\n",
		dir + "latin/SKILL.md":     "---\nname: caf\xe9\n---\n",
		dir + "big/SKILL.md":       "---\nname: big\nx: " + strings.Repeat("y", skillHead) + "\n---\n",
		dir + "bomb/SKILL.md":      "---\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: [*b,*b,*b,*b,*b,*b,*b]\nname: bomb\ndescription: fine\n---\n",
		dir + "empty/SKILL.md":     "---\n---\n",
		dir + "crlf/SKILL.md":      "\ufeff---\r\nname: crlf\r\ndescription: \"a\\r\\nb\"\r\n---\r\n",
		dir + "control/SKILL.md":   skill("control", `"a\eb\x00 \u202e"`),
		dir + "Case/Skill.md":      skill("case", "other name"),
		dir + "huge-body/SKILL.md": skill("huge-body", "d") + strings.Repeat("z", 100_000),
	})
	for _, plant := range []error{
		os.Mkdir(filepath.Join(root, dir+"fifo"), 0o755), unix.Mkfifo(filepath.Join(root, dir+"fifo/SKILL.md"), 0o666),
		os.MkdirAll(filepath.Join(root, dir+"dir/SKILL.md"), 0o755),
	} {
		if plant != nil {
			t.Fatal(plant)
		}
	}
	s := ReadSkills(fsys, "/home/agent", "/w", 0)
	got := statuses(s)
	for name, want := range map[string]string{
		"none": "skipped: no front matter between two lines of ---", "open": "skipped: no front matter between two lines of ---",
		"long": "skipped: name of 5000 characters, at most 64", "newline": "skipped: name has characters that cannot be shown",
		"bidi": "skipped: name has characters that cannot be shown", "tab": "skipped: front matter: not YAML", "tabbed": "skipped: front matter: not YAML",
		"list": "skipped: front matter: not a mapping", "map": "listed: front matter is not YAML; read line by line; no description",
		"latin": "skipped: front matter is not UTF-8", "big": "skipped: its front matter does not end within 16384 bytes", "bomb": "listed",
		"empty": "listed: no name; the directory's is taken; no description", "crlf": "listed", "control": "listed", "huge-body": "listed",
		"fifo": "skipped: not a regular file", "dir": "skipped: not a regular file",
	} {
		if p := "/" + dir + name + "/SKILL.md"; got[p] != want {
			t.Errorf("%s: %q, want %q", name, got[p], want)
		}
	}
	if strings.Contains(s.Text, "other name") {
		t.Error("a file of another name was read")
	}
	for _, r := range s.Text {
		if r < 0x20 && r != '\n' || r == 0x202e {
			t.Errorf("%q in the list", r)
		}
	}
	listed := 0
	for _, one := range s.Found {
		if one.Status == "listed" {
			listed++
		}
	}
	if n := strings.Count(s.Text, "\n") + 1; n != listed {
		t.Errorf("%d lines for %d skills:\n%s", n, listed, s.Text)
	}
	if strings.Count(string(s.Report()), "\n- ") != len(s.Found) || len(s.Warnings()) != len(s.Found)-listed {
		t.Errorf("%s", s.Report())
	}
}

// TestSameName: the nearest wins, whatever the directories are called and in
// which order they were made.
func TestSameName(t *testing.T) {
	for range 3 {
		fsys, _ := view(t, map[string]string{
			"home/agent/.agents/skills/zzz/SKILL.md": skill("review", "home"),
			"w/.agents/skills/review/SKILL.md":       skill("review", "far"),
			"w/a/.agents/skills/b/SKILL.md":          skill("review", "near, second by path"),
			"w/a/.agents/skills/a/SKILL.md":          skill("review", "near, first by path"),
			"w/a/.agents/skills/review/SKILL.md":     skill("other", "same directory name"),
		})
		s := ReadSkills(fsys, "/home/agent", "/w/a", 0)
		want := "- review: near, first by path (/w/a/.agents/skills/a/SKILL.md)\n- other: same directory name (/w/a/.agents/skills/review/SKILL.md)"
		if s.Text != want {
			t.Errorf("%s", s.Text)
		}
		if got := statuses(s)["/home/agent/.agents/skills/zzz/SKILL.md"]; got != "shadowed: by /w/a/.agents/skills/a/SKILL.md" {
			t.Error(got)
		}
	}
}

// TestLinkedSkills: links to directories and to files work while they stay in the
// view; circles end; what leads out is named.
func TestLinkedSkills(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "SKILL.md")
	os.WriteFile(outside, []byte(skill("outside", "x")), 0o644)
	fsys, root := view(t, map[string]string{
		"opt/shared/one/SKILL.md":       skill("one", "by a directory link"),
		"opt/two.md":                    skill("two", "by a file link"),
		"w/.agents/skills/two/x":        "",
		"w/.agents/skills/out/x":        "",
		"w/.agents/skills/a/b/SKILL.md": skill("b", "plain"),
	})
	for p, to := range map[string]string{
		"one": "/opt/shared/one", "two/SKILL.md": "../../../../opt/two.md", "out/SKILL.md": outside, "loop": ".", "a/up": "..", "self": "self", "gone": "/none",
	} {
		if err := os.Symlink(to, filepath.Join(root, "w/.agents/skills", p)); err != nil {
			t.Fatal(err)
		}
	}
	s := ReadSkills(fsys, "/home/agent", "/w", 0)
	for _, want := range []string{"- one: by a directory link (/w/.agents/skills/one/SKILL.md)", "- two: by a file link", "- b: plain"} {
		if !strings.Contains(s.Text, want) {
			t.Errorf("no %q in\n%s", want, s.Text)
		}
	}
	got := statuses(s)
	for p, want := range map[string]string{"out/SKILL.md": "skipped: a link leads to nothing that the agent sees", "self": "skipped: links lead in a circle", "gone": "skipped: a link leads to nothing that the agent sees"} {
		if got["/w/.agents/skills/"+p] != want {
			t.Errorf("%s: %q", p, got["/w/.agents/skills/"+p])
		}
	}
	if strings.Count(s.Text, "\n") != 2 {
		t.Errorf("%s", s.Text)
	}
}

func TestManySkills(t *testing.T) {
	files := map[string]string{}
	for i := range 300 {
		files[fmt.Sprintf("w/.agents/skills/s%03d/SKILL.md", i)] = skill(fmt.Sprintf("skill-%03d", i), strings.Repeat("説明 ", 30))
	}
	fsys, _ := view(t, files)
	for _, window := range []int{0, 32000, 200_000, 1_000_000, 2000, 100, 1} {
		s := ReadSkills(fsys, "/h", "/w", window)
		n := utf8.RuneCountInString(s.Text)
		if n > Budget(window) {
			t.Errorf("window %d: %d characters, budget %d", window, n, Budget(window))
		}
		if n == 0 && Budget(window) > 200 {
			t.Errorf("window %d: nothing", window)
		}
	}
	if s := ReadSkills(fsys, "/h", "/w", 32000); s.Budget != 2560 || !strings.HasPrefix(s.Text, "(warning: ") {
		t.Errorf("%d\n%.200s", s.Budget, s.Text)
	}
	// 256 of one place, and one line that says so.
	s := ReadSkills(fsys, "/h", "/w", 10_000_000)
	if strings.Count(s.Text, "\n") != 255 || statuses(s)["/w/.agents/skills/s256/SKILL.md"] != "skipped: over 256 skills in one place" {
		t.Errorf("%d", strings.Count(s.Text, "\n"))
	}
}

// TestBudgetArithmetic: never over; whole without a warning when it fits; the
// longest first; no more than needed; every number in the warning true.
func TestBudgetArithmetic(t *testing.T) {
	alphabet := []rune("ab 世界👩💻é\u0301\u200d🎌")
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 30).Draw(t, "n")
		var found []Skill
		for i := range n {
			found = append(found, Skill{Name: fmt.Sprint("s", i), Path: "/" + strings.Repeat("p", rapid.IntRange(1, 30).Draw(t, "path")),
				Description: string(rapid.SliceOfN(rapid.SampledFrom(alphabet), 0, 60).Draw(t, "description"))})
		}
		budget := rapid.IntRange(0, 2500).Draw(t, "budget")
		fit := func() *Skills {
			s := &Skills{Budget: budget, Found: slices.Clone(found)}
			s.fit()
			return s
		}
		s := fit()
		if again := fit(); again.Text != s.Text {
			t.Fatal("not deterministic")
		}
		used := utf8.RuneCountInString(s.Text)
		if used > budget || !utf8.ValidString(s.Text) {
			t.Fatalf("%d characters, budget %d", used, budget)
		}
		var whole []string
		short, out, maxShort := 0, 0, -1
		for i := range s.Found {
			one := &s.Found[i]
			whole = append(whole, line(one, one.Description))
			switch one.Status {
			case "shortened":
				short++
				maxShort = max(maxShort, one.Shown)
			case "left out":
				out++
			case "listed":
				if out > 0 {
					t.Fatal("one is left out before the end")
				}
			default:
				t.Fatalf("status %q", one.Status)
			}
		}
		if full := strings.Join(whole, "\n"); utf8.RuneCountInString(full) <= budget {
			if s.Text != full {
				t.Fatalf("it fits, and is\n%s", s.Text)
			}
			return
		}
		if s.Text == "" {
			if utf8.RuneCountInString(warning(0, n)) <= budget {
				t.Fatal("there is room for the warning")
			}
			return
		}
		if !strings.HasPrefix(s.Text, warning(short, out)) {
			t.Fatalf("%d shortened, %d left out:\n%s", short, out, s.Text)
		}
		if got := strings.Count(s.Text, "\n"); got != n-out {
			t.Fatalf("%d lines, %d skills", got, n-out)
		}
		if out > 0 {
			// Names and paths alone are too long: nothing has a description.
			for _, one := range s.Found {
				if one.Shown > 0 {
					t.Fatal("a description while skills are left out")
				}
			}
			return
		}
		level := maxShort
		for i := range s.Found {
			one := &s.Found[i]
			length := utf8.RuneCountInString(one.Description)
			if one.Status == "listed" && length > level+1 {
				t.Fatalf("%d characters are whole while others have %d", length, level)
			}
			if one.Status == "shortened" && one.Shown < level-1 {
				t.Fatalf("%d characters while others have %d", one.Shown, level)
			}
		}
		// Not one character more for all: a whole step up is over.
		up := 0
		for _, one := range s.Found {
			c := one.Shown
			if one.Status == "shortened" {
				c++
			}
			up += utf8.RuneCountInString(line(&one, shorten(one.Description, c))) + 1
		}
		if up+utf8.RuneCountInString(warning(short, 0)) <= budget-2 {
			t.Fatalf("%d of %d characters used, every one could have one more", used, budget)
		}
	})
}

func TestShortenAtEveryLength(t *testing.T) {
	for _, s := range []string{"abc", "世界の言葉", "👩‍💻👨‍👩‍👧", "e\u0301e\u0301", "🇩🇪🇫🇷", ""} {
		for n := range utf8.RuneCountInString(s) + 2 {
			got := shorten(s, n)
			if c := utf8.RuneCountInString(got); c > n || !utf8.ValidString(got) || c < n && got != s {
				t.Errorf("%q to %d: %q", s, n, got)
			}
		}
	}
}
