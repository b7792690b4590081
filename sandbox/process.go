package sandbox

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// Process names a process for good: pid and start time (ticks since boot, field
// 22 of /proc/PID/stat).
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// handle holds one process by pidfd: whatever becomes of the number, a signal
// through it reaches that process or nobody.
type handle struct {
	Process
	file *os.File
	raw  syscall.RawConn
	gone chan struct{} // closed when the process has ended
}

// hold opens a process by pid and starts to wait for its end. The wait is the
// runtime poller's, it costs no thread.
func hold(pid int) (*handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fault.FromOS("open process", strconv.Itoa(pid), err)
	}
	h := &handle{Process: Process{PID: pid}, file: os.NewFile(uintptr(fd), "pidfd"), gone: make(chan struct{})}
	if h.Start, err = startTime(pid); err == nil {
		// Read before this: the pid cannot have been somebody else's then.
		err = unix.PidfdSendSignal(fd, 0, nil, 0)
		if err == unix.EPERM {
			err = nil // alive, and not ours to signal
		}
	}
	if err == nil {
		h.raw, err = h.file.SyscallConn()
	}
	if err != nil {
		h.file.Close()
		return nil, fault.E("open process", strconv.Itoa(pid), fault.NoProcess, err)
	}
	go h.wait()
	return h, nil
}

func (h *handle) wait() {
	defer close(h.gone)
	defer h.file.Close()
	h.raw.Read(func(fd uintptr) bool { return ended(int(fd)) })
}

func ended(pidfd int) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// kill sends SIGKILL; a process that has ended is no error.
func (h *handle) kill() error { return h.signal(unix.SIGKILL) }

func (h *handle) signal(sig syscall.Signal) error {
	var num error
	err := h.raw.Control(func(fd uintptr) { num = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if err != nil || num == unix.ESRCH {
		return nil // closed: it has ended
	}
	return num
}

// startTime is field 22 of /proc/PID/stat, after the name in parentheses, which
// may hold anything.
func startTime(pid int) (uint64, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[19], 10, 64)
}

func parentOf(pid int) (int, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(f[1])
}

func statFields(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 20 {
		return nil, fmt.Errorf("stat of %d is too short", pid)
	}
	return f, nil
}

// children are the direct children of a process, whichever of its threads forked
// them.
func children(pid int) []int {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	var list []int
	for _, file := range tasks {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(f); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}
