package control

import (
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/text"
)

// MountLine is one line of the mount table. Bind is true for `bind`, for `-` and
// where neither bind nor rbind is given; Recursive is rbind.
type MountLine struct {
	Source, Target        string
	RW                    bool
	Bind, Recursive       bool
	NoSuid, NoDev, NoExec bool
	Line                  int
}

// String is the canonical text of the line, without LF.
func (m MountLine) String() string {
	mode := "ro"
	if m.RW {
		mode = "rw"
	}
	opts := "bind"
	if m.Recursive {
		opts = "rbind"
	}
	for _, o := range []struct {
		set  bool
		name string
	}{{m.NoSuid, "nosuid"}, {m.NoDev, "nodev"}, {m.NoExec, "noexec"}} {
		if o.set {
			opts += "," + o.name
		}
	}
	return m.Source + "\t" + m.Target + "\t" + mode + "\t" + opts
}

var mountFormat = &lineFormat{name: "mount table", chars: text.Tab, new: func() judge { return &mountJudge{} }}

var mountOptions = []string{"bind", "rbind", "nosuid", "nodev", "noexec"}

// closedTargets and everything below them belong to the runtime.
var closedTargets = []string{
	"/proc", "/dev", "/sys", "/usr", "/run/cortexfs",
	"/etc/profile", "/etc/profile.d", "/etc/bash.bashrc",
}

type mountJudge struct {
	seen map[string]int
	out  []MountLine
}

func (j *mountJudge) line(n int, s string) error {
	if s == "" {
		return nil
	}
	fields := strings.Split(s, "\t")
	if len(fields) != 4 {
		// a bad field is the better message, save where it is only cut short
		if err := j.fields(n, fields, false); err != nil {
			return err
		}
		why := "%d fields, four are needed: source, target, ro or rw, options"
		if len(fields) < 4 && strings.Contains(s, " ") {
			why = "%d fields, four are needed: separate them by one TAB each, not by spaces"
		}
		return fault.Text(n, len(s)+1, why, len(fields))
	}
	if err := j.fields(n, fields, true); err != nil {
		return err
	}
	m := MountLine{Source: fields[0], Target: fields[1], RW: fields[2] == "rw", Line: n}
	for _, o := range strings.Split(fields[3], ",") {
		switch o {
		case "rbind":
			m.Recursive = true
		case "nosuid":
			m.NoSuid = true
		case "nodev":
			m.NoDev = true
		case "noexec":
			m.NoExec = true
		}
	}
	m.Bind = !m.Recursive
	if j.seen == nil {
		j.seen = map[string]int{}
	}
	j.seen[m.Target] = n
	j.out = append(j.out, m)
	return nil
}

func (j *mountJudge) part(n int, s string) error {
	return j.fields(n, strings.Split(s, "\t"), false)
}

func (j *mountJudge) end() error { return nil }

// fields judges the fields of a line; all but the last are finished, the last if
// the line is.
func (j *mountJudge) fields(n int, f []string, whole bool) error {
	col := 1
	for i, s := range f {
		done := whole || i < len(f)-1
		at, why := 1, "more than four fields"
		switch i {
		case 0:
			at, why = absPath(s, done, true)
			why = named("source", why)
		case 1:
			at, why = j.target(f[0], s, done)
			why = named("target", why)
		case 2:
			at, why = mountMode(s, done)
		case 3:
			at, why = options(s, done)
		}
		if why != "" {
			return fault.Text(n, col+at-1, "%s", why)
		}
		col += len(s) + 1
	}
	return nil
}

func named(what, why string) string {
	if why == "" {
		return ""
	}
	return what + ": " + why
}

// mountMode is ro or rw. A word that begins like a path is what a doubled TAB or
// a space in the wrong place leaves.
func mountMode(s string, done bool) (int, string) {
	if s == "ro" || s == "rw" || !done && strings.HasPrefix("ro", s) || !done && s == "r" {
		return 0, ""
	}
	if strings.HasPrefix(s, "ro ") || strings.HasPrefix(s, "rw ") {
		return 3, "separate fields by one TAB, not by spaces"
	}
	return 1, "unknown mode, ro or rw"
}

// target judges a target; source is finished when it is called.
func (j *mountJudge) target(source, s string, done bool) (int, string) {
	if col, why := absPath(s, done, true); why != "" {
		return col, why
	}
	if done && s == "/" {
		return 1, "/ is the sandbox's own"
	}
	if strings.HasPrefix(s, node.Root+"/") {
		return 1, "nothing is mounted below " + node.Root
	}
	if done && s == node.Root && source != node.Root {
		return 1, node.Root + " takes the source " + node.Root + " only"
	}
	for _, c := range closedTargets {
		if done && s == c || strings.HasPrefix(s, c+"/") {
			return 1, c + " and what is below belongs to the runtime"
		}
	}
	if at := j.seen[s]; done && at > 0 {
		return 1, "repeats the target of line " + itoa(at)
	}
	return 0, ""
}

// options is `-` alone or a list of words without repeats.
func options(s string, done bool) (int, string) {
	if s == "-" || s == "" && !done {
		return 0, ""
	}
	words := strings.Split(s, ",")
	if words[0] == "-" {
		return 1, "- stands alone"
	}
	var taken []string
	col := 1
	for i, w := range words {
		whole := done || i < len(words)-1
		if why := option(w, taken, whole); why != "" {
			return col, why
		}
		taken = append(taken, w)
		col += len(w) + 1
	}
	return 0, ""
}

// option judges one word against the ones before it.
func option(w string, taken []string, done bool) string {
	excluded := func(o string) bool {
		return o == "bind" && slices.Contains(taken, "rbind") || o == "rbind" && slices.Contains(taken, "bind")
	}
	why := "unknown option, - or some of " + strings.Join(mountOptions, " ")
	for _, o := range mountOptions {
		if o != w && (done || !strings.HasPrefix(o, w)) {
			continue
		}
		switch {
		case slices.Contains(taken, o):
			why = "repeats the option " + o
		case excluded(o):
			why = "bind and rbind exclude each other"
		default:
			return ""
		}
	}
	switch {
	case w == "-":
		why = "- stands alone"
	case w == "" && done:
		why = "option is missing"
	}
	return why
}
