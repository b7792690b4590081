package loop

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
	"cortexfs/node/prompt"
)

// Files are the rules and skills as the agent sees them.
type Files struct {
	Rules        string `json:"rules"`
	Skills       string `json:"skills"`
	RulesReport  string `json:"rules_report"`
	SkillsReport string `json:"skills_report"`
}

// PromptFiles prints the rules and skills that are seen from cwd, for a model with
// that window of tokens (0: unknown).
func PromptFiles(out io.Writer, cwd string, window int) error {
	home := os.Getenv("HOME")
	rules := prompt.ReadRules(seen{}, home, cwd)
	skills := prompt.ReadSkills(seen{}, home, cwd, window)
	_, err := out.Write(append(jsonl.Marshal(Files{
		Rules: rules.Text, Skills: skills.Text, RulesReport: string(rules.Report()), SkillsReport: string(skills.Report()),
	}), '\n'))
	return err
}

// seen is the process's own view of files. Its root is the sandbox's, so that
// nothing has to be kept from it; openat2 is not there under the filter.
type seen struct{}

var _ prompt.FS = seen{}

// ReadFile implements prompt.FS. With within a link may only name a neighbour.
func (seen) ReadFile(p string, max int, within bool) (prompt.File, error) {
	flags := os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	if within {
		target, err := os.Readlink(p)
		switch {
		case err != nil: // no link
			flags |= unix.O_NOFOLLOW
		case strings.Contains(target, "/") || target == "..":
			return prompt.File{}, fault.E("open", p, fault.CrossDevice, errors.New("a link leads out of its directory"))
		default:
			p, flags = filepath.Join(filepath.Dir(p), target), flags|unix.O_NOFOLLOW
		}
	}
	f, err := os.OpenFile(p, flags, 0)
	if err != nil {
		return prompt.File{}, fault.FromOS("open", p, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return prompt.File{}, fault.FromOS("stat", p, err)
	}
	if !st.Mode().IsRegular() {
		return prompt.File{}, fault.E("open", p, fault.Invalid, errors.New("not a regular file"))
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(max)))
	if err != nil {
		return prompt.File{}, fault.FromOS("read", p, err)
	}
	return prompt.File{Data: b, Size: st.Size()}, nil
}

// ReadDir implements prompt.FS.
func (seen) ReadDir(p string) (prompt.Listing, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return prompt.Listing{}, fault.FromOS("open", p, err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return prompt.Listing{}, fault.FromOS("stat", p, err)
	}
	l := prompt.Listing{ID: strconv.FormatUint(st.Dev, 16) + ":" + strconv.FormatUint(st.Ino, 16)}
	entries, err := f.ReadDir(65536)
	if err != nil && !errors.Is(err, io.EOF) {
		return prompt.Listing{}, fault.FromOS("read", p, err)
	}
	for _, e := range entries {
		link := e.Type()&fs.ModeSymlink != 0
		l.Names = append(l.Names, prompt.Name{Name: e.Name(), Dir: e.IsDir() || link, Link: link})
	}
	return l, nil
}
