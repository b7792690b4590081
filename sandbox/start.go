package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/bwrap"
	"cortexfs/sandbox/harden"
	"cortexfs/sandbox/stage"
)

// Effective is a row as it was mounted: resolved source, real flags.
type Effective = stage.Effective

// StartError says why a start ended: step, control and line, cure, exit code.
type StartError = stage.StartError

// StartFiles are the descriptors that go with a Plan. Start duplicates them; the
// caller keeps and closes its own.
type StartFiles struct {
	Wire  *os.File            // becomes fd 3 of the command; nil: none
	Store map[string]*os.File // O_PATH directories for rows of kind Store
	// Standard files of the command; nil: /dev/null, and for Stderr a small memory
	// file whose text shows up in Exit.Message.
	Stdin, Stdout, Stderr *os.File
}

const (
	startLimit = 30 * time.Second // one start, all in all
	maxStuck   = 4                // open helpers of one uid left behind in hanging file systems
	stderrSize = 16 << 10
)

// HelperMain must be the first call of main in every program that calls Start or
// Check. Under the names cortexfs-stage and cortexfs-open (argv[0]) it does that
// helper's work and never returns; else it returns at once.
func HelperMain() {
	if len(os.Args) == 0 {
		return
	}
	switch filepath.Base(os.Args[0]) {
	case stage.StageName:
		os.Exit(stage.Main())
	case stage.OpenName:
		os.Exit(stage.OpenMain(os.Args))
	}
}

// Check does everything of Start up to the mounts and returns the table with
// resolved sources, and warnings (--dry-run).
func Check(ctx context.Context, p *Plan, f StartFiles) ([]Effective, []string, error) {
	l, err := launch(ctx, p, f, true)
	if err != nil {
		return nil, nil, err
	}
	defer l.close()
	res, err := l.result(ctx)
	if err != nil {
		return nil, nil, err
	}
	return res.Table, res.Warnings, nil
}

// Start runs the plan. It returns when bwrap has made the namespaces; the command
// may not have been executed yet: wait for its hello on the wire (or Done) and
// then call Verify. An error is a *StartError and nothing is left then.
func Start(ctx context.Context, p *Plan, f StartFiles) (*Running, error) {
	ctx, stop := context.WithTimeout(ctx, startLimit)
	defer stop()
	path := p.Argv[0]
	if err := bwrap.Probe(ctx, path, p.Spec.UID, p.Spec.GID); err != nil {
		return nil, stage.Fail(stage.StepNamespace, "", 0, fault.KindOf(err), "", "%v", err)
	}
	l, err := launch(ctx, p, f, false)
	if err != nil {
		return nil, err
	}
	res, err := l.result(ctx)
	if err != nil {
		l.close()
		return nil, err
	}
	r, err := l.running(ctx)
	if err != nil {
		l.close()
		return nil, err
	}
	r.Table, r.Warnings = res.Table, res.Warnings
	return r, nil
}

// launched is a stage helper on its way to become bwrap.
type launched struct {
	cmd    *exec.Cmd
	owner  uint32
	res    *os.File // result descriptor, read end
	status *os.File // bwrap's status descriptor, read end
	said   *os.File // bwrap's stderr; nil: the caller's
	waited bool
}

func launch(ctx context.Context, p *Plan, f StartFiles, check bool) (*launched, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	bad := func(err error) (*launched, error) {
		return nil, stage.Fail(stage.StepNamespace, "", 0, fault.KindOf(err), "", "%v", err)
	}
	l := &launched{owner: p.Spec.Owner}
	var ends []*os.File // of the child's side
	defer func() {
		for _, e := range ends {
			e.Close()
		}
	}()
	pipe := func(r **os.File) (w *os.File, err error) {
		if *r, w, err = os.Pipe(); err == nil {
			ends = append(ends, w)
		}
		return w, err
	}
	memory := func(name string, text []byte) (*os.File, error) {
		m, err := harden.MemFile(name, text)
		if err == nil {
			ends = append(ends, m)
		}
		return m, err
	}
	options, command := bwrap.Split(p.Argv[1:])
	req, stores := p.request(f, command, check)
	text, err := json.Marshal(req)
	if err != nil {
		return bad(err)
	}
	program, err := harden.Program()
	if err != nil {
		return bad(err)
	}
	result, err1 := pipe(&l.res)
	status, err2 := pipe(&l.status)
	request, err3 := memory("request", text)
	seccomp, err4 := memory("seccomp", program)
	args, err5 := memory("args", options)
	null, err6 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	skeleton, err7 := os.OpenFile(p.Spec.Skeleton, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	ends = append(ends, null, skeleton)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7); err != nil {
		l.close()
		return bad(err)
	}
	wire := f.Wire
	if wire == nil {
		wire = null
	}
	files := append([]*os.File{wire, request, result, status, seccomp, args, skeleton}, stores...)
	if err := l.start(p, f, files); err != nil {
		l.close()
		return bad(err)
	}
	return l, nil
}

// start runs the stage helper: for root as it is; for a user in a user namespace
// of one uid and gid, with the one capability that mounting takes.
func (l *launched) start(p *Plan, f StartFiles, files []*os.File) error {
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{stage.StageName}, Env: []string{}, Dir: "/", ExtraFiles: files}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !p.Spec.Root {
		uid, gid := os.Geteuid(), os.Getegid()
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	// A nil *os.File must not become a non-nil io.Reader.
	if f.Stdin != nil {
		cmd.Stdin = f.Stdin
	}
	if f.Stdout != nil {
		cmd.Stdout = f.Stdout
	}
	if cmd.Stderr = f.Stderr; f.Stderr == nil {
		said, err := boundedFile("bwrap", stderrSize)
		if err != nil {
			return err
		}
		l.said, cmd.Stderr = said, said
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.cmd = cmd
	return nil
}

// boundedFile is a memory file of a fixed size: a pipe would need a reader for as
// long as the agent lives, and a file could be filled without end.
func boundedFile(name string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := f.Truncate(size); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ready checks what only the running daemon can know.
func (p *Plan) ready() error {
	s := &p.Spec
	fail := func(control string, line int, kind fault.Kind, cure, format string, args ...any) error {
		return stage.Fail(stage.StepIdentity, control, line, kind, cure, format, args...)
	}
	if root := os.Geteuid() == 0; root != s.Root {
		return fail("", 0, fault.Invalid, "", "the plan is for a daemon with root=%v, this one has %v", s.Root, root)
	}
	if n := stuck.count(s.Owner); n >= maxStuck {
		return fail("", 0, fault.Again, "end the hanging file systems", "%d earlier opens for uid %d still hang", n, s.Owner)
	}
	if s.Root {
		return nil
	}
	if s.UID != uint32(os.Geteuid()) || s.GID != uint32(os.Getegid()) {
		return fail("uid", 0, fault.Perm, "", "a user's daemon starts agents with its own uid and gid (%d, %d) only", os.Geteuid(), os.Getegid())
	}
	held, err := os.Getgroups()
	if err != nil {
		return fail("groups", 0, fault.IO, "", "%v", err)
	}
	for _, g := range held {
		if g != os.Getegid() && !slices.Contains(s.Groups, uint32(g)) {
			return fail("groups", 0, fault.Unavailable, "list it, or start from a root daemon", "group %d cannot be dropped by a user's daemon", g)
		}
	}
	for i, g := range s.Groups {
		if !slices.Contains(held, int(g)) && int(g) != os.Getegid() {
			return fail("groups", i+1, fault.Perm, "", "the daemon's user is not in group %d", g)
		}
	}
	return nil
}

// request spells the plan out for the stage helper, and lists the directories
// that go with it in the order of their descriptors.
func (p *Plan) request(f StartFiles, command []string, check bool) (*stage.Request, []*os.File) {
	s := &p.Spec
	req := &stage.Request{
		Agent: s.Agent, Root: s.Root, Check: check, Owner: s.Owner, IsoUID: s.Iso == IsoUID,
		Identity: stage.Account{UID: s.UID, GID: s.GID, Groups: s.Groups},
		Caller:   stage.Account{UID: s.Caller.UID, GID: s.Caller.GID, Groups: s.Caller.Groups},
		Rows:     p.Rows, RootDir: s.RootDir, Refuse: append(slices.Clone(s.Refuse), stage.Refusal{Path: filepath.Dir(s.Skeleton), Reason: "the agent's runtime directory"}),
		AllowHome: s.AllowHome, GitRW: s.GitRW, Wire: f.Wire != nil, Bwrap: p.Argv[0], Command: command,
		Skeleton: stage.Handed{FD: stage.FDFirst, Path: s.Skeleton},
		Stores:   map[string]stage.Handed{},
	}
	req.Base = append(req.Base, stage.Base{Source: "/usr", Target: "/usr"}, stage.Base{Source: "/etc/alternatives", Target: "/etc/alternatives", Optional: true})
	for _, name := range merged {
		if st, err := os.Lstat("/" + name); err == nil && st.IsDir() {
			req.Base = append(req.Base, stage.Base{Source: "/" + name, Target: "/" + name})
		}
	}
	if s.Term != "" {
		req.Base = append(req.Base, stage.Base{Source: s.Term, Target: TermPath})
	}
	var files []*os.File
	for key, file := range f.Store {
		path, err := os.Readlink("/proc/self/fd/" + itoa(int(file.Fd())))
		if err != nil {
			path = file.Name()
		}
		req.Stores[key] = stage.Handed{FD: stage.FDFirst + 1 + len(files), Path: path}
		files = append(files, file)
	}
	return req, files
}

// result reads what the stage helper says until it has become bwrap or ended.
func (l *launched) result(ctx context.Context) (*stage.Result, error) {
	stop := context.AfterFunc(ctx, func() { l.res.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var res stage.Result
	dec := json.NewDecoder(l.res)
	got := 0
	for {
		var one stage.Result
		err := dec.Decode(&one)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, l.timedOut(ctx, err)
		}
		stuck.add(l.owner, one.Stuck)
		if one.Error != nil {
			return nil, one.Error
		}
		res, got = one, got+1
	}
	if got == 0 {
		return nil, stage.Fail(stage.StepNamespace, "", 0, fault.IO, "", "the stage helper ended without a word: %s", l.words())
	}
	return &res, nil
}

func (l *launched) timedOut(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return stage.Fail(stage.StepNamespace, "", 0, fault.TimedOut, "", "given up: %v", context.Cause(ctx))
	}
	return stage.Fail(stage.StepNamespace, "", 0, fault.IO, "", "%v", err)
}

// running waits for bwrap's word that the namespaces are made.
func (l *launched) running(ctx context.Context) (*Running, error) {
	stop := context.AfterFunc(ctx, func() { l.status.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	reader := bwrap.NewReader(l.status)
	first, err := reader.Next()
	if err == io.EOF {
		l.cmd.Wait()
		l.waited = true
		return nil, setupFailed(l.words(), l.cmd.ProcessState.String())
	}
	if err != nil {
		return nil, l.timedOut(ctx, err)
	}
	init, err := hold(first.ChildPID)
	if err == nil {
		if up, e := parentOf(init.PID); e != nil || up != l.cmd.Process.Pid {
			err = fault.Newf(fault.NoProcess, "process %d is not bwrap's", first.ChildPID)
		}
	}
	if err != nil {
		// It may have failed by now and said why.
		l.kill()
		return nil, setupFailed(l.words(), err.Error())
	}
	outer, err := hold(l.cmd.Process.Pid)
	if err != nil {
		init.kill()
		l.kill()
		return nil, setupFailed(l.words(), err.Error())
	}
	l.res.Close()
	r := &Running{PID: outer.PID, Init: init.PID, outer: outer, init: init, first: first, status: reader, launched: l, done: make(chan struct{})}
	go r.watch()
	return r, nil
}

// words are what bwrap wrote to its stderr.
func (l *launched) words() string {
	if l.said == nil {
		return ""
	}
	buf := make([]byte, stderrSize)
	n, _ := l.said.ReadAt(buf, 0)
	return strings.Trim(string(buf[:n]), "\x00\n ")
}

// setupFailed sorts bwrap's words into steps of spec 10.1.
func setupFailed(said, how string) error {
	message := bwrap.Explain(said, errors.New(how))
	switch {
	case strings.Contains(said, "Can't chdir"):
		return stage.Fail(stage.StepCwd, "cwd", 0, fault.NotExist, "make it, or write another cwd", "%s", message)
	case strings.Contains(said, "execvp"):
		return stage.Fail(stage.StepExec, "", 0, fault.NotExist, "", "%s", message)
	}
	return stage.Fail(stage.StepNamespace, "", 0, fault.Unavailable, "", "bubblewrap: %s", message)
}

// kill ends the helper or bwrap, with what bwrap has forked: stopped first, so
// that no child appears after we looked.
func (l *launched) kill() {
	if l.cmd == nil || l.waited {
		return
	}
	l.cmd.Process.Signal(unix.SIGSTOP)
	for _, pid := range children(l.cmd.Process.Pid) {
		if h, err := hold(pid); err == nil {
			if up, err := parentOf(pid); err == nil && up == l.cmd.Process.Pid {
				h.kill()
				<-h.gone
			}
		}
	}
	l.cmd.Process.Kill()
	l.cmd.Wait()
	l.waited = true
}

// close ends what runs and closes our descriptors.
func (l *launched) close() {
	l.kill()
	for _, f := range []*os.File{l.res, l.status, l.said} {
		if f != nil {
			f.Close()
		}
	}
}

// stuckTable counts open helpers that were left behind, by the uid whose file
// system they wait in.
type stuckTable struct {
	mu  sync.Mutex
	all map[uint32][]*handle
}

var stuck = stuckTable{all: map[uint32][]*handle{}}

func (t *stuckTable) add(uid uint32, pids []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pid := range pids {
		if h, err := hold(pid); err == nil {
			t.all[uid] = append(t.all[uid], h)
		}
	}
}

func (t *stuckTable) count(uid uint32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[uid] = slices.DeleteFunc(t.all[uid], func(h *handle) bool {
		select {
		case <-h.gone:
			return true
		default:
			return false
		}
	})
	return len(t.all[uid])
}
