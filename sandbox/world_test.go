package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/sandbox/bwrap"
	"cortexfs/sandbox/harden"
	"cortexfs/sandbox/stage"
)

// The ids of the tests. No account has them, and none is needed.
const (
	ownerID  = 2001
	agentID  = 1879048192
	groupOne = 3001
	groupTwo = 3002
)

// TestMain makes the test binary what cortexfs and ctxterm are in the product:
// the helpers, and the command inside ("probe").
func TestMain(m *testing.M) {
	HelperMain()
	if len(os.Args) > 1 && os.Args[1] == "probe" {
		os.Exit(probeMain(os.Args[2:]))
	}
	os.Exit(runTests(m))
}

// plain is this binary, or with -race one without: a raced program takes half a
// second to start, and every start here is three of them.
var plain string

func runTests(m *testing.M) int {
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	plain = exe
	if raced {
		dir, err := os.MkdirTemp("", "plain")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "test", "-c", "-o", dir+"/test", ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "no plain binary, so this will be slow: %v\n%s", err, out)
		} else {
			plain = dir + "/test"
			helperExe = plain
		}
	}
	return m.Run()
}

// need skips, or fails when CTX_REQUIRE asks for it.
func need(t testing.TB, word string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if strings.Contains(os.Getenv("CTX_REQUIRE"), word) {
		t.Fatalf("%s is required: %v", word, err)
	}
	t.Skipf("no %s here: %v", word, err)
}

// world is a scratch host: a runtime directory, a store, an owner's directory.
type world struct {
	t        testing.TB
	root     bool
	base     string
	skeleton string
	home     string // the agent's home in the store
	work     string // the owner's directory
	wire     *os.File
	self     string // this binary, where everybody can read it
}

func newWorld(t testing.TB) *world {
	t.Helper()
	path, err := bwrap.Locate("")
	need(t, "bwrap", err)
	need(t, "bwrap", bwrap.Probe(context.Background(), path, ownerID, ownerID))
	base, err := os.MkdirTemp("", "sandbox")
	check(t, err)
	check(t, os.Chmod(base, 0o755))
	w := &world{t: t, root: os.Geteuid() == 0, base: base, skeleton: base + "/rt/rootfs", home: base + "/store/home", work: base + "/work", self: base + "/self"}
	t.Cleanup(w.clean)
	for _, dir := range []string{"/rt", "/store", "/store/home", "/work"} {
		check(t, os.Mkdir(base+dir, 0o755))
	}
	if w.root {
		check(t, os.Chown(w.home, ownerID, ownerID))
		check(t, os.Chown(w.work, ownerID, ownerID))
	}
	text, err := os.ReadFile(plain)
	check(t, err)
	check(t, os.WriteFile(w.self, text, 0o755))
	return w
}

// clean says what a test left behind and removes it.
func (w *world) clean() {
	for line := range strings.Lines(mountTable(w.t)) { // others mount and unmount meanwhile
		if strings.Contains(line, w.base) || strings.Contains(line, stage.StagedRoot) {
			w.t.Errorf("left in the host's mount table: %s", line)
		}
	}
	if err := RemoveSkeleton(w.skeleton); err != nil {
		w.t.Error(err)
	}
	if err := os.RemoveAll(w.base); err != nil {
		w.t.Error(err)
	}
}

func mountTable(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	check(t, err)
	return string(text)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// spec is a sandbox with a home and a workspace.
func (w *world) spec() Spec {
	s := Spec{Agent: "coder", Session: "default", Root: w.root, Iso: IsoShared, Owner: ownerID, UID: ownerID, GID: ownerID,
		Caller: Account{UID: ownerID, GID: ownerID}, Skeleton: w.skeleton, Term: w.self, Cwd: "/workspace",
		Env: Environment("coder", "default", ownerID, nil, nil),
		Rows: []Row{
			{Line: 2, Kind: Store, Store: "home", Source: "/ctx/home/2001/agent/coder", Target: HomePath, RW: true, Recursive: true, Handover: true, Home: true},
			{Origin: "workspace", Kind: Host, Source: w.work, Target: "/workspace", RW: true, Recursive: true, Caller: true, Handover: true},
		}}
	if !w.root {
		groups, _ := os.Getgroups()
		for _, g := range groups {
			if g != ownerID {
				s.Groups = append(s.Groups, uint32(g))
			}
		}
	}
	return s
}

// agentOfRoot turns a spec into that of root's own agent.
func agentOfRoot(w *world, s Spec) Spec {
	s.Iso, s.Owner, s.UID, s.GID = IsoUID, 0, agentID, agentID
	s.Caller = Account{}
	for _, dir := range []string{w.home, w.work} {
		check(w.t, os.Chown(dir, 0, 0))
	}
	return s
}

func (w *world) plan(s Spec) *Plan {
	w.t.Helper()
	p, err := s.Plan()
	check(w.t, err)
	check(w.t, MakeSkeleton(w.skeleton, p))
	return p
}

func (w *world) files() (StartFiles, func()) {
	home, err := os.OpenFile(w.home, unix.O_PATH|unix.O_DIRECTORY, 0)
	check(w.t, err)
	return StartFiles{Store: map[string]*os.File{"home": home}}, func() { home.Close() }
}

// box is a running sandbox whose command is a probe: it answers lines of JSON.
type box struct {
	*Running
	t    testing.TB
	plan *Plan
	in   *os.File
	out  *json.Decoder
	raw  *os.File
}

// start runs the probe server inside and waits for its hello.
func (w *world) start(s Spec) *box {
	w.t.Helper()
	b, err := w.tryStart(s)
	check(w.t, err)
	return b
}

func (w *world) tryStart(s Spec) (*box, error) {
	w.t.Helper()
	s.Command = []string{TermPath, "probe", "serve"}
	p, err := s.Plan()
	if err != nil {
		return nil, err
	}
	if err := MakeSkeleton(w.skeleton, p); err != nil {
		return nil, err
	}
	return w.run(p)
}

func (w *world) run(p *Plan) (*box, error) {
	w.t.Helper()
	f, done := w.files()
	defer done()
	in, inW, err := os.Pipe()
	check(w.t, err)
	outR, out, err := os.Pipe()
	check(w.t, err)
	f.Stdin, f.Stdout, f.Wire = in, out, w.wire
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	r, err := Start(ctx, p, f)
	in.Close()
	out.Close()
	if err != nil {
		inW.Close()
		outR.Close()
		return nil, err
	}
	b := &box{Running: r, t: w.t, plan: p, in: inW, out: json.NewDecoder(outR), raw: outR}
	w.t.Cleanup(b.stop)
	var hello string
	if err := b.out.Decode(&hello); err != nil {
		<-r.Done()
		return b, r.Exit().Err()
	}
	return b, nil
}

func (b *box) stop() {
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	if err := b.Kill(ctx); err != nil {
		b.t.Error(err)
	}
	<-b.Done()
	b.in.Close()
	b.raw.Close()
}

// do runs one probe inside.
func (b *box) do(words ...string) string {
	b.t.Helper()
	text, err := json.Marshal(words)
	check(b.t, err)
	_, err = b.in.Write(append(text, '\n'))
	check(b.t, err)
	var reply string
	if err := b.out.Decode(&reply); err != nil {
		b.t.Fatalf("probe %q: %v", words, err)
	}
	return reply
}

// sh runs a shell line inside and returns its output and "rc N".
func (b *box) sh(line string) string {
	b.t.Helper()
	return b.do("sh", line)
}

func (b *box) want(what, have, want string) {
	b.t.Helper()
	if have != want {
		b.t.Errorf("%s: %q, want %q", what, have, want)
	}
}

// childOfRoot marks the test process of a plain user that asUser started: a root
// process beside it makes the mounts that it asks for.
const childOfRoot = "CORTEXFS_TEST_CHILD_OF_ROOT"

// needMountsByRoot skips what a plain user alone cannot set up.
func needMountsByRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 && os.Getenv(childOfRoot) == "" {
		t.Skip("needs root to make mounts beside the user")
	}
}

// asUser runs the calling test once more in a child that is a plain user: the
// way a user's daemon would run it. prepare gets the child's TMPDIR.
func asUser(t *testing.T, prepare ...func(dir string)) (isChild bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	dir, err := os.MkdirTemp("", "asuser")
	check(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	check(t, os.Chmod(dir, 0o777))
	for _, f := range prepare {
		f(dir)
	}
	text, err := os.ReadFile(plain)
	check(t, err)
	check(t, os.WriteFile(dir+"/test", text, 0o755))
	asks, asksW, err := os.Pipe()
	check(t, err)
	answersR, answers, err := os.Pipe()
	check(t, err)
	cmd := exec.Command(dir+"/test", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v", "-test.count=1")
	cmd.Env = []string{"TMPDIR=" + dir, "HOME=" + dir, "CTX_REQUIRE=" + os.Getenv("CTX_REQUIRE"), "PATH=/usr/bin:/bin", childOfRoot + "=1"}
	cmd.Dir = dir
	cmd.ExtraFiles = []*os.File{asksW, answersR}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ownerID, Gid: ownerID}}
	served := make(chan struct{})
	go func() {
		defer close(served)
		serveMounts(dir, asks, answers)
	}()
	out, err := cmd.CombinedOutput()
	asksW.Close()
	answersR.Close()
	<-served
	if err != nil {
		t.Errorf("as uid %d: %v\n%s", ownerID, err, out)
	} else if strings.Contains(string(out), "--- SKIP") {
		t.Skipf("as uid %d:\n%s", ownerID, out)
	}
	return false
}

// serveMounts does for a child that is a user what fusermount3 does for a user's
// daemon: it mounts and unmounts below the child's directory.
func serveMounts(dir string, asks, answers *os.File) {
	defer asks.Close()
	defer answers.Close()
	in, out := json.NewDecoder(asks), json.NewEncoder(answers)
	for {
		var ask [3]string
		if err := in.Decode(&ask); err != nil {
			return
		}
		var err error
		switch {
		case !strings.HasPrefix(ask[1], dir+"/"):
			err = unix.EPERM
		case ask[0] == "mount":
			err = mountStandIn(dir+"/aside", ask[1], ask[2])
		default:
			err = unix.Unmount(ask[1], unix.MNT_DETACH)
		}
		out.Encode(fmt.Sprint(err))
	}
}

// mounter are the descriptors of a child to its parent.
var mounter = [2]*os.File{os.NewFile(3, "asks"), os.NewFile(4, "answers")}

// askParent is the child's side.
func askParent(t testing.TB, words ...string) {
	t.Helper()
	check(t, json.NewEncoder(mounter[0]).Encode(words))
	var reply string
	check(t, json.NewDecoder(mounter[1]).Decode(&reply))
	if reply != "<nil>" {
		t.Fatal(words, reply)
	}
}

// probeMain is what runs inside.
func probeMain(args []string) int {
	if len(args) == 1 && args[0] == "serve" {
		enc, dec := json.NewEncoder(os.Stdout), json.NewDecoder(os.Stdin)
		enc.Encode("hello")
		for {
			var words []string
			if err := dec.Decode(&words); err != nil {
				return 0
			}
			enc.Encode(probe(words))
		}
	}
	fmt.Println(probe(args))
	return 0
}

func probe(words []string) string {
	switch words[0] {
	case "sh":
		cmd := exec.Command("/bin/sh", "-c", words[1])
		out, err := cmd.CombinedOutput()
		if err != nil {
			return string(out) + err.Error()
		}
		return string(out)
	case "read":
		text, err := os.ReadFile(words[1])
		return answerOf(string(text), err)
	case "write":
		return answerOf("ok", os.WriteFile(words[1], []byte("x"), 0o644))
	case "readdir":
		list, err := os.ReadDir(words[1])
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		return answerOf(strings.Join(names, " "), err)
	case "daemon":
		daemonMain(words[1])
	case "nodump":
		return answerOf("ok", harden.NoDump())
	case "descriptors":
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err.Error()
		}
		out := ""
		for _, e := range list {
			if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // not the listing's own
				out += e.Name() + "=" + target + "\n"
			}
		}
		return out
	case "int80":
		foreignCall()
	case "x32":
		unix.RawSyscall(0x40000000|unix.SYS_GETPID, 0, 0, 0)
		return "alive"
	case "call":
		return rawCall(words[1:])
	}
	return "unknown probe"
}

func answerOf(text string, err error) string {
	if err == nil {
		return text
	}
	for {
		var num syscall.Errno
		if e, ok := err.(interface{ Unwrap() error }); ok {
			err = e.Unwrap()
			continue
		}
		if e, ok := err.(syscall.Errno); ok {
			num = e
			return unix.ErrnoName(num)
		}
		return err.Error()
	}
}
