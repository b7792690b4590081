package harden

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NoDump makes the calling process non-dumpable: no other process of its uid can
// trace it, read its memory or take its descriptors (prctl(2), PR_SET_DUMPABLE).
func NoDump() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_DUMPABLE: %w", err)
	}
	return nil
}

// NoNewPrivileges is for the calling thread and what it executes. A set-uid
// bwrap then runs with the caller's rights, which is the only way we use one.
func NoNewPrivileges() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl PR_SET_NO_NEW_PRIVS: %w", err)
	}
	return nil
}

const oomAdd = 500

// Limits sets what a sandbox inherits: no core files (they would land in a
// handed-over directory, with secrets), and a higher chance of being the victim
// when memory runs out. Call it before ids are changed: oom_score_adj is then
// no longer ours to write.
func Limits() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("setrlimit core: %w", err)
	}
	const file = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read oom_score_adj: %w", err)
	}
	now, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read oom_score_adj: %w", err)
	}
	// Only upwards: lowering it takes CAP_SYS_RESOURCE.
	if err := os.WriteFile(file, []byte(strconv.Itoa(min(now+oomAdd, 1000))), 0); err != nil {
		return fmt.Errorf("set oom_score_adj: %w", err)
	}
	return nil
}

// CloseOnExec marks every descriptor from first on close-on-exec, also those
// that were inherited and that nobody here knows of (close_range(2)).
func CloseOnExec(first uint) error {
	if err := unix.CloseRange(first, ^uint(0)>>32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close_range: %w", err)
	}
	return nil
}
