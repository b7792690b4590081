package stage

import (
	"encoding/json"
	"fmt"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/harden"
)

// Places in the skeleton for masks, as files of ours.
const (
	MaskFile = "run/cortexfs/empty"
	MaskDir  = "run/cortexfs/empty.d"
)

// become says that all is set, takes the agent's ids and executes bwrap. The
// environment is empty: what the agent's env control says is for the inside, and
// bwrap itself still runs outside.
func (s *stager) become(out io.Writer) error {
	fail := func(step int, what string, err error) error {
		return Fail(step, "", 0, fault.Unavailable, "", "%s: %v", what, err)
	}
	s.result.Landlock = harden.Landlock()
	if err := json.NewEncoder(out).Encode(s.result); err != nil {
		return fail(StepExec, "report", err)
	}
	s.result.Warnings = nil // said already
	if err := s.identity(); err != nil {
		return fail(StepIdentity, "take the agent's ids", err)
	}
	if err := harden.NoNewPrivileges(); err != nil {
		return fail(StepIdentity, "harden", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fail(StepExec, "chdir /", err)
	}
	if err := s.descriptors(); err != nil {
		return fail(StepExec, "arrange descriptors", err)
	}
	if s.result.Landlock > 0 {
		if err := harden.Scope(); err != nil {
			return fail(StepExec, "harden", err)
		}
	}
	argv := append([]string{"bwrap", "--args", utoa(FDArgs)}, s.req.Command...)
	err := syscall.Exec(s.req.Bwrap, argv, []string{})
	return fail(StepExec, "execute "+s.req.Bwrap, err)
}

// identity changes the ids of this thread, the one that will execute. Raw calls:
// the library's change all threads, and the others are about to be gone.
func (s *stager) identity() error {
	if !s.req.Root {
		// The capabilities of the user namespace go with the ambient set.
		return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	}
	id := s.req.Identity
	groups := make([]int, len(id.Groups))
	for i, g := range id.Groups {
		groups[i] = int(g)
	}
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if _, _, num := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(id.GID), uintptr(id.GID), uintptr(id.GID)); num != 0 {
		return fmt.Errorf("setresgid: %w", num)
	}
	if _, _, num := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id.UID), uintptr(id.UID), uintptr(id.UID)); num != 0 {
		return fmt.Errorf("setresuid: %w", num)
	}
	// Number -1 means "leave it" to these calls, and 0 is nobody's here.
	uid, euid, suid := unix.Getresuid()
	if want := int(id.UID); uid != want || euid != want || suid != want || want == 0 {
		return fmt.Errorf("uid is %d %d %d, not %d", uid, euid, suid, want)
	}
	gid, egid, sgid := unix.Getresgid()
	if want := int(id.GID); gid != want || egid != want || sgid != want || want == 0 {
		return fmt.Errorf("gid is %d %d %d, not %d", gid, egid, sgid, want)
	}
	return nil
}

// descriptors lets bwrap inherit what it needs; everything else closes on exec.
func (s *stager) descriptors() error {
	keep := []uintptr{FDStatus, FDSeccomp, FDArgs}
	if s.req.Wire {
		keep = append(keep, FDWire)
	}
	for _, fd := range keep {
		if _, err := unix.FcntlInt(fd, unix.F_SETFD, 0); err != nil {
			return err
		}
	}
	return nil
}
