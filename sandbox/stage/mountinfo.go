package stage

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Mount is one line of mountinfo (proc_pid_mountinfo(5)).
type Mount struct {
	ID, Parent int
	Dev        string // major:minor of the superblock
	Root       string // the directory of the file system that shows at Point
	Point      string
	Options    map[string]bool // of the mount: ro, nosuid, nodev, noexec …
	Tags       []string        // shared:N, master:N …
	Type       string
	Source     string
}

// ReadMounts parses the mountinfo file at path.
func ReadMounts(path string) ([]Mount, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseMounts(text)
}

func parseMounts(text []byte) ([]Mount, error) {
	var all []Mount
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m, err := parseMount(lines.Text())
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, lines.Err()
}

func parseMount(line string) (Mount, error) {
	bad := func() (Mount, error) { return Mount{}, fmt.Errorf("mountinfo: cannot read line %q", line) }
	left, right, ok := strings.Cut(line, " - ")
	f, g := strings.Fields(left), strings.Split(right, " ")
	if !ok || len(f) < 6 || len(g) < 2 {
		return bad()
	}
	id, err1 := strconv.Atoi(f[0])
	parent, err2 := strconv.Atoi(f[1])
	if err1 != nil || err2 != nil {
		return bad()
	}
	m := Mount{ID: id, Parent: parent, Dev: f[2], Root: unescape(f[3]), Point: unescape(f[4]),
		Options: map[string]bool{}, Tags: f[6:], Type: g[0], Source: unescape(g[1])}
	for _, o := range strings.Split(f[5], ",") {
		m.Options[o] = true
	}
	return m, nil
}

// unescape undoes the kernel's \ooo for space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// below says whether path is dir or lies in it, and where.
func below(path, dir string) (rel string, ok bool) {
	if dir == "/" {
		return strings.TrimPrefix(path, "/"), strings.HasPrefix(path, "/")
	}
	if path == dir {
		return "", true
	}
	return strings.CutPrefix(path, dir+"/")
}

// join is path.Join without cleaning: both parts come from the kernel.
func join(dir, rel string) string {
	switch {
	case rel == "":
		return dir
	case dir == "/":
		return "/" + rel
	}
	return dir + "/" + rel
}
