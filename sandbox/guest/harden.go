package guest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// harden makes the process what it must be before it reads a byte: not dumpable,
// without new privileges for anything it starts, and with no descriptor that it
// was not given on purpose.
func harden(wireFD int) error {
	if err := noNewPrivs(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set not dumpable: %w", err)
	}
	if os.Getpid() != 1 {
		// Orphans come to us as they would to an init: nobody escapes the end.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("become subreaper: %w", err)
		}
	}
	if err := closeInherited(wireFD); err != nil {
		return err
	}
	return detachStdio()
}

// noNewPrivs makes sure of the bit that bwrap sets. It belongs to a thread, and
// Go has several already: where it is missing, the process sets it on one and
// executes itself again from there.
func noNewPrivs() error {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read no_new_privs: %w", err)
	}
	if set == 1 {
		return nil
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return fmt.Errorf("execute again: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// closeInherited closes what came through exec besides stdio and the wire. Only
// inherited descriptors lack close-on-exec: Go opens all of its own with it.
func closeInherited(wireFD int) error {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= 2 || fd == wireFD {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
	unix.CloseOnExec(wireFD)
	return nil
}

// detachStdio leaves no way to a terminal of the host: input and output are
// /dev/null, errors stay where the host sent them unless that is a terminal.
func detachStdio() error {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer null.Close()
	fds := []int{0, 1}
	if _, err := unix.IoctlGetTermios(2, unix.TCGETS); err == nil {
		fds = append(fds, 2)
	} else if _, err := unix.FcntlInt(2, unix.F_GETFD, 0); err != nil {
		fds = append(fds, 2)
	}
	for _, fd := range fds {
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return fmt.Errorf("replace descriptor %d: %w", fd, err)
		}
	}
	return nil
}
