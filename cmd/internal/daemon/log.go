package daemon

import (
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// maxLog is the size at which a log file is moved aside when a daemon starts.
const maxLog = 16 << 20

// newLog makes the daemon's logger: one JSON object a line.
func newLog(w io.Writer, debug bool) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey = "ts"
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	level := zap.InfoLevel
	if debug {
		level = zap.DebugLevel
	}
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.Lock(zapcore.AddSync(w)), level))
}

// openLog opens the log file of a daemon without a terminal, 0600, in the
// store's own state directory: it outlives the daemon, for whoever wants to know
// why it ended. It is also made this process's stderr, so that a panic leaves its
// trace there.
func openLog(dir *os.File) (*os.File, error) {
	const name = "cortexfs.log"
	d := int(dir.Fd())
	var st unix.Stat_t
	if unix.Fstatat(d, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Size > maxLog {
		_ = unix.Renameat(d, name, d, name+".1")
	}
	fd, err := unix.Openat(d, name, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Dup3(fd, 2, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
