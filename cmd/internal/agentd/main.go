package agentd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// Main is ctxagent: it takes its descriptors, and returns when the agent is dead.
// nil also for an agent that ended badly: that is told on ctl.sock.
func Main() error {
	if len(os.Args) > 0 && os.Args[0] == checkName {
		return checkMain()
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("set not dumpable: %w", err)
	}
	if os.Getuid() == 0 || os.Getgid() == 0 {
		if !rootMayServe() {
			return errors.New("a host process never runs as uid or gid 0")
		}
	}
	in := os.NewFile(fdParams, "params")
	p, err := DecodeParams(in)
	in.Close()
	if err != nil {
		return err
	}
	wireFile := os.NewFile(fdWire, "wire")
	conn, err := net.FileConn(wireFile)
	wireFile.Close()
	if err != nil {
		return fmt.Errorf("wire: %w", err)
	}
	termL, err := listener(fdTerm, "terminal socket")
	if err != nil {
		return err
	}
	ctlL, err := listener(fdCtl, "ctl socket")
	if err != nil {
		return err
	}
	// The lock is only held; a descriptor that nobody closes is enough.
	unix.CloseOnExec(fdLock)

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	a := newAgent(p, logger(p), conn)
	more, err := a.openRuns()
	if err != nil {
		return err
	}
	a.run(termL, ctlL, signals, more)
	return nil
}

// runSockets are the sockets through which runs are asked for.
type runSockets struct{ agent, inner *net.UnixListener }

// openRuns takes the descriptors of the runs; nil when there are none.
func (a *agent) openRuns() (*runSockets, error) {
	if !a.p.Runs {
		return nil, nil
	}
	var s runSockets
	var err error
	if s.agent, err = listener(fdAgent, "agent socket"); err != nil {
		return nil, err
	}
	if s.inner, err = listener(fdInner, "control socket"); err != nil {
		return nil, err
	}
	for _, fd := range []int{fdSessions, fdRecords} {
		unix.CloseOnExec(fd)
	}
	a.runs, err = openRuns(a, os.NewFile(fdSessions, "session"), os.NewFile(fdRecords, "records"))
	return &s, err
}

// rootMayServe is true only where uid 0 is not the host's: in a user namespace
// that maps another user to it.
func rootMayServe() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	var inside, outside, n uint32
	if err != nil {
		return false
	}
	fmt.Sscan(string(b), &inside, &outside, &n)
	return outside != 0
}

func listener(fd uintptr, what string) (*net.UnixListener, error) {
	file := os.NewFile(fd, what)
	defer file.Close()
	l, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("%s: not a unix socket", what)
	}
	u.SetUnlinkOnClose(false) // the path is the daemon's
	return u, nil
}

// A stranger makes a line by each refused connection, and nobody else bounds the
// file, which lies in memory (/run): of one message only the first few in a minute
// are written.
const (
	logTick  = time.Minute
	logFirst = 5
)

func sampled(core zapcore.Core) zapcore.Core {
	return zapcore.NewSamplerWithOptions(core, logTick, logFirst, 0)
}

// logger writes JSON lines to stderr, which the daemon has pointed at the
// agent's diagnostics.
func logger(p *Params) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey, enc.EncodeTime = "ts", zapcore.RFC3339NanoTimeEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.Lock(os.Stderr), zapcore.InfoLevel)
	return zap.New(sampled(core)).With(zap.String("agent", p.Key), zap.String("session", p.Session), zap.Int("pid", os.Getpid()))
}
