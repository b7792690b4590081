package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// ownerOf is "uid:gid" of a file on the host.
func ownerOf(t testing.TB, path string) string {
	t.Helper()
	st, err := os.Lstat(path)
	check(t, err)
	sys := st.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", sys.Uid, sys.Gid)
}

// Root's own agent: other ids inside, and yet what it makes in the directories
// that were handed over is root's outside.
func TestIsoUID(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	s := agentOfRoot(w, w.spec())
	s.Groups = []uint32{groupOne, groupTwo}
	check(t, os.WriteFile(w.work+"/mine", []byte("text"), 0o600))
	shut := w.base + "/shut" // a directory of root's that was not handed over
	check(t, os.Mkdir(shut, 0o700))
	check(t, os.WriteFile(w.base+"/secret", []byte("root's"), 0o600))
	s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: w.base + "/secret", Target: "/data/secret", RW: true})
	// What the host process of root's agent writes there is the agent's uid's.
	check(t, os.MkdirAll(w.home+"/session", 0o700))
	check(t, os.WriteFile(w.home+"/session/messages", []byte("said"), 0o600))
	check(t, errors.Join(os.Chown(w.home+"/session", agentID, agentID), os.Chown(w.home+"/session/messages", agentID, agentID)))
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want("id", b.sh("id -u; id -g"), fmt.Sprintf("%d\n%[1]d\n", agentID))
	b.want("its own session", b.sh("cat ~/session/messages"), "said")
	b.want("is not its to write", b.do("write", HomePath+"/session/messages"), "EROFS")
	b.want("read what is the owner's", b.sh("cat mine"), "text")
	b.want("write it", b.sh("echo more >> mine && mkdir sub && touch sub/f ~/h && stat -c %u:%g sub/f mine ~/h"),
		strings.Repeat(fmt.Sprintf("%d:%[1]d\n", agentID), 3))
	for _, name := range []string{w.work + "/mine", w.work + "/sub", w.work + "/sub/f", w.home + "/h"} {
		b.want("owner on the host of "+name, ownerOf(t, name), "0:0")
	}
	b.want("a file that was not handed over", b.do("read", "/data/secret"), "EACCES")
	b.want("a write to it", b.do("write", "/data/secret"), "EACCES")
	for _, e := range b.Table {
		want := e.Target == "/workspace" || strings.HasPrefix(e.Target, HomePath) && e.Target != HomePath+"/session"
		if e.IDMapped != want {
			t.Errorf("%s: idmapped is %v", e.Target, e.IDMapped)
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.Init))
	check(t, err)
	if !strings.Contains(string(text), fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", agentID)) {
		t.Errorf("status:\n%s", text)
	}
}

// Groups are what the control says, proven by what they open.
func TestGroupsExact(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	for _, g := range []int{groupOne, groupTwo, 0, ownerID} {
		name := fmt.Sprintf("%s/g%d", w.work, g)
		check(t, os.WriteFile(name, []byte("x"), 0o640))
		check(t, os.Chown(name, 0, g))
	}
	s := w.spec()
	s.Groups = []uint32{groupTwo}
	b := w.start(s)
	check(t, b.Verify(b.plan))
	for name, want := range map[string]string{"g3001": "EACCES", "g3002": "x", "g0": "EACCES", "g2001": "x"} {
		b.want(name, b.do("read", "/workspace/"+name), want)
	}
	// The read-back notices a group that is not there, and one too many.
	p := *b.plan
	p.Spec.Groups = []uint32{groupOne, groupTwo}
	if err := b.Verify(&p); err == nil || !strings.Contains(err.Error(), "groups are 3002, not 3001,3002") {
		t.Errorf("Verify of other groups: %v", err)
	}
}

// A user's daemon keeps the groups that it holds, and says so before it starts.
func TestUserGroups(t *testing.T) {
	if !asUser(t) {
		return
	}
	w := newWorld(t)
	b := w.start(w.spec())
	check(t, b.Verify(b.plan))
	s := w.spec()
	s.Groups = append(s.Groups, groupTwo)
	_, err := w.tryStart(s)
	wantFault(t, err, 13, "groups", "is not in group 3002")
}

func TestSpecRefused(t *testing.T) {
	w := newWorld(t)
	if !w.root {
		t.Skip("the matrix is the same for a user")
	}
	for name, c := range map[string]struct {
		change  func(*Spec)
		exit    int
		control string
		words   string
	}{
		"uid 0":          {func(s *Spec) { s.UID, s.Owner, s.Caller.UID = 0, 0, 0 }, 13, "uid", "no agent runs with uid 0"},
		"gid 0":          {func(s *Spec) { s.GID = 0 }, 13, "gid", "no agent runs with gid 0"},
		"gid -1":         {func(s *Spec) { s.GID = 1<<32 - 1 }, 13, "gid", "no agent runs with gid 4294967295"},
		"uid -1":         {func(s *Spec) { s.UID, s.Owner, s.Caller.UID = 1<<32-1, 1<<32-1, 1<<32-1 }, 13, "uid", "no agent runs with uid 4294967295"},
		"group 0":        {func(s *Spec) { s.Groups = []uint32{3001, 0} }, 13, "groups", "group 0"},
		"other's uid":    {func(s *Spec) { s.UID = 2002 }, 13, "uid", "needs iso=uid"},
		"userns":         {func(s *Spec) { s.Iso = IsoUserNS }, 69, "iso", "iso=userns is not available"},
		"no root":        {func(s *Spec) { s.Iso, s.Root = IsoUID, false }, 13, "iso", "root"},
		"network":        {func(s *Spec) { s.Network = true }, 69, "policy", "network"},
		"other's cwd":    {func(s *Spec) { s.Caller.UID = 0 }, 13, "workspace", "gives no directory"},
		"target /":       {func(s *Spec) { s.Rows[0].Target = "/" }, 2, "mount", "target"},
		"target dots":    {func(s *Spec) { s.Rows[0].Target = "/a/../b" }, 2, "mount", "target"},
		"target /usr/x":  {func(s *Spec) { s.Rows[0].Target = "/usr/x" }, 2, "mount", "runtime's own"},
		"target in view": {func(s *Spec) { s.Rows[0].Target = "/ctx/tool" }, 2, "mount", "view"},
		"target twice":   {func(s *Spec) { s.Rows[0].Target = "/workspace" }, 2, "workspace", "repeated"},
		"session":        {func(s *Spec) { s.Rows[1].Target = "/home/agent/session/x" }, 2, "workspace", "host process"},
		"in .git":        {func(s *Spec) { s.Rows[0].Target = "/workspace/.git/x" }, 2, "mount", ".git"},
		"cwd":            {func(s *Spec) { s.Cwd = "x" }, 2, "cwd", "absolute"},
		"bwrap":          {func(s *Spec) { s.Bwrap = "/nonexistent/bwrap" }, 69, "", "bubblewrap not found"},
	} {
		t.Run(name, func(t *testing.T) {
			s := w.spec()
			c.change(&s)
			_, err := s.Plan()
			wantFault(t, err, c.exit, c.control, c.words)
		})
	}
}

// The mount namespace and everything else is the sandbox's own.
func TestNamespaces(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.spec())
	for _, ns := range spaces {
		inside := strings.TrimSpace(b.sh("readlink /proc/self/ns/" + ns))
		outside, err := os.Readlink("/proc/self/ns/" + ns)
		check(t, err)
		if inside == outside || !strings.HasPrefix(inside, ns+":") {
			t.Errorf("%s namespace: %s inside, %s outside", ns, inside, outside)
		}
	}
	b.want("pid", b.do("call", "getpid"), "1")
	b.want("network", b.sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"), "lo\n")
	b.want("host name", b.sh("uname -n"), "coder\n")
	if out := b.sh("unshare -U true"); !strings.Contains(out, "not permitted") {
		t.Errorf("a nested user namespace: %q", out)
	}
	if out := b.sh("ls /proc | grep -c '^[0-9]'"); len(strings.TrimSpace(out)) > 1 {
		t.Errorf("%s processes are visible", out)
	}
}

func TestUserAll(t *testing.T) {
	if !asUser(t) {
		return
	}
	t.Run("namespaces", TestNamespaces)
}

// Core files are off, and the agent's processes are the first to go when memory
// runs out.
func TestLimits(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.spec())
	b.want("core", b.sh("ulimit -Hc"), "0\n")
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	check(t, err)
	var n int
	fmt.Sscan(string(own), &n)
	b.want("oom_score_adj", strings.TrimSpace(b.do("read", "/proc/self/oom_score_adj")), fmt.Sprint(min(n+500, 1000)))
	b.want("no_new_privs", b.sh("grep NoNewPrivs /proc/self/status"), "NoNewPrivs:\t1\n")
	_ = unix.Getpid
}
