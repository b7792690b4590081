package agentd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Descriptors of a host process, in the order of Files. 0 and 1 are /dev/null,
// 2 is the log.
const (
	fdParams = 3 + iota
	fdWire
	fdTerm
	fdCtl
	fdLock
	fdAgent // with Params.Runs
	fdInner
	fdSessions
	fdRecords
)

// Files is what a host process inherits. All are required but Log. The caller
// keeps its own copies and closes them after Start (the lock above all: the
// flock lives as long as any copy of its description).
type Files struct {
	Wire *os.File // host end of the SOCK_STREAM pair whose other end is ctxterm's fd 3
	Term *os.File // listening terminal socket
	Ctl  *os.File // listening ctl.sock
	Lock *os.File // lock file with the flock held: proof of life
	Log  *os.File // JSONL diagnostics of the process; nil: /dev/null

	// What runs need; all or none.
	Agent    *os.File // listening agent.sock
	Inner    *os.File // listening control.sock of the sandbox
	Sessions *os.File // the agent's session/ directory, of the process's uid
	Records  *os.File // what decides: a directory of the process's uid that no sandbox has
}

func (f *Files) runs() []*os.File { return []*os.File{f.Agent, f.Inner, f.Sessions, f.Records} }

// Credential is the identity of a host process; nil in Start means the
// daemon's own (a user's daemon).
type Credential struct {
	UID, GID uint32
	Groups   []uint32
}

// Start runs the host process: binary bin (ctxagent, off the mount), argv
// "ctxagent NAME", empty environment, cwd /, an own session, no descriptor but
// Files. Uid or gid 0 is refused when the daemon is root (spec section 24).
//
// The caller must Wait for the process (or Release it) and connects with Dial.
func Start(bin string, p *Params, f Files, id *Credential) (*os.Process, error) {
	if id != nil && (id.UID == 0 || id.GID == 0) {
		return nil, fmt.Errorf("start host process of %s: uid and gid 0 are never used", p.Key)
	}
	for _, file := range []*os.File{f.Wire, f.Term, f.Ctl, f.Lock} {
		if file == nil {
			return nil, fmt.Errorf("start host process of %s: a descriptor is missing", p.Key)
		}
	}
	p.Runs = f.Agent != nil
	if p.Runs && (f.Inner == nil || f.Sessions == nil || f.Records == nil) {
		return nil, fmt.Errorf("start host process of %s: a descriptor of its runs is missing", p.Key)
	}
	text, err := p.Encode()
	if err != nil {
		return nil, err
	}
	mem, err := memfd("cortexfs-params", text)
	if err != nil {
		return nil, err
	}
	defer mem.Close()
	cmd := &exec.Cmd{
		Path:       bin,
		Args:       []string{"ctxagent", p.Agent},
		Env:        []string{},
		Dir:        "/",
		ExtraFiles: []*os.File{mem, f.Wire, f.Term, f.Ctl, f.Lock},
		SysProcAttr: &syscall.SysProcAttr{
			Setsid: true,
		},
	}
	if p.Runs {
		cmd.ExtraFiles = append(cmd.ExtraFiles, f.runs()...)
	}
	if f.Log != nil {
		cmd.Stderr = f.Log
	}
	if id != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: id.UID, Gid: id.GID, Groups: id.Groups}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start host process of %s: %w", p.Key, err)
	}
	return cmd.Process, nil
}

// memfd is a sealed in-memory file with the given content, at offset 0.
func memfd(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	_, werr := file.Write(text)
	_, serr := file.Seek(0, 0)
	_, cerr := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	if err := errors.Join(werr, serr, cerr); err != nil {
		file.Close()
		return nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	return file, nil
}
