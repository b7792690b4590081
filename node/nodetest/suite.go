package nodetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Env is a tree to run the suite on.
type Env struct {
	// Root is a process that may write the system's agents: uid 0, or the user of
	// a user's daemon.
	Root     Client
	UID, GID uint32
	// Other is another process with Root's ids.
	Other func() Client
	// As makes a process of another uid; nil: cases with several users are left
	// out.
	As func(uid, gid uint32, groups ...uint32) Client
	// Mounted: there is a kernel between. RELEASE comes after close returned.
	Mounted bool
}

// testCase is one rule. It runs in an agent's directory of its own.
type testCase struct {
	name  string
	users bool // needs Env.As
	run   func(k *kit)
}

// RunTree runs every case of the suite on a tree.
func RunTree(t *testing.T, e Env) {
	names := map[string]bool{}
	for _, group := range [][]testCase{
		controlCases, draftCases, scratchCases, sequenceCases, whoCases, toolCases, dirCases, ordinaryCases,
	} {
		for _, c := range group {
			if names[c.name] {
				t.Fatalf("case %q twice", c.name)
			}
			names[c.name] = true
			t.Run(c.name, func(t *testing.T) {
				if c.users && e.As == nil {
					t.Skip("needs several users, so a root daemon")
				}
				c.run(newKit(t, e))
			})
		}
	}
}

// kit is what a case works with.
type kit struct {
	*testing.T
	e   Env
	c   Client // root, or the user of a user's daemon
	dir string // a fresh agent's .d
}

var serial int

func newKit(t *testing.T, e Env) *kit {
	serial++
	k := &kit{T: t, e: e, c: e.Root, dir: fmt.Sprintf("/agent/case%d.d", serial)}
	k.ok(k.c.Mkdir(k.dir, 0o755))
	t.Cleanup(func() {
		if err := k.c.Rmdir(k.dir); err != nil && err != syscall.ENOENT {
			t.Errorf("remove the case's agent: %v", err)
		}
	})
	return k
}

func (k *kit) ok(err error) {
	k.Helper()
	if err != nil {
		k.Fatalf("%v", err)
	}
}

// fails wants one of the errnos.
func (k *kit) fails(err error, want ...syscall.Errno) {
	k.Helper()
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	k.Errorf("got %v, want %v", err, want)
}

// p is a path in the agent's directory.
func (k *kit) p(name string) string { return k.dir + "/" + name }

// read reads a whole file through an open of its own.
func (k *kit) read(c Client, path string) string {
	k.Helper()
	text, err := readAll(c, path)
	if err != nil {
		k.Fatalf("read %s: %v", path, err)
	}
	return text
}

func readAll(c Client, path string) (string, error) {
	fd, err := c.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer c.Close(fd)
	var all bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(fd, buf)
		all.Write(buf[:n])
		if err != nil {
			return "", err
		}
		if n == 0 {
			return all.String(), nil
		}
	}
}

// is wants a control to read as text, its size to be true.
func (k *kit) is(name, text string) {
	k.Helper()
	if got := k.read(k.c, k.p(name)); got != text {
		k.Errorf("%s reads %q, want %q", name, got, text)
	}
	if st, err := k.c.Lstat(k.p(name)); err != nil || st.Size != int64(len(text)) {
		k.Errorf("stat %s: size %d, %v; want %d", name, st.Size, err, len(text))
	}
}

// becomes waits for a text that comes after close returned.
func (k *kit) becomes(name, text string) {
	k.Helper()
	k.until(func() bool {
		got, err := readAll(k.c, k.p(name))
		return err == nil && got == text
	}, "%s to read %q", name, text)
}

// until polls for something that the tree does in its own time.
func (k *kit) until(done func() bool, format string, args ...any) {
	k.Helper()
	for end := time.Now().Add(5 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			k.Fatalf("waited in vain for "+format, args...)
		}
	}
}

// vanishes waits for a directory to be gone: a kernel may keep its name for 1 s.
func (k *kit) vanishes(path string) {
	k.Helper()
	k.until(func() bool { _, err := k.c.Lstat(path); return err == syscall.ENOENT }, "%s to go", path)
}

// save is echo: open with truncation, write, close. The first error counts.
func save(c Client, path, text string) error { return put(c, path, text, os.O_TRUNC) }

func put(c Client, path, text string, flags int) error {
	fd, err := c.Open(path, os.O_WRONLY|os.O_CREATE|flags, 0o666)
	if err != nil {
		return err
	}
	_, err = c.Write(fd, []byte(text))
	if cerr := c.Close(fd); err == nil {
		err = cerr
	}
	return err
}

func (k *kit) set(name, text string) {
	k.Helper()
	if err := save(k.c, k.p(name), text); err != nil {
		k.Fatalf("write %s: %v", name, err)
	}
}

// open opens for writing.
func (k *kit) open(c Client, name string, flags int) FD {
	k.Helper()
	fd, err := c.Open(k.p(name), os.O_WRONLY|flags, 0o600)
	if err != nil {
		k.Fatalf("open %s: %v", name, err)
	}
	return fd
}

func (k *kit) write(c Client, fd FD, text string) {
	k.Helper()
	if n, err := c.Write(fd, []byte(text)); err != nil || n != len(text) {
		k.Fatalf("write %q: %d, %v", text, n, err)
	}
}

// clean wants no leftover beside the controls.
func (k *kit) clean() {
	k.Helper()
	names, err := k.c.ReadDir(k.dir)
	k.ok(err)
	for _, n := range names {
		if !slices.Contains(agentNames, n) {
			k.Errorf("leftover %s", n)
		}
	}
}

func (k *kit) log() string {
	k.Helper()
	text, err := readAll(k.c, k.p("log"))
	if err != nil && err != io.EOF {
		k.Fatalf("read log: %v", err)
	}
	return text
}

// logs wants a line of the log with these words.
func (k *kit) logs(words ...string) {
	k.Helper()
	k.until(func() bool {
		for line := range strings.Lines(k.log()) {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return true
			}
		}
		return false
	}, "a log line with %q", words)
}

// policies of the cases.
const (
	ruleA = "allow coder_t tool:fs.read execute\n"
	ruleB = "allow coder_t tool:fs.list execute\n"
	table = "/srv/a\t/workspace\trw\tbind,nosuid,nodev\n"
)
