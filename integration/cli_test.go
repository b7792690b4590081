package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTopOnTerminal looks at `ctx agent top` in tmux: what a person sees, and that
// keys do what the last line says.
func TestTopOnTerminal(t *testing.T) {
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("no tmux here")
	}
	needSandbox(t)
	d := newDaemon(t, "")
	vars := []string{"CTX_ROOT=" + d.mnt, "TMUX_TMPDIR=" + d.dir}
	if r := d.sh(who{}, "ctx bootstrap && ctx agent start coder --no-default-workspace", vars...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	tmux := func(args ...string) string {
		t.Helper()
		r := runProgram(t, who{}, vars, append([]string{"tmux", "-L", "top", "-f", "/dev/null"}, args...)...)
		if r.code != 0 {
			t.Fatalf("tmux %q: %+v", args, r)
		}
		return r.out
	}
	tmux("new-session", "-d", "-x", "110", "-y", "24", "ctx agent top; echo ended; sleep 60")
	defer tmux("kill-server")
	see := func(want string) string {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			screen := tmux("capture-pane", "-p")
			if strings.Contains(screen, want) {
				return screen
			}
			if time.Now().After(deadline) {
				t.Fatalf("no %q on the screen:\n%s", want, screen)
			}
			time.Sleep(20 * time.Millisecond) // a screen is no event that can be waited for
		}
	}
	screen := see("1 running, 3 agents")
	for _, want := range []string{"AGENT", "STATE", "CPU%", "> agent/coder", "ready", "q end"} {
		if !strings.Contains(screen, want) {
			t.Errorf("no %q on the screen:\n%s", want, screen)
		}
	}
	if strings.Contains(screen, "reviewer") {
		t.Errorf("dead agents are shown unasked:\n%s", screen)
	}
	tmux("send-keys", "d")
	see("agent/reviewer")
	tmux("send-keys", "s")
	see("stop agent/coder? y/n")
	tmux("send-keys", "y")
	see("0 running, 3 agents")
	if r := d.sh(who{}, "cat $CTX_ROOT/agent/coder.d/status", vars...); r.out != "dead\n" {
		t.Errorf("after s, y: %+v", r)
	}
	tmux("send-keys", "q")
	see("ended")
}

// TestCompletionOfATree: names of agents, tools and paths come from the tree.
func TestCompletionOfATree(t *testing.T) {
	d := newDaemon(t, "")
	vars := []string{"CTX_ROOT=" + d.mnt}
	if r := d.sh(who{}, "ctx bootstrap", vars...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for words, want := range map[string]string{
		"agent start ''":      "architect coder reviewer",
		"agent why coder fs.": "fs.list fs.read fs.replace fs.stat fs.write",
		"cat agent/coder.d/p": "agent/coder.d/parent agent/coder.d/path agent/coder.d/pid agent/coder.d/policy agent/coder.d/prompt.template.md",
		"set ''":              "agent/ bin/ home/ model/ shared/ tool/",
	} {
		r := d.sh(who{}, "ctx __complete "+words+" 2>/dev/null", vars...)
		for _, w := range strings.Fields(want) {
			if !strings.Contains("\n"+r.out, "\n"+w+"\n") {
				t.Errorf("%s: no %s in %q", words, w, r.out)
			}
		}
	}
}

// TestJSONEverywhere: with -o json every command that prints data prints JSON,
// errors included.
func TestJSONEverywhere(t *testing.T) {
	needSandbox(t)
	d := newDaemon(t, "")
	vars := []string{"CTX_ROOT=" + d.mnt}
	if r := d.sh(who{}, "ctx bootstrap && ctx agent start coder --no-default-workspace", vars...); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for _, c := range []string{
		"status", "version", "ls", "ls agent", "cat status", "env", "which agent coder", "which tool fs.read", "file list", "file help mount",
		"file type agent/coder.d/mount", "agent ps", "agent status coder", "agent env coder", "agent view coder", "agent why coder fs.read",
		"agent top --once", "agent wait coder --state ready", "policy check coder", "doctor --quick", "bootstrap --check", "agent stop coder",
		"agent status nobody", "cat nothing", "nonsense", "agent start coder --dry-run",
	} {
		out := d.sh(who{}, "ctx -o json "+c, vars...)
		dec := json.NewDecoder(strings.NewReader(out.out))
		n := 0
		for dec.More() {
			var v any
			if err := dec.Decode(&v); err != nil {
				t.Errorf("%s: %v in\n%.300s", c, err, out.out)
				break
			}
			n++
		}
		if n == 0 {
			t.Errorf("%s: exit %d and no JSON", c, out.code)
		}
	}
}

// TestUpDownOfTwoUsers: `ctx up` in the background, twice; two users of one
// machine do not see each other's trees; nothing is left after `ctx down`.
func TestUpDownOfTwoUsers(t *testing.T) {
	needSandbox(t)
	file := filepath.Join(t.TempDir(), "users.sh")
	if err := os.WriteFile(file, []byte(usersScript), 0o644); err != nil {
		t.Fatal(err)
	}
	needRootFUSE(t)
	shell, err := filepath.Abs("private.sh")
	if err != nil {
		t.Fatal(err)
	}
	r := runProgram(t, who{}, nil, "bash", shell, "bash", file, bin)
	if r.code != 0 || strings.Contains(r.out, "FAIL") || !strings.HasSuffix(r.out, "users done\n") {
		t.Errorf("exit %d:\n%s", r.code, r.out)
	}
}

const usersScript = `set -u
bin=$1
chmod 755 /run/m
fail() { echo "FAIL $*"; }
as() { local n=$1 h=/run/m/home; shift; [ $n = 1 ] || h=/run/m/home2
	setpriv --reuid 200$n --regid 200$n --clear-groups env -i HOME=$h XDG_RUNTIME_DIR=/run/user/200$n PATH=$bin:/usr/bin:/bin "$@" < /dev/null; }
out=$(timeout 30 bash -c 'true' ; as 1 ctx up 2>&1 | cat) || fail "up: $out"
[[ $out == *": up"* ]] || fail "up says: $out"
out=$(as 1 ctx up) && [[ $out == *"up already"* ]] || fail "up again: $out"
as 2 ctx up > /dev/null || fail "the second user's up"
[ "$(as 1 cat /run/m/home/ctx/status)" = ready ] || fail "no tree of the first"
[ "$(as 2 cat /run/m/home2/ctx/status)" = ready ] || fail "no tree of the second"
chmod 711 /run/m/home /run/m/home2
as 2 cat /run/m/home/ctx/status 2>/dev/null && fail "the second enters the first's tree"
as 2 env CTX_ROOT=/run/m/home/ctx ctx agent ps 2>/dev/null && fail "the second asks the first's daemon"
cat /run/m/home/ctx/status 2>/dev/null && fail "root enters a user's tree"
for n in 1 2; do
	as $n ctx bootstrap > /dev/null || fail "bootstrap $n"
	as $n ctx agent start coder --no-default-workspace > /dev/null || fail "start $n"
done
[ "$(as 1 ctx agent exec coder -- cat /ctx/status)" = ready ] || fail "inside"
p=$(as 1 cat /run/m/home/ctx/agent/coder.d/pid)
as 2 kill -0 $p 2>/dev/null && fail "the second may signal the first's agent"
as 2 ls /run/user/2001 > /dev/null 2>&1 && fail "the second looks into the first's runtime directory"
[ -s /run/m/home/.local/share/cortexfs/state/cortexfs.log ] || fail "no log"
# a mount point with something in it is refused
as 1 ctx down > /dev/null || fail "down 1"
[ ! -d /proc/$p ] || fail "the agent outlives down"
as 1 touch /run/m/home/ctx/mine
out=$(as 1 ctx up 2>&1) && fail "up over a directory that is not empty"
[[ $out == *"not empty"* ]] || fail "says: $out"
as 1 rm /run/m/home/ctx/mine
# a crash: up again clears the dead mount
as 1 ctx up > /dev/null || fail "up after down"
d=$(as 1 ctx status -o json | sed -n 's/.*"daemon_pid": *\([0-9]*\).*/\1/p')
kill -9 $d; for _ in $(seq 200); do [ -d /proc/$d ] || break; sleep 0.01; done
out=$(as 1 ctx status 2>&1) && fail "a dead tree answers"
as 1 ctx up > /dev/null || fail "up after a crash"
as 1 ctx down > /dev/null || fail "down 1 again"
as 2 ctx down > /dev/null || fail "down 2"
grep -E ' /run/m/[^ ]*ctx ' /proc/self/mountinfo && fail "still mounted"
[ -z "$(ls -A /run/user/2001/cortexfs 2>/dev/null)$(ls -A /run/user/2002/cortexfs 2>/dev/null)" ] || fail "left: $(ls -R /run/user/2001 /run/user/2002)"
echo "users done"
`
