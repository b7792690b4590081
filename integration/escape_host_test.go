package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A refusal is something done on the host, as root in the project, that has to
// fail with this exit code (-1: any but 0) and leave the agent "reviewer" dead.
type refusal struct {
	n, name, script string
	code            int
	says            string
}

var refusals = []refusal{
	{"6", ".git is a planted symlink", `mkdir p6 && ln -s /etc p6/.git && cd p6 && ctx agent start reviewer`, 13, "symlink"},
	{"7", "dots in a target", `ctx agent start reviewer --mount "$W" /../x ro`, 2, ""},
	{"8", "a symlink as source", `ln -s "$STORE" p8; ctx agent start reviewer --mount "$W/p8" /x ro`, 13, "store"},
	{"9", "an agent called like an option", `ctx agent new -- --bind`, -1, ""},
	{"9", "a command called like an option", `ctx agent exec coder -- --bind / /x`, -1, ""},
	{"9", "a session called like an option", `ctx agent start reviewer --session=--share-net`, -1, ""},
	{"11", "a directory that is not inside", `echo /nonexistent > "$M/agent/reviewer.d/cwd"; ctx agent start reviewer; c=$?; ctx reset /ctx/agent/reviewer.d/cwd >/dev/null || rm "$M/agent/reviewer.d/cwd"; exit $c`, 1, "cwd"},
	{"62", "a line break in a name", `ctx agent start $'re\nviewer'`, -1, ""},
	{"62", "no UTF-8 in a name", `ctx agent start $'re\xffviewer'`, -1, ""},
	{"62", "a path as a name", `ctx agent start ../agent/reviewer`, -1, ""},
	{"62", "names for new agents", `for n in .. . -x 'a b' $'a\tb' "$(printf 'a%.0s' $(seq 256))"; do mkdir "$M/agent/$n.d" 2>/dev/null && exit 0; done; exit 1`, 1, ""},
	{"83", "root's home", `cd /root && ctx agent start reviewer`, 13, "home"},
	{"83", "the root directory", `cd / && ctx agent start reviewer`, 13, ""},
	{"83", "/tmp", `cd /tmp && ctx agent start reviewer`, 13, "/tmp"},
	{"83", "/run", `cd /run && ctx agent start reviewer`, 13, ""},
	{"83", "the mount", `cd "$M/agent" && ctx agent start reviewer`, 13, ""},
	{"83", "inside the store", `cd "$STORE/object" && ctx agent start reviewer`, 13, "store"},
	{"83", "the runtime directory", `cd "$RT/agent" && ctx agent start reviewer`, 13, "never handed over"},
	{"83", "a bind of the store", `mkdir b; mount --bind "$STORE" b; (cd b && ctx agent start reviewer); c=$?; umount b; exit $c`, 13, "store"},
	{"83", "a recursive bind of a parent", `mkdir b2; mount --rbind --make-private "$W/.." b2; ctx agent start reviewer --mount "$W/b2" /x ro; c=$?; umount -R b2; exit $c`, 13, ""},
}

// TestEscapeHost makes the attempts that begin on the host, against root's daemon
// with an agent at work.
func TestEscapeHost(t *testing.T) {
	w := newWorld(t)
	runtime := strings.TrimSpace(w.must(`getfattr --absolute-names --only-values -n user.cortexfs.runtime "$M"`))
	env := `STORE="` + w.store + `" RT="` + runtime + `"; `
	// 88: the host's mount table. Others may mount at the same time: only ours.
	mounts := func() string { return mountsBelow(w.dir) + "\n" + mountsBelow(runtime) }
	before := mounts()
	stop := w.watchThreads(t)
	w.must(`ctx agent start coder`)
	init := strings.TrimSpace(w.must(`ctx agent exec coder -- readlink /proc/self/ns/pid`))

	for _, c := range refusals {
		r := w.ctx(env + c.script)
		if r.code != c.code && (c.code != -1 || r.code == 0) || !strings.Contains(r.out, c.says) {
			t.Errorf("%s %s: exit %d, want %d and %q:\n%s", c.n, c.name, r.code, c.code, c.says, r.out)
		}
		if got := read(t, filepath.Join(w.mnt, "agent/reviewer.d/status")); got != "dead\n" {
			t.Fatalf("%s %s: the agent is %s", c.n, c.name, got)
		}
	}
	t.Run("81", func(t *testing.T) {
		label := read(t, filepath.Join(w.mnt, "agent/coder.d/label"))
		for _, script := range []string{`echo other_t > "$C/label"`, `echo x > "$C/parent"`, `mkdir "$M/agent/coder2.d"`, `mv "$M/agent/coder.d" "$M/agent/x.d"`, `ctx agent exec coder -- true`, `ctx agent stop coder`, `ctx agent watch coder`, `rm "$C/policy"`} {
			if r := w.sh(bob, script, w.vars()...); r.code == 0 {
				t.Errorf("a stranger: %s: %+v", script, r)
			}
		}
		if got := read(t, filepath.Join(w.mnt, "agent/coder.d/label")); got != label {
			t.Errorf("the label is %q now", got)
		}
	})
	t.Run("73", func(t *testing.T) { w.descriptorsTo(t, runtime) })
	t.Run("85, 104", func(t *testing.T) {
		for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"} {
			inside := strings.TrimSpace(w.inside("coder", `readlink /proc/self/ns/`+ns).out)
			outside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", w.cmd.Process.Pid, ns))
			if err != nil || inside == outside || !strings.HasPrefix(inside, ns+":") {
				t.Errorf("%s: %q inside, %q outside, %v", ns, inside, outside, err)
			}
		}
		var uid int
		fmt.Sscan(read(t, filepath.Join(w.mnt, "agent/coder.d/uid")), &uid)
		if uid < 1879048192 || uid > 1879113727 {
			t.Errorf("uid %d is not from the range that nobody else uses", uid)
		}
	})
	t.Run("86", func(t *testing.T) {
		w.must(`mkdir mp && mount -t tmpfs none mp && touch mp/host`)
		defer w.must(`umount mp`)
		if got := w.inside("coder", `ls /workspace/mp; grep -c /workspace/mp /proc/self/mountinfo`).out; got != "0\n" {
			t.Errorf("a mount of the host arrived: %q", got)
		}
	})
	t.Run("57", func(t *testing.T) { w.heldTool(t) })
	t.Run("63", func(t *testing.T) {
		w.must(`ctx agent exec coder -- bash -c 'rm -f /home/agent/.tshrc; mkfifo /home/agent/.tshrc'`)
		w.must(`ctx agent stop coder && ctx agent start coder && ctx agent exec coder -- rm /home/agent/.tshrc`)
		init = strings.TrimSpace(w.must(`ctx agent exec coder -- readlink /proc/self/ns/pid`))
	})
	t.Run("53", func(t *testing.T) {
		w.must(`ctx agent exec coder -- bash -c 'for i in $(seq 40); do setsid nohup sleep 1000 >/dev/null 2>&1 & done; (trap "" TERM HUP; setsid nohup sleep 1000 >/dev/null 2>&1 &) ; sleep 0.1'`)
		if n := len(inNamespace(t, init)); n < 41 {
			t.Errorf("%d processes before the stop", n)
		}
		w.must(`ctx agent stop coder`)
		if left := inNamespace(t, init); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
	t.Run("35", func(t *testing.T) {
		w.must(`mkdir bare && cd bare && ctx agent start coder`)
		if got := w.must(`ctx agent status coder`); strings.Contains(got, ".git") {
			t.Errorf("a repository before there is one:\n%s", got)
		}
		w.must(`ctx agent exec coder -- bash -c 'git init -q . && git config core.fsmonitor "touch /tmp/P"'`)
		eventually(t, "the repository is noticed", func() bool {
			return strings.Contains(w.must(`ctx agent status coder`), "warning: /workspace/.git appeared")
		})
		if got := w.must(`ctx agent log coder`); strings.Count(got, "workspace.git") != 1 {
			t.Errorf("the log:\n%s", got)
		}
		w.must(`ctx agent stop coder`)
	})
	stop()
	if after := mounts(); after != before {
		t.Errorf("88: mounts after\n%s\nbefore\n%s", after, before)
	}
	t.Run("87", func(t *testing.T) { w.copyOfTheMount(t) })
}

// inNamespace are the living processes of a pid namespace.
func inNamespace(t *testing.T, ns string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		dir := filepath.Dir(filepath.Dir(link))
		if have, err := os.Readlink(link); err != nil || have != ns {
			continue
		}
		if text, err := os.ReadFile(dir + "/status"); err == nil && !strings.Contains(string(text), "\nState:\tZ") {
			found = append(found, dir)
		}
	}
	return found
}

// watchThreads is case 76: while everything else goes on, no thread of the daemon
// has another uid than 0, save for files. The test ends it.
func (w *world) watchThreads(t *testing.T) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	pattern := fmt.Sprintf("/proc/%d/task/[0-9]*/status", w.cmd.Process.Pid)
	seen := 0
	go func() {
		defer close(done)
		for {
			select {
			case <-ended:
				return
			default:
			}
			files, _ := filepath.Glob(pattern)
			for _, f := range files {
				text, err := os.ReadFile(f)
				_, ids, ok := bytes.Cut(text, []byte("\nUid:\t"))
				if err != nil || !ok {
					continue
				}
				seen++
				if !bytes.HasPrefix(ids, []byte("0\t0\t0\t")) {
					t.Errorf("76: a thread of the daemon: Uid %.40s", ids)
				}
			}
		}
	}()
	return func() {
		close(ended)
		<-done
		if seen == 0 {
			t.Error("76: no thread seen")
		}
	}
}

// descriptorsTo is case 73: the daemon's socket and the terminal's take no
// descriptor, and go on to serve.
func (w *world) descriptorsTo(t *testing.T, runtime string) {
	const send = `
import array, os, socket, sys
fd, held = os.open(sys.argv[1], os.O_RDONLY), []
for path in sys.argv[2:]:
    s = socket.socket(socket.AF_UNIX); s.connect(path)
    try:
        s.sendmsg([b"{"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd] * 10))])
    except OSError as e:
        print(e.errno)
    held.append(s)
n = 0
for pid in os.environ["PIDS"].split():
    for f in os.listdir("/proc/%s/fd" % pid):
        try: n += os.readlink("/proc/%s/fd/%s" % (pid, f)) == sys.argv[1]
        except OSError: pass
print("held", n)
`
	agent := strings.TrimSpace(read(t, filepath.Join(w.mnt, "agent/coder.d/pid")))
	terminal := filepath.Join(runtime, "sock/system.0.coder/default.sock")
	r := runProgram(t, who{}, append(w.vars(), fmt.Sprintf("PIDS=%d %s", w.cmd.Process.Pid, agent)), "python3", "-c", send,
		filepath.Join(w.project, "notes.txt"), filepath.Join(runtime, "sock/control.sock"), terminal)
	if r.code != 0 || !strings.HasSuffix(r.out, "held 0\n") {
		t.Errorf("%+v", r)
	}
	w.must(`ctx status`)
}

// heldTool is case 57: a tool that was opened before the revocation neither runs
// nor opens again after it, through that descriptor either. (Bytes that the kernel
// has already read for an open descriptor stay readable, as a process that runs
// goes on: spec section 9.)
func (w *world) heldTool(t *testing.T) {
	const hold = `
import os, time
fd = os.open("/ctx/tool/fs.stat", os.O_RDONLY); path = os.open("/ctx/tool/fs.stat", os.O_PATH)
print(len(os.pread(fd, 4, 0)))
open("/workspace/held", "w").close()
while not os.path.exists("/workspace/revoked"): time.sleep(0.005)
for what in (lambda: os.open("/proc/self/fd/%d" % path, os.O_RDONLY), lambda: os.execve(fd, ["x", "/"], {}), lambda: os.execv("/proc/self/fd/%d" % path, ["x", "/"])):
    try: what(); print("open")
    except OSError as e: print(e.errno)
`
	cmd := command(who{}, append(w.vars(), "S="+hold), "bash", "-c", `ctx agent exec coder -- python3 -c "$S"`)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tool is held", func() bool { _, err := os.Stat(filepath.Join(w.project, "held")); return err == nil })
	w.must(`cp "$C/policy" policy.kept && sed -i '/tool:fs.stat /d' "$C/policy" && touch revoked`)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	w.must(`cat policy.kept > "$C/policy"`)
	if lines := strings.Fields(out.String()); len(lines) != 4 || lines[0] != "4" || strings.Contains(out.String(), "open") {
		t.Errorf("after the revocation: %q", out.String())
	}
}

// copyOfTheMount is case 87: a user who keeps a copy of the mount in a namespace
// of their own reads nothing through it after the daemon's end.
func (w *world) copyOfTheMount(t *testing.T) {
	keep := command(bob, w.vars(), "unshare", "-Urm", "bash", "-c", `echo up; read`)
	in, err := keep.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := keep.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := keep.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = keep.Wait() }()
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	file := fmt.Sprintf("/proc/%d/root%s/status", keep.Process.Pid, w.mnt)
	if got := read(t, file); got != "ready\n" {
		t.Errorf("through the copy, before: %q", got)
	}
	w.stop()
	if text, err := os.ReadFile(file); err == nil {
		t.Errorf("through the copy, after the end: %q", text)
	} else if !strings.Contains(err.Error(), syscall.ENOTCONN.Error()) {
		t.Logf("through the copy: %v", err)
	}
}
