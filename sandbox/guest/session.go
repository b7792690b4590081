package guest

import (
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"cortexfs/sandbox/wire"
)

// writeChunk is how much input goes to the PTY in one piece, and so how fine
// credit is given: about what the kernel's line buffer takes.
const writeChunk = 4 << 10

// session is the PTY and the program on it.
type session struct {
	g    *guest
	ptmx *os.File
	tty  *os.File // kept open: the PTY must not hang up before the program ends
	end  <-chan syscall.WaitStatus
	read chan struct{} // closed when the reader is done

	// mu protects the fields below.
	mu       sync.Mutex
	more     *sync.Cond
	queue    [][]byte
	flushing bool
	dropped  int // bytes to be credited with the flush
	over     bool
}

// startError is a refusal with the step that met it.
type startError struct {
	step  string
	errno syscall.Errno
}

func (e startError) Error() string { return e.step + ": " + e.errno.Error() }

func failed(step string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		errno = syscall.EIO
	}
	return startError{step, errno}
}

// startSession makes the PTY and runs the program on it.
func (g *guest) startSession(m wire.StartMsg) (*session, error) {
	prog, script, err := openProgram(m.Program)
	if err != nil {
		return nil, failed("open", err)
	}
	defer prog.Close()
	ptmx, tty, err := openPTY()
	if err != nil {
		return nil, failed("pty", err)
	}
	s := &session{g: g, ptmx: ptmx, tty: tty, read: make(chan struct{})}
	s.more = sync.NewCond(&s.mu)
	s.resize(m.Rows, m.Cols)

	slave := tty.Fd() // blocking again: the program shares this description
	attr := &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{slave, slave, slave},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	}
	path := "/proc/self/fd/" + strconv.Itoa(int(prog.Fd()))
	if script {
		// The interpreter opens the script again by this name, so the descriptor
		// must live on in the child: as number 3 and nothing else.
		attr.Files = append(attr.Files, prog.Fd())
		path = "/proc/self/fd/3"
	}
	_, s.end, err = g.reap.start(path, append([]string{m.Program}, m.Args...), attr)
	if err != nil {
		ptmx.Close()
		tty.Close()
		return nil, failed("exec", err)
	}
	return s, nil
}

// serve begins to carry bytes; output may not come before the host has heard
// that the program runs.
func (s *session) serve() {
	go s.output()
	go s.writer()
}

// openProgram opens an executable without following a link at its last
// component, and says whether it is a script. What is executed is this file,
// whatever its name means later (spec section 8, row 8).
func openProgram(path string) (*os.File, bool, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, err
	}
	file := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		file.Close()
		return nil, false, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		file.Close()
		return nil, false, unix.ELOOP
	default:
		file.Close()
		return nil, false, unix.EACCES
	}
	var magic [2]byte
	if r, err := os.Open("/proc/self/fd/" + strconv.Itoa(fd)); err == nil {
		// A file that cannot be read is no script: its interpreter could not either.
		r.Read(magic[:])
		// The rest is read into memory: its pages come from a daemon that may be
		// replaced while the program runs, and one that is missing then would end
		// the program (SIGBUS).
		io.Copy(io.Discard, io.LimitReader(r, 64<<20))
		r.Close()
	}
	return file, string(magic[:]) == "#!", nil
}

// openPTY makes a PTY whose master works with deadlines: the library's own calls
// leave it in blocking mode, where a full line buffer would hold a write for ever.
func openPTY() (ptmx, tty *os.File, err error) {
	blocking, tty, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	defer blocking.Close()
	fd, err := unix.FcntlInt(blocking.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		tty.Close()
		return nil, nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		tty.Close()
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd), "ptmx"), tty, nil
}

func (s *session) resize(rows, cols uint16) {
	control(s.ptmx, func(fd int) {
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// output passes on what the program says until the PTY hangs up.
func (s *session) output() {
	defer close(s.read)
	buf := make([]byte, wire.MaxData)
	for {
		n, err := s.ptmx.Read(buf)
		if n > 0 && s.g.wire.Output(buf[:n]) != nil {
			return
		}
		if err != nil {
			return
		}
	}
}

// drain waits for the last output after the program's end. Closing our side of
// the terminal lets the reader see the hang-up behind it.
func (s *session) drain() {
	s.mu.Lock()
	s.over = true
	s.more.Signal()
	s.mu.Unlock()
	s.tty.Close()
	select {
	case <-s.read:
	case <-time.After(drainTime):
	}
}

// ---- input

func (s *session) input(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, p)
	s.more.Signal()
}

// flush drops what the program has not read. The writer finishes it, because it
// may be in the middle of a write, which a deadline in the past ends.
func (s *session) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.queue {
		s.dropped += len(p)
	}
	s.queue = nil
	s.flushing = true
	s.ptmx.SetWriteDeadline(time.Unix(1, 0))
	s.more.Signal()
}

// writer passes input to the program at its pace. It is the only one that waits
// for a program that does not read; output has a goroutine of its own, so an
// echoing program and a full line buffer cannot wait for each other.
func (s *session) writer() {
	for {
		s.mu.Lock()
		for len(s.queue) == 0 && !s.flushing && !s.over {
			s.more.Wait()
		}
		if s.over {
			s.mu.Unlock()
			return
		}
		if s.flushing {
			n := s.dropped
			s.dropped, s.flushing = 0, false
			s.ptmx.SetWriteDeadline(time.Time{})
			flushTTY(s.ptmx, unix.TCOFLUSH) // on its way to the line discipline
			flushTTY(s.tty, unix.TCIFLUSH)  // in it
			s.mu.Unlock()
			s.g.wire.Credit(n)
			continue
		}
		p := s.queue[0]
		if len(p) > writeChunk {
			p, s.queue[0] = p[:writeChunk], p[writeChunk:]
		} else {
			s.queue = s.queue[1:]
		}
		s.mu.Unlock()
		s.ptmx.Write(p) // an error: flushed, or the end; the rest is dropped either way
		if s.g.wire.Credit(len(p)) != nil {
			return
		}
	}
}

func flushTTY(f *os.File, queue int) {
	control(f, func(fd int) { unix.IoctlSetInt(fd, unix.TCFLSH, queue) })
}

// control is an ioctl without File.Fd, which would take the descriptor from the
// poller and with it the deadlines.
func control(f *os.File, ioctl func(fd int)) {
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { ioctl(int(fd)) })
	}
}
