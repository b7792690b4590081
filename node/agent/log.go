package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// Limits of a log (spec section 20).
const (
	LogCap    = 16 << 20 // bytes of one generation
	logDir    = "log"
	logPause  = time.Second // repeats of one kind are one line in this time
	maxHeld   = 256         // kinds with repeats held back
	tailBytes = 64 << 10    // what is read to find the last line; lines are shorter
)

// Log is the event log of one agent: STORE/state/log/<tier>.<uid>.<name>.log,
// and .log.1 for the generation before. The first event of a kind is written at
// once; equal ones within a second after it are counted and written as one line
// with that count, save those of Event.single. A log that cannot be written loses events and nothing else:
// no decision waits for it.
type Log struct {
	state *os.Root
	name  string // file name below state/
	agent string

	mu      sync.Mutex
	file    *os.File // open between the first line and the next pause
	size    int64
	seq     uint64
	known   bool // size and seq were read from the file
	cap     int64
	held    map[kind]*repeat
	timer   *time.Timer
	changed chan struct{}
	lost    int // lines that could not be written
	buf     []byte
}

type repeat struct {
	event Event
	count int
	until time.Time
}

func newLog(state *os.Root, k Key) *Log {
	return &Log{
		state: state, name: logDir + "/" + k.RuntimeKey() + ".log", agent: k.Name, cap: LogCap,
		held: map[kind]*repeat{},
	}
}

// Add writes an event, or counts it when it repeats one.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if e.single() {
		l.writeLocked(&e, now, 1)
		if l.timer == nil {
			l.timer = time.AfterFunc(logPause, l.flush)
		}
		return
	}
	k := e.kind()
	if _, held := l.held[k]; !held && len(l.held) >= maxHeld {
		// Somebody makes up names: they share one line.
		e.Object, e.Session, e.Run = "(others)", "", ""
		k = e.kind()
	}
	if r := l.held[k]; r != nil {
		r.event = e
		r.count++
		return
	}
	l.held[k] = &repeat{until: now.Add(logPause)}
	l.writeLocked(&e, now, 1)
	if l.timer == nil {
		l.timer = time.AfterFunc(logPause, l.flush)
	}
}

// flush writes the repeats whose second is over, and closes the file when
// nothing is held any more.
func (l *Log) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushLocked(time.Now(), false)
}

func (l *Log) flushLocked(now time.Time, all bool) {
	for k, r := range l.held {
		switch {
		case !all && now.Before(r.until):
		case r.count == 0:
			delete(l.held, k)
		default:
			l.writeLocked(&r.event, now, r.count)
			r.count, r.until = 0, now.Add(logPause)
			if all {
				delete(l.held, k)
			}
		}
	}
	if len(l.held) > 0 {
		l.timer = time.AfterFunc(logPause/4, l.flush)
		return
	}
	l.timer = nil
	l.closeFileLocked()
}

// close writes what is held back.
func (l *Log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
	l.flushLocked(time.Now(), true)
}

// begin starts the log of a new agent: what an earlier one of the name left
// becomes the older generation.
func (l *Log) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeFileLocked()
	if err := l.state.Rename(l.name, l.name+".1"); err == nil {
		l.size, l.seq, l.known = 0, 0, false
	}
}

func (l *Log) closeFileLocked() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

func (l *Log) writeLocked(e *Event, now time.Time, count int) {
	if err := l.openLocked(); err != nil {
		l.lost += count
		return
	}
	l.seq++
	l.buf = e.appendLine(l.buf[:0], now, l.seq, l.agent, count)
	if l.size > 0 && l.size+int64(len(l.buf)) > l.cap {
		if err := l.rotateLocked(); err != nil {
			l.lost += count
			return
		}
	}
	if lost := l.lost; lost > 0 {
		l.lost = 0
		l.writeLocked(&Event{Type: "log.lost", Status: "error", Reason: "lines that could not be written"}, now, lost)
		l.seq++
		l.buf = e.appendLine(l.buf[:0], now, l.seq, l.agent, count)
	}
	n, err := l.file.Write(l.buf)
	l.size += int64(n)
	if err != nil {
		l.lost += count
		if n > 0 && l.file.Truncate(l.size-int64(n)) == nil {
			l.size -= int64(n) // no half line stays
		}
		return
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// openLocked opens the file for appending. The first time it also finds out
// where an earlier daemon stopped.
func (l *Log) openLocked() error {
	if l.file != nil {
		return nil
	}
	open := func() (*os.File, error) {
		return l.state.OpenFile(l.name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	}
	f, err := open()
	if errors.Is(err, fs.ErrNotExist) {
		if err = l.state.Mkdir(logDir, 0o700); err == nil || errors.Is(err, fs.ErrExist) {
			f, err = open()
		}
	}
	if err != nil {
		return err
	}
	if !l.known {
		l.size, l.seq, err = resume(f)
		if err != nil {
			f.Close()
			return err
		}
		l.known = true
	}
	l.file = f
	return nil
}

// resume finds size and last number of a log and cuts off a line that a crash
// left unfinished.
func resume(f *os.File) (size int64, seq uint64, err error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	size = fi.Size()
	tail := make([]byte, min(size, tailBytes))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, err
	}
	whole := bytes.LastIndexByte(tail, '\n') + 1
	if whole < len(tail) {
		size -= int64(len(tail) - whole)
		if err := f.Truncate(size); err != nil {
			return 0, 0, err
		}
	}
	tail = tail[:whole]
	if len(tail) > 0 {
		var last struct{ Seq uint64 }
		line := tail[bytes.LastIndexByte(tail[:len(tail)-1], '\n')+1:]
		if json.Unmarshal(line, &last) == nil {
			seq = last.Seq
		}
	}
	return size, seq, nil
}

// rotateLocked makes the full log the older generation. Lines are whole on both
// sides.
func (l *Log) rotateLocked() error {
	l.closeFileLocked()
	if err := l.state.Rename(l.name, l.name+".1"); err != nil {
		return err
	}
	l.size = 0
	return l.openLocked()
}

// Changed is closed when the next line has been written. For followers.
func (l *Log) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

// Size of the present generation in bytes.
func (l *Log) Size() int64 {
	r, err := l.Open()
	if err != nil {
		return 0
	}
	defer r.Close()
	return r.Size()
}

// Open opens the present generation for reading. A log without a line is an
// empty reader.
func (l *Log) Open() (*LogReader, error) { return l.reader(l.name) }

// OpenOlder opens the generation before, log.1.
func (l *Log) OpenOlder() (*LogReader, error) { return l.reader(l.name + ".1") }

func (l *Log) reader(name string) (*LogReader, error) {
	f, err := l.state.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return &LogReader{}, nil
	}
	if err != nil {
		return nil, fault.FromOS("open", "state/"+name, err)
	}
	return &LogReader{f}, nil
}

// LogReader reads one generation, which may still grow. It keeps its generation
// when the log is rotated.
type LogReader struct{ f *os.File }

// ReadAt is io.ReaderAt.
func (r *LogReader) ReadAt(p []byte, off int64) (int, error) {
	if r.f == nil {
		return 0, io.EOF
	}
	return r.f.ReadAt(p, off)
}

// Size in bytes now. Only whole lines are counted: lines are written in one
// call.
func (r *LogReader) Size() int64 {
	if r.f == nil {
		return 0
	}
	fi, err := r.f.Stat()
	if err != nil {
		return 0
	}
	return fi.Size()
}

// Gen differs between the generations of a log: a number for an inode.
func (r *LogReader) Gen() uint64 {
	if r.f == nil {
		return 0
	}
	var st unix.Stat_t
	if unix.Fstat(int(r.f.Fd()), &st) != nil {
		return 0
	}
	return st.Ino
}

// Close gives the descriptor back.
func (r *LogReader) Close() error {
	if r.f == nil {
		return nil
	}
	return r.f.Close()
}
