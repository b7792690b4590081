package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cortexfs/node/fault"
)

// TestCorpus reads testdata/corpus/*.txt, one case a file; README.md there says
// how to write one.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob("testdata/corpus/*.txt")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d cases found: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c := readCase(t, string(b))
			got := c.run(t)
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
		})
	}
}

type corpusCase struct {
	agent, tool   string // policies
	request, want []string
}

// readCase cuts the file at its `== section ==` lines.
func readCase(t *testing.T, s string) *corpusCase {
	t.Helper()
	c, section := &corpusCase{}, ""
	for _, l := range strings.SplitAfter(s, "\n") {
		if name, ok := strings.CutPrefix(strings.TrimSpace(l), "== "); ok {
			section = strings.TrimSuffix(name, " ==")
			continue
		}
		trimmed := strings.TrimSpace(l)
		switch section {
		case "":
			if trimmed != "" && trimmed[0] != '#' {
				t.Fatalf("%q before the first section", trimmed)
			}
		case "agent policy":
			c.agent += unescape(t, l)
		case "tool policy":
			c.tool += unescape(t, l)
		case "request", "want":
			if trimmed == "" || trimmed[0] == '#' {
				continue
			}
			if section == "want" {
				c.want = append(c.want, trimmed)
			} else {
				c.request = append(c.request, trimmed)
			}
		default:
			t.Fatalf("unknown section %q", section)
		}
	}
	if len(c.want) == 0 {
		t.Fatal("a case without == want ==")
	}
	return c
}

// unescape reads \r, \t, \xNN and \uNNNN in policy texts, so that a case can show
// a byte that editors hide. No rule has a backslash of its own.
func unescape(t *testing.T, s string) string {
	t.Helper()
	if !strings.Contains(s, `\`) {
		return s
	}
	u, err := strconv.Unquote(`"` + strings.ReplaceAll(strings.TrimSuffix(s, "\n"), `"`, `\"`) + `"`)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return u + "\n"
}

// run answers the case in the words of its want section.
func (c *corpusCase) run(t *testing.T) []string {
	t.Helper()
	agent, err := Parse([]byte(c.agent))
	if err != nil {
		return []string{"invalid " + place(t, err)}
	}
	tool, err := Parse([]byte(c.tool))
	if err != nil {
		tool = nil // as on disk: the whole file is void
	}
	if len(c.request) == 0 {
		return []string{fmt.Sprintf("valid, %d rules", len(agent.Rules()))}
	}
	if rest, ok := strings.CutPrefix(c.request[0], "ask "); ok {
		return c.ask(t, agent, rest)
	}
	q := allowed(t)
	q.Hosted, q.AgentPolicy, q.ToolPolicy = false, agent, tool
	for _, l := range c.request {
		apply(t, q, l)
	}
	v, ok := Authorize(q)
	switch {
	case ok:
		return []string{"allow"}
	case !v.Asked:
		return []string{fmt.Sprintf("open %d %s", v.Row, v.Name)}
	}
	out := []string{fmt.Sprintf("refuse %d %s %s", v.Row, errnoName(v.Kind), v.Why)}
	if v.Missing != "" {
		out = append(out, "missing "+v.Missing)
	}
	return out
}

func (c *corpusCase) ask(t *testing.T, s *Set, rule string) []string {
	t.Helper()
	q := mustParse(t, "allow "+rule).Rules()[0]
	if line, ok := s.Allows(q.Subject, q.Class, q.Name, q.Perm); ok {
		return []string{fmt.Sprintf("yes, line %d", line)}
	}
	return []string{"no"}
}

func place(t *testing.T, err error) string {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Kind != fault.Invalid {
		t.Fatalf("error without a place: %v", err)
	}
	return e.Place()
}

func errnoName(k fault.Kind) string {
	switch k.Errno() {
	case syscall.EINVAL:
		return "EINVAL"
	case syscall.EACCES:
		return "EACCES"
	case syscall.ENOENT:
		return "ENOENT"
	case syscall.ELOOP:
		return "ELOOP"
	}
	return k.String()
}

// apply changes one fact of a request for which every row holds.
func apply(t *testing.T, q *Request, l string) {
	t.Helper()
	word, rest, _ := strings.Cut(l, " ")
	ids := func(s string) (uint32, uint32) {
		var u, g uint32
		if _, err := fmt.Sscanf(s, "%d:%d", &u, &g); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		return u, g
	}
	switch word {
	case "subject":
		q.Subject = rest
	case "tool":
		q.Tool = rest
	case "hosted":
		q.Hosted = true
	case "model-calls":
		q.Model = true
	case "undeclared":
		q.Declared = false
	case "no-hit":
		q.Hit = nil
	case "mode":
		if _, err := fmt.Sscanf(rest, "%o", &q.Hit.Mode); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
	case "file-owner":
		q.Hit.UID, q.Hit.GID = ids(rest)
	case "no-search":
		q.Hit.Search, q.Hit.SearchWhy = false, rest
	case "agent":
		q.UID, q.GID = ids(rest)
		q.Groups = nil
	case "group":
		g, _ := ids(rest + ":0")
		q.Groups = append(q.Groups, g)
	case "no-mount":
		q.Mount = nil
	case "noexec":
		q.Mount.NoExec = true
	case "no-tool-policy":
		q.ToolPolicy = nil
	case "not-opened":
		q.Opened = nil
	case "link":
		q.Opened = &OpenFact{Loop: true}
	case "approval":
		q.Approval = map[string]*ApprovalFact{"auto": {Auto: true}, "allow_once": {Allowed: true, Reason: "user"}, "pending": nil}[rest]
		if _, known := map[string]bool{"auto": true, "allow_once": true, "pending": true}[rest]; !known {
			q.Approval = &ApprovalFact{Reason: rest}
		}
	default:
		t.Fatalf("unknown request line %q", l)
	}
}
