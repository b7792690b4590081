package agentd

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// StartTime is a process's start time in clock ticks since boot: field 22 of
// /proc/PID/stat. Together with the pid it names a process for good.
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fault.Newf(fault.NoProcess, "process %d: %v", pid, err)
	}
	// The command's name may contain anything; the rest begins behind its bracket.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return 0, fault.Newf(fault.IO, "process %d: short stat line", pid)
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}

// ProcOf names a process that is the caller's to name: its own child, say.
func ProcOf(pid int) (Proc, error) {
	start, err := StartTime(pid)
	return Proc{Pid: pid, Start: start}, err
}

// Open takes a pidfd of exactly this process; NoProcess when it is gone.
func (p Proc) Open() (int, error) {
	fd, err := unix.PidfdOpen(p.Pid, 0)
	if err != nil {
		return -1, fault.Newf(fault.NoProcess, "process %d: %v", p.Pid, err)
	}
	if start, err := StartTime(p.Pid); err != nil || start != p.Start {
		unix.Close(fd)
		return -1, fault.Newf(fault.NoProcess, "process %d is another one now", p.Pid)
	}
	return fd, nil
}

// watched is the sandbox's processes by pidfd.
type watched struct {
	bwrap, init *os.File // init may be nil
	once        sync.Once
}

// watch opens the processes and calls gone when bwrap ends.
func watch(s Sandbox, gone func()) (*watched, error) {
	w := new(watched)
	fd, err := s.Bwrap.Open()
	if err != nil {
		return nil, err
	}
	if w.bwrap, err = pollable(fd); err != nil {
		return nil, err
	}
	if s.Init.Pid > 0 {
		if fd, err = s.Init.Open(); err == nil {
			w.init = os.NewFile(uintptr(fd), "init")
		} else if !fault.Is(err, fault.NoProcess) {
			w.close()
			return nil, err
		}
	}
	go func() {
		raw, err := w.bwrap.SyscallConn()
		if err != nil {
			return
		}
		ended := false
		raw.Read(func(fd uintptr) bool { // readable means ended
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			ended = err == nil && n > 0
			return ended
		})
		if ended {
			gone()
		}
	}()
	return w, nil
}

// pollable hands a pidfd to Go's poller, so that waiting costs no thread.
func pollable(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fault.FromOS("pidfd", "", err)
	}
	return os.NewFile(uintptr(fd), "bwrap"), nil
}

// kill ends the sandbox's init, and with it everything inside, where our uid may
// (iso=uid: only the daemon can).
func (w *watched) kill() {
	for _, f := range []*os.File{w.init, w.bwrap} {
		if f == nil {
			continue
		}
		if raw, err := f.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
		}
	}
}

func (w *watched) close() {
	w.once.Do(func() {
		w.bwrap.Close()
		if w.init != nil {
			w.init.Close()
		}
	})
}
