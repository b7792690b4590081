package session

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// maxTemp bounds the memory of each file of a temp session.
const maxTemp = 16 << 20

// maxStored bounds a line: what a client may send, escaped, and our own keys.
const maxStored = 8 << 20

// lines is a text that only grows, by whole lines.
type lines interface {
	io.ReaderAt
	// add writes a line behind all others and tells where it ends. It is not
	// durable yet.
	add(line []byte) (end int64, err error)
	// sync returns when everything up to end is durable.
	sync(end int64) error
	// size is how much is durable.
	size() int64
	close()
}

// fileLines are the lines of a file. After a failed fsync nothing can be said
// about the file any more: every later call fails, until it is opened again.
type fileLines struct {
	f    *os.File
	name string

	// mu protects the fields below.
	mu       sync.Mutex
	cond     *sync.Cond
	written  int64
	durable  int64
	syncing  bool
	failed   error
	fsyncing func(int) error // unix.Fdatasync
}

func newFileLines(f *os.File, name string, size int64) *fileLines {
	l := &fileLines{f: f, name: name, written: size, durable: size, fsyncing: unix.Fdatasync}
	l.cond = sync.NewCond(&l.mu)
	return l
}

func (l *fileLines) add(line []byte) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return 0, l.failed
	}
	n, err := l.f.Write(line)
	if err != nil {
		// Half a line must not stay: the next one would continue it.
		if n > 0 && unix.Ftruncate(int(l.f.Fd()), l.written) != nil {
			l.failed = fault.E("append", l.name, fault.IO, err)
		}
		return 0, fault.FromOS("append", l.name, err)
	}
	// Where the file ends now, also if somebody else has appended to it.
	if end, err := l.f.Seek(0, io.SeekCurrent); err == nil {
		l.written = end
	} else {
		l.written += int64(n)
	}
	return l.written, nil
}

// sync lets one caller do the fsync for all that wait.
func (l *fileLines) sync(end int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		switch {
		case l.durable >= end:
			return nil
		case l.failed != nil:
			return l.failed
		case l.syncing:
			l.cond.Wait()
			continue
		}
		l.syncing = true
		target := l.written
		l.mu.Unlock()
		err := l.fsyncing(int(l.f.Fd()))
		l.mu.Lock()
		l.syncing = false
		if err != nil {
			l.failed = fault.FromOS("fsync", l.name, err)
		} else {
			l.durable = max(l.durable, target)
		}
		l.cond.Broadcast()
	}
}

func (l *fileLines) size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// gone says that the file has no name any more, or that nothing more can be
// written to it: its owner removed it, or an fsync failed.
func (l *fileLines) gone() bool {
	l.mu.Lock()
	failed := l.failed != nil
	l.mu.Unlock()
	var st unix.Stat_t
	return failed || unix.Fstat(int(l.f.Fd()), &st) != nil || st.Nlink == 0
}

// reset empties the file. Nobody else may use it meanwhile.
func (l *fileLines) reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := unix.Ftruncate(int(l.f.Fd()), 0); err != nil {
		return fault.FromOS("truncate", l.name, err)
	}
	l.written, l.durable = 0, 0
	return nil
}

func (l *fileLines) ReadAt(p []byte, off int64) (int, error) { return l.f.ReadAt(p, off) }
func (l *fileLines) close()                                  { l.f.Close() }

// memLines are the lines of a temp session.
type memLines struct {
	mu sync.RWMutex
	b  []byte
}

func (l *memLines) add(line []byte) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.b)+len(line) > maxTemp {
		return 0, fault.Newf(fault.NoSpace, "temp session of over %d bytes", maxTemp)
	}
	l.b = append(l.b, line...)
	return int64(len(l.b)), nil
}

func (l *memLines) sync(int64) error { return nil }
func (l *memLines) close()           {}

func (l *memLines) size() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return int64(len(l.b))
}

func (l *memLines) ReadAt(p []byte, off int64) (int, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if off >= int64(len(l.b)) {
		return 0, io.EOF
	}
	n := copy(p, l.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// each calls fn with every whole line in [from, to), without its LF, and the
// offset behind it. fn keeps no line.
func each(l io.ReaderAt, from, to int64, fn func(line []byte, end int64) error) error {
	buf := make([]byte, 0, 64<<10)
	for pos := from; pos < to; {
		n := int(min(int64(cap(buf)-len(buf)), to-pos))
		got, err := l.ReadAt(buf[len(buf):len(buf)+n], pos)
		if got == 0 {
			if err == io.EOF {
				return nil // somebody made it shorter
			}
			return fault.FromOS("read", "", err)
		}
		buf = buf[:len(buf)+got]
		pos += int64(got)
		start := pos - int64(len(buf))
		rest := buf
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			start += int64(i + 1)
			if err := fn(rest[:i], start); err != nil {
				return err
			}
			rest = rest[i+1:]
		}
		if len(rest) == cap(buf) { // one line fills it
			buf = append(make([]byte, 0, 2*cap(buf)), rest...)
			continue
		}
		buf = buf[:copy(buf[:cap(buf)], rest)]
	}
	return nil
}

// goodEnd finds where the whole, readable lines of a text end: at the LF of the
// last line that is a JSON object. What lies behind it was torn by a crash. last
// is that line.
func goodEnd(l io.ReaderAt, size int64) (end int64, last []byte, err error) {
	var tail []byte // the text from off up to a LF that may end a good line
	for off := size; ; {
		if e := bytes.LastIndexByte(tail, '\n'); e < 0 {
			tail = nil // no line ends in it
		} else {
			tail = tail[:e+1]
			i := bytes.LastIndexByte(tail[:e], '\n')
			switch {
			case i < 0 && off > 0 && len(tail) < maxStored: // where does it begin?
			case i < 0 && off > 0:
				tail = nil
			case object(tail[i+1 : e]):
				return off + int64(e) + 1, bytes.Clone(tail[i+1 : e]), nil
			default:
				tail = tail[:i+1]
				continue
			}
		}
		if off == 0 {
			return 0, nil, nil
		}
		n := min(64<<10, off)
		more := make([]byte, n, n+int64(len(tail)))
		if _, err := l.ReadAt(more, off-n); err != nil && err != io.EOF {
			return 0, nil, fault.FromOS("read", "", err)
		}
		off -= n
		tail = append(more, tail...)
	}
}

func object(line []byte) bool { return len(line) > 0 && line[0] == '{' && json.Valid(line) }
