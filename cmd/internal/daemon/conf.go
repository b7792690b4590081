package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/node/fault"
)

// Conf is what cortexfs.conf sets (spec 10.5): limits and times of this host,
// never of the tree, so that nothing inside it can change them.
type Conf struct {
	MaxRunning int           // agents of one uid that may run at once
	StopBound  time.Duration // a clean end, for all agents together
	StopGrace  time.Duration // between SIGTERM and SIGKILL of an agent that is stopped
	OpenBound  time.Duration // opening all sources of a start
	Notice     time.Duration // between the notice and the end of an agent that a right was taken from
}

// DefaultConf has the values of the specification.
func DefaultConf() Conf {
	return Conf{MaxRunning: maxRunning, StopBound: stopBound, StopGrace: agentd.DefaultGrace, OpenBound: openBound, Notice: noticeBound}
}

// Setting is one key of cortexfs.conf.
type Setting struct {
	Key     string
	Doc     string
	Default string
	set     func(c *Conf, value string) error
}

// Settings lists every key, in the order of the manual.
func Settings() []Setting {
	d := DefaultConf()
	return []Setting{
		{"max_running", "agents of one uid that may run at once (1 to 4096)", strconv.Itoa(d.MaxRunning),
			func(c *Conf, v string) error { return number(v, 1, 4096, &c.MaxRunning) }},
		{"notice_seconds", "how long an agent that a mount, a group or an id was taken from may go on (0 to 60)", seconds(d.Notice),
			func(c *Conf, v string) error { return duration(v, 0, 60, &c.Notice) }},
		{"open_seconds", "how long opening all mount sources of a start may take (1 to 60)", seconds(d.OpenBound),
			func(c *Conf, v string) error { return duration(v, 1, 60, &c.OpenBound) }},
		{"stop_grace_seconds", "between SIGTERM and SIGKILL when an agent is stopped (0 to 60)", seconds(d.StopGrace),
			func(c *Conf, v string) error { return duration(v, 0, 60, &c.StopGrace) }},
		{"stop_seconds", "how long stopping all agents at the daemon's end may take (1 to 300)", seconds(d.StopBound),
			func(c *Conf, v string) error { return duration(v, 1, 300, &c.StopBound) }},
	}
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

func number(text string, lo, hi int, into *int) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < lo || n > hi || strconv.Itoa(n) != text {
		return fmt.Errorf("a number from %d to %d is wanted", lo, hi)
	}
	*into = n
	return nil
}

func duration(text string, lo, hi int, into *time.Duration) error {
	var n int
	if err := number(text, lo, hi, &n); err != nil {
		return err
	}
	*into = time.Duration(n) * time.Second
	return nil
}

// maxConf is how long a configuration may be.
const maxConf = 64 << 10

// checkConfFile: limits are worth what the file's owner is.
func checkConfFile(f *os.File, path string) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fault.FromOS("read", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fault.E("read", path, fault.Invalid, errors.New("not a regular file"))
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()):
		return fault.E("read", path, fault.Perm, fmt.Errorf("belongs to uid %d; repair: chown %d %s", st.Uid, os.Geteuid(), path))
	case st.Mode&0o022 != 0:
		return fault.E("read", path, fault.Perm, fmt.Errorf("others can write it; repair: chmod go-w %s", path))
	}
	return nil
}

// ConfPath is where this process's user has the file: /etc/cortexfs for root,
// the XDG configuration directory for everybody else; "" if there is no such.
func ConfPath() string {
	if os.Geteuid() == 0 {
		return "/etc/cortexfs/cortexfs.conf"
	}
	dir := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		u, err := user.LookupId(strconv.Itoa(os.Getuid()))
		if err != nil || !filepath.IsAbs(u.HomeDir) {
			return ""
		}
		dir = filepath.Join(u.HomeDir, ".config")
	}
	return filepath.Join(dir, "cortexfs", "cortexfs.conf")
}

// ReadConf reads the file; one that is missing is all defaults. It must be the
// reader's (or root's) and writable by nobody else, for it sets limits.
func ReadConf(path string) (Conf, error) {
	c := DefaultConf()
	if path == "" {
		return c, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fault.FromOS("read", path, err)
	}
	defer f.Close()
	if err := checkConfFile(f, path); err != nil {
		return c, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConf+1))
	if err != nil {
		return c, fault.FromOS("read", path, err)
	}
	if len(text) > maxConf {
		return c, fault.E("read", path, fault.TooBig, fmt.Errorf("over %d bytes", maxConf))
	}
	if err := c.parse(string(text)); err != nil {
		return DefaultConf(), fault.At("", path, err)
	}
	return c, nil
}

// parse reads KEY=VALUE lines; blank lines and lines that begin with # are
// nothing. A key that is not known is an error: a limit that somebody believes to
// have set would not be there.
func (c *Conf) parse(text string) error {
	known := map[string]Setting{}
	var names []string
	for _, s := range Settings() {
		known[s.Key] = s
		names = append(names, s.Key)
	}
	sort.Strings(names)
	seen := map[string]bool{}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		bad := func(format string, args ...any) error {
			return &fault.Error{Kind: fault.Invalid, Line: i + 1, Err: fmt.Errorf(format, args...)}
		}
		key, value, ok := strings.Cut(line, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		s, isKey := known[key]
		switch {
		case !ok:
			return bad("KEY=VALUE is wanted")
		case !isKey:
			return bad("unknown key %q; the keys are %s", key, strings.Join(names, " "))
		case seen[key]:
			return bad("%s is set twice", key)
		}
		seen[key] = true
		if err := s.set(c, value); err != nil {
			return bad("%s: %w", key, err)
		}
	}
	return nil
}
