package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/bwrap"
	"cortexfs/sandbox/harden"
	"cortexfs/sandbox/stage"
)

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
	var status *os.File
	var err2 error
	if l.status, status, err2 = bwrap.StatusPipe(); err2 == nil {
		ends = append(ends, status)
	}
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

// helperExe is this program; a variable for tests whose own binary starts slowly.
var helperExe = "/proc/self/exe"

// start runs the stage helper: for root as it is; for a user in a user namespace
// of one uid and gid, with the one capability that mounting takes.
func (l *launched) start(p *Plan, f StartFiles, files []*os.File) error {
	cmd := &exec.Cmd{Path: helperExe, Args: []string{stage.StageName}, Env: []string{}, Dir: "/", ExtraFiles: files}
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
	r := &Running{PID: outer.PID, Init: init.PID, outer: outer, init: init, status: reader, launched: l, done: make(chan struct{})}
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

// kill ends the helper or bwrap, with what it has forked: stopped first, so that
// no child appears after we looked. A child may be an open helper that hangs
// beyond SIGKILL; it is counted then and left behind.
func (l *launched) kill() {
	if l.cmd == nil || l.waited {
		return
	}
	l.cmd.Process.Signal(unix.SIGSTOP)
	var kids []*handle
	for _, pid := range children(l.cmd.Process.Pid) {
		h, err := hold(pid)
		if err != nil {
			continue
		}
		if up, err := parentOf(pid); err == nil && up == l.cmd.Process.Pid {
			h.kill()
			kids = append(kids, h)
		}
	}
	l.cmd.Process.Kill()
	l.cmd.Wait()
	l.waited = true
	limit := time.NewTimer(killGrace)
	defer limit.Stop()
	for i, h := range kids {
		select {
		case <-h.gone:
		case <-limit.C:
			stuck.keep(l.owner, kids[i:])
			return
		}
	}
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
