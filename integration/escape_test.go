package integration

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The escape suite: the cases of the design's list of known escapes, by their
// numbers. Each is one of four things, and every number is exactly there:
//
//   - an attempt inside a running agent (attempts), as root's agent and as a plain
//     user's, with what has to come of it;
//   - an attempt from the host against a running agent or a start (TestEscapeHost);
//   - a case that a named test elsewhere makes (elsewhere);
//   - a case that is open by nature or does not apply (open), with the reason;
//     docs/security.md says what to do about those that are open.

// An attempt runs in bash inside the agent, P being the probe of
// testdata/probe.c. Its output is matched as a whole by want, lines being joined
// by blanks. With outside set, the same probe succeeds on the host for a process
// of the same uid: what stops it is the sandbox.
type attempt struct {
	n       string
	name    string
	script  string
	want    string
	outside string // arguments of P
}

var attempts72 = []attempt{
	{n: "1", name: "input for a terminal of the host", script: `P sti; P tty; P console`, want: `EPERM ENXIO (ENOENT|ENXIO)`},
	{n: "2", name: "the same with high bits", script: `P sti-high`, want: `EPERM`},
	{n: "3", name: "32-bit system calls", script: `P int80; echo $?`, want: `@INT80@`},
	{n: "4", name: "x32 system calls", script: `P x32; echo $?`, want: `159`},
	{n: "10", name: "descriptors of the host", script: `for f in /proc/$$/fd/*; do readlink $f; done | grep -v -e '^/dev/null' -e '^pipe:'`, want: ``},
	{n: "11", name: "a directory outside the root", script: `readlink /proc/self/cwd; ls -d ../../../root ../../../proc/self/cwd/../../../var`, want: `/workspace`},
	{n: "12", name: "the launcher's program", script: `P truncate /proc/1/exe; P truncate /run/cortexfs/ctxterm; P rename /run/cortexfs/ctxterm /run/cortexfs/x`, want: `EACCES EROFS E(ROFS|BUSY)`},
	{n: "13", name: "replaced devices", script: `stat -c %t:%T /dev/null; P rename /dev/null /dev/x; P listen /dev/log; P truncate /etc/profile`, want: `1:3 E(ROFS|BUSY) EROFS EROFS`},
	{n: "14 72", name: "settings of the kernel", script: `for f in kernel/core_pattern kernel/modprobe vm/panic_on_oom fs/protected_hardlinks; do P write /proc/sys/$f; done; P write /proc/sysrq-trigger`, want: `((EACCES|EROFS|ENOENT) ?){5}`},
	{n: "15", name: "environment of a host process", script: `P open /proc/@PID@/environ`, want: `ENOENT`, outside: "open /proc/@PID@/environ"},
	{n: "16", name: "directories and files of a host process", script: `for f in root cwd fd exe maps; do P open /proc/@PID@/$f; done`, want: `(ENOENT ?){5}`, outside: "open /proc/@PID@/fd"},
	{n: "17", name: "tracing a host process", script: `P ptrace @PID@; P seize @PID@`, want: `ESRCH ESRCH`, outside: "seize @PID@"},
	{n: "18", name: "memory of a host process", script: `P open /proc/@PID@/mem`, want: `ENOENT`, outside: "open /proc/@PID@/mem"},
	{n: "19", name: "a signal to a host process", script: `P kill @PID@`, want: `ESRCH`, outside: "kill @PID@"},
	{n: "20", name: "the launcher's environment", script: `grep -la TOKEN_OF_THE_HOST /proc/[0-9]*/environ; P open /proc/1/environ`, want: `EACCES`},
	{n: "21", name: "inherited environment", script: `env | grep -c TOKEN_OF_THE_HOST`, want: `0`},
	{n: "22", name: "command lines", script: `tr '\0' ' ' < /proc/1/cmdline`, want: `/run/cortexfs/ctxterm ?`},
	{n: "23", name: "start-up files of shells", script: `env -i /usr/bin/bash -lc env | grep -vE '^(PWD|SHLVL|_|PATH|OLDPWD)='`, want: ``},
	{n: "24", name: "read-only made writable", script: `P remount /workspace/.git; P remount /ctx; P remount /; P remount /usr`, want: `(EPERM ?){4}`},
	{n: "25 27 69", name: "nested namespaces", script: `P userns; P clone; P clone3; P setns self user; P setns 1 mnt`, want: `EPERM EPERM ENOSYS EPERM EACCES`},
	{n: "26", name: "a look below the masks", script: `P umount /workspace/.git; P umount /etc/profile; P umount /proc; P umount /home/agent/session`, want: `(EPERM ?){4}`},
	{n: "28 32", name: "mounts of its own", script: `P mount /workspace tmpfs; P mount /tmp cgroup; P mount /tmp cgroup2; P chroot /tmp`, want: `(EPERM ?){4}`},
	{n: "29 71 95", name: "files with set-id bits", script: `P setid /workspace; P setid /home/agent/data; P setid /tmp`, want: `(none ?){3}`},
	{n: "30", name: "devices", script: `P device /workspace/d; P device /home/agent/data/d; P device /tmp/d`, want: `(EPERM ?){3}`},
	{n: "31", name: "files by handle", script: `P handle`, want: `EPERM`},
	{n: "33", name: "the repository moved away", script: `P rename /workspace/.git /workspace/g2`, want: `EBUSY`},
	{n: "34", name: "hooks and configuration of the repository", script: `(echo x > .git/hooks/pre-commit) 2>&1 | grep -o Read-only; P write .git/config; git config core.fsmonitor x >/dev/null; echo $?`, want: `Read-only EROFS [1-9][0-9]*`},
	{n: "38", name: "a second name across mounts", script: `P link .git/config /workspace/hl; P link /usr/bin/env /workspace/hl`, want: `EXDEV EXDEV`},
	{n: "40", name: "abstract sockets of the host", script: `P abstract cortexfs-escape-@PID@`, want: `E(CONNREFUSED|PERM)`, outside: "abstract cortexfs-escape-@PID@"},
	{n: "41", name: "services on the host's loopback", script: `P tcp 127.0.0.1 @PORT@`, want: `ECONNREFUSED`, outside: "tcp 127.0.0.1 @PORT@"},
	{n: "42", name: "sockets of other families", script: `P socket 40 1; P socket 17 3; P socket 38 5; P socket 16 3 9; P socket 16 3 15; P socket 16 3 16`, want: `(EPERM ?){6}`},
	{n: "43", name: "io_uring", script: `P io_uring`, want: `ENOSYS`},
	{n: "44", name: "the user's keyring", script: `P keyring x`, want: `EPERM`},
	{n: "45", name: "shared memory of the host", script: `P shm @PID@; ls /dev/shm`, want: `ENOENT`, outside: "shm @PID@"},
	{n: "50", name: "core files", script: `ulimit -c unlimited; ulimit -c; bash -c 'kill -SEGV $$'; ls /workspace | grep -c ^core`, want: `0 0`},
	{n: "52", name: "a full /tmp", script: `P fallocate /tmp/big`, want: `ENOSPC`},
	{n: "61", name: "no limit that counts the owner's other processes", script: `ulimit -Hu`, want: `@NPROC@`},
	// Where session/ is not even the agent's to enter, the refusal is another one.
	{n: "78", name: "its own history", script: `cd /home/agent; P rename session s; P rename session/default session/old; P rename session/default /workspace/old; P listen session/x; P truncate session/default/messages.jsonl;
		P rename log l; P listen log/x; P rename root r; P listen root/x; ls -d s l r`,
		want: `E(BUSY|OVERFLOW) E(ROFS|ACCES) E(ROFS|ACCES|XDEV) E(ROFS|ACCES) E(ROFS|ACCES|NOENT) EBUSY EROFS EBUSY EROFS`},
	// The one socket inside is the agent's own control socket (spec section 14),
	// which authorizes each request.
	{n: "79 89", name: "sockets of the host process", script: `P unix /home/agent/session/default/terminal/main.sock; find / -type s -not -path '/workspace/*' -not -path /run/cortexfs/control.sock 2>/dev/null | while read s; do P unix $s; done`, want: `(ENOENT|EACCES)( (EACCES|ENOENT|ENXIO|EPERM))*`},
	{n: "80", name: "a listener at the name of a socket", script: `cd /home/agent; for f in main.sock terminal/main.sock agent.sock; do P listen session/default/$f; done; P listen /run/cortexfs/control.sock; P rename /run/cortexfs/control.sock /run/cortexfs/c`, want: `(E(ROFS|ADDRINUSE|ACCES|NOENT) ?){4}E(ROFS|BUSY|NOENT)`},
	{n: "90", name: "ctxterm's memory, descriptors, environment", script: `P ptrace 1; P seize 1; P steal 1; P open /proc/1/mem; P open /proc/1/fd; P open /proc/1/environ`, want: `EPERM EPERM EPERM EACCES EACCES EACCES`},
	{n: "90", name: "tsh's memory and descriptors", script: `t=$(grep -lz '^/ctx/tool/tsh$' /proc/[0-9]*/cmdline | tr -dc '0-9\n' | head -n 1); [ -n "$t" ] && { P seize $t; P steal $t; P open /proc/$t/mem; }`, want: `EPERM EPERM EACCES`},
	{n: "96", name: "programs that set the set-group-id bit of directories", script: `cd /tmp; mkdir -m 2775 g 2>&1 | grep -o 'not permitted'; python3 -c 'import os; os.mkdir("/tmp/h", 0o2775)' && echo made;
		git init -q --shared r; [ $? -eq 0 ] || echo refused; rm -rf g h r`, want: `not permitted made refused`},
	// Open by nature, and what that means is what the documents say.
	{n: "46", name: "a program in memory (open)", script: `P memexec`, want: `ran`},
	{n: "47", name: "a program in /tmp (open)", script: `cp /workspace/probe /tmp/t; /tmp/t pid; rm /tmp/t`, want: `ran`},
	{n: "22", name: "host paths in mountinfo (open)", script: `grep -c ' /workspace ' /proc/self/mountinfo`, want: `1`},
}

// elsewhere are the cases that a test of another package makes, as pkg.Test.
var elsewhere = map[int]string{
	5: "sandbox.TestTargetThroughSymlink", 37: "sandbox.TestGit", 48: "sandbox.TestFlags", 54: "sandbox.TestDeath", 55: "sandbox.TestDaemonDies",
	59: "sandbox.TestBoundSources", 60: "sandbox.TestBoundSources", 64: "node/ordinary.TestSwapAttack", 66: "sandbox/term.TestFilter", 68: "sandbox.TestIsoUID",
	70: "sandbox/guest.TestHeldProgram", 74: "fs.TestPushNeverBlocks", 75: "sandbox.TestHangingSource", 77: "node/ordinary.TestSwapAttack", 82: "node/tree.TestSuite",
	93: "cmd/internal/daemon.TestPlantedRecords", 94: "node/tree.TestSuite", 99: "node/store.TestFullDisk", 100: "node/agent.TestRepeatsAreCounted",
	101: "cmd/internal/daemon.TestWhatAgentsMayNotMake", 102: "cmd/internal/daemon.TestComposeShared", 103: "sandbox/stage.TestGitfileOfTheHome",
	105: "sandbox.TestUserGroups",
}

// open are the cases that are left, with the reason.
var open = map[int]string{
	36:  "repositories, .envrc, .vscode and the like below the top of a writable directory are the agent's to make",
	49:  "an interpreter reads a script as text; noexec stops the exec of a file, the set of tools decides about interpreters",
	51:  "a fork bomb is bounded where a pids cgroup is delegated; status says so in enforced=",
	56:  "needs a file of ours that does not answer, and every handler obeys the interrupt; fs.TestInterruptStorm has the mechanism",
	58:  "mounts do not change while an agent runs: the mount control applies at the next start",
	65:  "nothing of ours is read from a workspace, and .tshrc (inside, data) can only leave directories of tools out",
	67:  "there is no proxy with a list of names",
	91:  "approval: see node/run and cmd/internal/agentd",
	92:  "providers: not the sandbox",
	97:  "schemas of tools: not the sandbox",
	98:  "limits of handles and drafts: fs.TestOpenDirectoriesAreBounded and the like, not the sandbox",
	106: "two users' agents of one name differ by their key everywhere: cmd/internal/daemon.TestShortSocketNames, node/agent.TestKeysReadBack",
	107: "executing an agent's name: not the sandbox",
}

// inHost are the numbers that TestEscapeHost makes.
var inHost = []int{6, 7, 8, 9, 35, 39, 53, 57, 62, 63, 73, 76, 81, 83, 84, 85, 86, 87, 88, 104}

// TestEscapeNumbers: each case is somewhere, and each test that is named exists.
func TestEscapeNumbers(t *testing.T) {
	have := map[int]string{}
	note := func(n int, where string) {
		if have[n] != "" && where != "attempt" && where != "host" {
			t.Errorf("case %d: both %s and %s", n, have[n], where)
		}
		have[n] = where
	}
	for _, a := range attempts72 {
		for _, word := range strings.Fields(a.n) {
			n := 0
			fmt.Sscan(word, &n)
			note(n, "attempt")
		}
	}
	for _, n := range inHost {
		note(n, "host")
	}
	for n := range open {
		note(n, "open")
	}
	for n, test := range elsewhere {
		note(n, "elsewhere")
		dir, name, _ := strings.Cut(test, ".")
		if out, err := exec.Command("grep", "-lE", `^func `+name+`\(t `, "-r", "--include=*_test.go", filepath.Join("..", dir)).Output(); err != nil || len(out) == 0 {
			t.Errorf("case %d: no test %s", n, test)
		}
	}
	for n := 1; n <= 107; n++ {
		if have[n] == "" {
			t.Errorf("case %d is nowhere", n)
		}
	}
}

// bystander is a process of the agent's uid on the host that has what an agent
// must not reach: it listens on an abstract socket, on the loopback and in the
// project, has a segment of shared memory and a secret in its environment. It
// ends with its standard input.
const bystander = `
import ctypes, os, socket, sys
pid = os.getpid()
tcp = socket.socket(); tcp.bind(("127.0.0.1", 0)); tcp.listen()
hidden = socket.socket(socket.AF_UNIX); hidden.bind("\0cortexfs-escape-%d" % pid); hidden.listen()
path = os.environ["SOCK"]
seen = socket.socket(socket.AF_UNIX); seen.bind(path); os.chmod(path, 0o777); seen.listen()
c = ctypes.CDLL(None)
shm = c.shmget(pid, 4096, 0o1666)
print(pid, tcp.getsockname()[1], flush=True)
sys.stdin.read()
c.shmctl(shm, 0, None)
os.unlink(path)
`

// buildProbe compiles the probe once.
func buildProbe(t *testing.T) string {
	t.Helper()
	_, err := exec.LookPath("gcc")
	require(t, "gcc", err == nil, "the probe cannot be compiled")
	out := filepath.Join(bin, "probe")
	if text, err := exec.Command("gcc", "-static", "-O", "-o", out, "testdata/probe.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

func (a attempt) fill(text string, facts map[string]string) string {
	for k, v := range facts {
		text = strings.ReplaceAll(text, "@"+k+"@", v)
	}
	return text
}

// allAttempts is one script; behind the output of each stands a NUL.
func allAttempts(facts map[string]string) string {
	var all strings.Builder
	all.WriteString(`exec 2>/dev/null; P() { /workspace/probe "$@"; }` + "\n")
	for _, a := range attempts72 {
		all.WriteString("(cd /workspace; " + a.fill(a.script, facts) + `); printf '\0'` + "\n")
	}
	return all.String()
}

func judgeAll(t *testing.T, out string, facts map[string]string) {
	t.Helper()
	parts := strings.Split(out, "\x00")
	if len(parts) != len(attempts72)+1 {
		t.Fatalf("%d answers to %d attempts: %q", len(parts)-1, len(attempts72), out)
	}
	for i, a := range attempts72 {
		a.judge(t, parts[i], facts)
	}
}

// int80 is what 32-bit system calls end in: SIGSYS, on a kernel that has them at
// all.
func int80(probe string) string {
	if out, err := exec.Command(probe, "int80").Output(); err == nil && len(out) > 0 {
		return "159"
	}
	return "(159|139)"
}

func (a attempt) judge(t *testing.T, got string, facts map[string]string) {
	t.Helper()
	want := a.fill(a.want, facts)
	if joined := strings.Join(strings.Fields(got), " "); !regexp.MustCompile(`^(?:` + want + `)$`).MatchString(joined) {
		t.Errorf("%s %s: %q, want %s", a.n, a.name, joined, want)
	}
}

// TestEscapeInside makes the attempts inside root's own agent.
func TestEscapeInside(t *testing.T) {
	probe := buildProbe(t)
	w := newWorld(t)
	uid := strings.TrimSpace(read(t, filepath.Join(w.mnt, "agent/coder.d/uid")))
	w.must(`cp "` + probe + `" probe && mkdir -m 0777 pub`)
	facts := w.bystand(uid)
	facts["INT80"] = int80(probe)
	w.must(`TOKEN_OF_THE_HOST=1 ctx agent start coder`)
	for _, a := range attempts72 {
		if a.outside != "" {
			r := w.ctx(`setpriv --reuid ` + uid + ` --regid ` + uid + ` --clear-groups ./probe ` + a.fill(a.outside, facts))
			if r.out != "ok\n" {
				t.Errorf("%s %s: on the host, where it has to work: %q", a.n, a.name, r.out)
			}
		}
	}
	judgeAll(t, w.inside("coder", allAttempts(facts)).out, facts)
	// 39: a socket of the host in a handed-over directory cannot be closed off; it
	// is named.
	if got := w.must(`ctx agent status coder`); !strings.Contains(got, "pub/sock") {
		t.Errorf("39: the listening socket is not named:\n%s", got)
	}
	// 40, 19 a second time: abstract sockets and signals end at a Landlock domain too.
	const version = 1 // LANDLOCK_CREATE_RULESET_VERSION
	if abi, _, num := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version); num == 0 && abi >= 6 {
		if got := w.must(`ctx agent status coder`); !strings.Contains(got, " landlock=") {
			t.Errorf("no Landlock:\n%s", got)
		}
	}
	if got := w.must(`find "$W" "` + w.store + `/durable" -type f -perm /6000`); got != "" {
		t.Errorf("71, 95: on the host: %s", got)
	}
}

// bystand starts the bystander as uid.
func (w *world) bystand(uid string) map[string]string {
	w.t.Helper()
	cmd := command(who{}, append(w.vars(), "TOKEN_OF_THE_HOST=1", "SOCK="+filepath.Join(w.project, "pub/sock")), "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "python3", "-c", bystander)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		w.t.Fatalf("the bystander: %v", err)
	}
	facts := map[string]string{"NPROC": strings.TrimSpace(w.must(`ulimit -Hu`))}
	words := strings.Fields(line)
	facts["PID"], facts["PORT"] = words[0], words[1]
	return facts
}

// userScript is the daemon of a plain user with an agent at work that makes the
// attempts of $S; its parts of output end with a NUL.
const userScript = `
set -e
export CTX_ROOT=$HOME/ctx W=$HOME/project SOCK=$HOME/project/sock
mkdir -m 0700 $HOME/store; mkdir $CTX_ROOT $W
cortexfs $HOME/store $CTX_ROOT
trap 'exec 5>&-; fusermount3 -u $CTX_ROOT; wait' EXIT
ctx bootstrap >/dev/null
cd $W; git init -q; cp "$PROBE" probe
mkfifo $HOME/in; TOKEN_OF_THE_HOST=1 python3 -c "$BYSTANDER" < $HOME/in > $HOME/out &
exec 5> $HOME/in
until [ -s $HOME/out ]; do sleep 0.01; done
read PID PORT < $HOME/out
TOKEN_OF_THE_HOST=1 ctx agent start coder >&2
printf '%s %s %s\0' $PID $PORT $(ulimit -Hu)
S=${S//@PID@/$PID}; S=${S//@PORT@/$PORT}
ctx agent exec coder -- bash -c "$S"; printf '\1'
ctx agent status coder; printf '\1'
for d in "$HOME" / /tmp "$HOME/store" "$CTX_ROOT" "$XDG_RUNTIME_DIR"; do
	cd "$d"; c=0; ctx agent start reviewer >/dev/null 2>&1 || c=$?; echo $c
done; printf '\1'
find $W $HOME/store/durable -type f -perm /6000; printf '\1'
ctx agent stop coder >&2
cd /
`

// TestEscapeInsideUser makes the same attempts inside a plain user's agent, whose
// processes have the user's own uid.
func TestEscapeInsideUser(t *testing.T) {
	needRootFUSE(t)
	needSandbox(t)
	probe := buildProbe(t)
	asUser, err := filepath.Abs("asuser.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := command(who{}, nil, asUser, "env", "PROBE="+probe, "BYSTANDER="+bystander, "S="+allAttempts(nil), "bash", "-c", userScript)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	first, more, _ := strings.Cut(string(out), "\x00")
	parts, words := strings.Split(more, "\x01"), strings.Fields(first)
	if err != nil || len(parts) != 5 || len(words) != 3 {
		t.Fatalf("%v, %d parts:\n%s\n%.2000q", err, len(parts), said.String(), out)
	}
	judgeAll(t, parts[0], map[string]string{"PID": words[0], "PORT": words[1], "NPROC": words[2], "INT80": int80(probe)})
	if !strings.Contains(parts[1], "project/sock") {
		t.Errorf("39: the listening socket is not named:\n%s", parts[1])
	}
	if got := strings.Fields(parts[2]); strings.Join(got, " ") != "13 13 13 13 13 13" {
		t.Errorf("83, 84: starts in home, /, /tmp, store, mount, runtime directory: %s", got)
	}
	if parts[3] != "" {
		t.Errorf("71, 95: on the host: %s", parts[3])
	}
}
