package daemon

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// process is a process held by a pidfd: what is asked of it or sent to it can
// never reach another one that got its pid.
type process struct {
	PID   int
	Start uint64 // ticks since boot, field 22 of /proc/PID/stat
	f     *os.File
}

// holdProcess opens a process; NoProcess if there is none, or if start is not 0
// and differs from the process's.
func holdProcess(pid int, start uint64) (*process, error) {
	if pid <= 0 {
		return nil, fault.Newf(fault.NoProcess, "no pid")
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fault.FromOS("open process", strconv.Itoa(pid), err)
	}
	p := &process{PID: pid, f: os.NewFile(uintptr(fd), "pidfd")}
	// The start time is read after the pidfd was opened and before it is known to
	// be alive: then it is this process's.
	p.Start, err = startTime(pid)
	if err != nil || !p.alive() || start != 0 && p.Start != start {
		p.close()
		return nil, fault.Newf(fault.NoProcess, "process %d is gone", pid)
	}
	return p, nil
}

func (p *process) close() { p.f.Close() }

// alive says whether the process has not ended (a zombie has).
func (p *process) alive() bool {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	_ = raw.Control(func(fd uintptr) { alive = polled(int(fd)) == 0 })
	return alive
}

func polled(fd int) int {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1
		}
		return n
	}
}

// wait returns when the process has ended, or with ctx's error.
func (p *process) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := p.f.SyscallConn()
		if err != nil {
			return
		}
		_ = raw.Read(func(fd uintptr) bool { return polled(int(fd)) != 0 })
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		if !p.alive() {
			return nil
		}
		return ctx.Err() // the goroutine ends with the process or with close
	}
}

// signal sends sig to exactly this process.
func (p *process) signal(sig unix.Signal) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	return serr
}

// startTime is field 22 of /proc/PID/stat. The name in field 2 may hold
// anything, so fields are counted from the last parenthesis.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, fmt.Errorf("stat of %d: no name", pid)
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("stat of %d: %d fields", pid, len(f))
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// realUID is the real uid of a process.
func realUID(pid int) (uint32, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "Uid:"); ok {
			n, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 32)
			return uint32(n), err
		}
	}
	return 0, fmt.Errorf("status of %d: no Uid", pid)
}

// fileID names an executable by its inode.
type fileID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

func exeID(path string) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileID{}, err
	}
	return fileID{st.Dev, st.Ino}, nil
}

// bootID tells this boot from every other.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
