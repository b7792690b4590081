package agentd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/run"
)

// Schemas and arguments are strangers' texts, and a hostile pair takes for ever:
// they are compared in a process of our own program that its timer kills.
const (
	checkName = "ctxagent-check"
	checkCPU  = 100 * time.Millisecond
	checkWall = 5 * time.Second // of a machine that is busy
)

// checkInput is the standard input of the process.
type checkInput struct {
	Schema, Args []byte
}

// checkArguments judges native arguments by a schema.
func checkArguments(ctx context.Context, schema, args []byte) error {
	ctx, cancel := context.WithTimeout(ctx, checkWall)
	defer cancel()
	in, err := json.Marshal(checkInput{schema, args})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Dir = []string{checkName}, []string{"GOMAXPROCS=1"}, "/"
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(in), &limited{w: &out, left: 4096}
	err = cmd.Run()
	text := strings.TrimSpace(out.String())
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.ExitCode() == 1 && text != "":
		return fault.Newf(fault.Invalid, "%s", text)
	case errors.As(err, &exit):
		return fault.Newf(fault.Invalid, "the arguments could not be compared with the schema within %v", checkCPU)
	}
	return fault.Newf(fault.IO, "compare the arguments with the schema: %w", err)
}

type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	_, err := l.w.Write(p[:n])
	return len(p), err
}

// checkMain is the process: it says what is wrong, and exits with 1 then.
func checkMain() error {
	in, err := io.ReadAll(io.LimitReader(os.Stdin, 4<<20))
	if err != nil {
		return err
	}
	var c checkInput
	if err := json.Unmarshal(in, &c); err != nil {
		return err
	}
	if err := killAfter(checkCPU); err != nil {
		return err
	}
	if err := run.CheckArguments(c.Schema, c.Args); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
	return nil
}

// killAfter arms a timer of the CPU time of this process that kills it: a signal
// that no runtime handles (timer_create(2)).
func killAfter(cpu time.Duration) error {
	var event struct { // struct sigevent
		value  uint64
		signo  int32
		notify int32
		_      [48]byte
	}
	event.signo = int32(unix.SIGKILL)
	var id int32
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_PROCESS_CPUTIME_ID, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&id))); errno != 0 {
		return fmt.Errorf("timer_create: %w", errno)
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(cpu.Nanoseconds())}
	_, _, errno := unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(id), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	runtime.KeepAlive(&spec)
	if errno != 0 {
		return fmt.Errorf("timer_settime: %w", errno)
	}
	return nil
}
