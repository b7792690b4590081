package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func needSandbox(t *testing.T) {
	t.Helper()
	_, err := os.Stat("/usr/bin/bwrap")
	require(t, "bwrap", err == nil, "bubblewrap is not installed")
	err = exec.Command("unshare", "--user", "true").Run()
	require(t, "bwrap", err == nil, "user namespaces are refused")
}

// world is a daemon with the reference tree and a project to work in.
type world struct {
	*daemon
	project string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	needSandbox(t)
	w := &world{daemon: newDaemon(t, "")}
	w.project = filepath.Join(w.dir, "project")
	w.must(`mkdir "$W" && cd "$W" && git init -q && echo hello > notes.txt`)
	w.must(`ctx bootstrap`)
	return w
}

func (w *world) vars() []string {
	return []string{"CTX_ROOT=" + w.mnt, "W=" + w.project, "C=" + filepath.Join(w.mnt, "agent/coder.d"), "M=" + w.mnt}
}

// ctx runs a script on the host as root, in the project.
func (w *world) ctx(script string) result {
	w.t.Helper()
	return w.sh(who{}, `cd "$W" 2>/dev/null; `+script, w.vars()...)
}

func (w *world) must(script string) string {
	w.t.Helper()
	r := w.sh(who{}, `cd "$W" 2>/dev/null; `+script, w.vars()...)
	if r.code != 0 {
		w.t.Fatalf("%s: exit %d\n%s", script, r.code, r.out)
	}
	return r.out
}

// inside runs a bash script in an agent's sandbox.
func (w *world) inside(agent, script string) result {
	w.t.Helper()
	return runProgram(w.t, who{}, append(w.vars(), "S="+script, "A="+agent), "bash", "-c", `ctx agent exec "$A" -- bash -c "$S"`)
}

// TestAgentInItsSandbox is issue 2, item 6: a root daemon, root's own agent.
func TestAgentInItsSandbox(t *testing.T) {
	w := newWorld(t)
	before := w.must(`git status --porcelain; ls -la --time-style=+ "$W" | tail -n +4`)
	w.must(`ctx agent start coder`)
	if got := read(t, filepath.Join(w.mnt, "agent/coder.d/status")); got != "ready\n" && got != "idle\n" {
		t.Errorf("status is %q", got)
	}
	pid := strings.TrimSpace(read(t, filepath.Join(w.mnt, "agent/coder.d/pid")))
	uid := strings.TrimSpace(read(t, filepath.Join(w.mnt, "agent/coder.d/uid")))
	if n, err := strconv.Atoi(uid); err != nil || n < 1879048192 {
		t.Errorf("the agent's uid is %q", uid)
	}
	if text := read(t, "/proc/"+pid+"/status"); !strings.Contains(text, "Name:\tctxagent") || !strings.Contains(text, "Uid:\t"+uid+"\t"+uid+"\t"+uid) {
		t.Errorf("pid %s is not the host process of uid %s:\n%.300s", pid, uid, text)
	}
	for _, c := range []struct{ name, script, want string }{
		{"identity", `id -u; id -G | wc -w`, uid + "\n1\n"},
		{"no capabilities, no new privileges, a filter", `grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status`,
			"CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"},
		{"own pid namespace", `ls -d /proc/[0-9]* | wc -l | { read n; [ $n -lt 10 ] && echo few; }`, "few\n"},
		{"no network", `tail -n +3 /proc/net/dev | sed 's/:.*//;s/ //g'`, "lo\n"},
		{"workspace", `pwd; cat /workspace/notes.txt`, "/workspace\nhello\n"},
		{"its own file in the workspace", `echo made > /workspace/made && stat -c %u /workspace/made`, uid + "\n"},
		{".git is read-only", `touch /workspace/.git/x 2>&1 | grep -o 'Read-only.*'; git -C /workspace log 2>&1 | grep -c fatal`, "Read-only file system\n1\n"},
		{"the root is read-only", `touch /x 2>&1 | grep -o 'Read-only.*'`, "Read-only file system\n"},
		{"the view is read-only", `(echo ask > /ctx/agent/coder.d/approval) 2>&1 | grep -o "Read-only.*"`, "Read-only file system\n"},
		{"home is writable, sessions are not", `touch /home/agent/data/x && echo ok; touch /home/agent/session/x 2>&1 | grep -o 'Read-only.*'`, "ok\nRead-only file system\n"},
		{"tmp is its own", `touch /tmp/x && ls /tmp`, "x\n"},
		{"nothing of the host", `ls -d /root /run/systemd /var /boot /home/* 2>/dev/null`, "/home/agent\n"},
		{"no nested user namespaces", `unshare -U true 2>/dev/null; echo $?`, "1\n"},
		{"no setuid bit", `cp /usr/bin/id /workspace/sid; chmod 4755 /workspace/sid 2>/dev/null; stat -c %a /workspace/sid; rm /workspace/sid`, "755\n"},
		{"pid 1 hides its environment", `cat /proc/1/environ 2>/dev/null | wc -c`, "0\n"},
		{"descriptors", `ls /proc/self/fd | wc -l | { read n; [ $n -le 4 ] && echo few; }`, "few\n"},
	} {
		if r := w.inside("coder", c.script); r.out != c.want {
			t.Errorf("%s: %q\nwant %q", c.name, r.out, c.want)
		}
	}
	if got := w.must(`stat -c %u "$W/made"`); got != "0\n" {
		t.Errorf("on the host the agent's file belongs to %s", got)
	}
	flags := w.inside("coder", `grep -E ' (/ctx|/home/agent|/workspace|/workspace/.git|/usr|/tmp) ' /proc/self/mountinfo | awk '{print $5, $6}' | sort -u`).out
	for _, want := range []string{"/ctx ro,nosuid,nodev", "/home/agent rw,nosuid,nodev", "/workspace rw,nosuid,nodev", "/workspace/.git ro,nosuid,nodev", "/usr ro,nosuid,nodev", "/tmp rw,nosuid,nodev"} {
		if !strings.Contains(flags, want) {
			t.Errorf("mount flags: no %q in\n%s", want, flags)
		}
	}
	checkEnvironment(t, w)
	if got := w.must(`rm "$W/made"; git status --porcelain; ls -la --time-style=+ "$W" | tail -n +4`); got != before {
		t.Errorf("the project is not as before:\n%s\nwas\n%s", got, before)
	}
	w.must(`ctx agent stop coder`)
	if got := read(t, filepath.Join(w.mnt, "agent/coder.d/status")) + read(t, filepath.Join(w.mnt, "agent/coder.d/pid")); got != "dead\n" {
		t.Errorf("after stop status and pid are %q", got)
	}
	if left := processesOf(t, uid); left != "" {
		t.Errorf("processes after stop:\n%s", left)
	}
	log := read(t, filepath.Join(w.mnt, "agent/coder.d/log"))
	for _, want := range []string{`"agent.start"`, `"agent.stop"`} {
		if !strings.Contains(log, want) {
			t.Errorf("no %s in the log:\n%s", want, log)
		}
	}
}

// checkEnvironment compares what runs inside with spec 10.4, to the letter.
func checkEnvironment(t *testing.T, w *world) {
	t.Helper()
	want := `CTX_AGENT=coder
CTX_HOME=/ctx/home/0
CTX_ROOT=/ctx
CTX_SESSION=default
HOME=/home/agent
LANG=C.UTF-8
LOGNAME=coder
PATH=/usr/bin:/bin
SHELL=/usr/bin/bash
TERM=xterm-256color
USER=coder
`
	// No shell, which would add variables of its own; once as ctx runs it, once as
	// the terminal's tsh has it, which no process of the agent may read: as root.
	const environ = `import os; print("".join(sorted(k + "=" + v + "\n" for k, v in os.environ.items())), end="")`
	if r := runProgram(t, who{}, append(w.vars(), "S="+environ), "bash", "-c", `ctx agent exec coder -- python3 -c "$S"`); r.out != want {
		t.Errorf("environment:\n%s\nwant\n%s", r.out, want)
	}
	const terminal = `ns=$(ctx agent exec coder -- readlink /proc/self/ns/pid); for d in /proc/[0-9]*; do
	[ "$(readlink $d/ns/pid)" = "$ns" ] && [ "$(tr '\0' '\n' < $d/cmdline)" = /ctx/tool/tsh ] && tr '\0' '\n' < $d/environ; done 2>/dev/null | sort`
	if got := w.must(terminal); got != want {
		t.Errorf("environment of the terminal:\n%s\nwant\n%s", got, want)
	}
	if got := w.must(`ctx agent env coder | sort`); got != want {
		t.Errorf("ctx agent env:\n%s\nwant\n%s", got, want)
	}
}

// processesOf lists the processes of a uid.
func processesOf(t *testing.T, uid string) string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		text, err := os.ReadFile(dir + "/status")
		if err != nil || !strings.Contains(string(text), "\nUid:\t"+uid+"\t") || strings.Contains(string(text), "\nState:\tZ") {
			continue
		}
		cmd, _ := os.ReadFile(dir + "/cmdline")
		found = append(found, filepath.Base(dir)+" "+strings.ReplaceAll(string(cmd), "\x00", " "))
	}
	return strings.Join(found, "\n")
}

// TestKillEachProcess: after kill -9 of any process of an agent, its status is
// dead and nothing of it is left; a start works again.
func TestKillEachProcess(t *testing.T) {
	w := newWorld(t)
	uid := strings.TrimSpace(read(t, filepath.Join(w.mnt, "agent/coder.d/uid")))
	for _, victim := range []string{"ctxagent", "bwrap", "ctxterm", "tsh"} {
		w.must(`ctx agent start coder`)
		var pids []int
		for _, line := range strings.Split(processesOf(t, uid), "\n") {
			pid, cmd, _ := strings.Cut(line, " ")
			name, _, _ := strings.Cut(cmd, " ")
			if filepath.Base(name) == victim {
				n, err := strconv.Atoi(pid)
				if err != nil {
					t.Fatal(err)
				}
				pids = append(pids, n)
			}
		}
		if len(pids) == 0 {
			t.Fatalf("no process %s among\n%s", victim, processesOf(t, uid))
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Fatal(err)
			}
		}
		eventually(t, "nothing is left after kill -9 of "+victim, func() bool { return processesOf(t, uid) == "" })
		eventually(t, "status is dead after kill -9 of "+victim, func() bool {
			return read(t, filepath.Join(w.mnt, "agent/coder.d/status")) == "dead\n"
		})
		if got := read(t, filepath.Join(w.mnt, "agent/coder.d/pid")); got != "" {
			t.Errorf("after kill -9 of %s the pid is %q", victim, got)
		}
	}
	eventually(t, "the log tells of four ends", func() bool {
		return strings.Count(read(t, filepath.Join(w.mnt, "agent/coder.d/log")), `"agent.exit"`) == 4
	})
	w.must(`ctx agent start coder`)
}

// TestKillTheDaemon: the agent is adopted by the next daemon and sees a live
// view, or it is ended and said to be dead; never in between.
func TestKillTheDaemon(t *testing.T) {
	w := newWorld(t)
	uid := strings.TrimSpace(read(t, filepath.Join(w.mnt, "agent/coder.d/uid")))
	w.must(`ctx agent start coder`)
	pid := read(t, filepath.Join(w.mnt, "agent/coder.d/pid"))
	w.kill()
	w.start()
	switch got := read(t, filepath.Join(w.mnt, "agent/coder.d/status")); got {
	case "ready\n", "idle\n":
		if now := read(t, filepath.Join(w.mnt, "agent/coder.d/pid")); now != pid {
			t.Errorf("adopted as pid %q, was %q", now, pid)
		}
		eventually(t, "the view lives again inside", func() bool {
			return w.inside("coder", `cat /ctx/status && /ctx/tool/fs.stat /ctx/status`).code == 0
		})
		if r := w.inside("coder", `(echo ask > /ctx/agent/coder.d/approval) 2>/dev/null; echo $?`); r.out != "1\n" {
			t.Errorf("the healed view is writable: %+v", r)
		}
		w.must(`sed -i /fs.stat/d "$C/policy"`)
		if r := w.inside("coder", `/ctx/tool/fs.stat /`); r.code == 0 {
			t.Errorf("a tool runs after its rule is gone: %+v", r)
		}
		w.must(`ctx agent stop coder`)
	case "dead\n":
		t.Log("not adopted: ended")
	default:
		t.Errorf("status is %q", got)
	}
	eventually(t, "nothing is left", func() bool { return processesOf(t, uid) == "" })
}

// TestProjection is issue 2, item 5: who sees which tool, and why.
func TestProjection(t *testing.T) {
	w := newWorld(t)
	w.must(`ctx agent start coder && ctx agent start reviewer`)
	list := func(agent string) string { return w.inside(agent, `ls /ctx/tool | grep -v '\.d$' | tr '\n' ' '`).out }
	if got := list("coder"); got != "bash fs.list fs.read fs.replace fs.stat fs.write shell.exec tsh " {
		t.Errorf("coder sees %q", got)
	}
	if got := list("reviewer"); !strings.Contains(got, "fs.read") || strings.Contains(got, "fs.write") {
		t.Errorf("reviewer sees %q", got)
	}
	for _, c := range []struct{ name, break_, repair string }{
		{"the agent's policy", `sed -i '/tool:fs.stat /s/^/#/' "$C/policy"`, `sed -i 's/^#\(.*tool:fs.stat \)/\1/' "$C/policy"`},
		{"the tool's policy", `sed -i '/coder_t/s/^/#/' "$M/tool/fs.stat.d/policy"`, `sed -i 's/^#\(.*coder_t\)/\1/' "$M/tool/fs.stat.d/policy"`},
		{"an invalid tool's policy in the store", `echo rubbish > "$S/object/tool/fs.stat.d/policy.bad"; mv "$S/object/tool/fs.stat.d/policy" "$S/kept"; mv "$S/object/tool/fs.stat.d/policy.bad" "$S/object/tool/fs.stat.d/policy"; ctx reload`,
			`mv "$S/kept" "$S/object/tool/fs.stat.d/policy"; ctx reload`},
		{"mode bits", `chmod 0700 "$M/tool/fs.stat"`, `chmod 0755 "$M/tool/fs.stat"`},
		{"noexec", `sed -i 's/^\(\/ctx\t\/ctx\t.*\)$/\1,noexec/' "$C/mount"`, `sed -i 's/,noexec$//' "$C/mount"`},
		{"the search path", `echo /ctx/home/0/tool > "$C/path"`, `: > "$C/path"`},
		{"the label", `echo other_t > "$C/label"`, `echo user_u:agent_r:coder_t:s0 > "$C/label"`},
		{"the tool itself", `mv "$M/tool/fs.stat" "$M/tool/moved"`, `mv "$M/tool/moved" "$M/tool/fs.stat"`},
	} {
		vars := func(script string) string { return `S="` + w.store + `"; ` + script }
		w.must(vars(c.break_))
		if r := w.inside("coder", `/ctx/tool/fs.stat /`); r.code == 0 {
			t.Errorf("%s: the tool still runs: %+v", c.name, r)
		}
		if got := list("coder"); strings.Contains(got, "fs.stat") && c.name != "mode bits" {
			t.Errorf("%s: the tool is still listed: %q", c.name, got)
		}
		if r := w.ctx(`ctx agent why coder fs.stat`); r.code != 13 || !strings.Contains(r.out, "DENY") {
			t.Errorf("%s: why: %+v", c.name, r)
		}
		w.must(vars(c.repair))
		eventually(t, c.name+": repaired, the tool runs", func() bool { return w.inside("coder", `/ctx/tool/fs.stat /`).code == 0 })
		if r := w.ctx(`ctx agent why coder fs.stat`); r.code != 0 {
			t.Errorf("%s repaired: why: %+v", c.name, r)
		}
	}
	for _, hidden := range []string{`/ctx/tool/fs.write x y`, `/ctx//tool/./fs.write x y`, `/ctx/tool/../tool/fs.write x y`, `/ctx/tool/tsh fs.write x y`, `cd /ctx/tool && ./fs.write x y`} {
		if r := w.inside("reviewer", hidden); r.code == 0 {
			t.Errorf("reviewer: %s: %+v", hidden, r)
		}
	}
}

// TestViewsLeaveTheStoreAlone: after any number of views the store is the same,
// byte for byte.
func TestViewsLeaveTheStoreAlone(t *testing.T) {
	w := newWorld(t)
	sum := `cd "` + w.store + `/object" && find . -type f -printf '%p %s %m %T@\n' | sort | sha256sum`
	before := w.must(sum)
	for _, agent := range []string{"coder", "reviewer", "architect"} {
		w.must(fmt.Sprintf(`for i in 1 2 3 4 5; do find "$M/agent/%s.d/view" > /dev/null; ls -lR "$M/agent/%s.d/view" > /dev/null; done`, agent, agent))
	}
	if after := w.must(sum); after != before {
		t.Error("views changed the store")
	}
	if got := w.must(`ls "$M/agent/reviewer.d/view/tool" | grep -v '\.d$' | tr '\n' ' '`); strings.Contains(got, "fs.write") || !strings.Contains(got, "fs.read") {
		t.Errorf("reviewer's view has %q", got)
	}
	if r := w.ctx(`ls "$M/agent/coder.d" | grep view`); r.code == 0 {
		t.Error("view is listed")
	}
	if r := w.ctx(`echo x > "$M/agent/coder.d/view/status"`); r.code == 0 {
		t.Errorf("a view takes a write: %+v", r)
	}
	if r := w.sh(bob, `ls "$M/agent/coder.d/view"`, w.vars()...); r.code == 0 {
		t.Errorf("a stranger enters a view: %+v", r)
	}
}

// attempts executes a tool in a loop, and 10,000 times more once it is told that
// the rule is gone.
const attempts = `
import os
quiet = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
def run():
    try:
        pid = os.posix_spawn("/ctx/tool/fs.stat", ["fs.stat", "/"], {}, file_actions=quiet)
    except OSError:
        return False
    return os.waitpid(pid, 0)[1] == 0
before = 0
while not os.path.exists("/workspace/revoked"):
    if run():
        before = 1
        open("/workspace/ran", "w").close()
print(f"before={before} after={sum(run() for _ in range(10000))}")
`

// TestRevocationIsImmediate: once the writer's close has returned, no further
// exec succeeds: 10,000 attempts, in a loop that was running all the time.
func TestRevocationIsImmediate(t *testing.T) {
	w := newWorld(t)
	w.must(`ctx agent start coder`)
	loop := command(who{}, append(w.vars(), "S="+attempts), "bash", "-c", `ctx agent exec coder -- python3 -c "$S"`)
	out, err := loop.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the tool runs before", func() bool { _, err := os.Stat(filepath.Join(w.project, "ran")); return err == nil })
	r := onTerminal(t, who{}, w.vars(), nil, "bash", "-c", `vim -u NONE -N -i NONE -c 'g/tool:fs.stat /d' -c wq "$C/policy"`)
	if r.code != 0 {
		t.Fatalf("vim: %+v", r)
	}
	if err := os.WriteFile(filepath.Join(w.project, "revoked"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	n, _ := out.Read(buf)
	if err := loop.Wait(); err != nil {
		t.Errorf("the loop: %v", err)
	}
	if got := string(buf[:n]); got != "before=1 after=0\n" {
		t.Errorf("the loop says %q", got)
	}
	if got := w.inside("coder", `ls /ctx/tool`).out; strings.Contains(got, "fs.stat") {
		t.Errorf("still listed:\n%s", got)
	}
}

// TestStartRefusals: what a start must not do, with its exit code and reason.
func TestStartRefusals(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct {
		name, script string
		code         int
		says         string
	}{
		{"no such agent", `ctx agent start nobody`, 1, "nobody"},
		{"the store", `cd "` + w.store + `" && ctx agent start coder`, 13, "store"},
		{"the mount", `cd "$M" && ctx agent start coder`, 13, ""},
		{"the root directory", `cd / && ctx agent start coder`, 13, ""},
		{"root's home", `cd /root && ctx agent start coder`, 13, "home"},
		{"a parent of the store", `cd "` + w.dir + `" && ctx agent start coder`, 13, "never handed over"},
		{"proc", `cd /proc && ctx agent start coder`, 13, ""},
		{"a missing source", `ctx agent start coder --mount /nonexistent /x ro`, 1, "/nonexistent"},
		{"a bad target", `ctx agent start coder --mount "$W" /usr/x ro`, 2, ""},
		{"host uid 0", `echo 0 > "$C/uid" && ctx agent start coder`, 13, ""},
	} {
		r := w.ctx(c.script)
		if c.name == "host uid 0" && r.code == 1 && strings.Contains(r.out, "not permitted") {
			continue // refused at the write already
		}
		if r.code != c.code || !strings.Contains(r.out, c.says) {
			t.Errorf("%s: exit %d, want %d and %q:\n%s", c.name, r.code, c.code, c.says, r.out)
		}
		if got := read(t, filepath.Join(w.mnt, "agent/coder.d/status")); got != "dead\n" {
			t.Fatalf("%s: status is %q", c.name, got)
		}
	}
	if left := mountsBelow("/run/cortexfs"); strings.Contains(left, "coder") {
		t.Errorf("mounts left behind:\n%s", left)
	}
	if r := w.sh(bob, `ctx agent start coder`, w.vars()...); r.code != 13 {
		t.Errorf("a stranger starts root's agent: %+v", r)
	}
}

// TestParallelStarts: twenty at once make one agent.
func TestParallelStarts(t *testing.T) {
	w := newWorld(t)
	w.must(`for i in $(seq 20); do ctx agent start coder > "$W/out.$i" 2>&1 & done; wait; ! grep -L coder "$W"/out.* | grep .`)
	uid := strings.TrimSpace(read(t, filepath.Join(w.mnt, "agent/coder.d/uid")))
	if got := processesOf(t, uid); strings.Count(got, "ctxagent") != 1 {
		t.Errorf("not one host process:\n%s", got)
	}
	if r := w.ctx(`ctx agent start coder --session other`); r.code == 0 {
		t.Errorf("another session of a running agent: %+v", r)
	}
}

// TestTerminal: attach types, watch sees and cannot type.
func TestTerminal(t *testing.T) {
	w := newWorld(t)
	w.must(`ctx agent start coder`)
	r := onTerminal(t, who{}, w.vars(), []typed{
		{"coder> ", "fs.list /workspace\r"},
		{"notes.txt", "\x1c\x04"}, // detach: Ctrl-\ Ctrl-d
	}, filepath.Join(bin, "ctx"), "agent", "attach", "coder")
	if r.code != 0 || !strings.Contains(r.out, "notes.txt") {
		t.Errorf("attach: %+v", r)
	}
	watch := command(who{}, w.vars(), filepath.Join(bin, "ctx"), "agent", "watch", "coder")
	pipe, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 1)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := pipe.Read(buf)
			all.Write(buf[:n])
			if err != nil {
				seen <- all.String()
				return
			}
		}
	}()
	w.must(`ctx agent stop coder`)
	select {
	case text := <-seen:
		if !strings.Contains(text, "notes.txt") {
			t.Errorf("the watcher saw %q", text)
		}
	case <-time.After(patience):
		_ = watch.Process.Kill()
		t.Error("the watcher outlives the agent")
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("watch: %v", err)
	}
}
