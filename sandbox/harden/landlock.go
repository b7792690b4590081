package harden

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// landlockScopes are what a domain cuts off from processes outside of it: abstract
// sockets and signals (landlock(7)). No access to files is handled: the mounts
// decide about those, and a domain that handles files forbids every mount, which
// bubblewrap has to make yet.
const (
	landlockScopes   = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	landlockScopeABI = 6 // Linux 6.12
)

// Landlock is the version that the kernel has, if it is one that knows scopes;
// else 0, also where it is turned off. No guarantee rests on it: namespaces cut the
// same ways, this does it a second time.
func Landlock() int {
	v, _, num := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if num != 0 || int(v) < landlockScopeABI {
		return 0
	}
	return int(v)
}

// Scope puts the calling thread, and what it executes, into a domain of its own.
// It needs no_new_privs. Call it where Landlock is not 0.
func Scope() error {
	attr := unix.LandlockRulesetAttr{Scoped: landlockScopes}
	fd, _, num := unix.RawSyscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if num != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", num)
	}
	defer unix.Close(int(fd))
	if _, _, num := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); num != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", num)
	}
	return nil
}
