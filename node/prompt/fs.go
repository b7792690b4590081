package prompt

import (
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// FS shows the files that the agent sees. Paths are absolute and clean.
type FS interface {
	// ReadFile reads the first max bytes of a regular file, without waiting for
	// anything. With within a link may not lead out of the file's own directory.
	// NotExist; Loop, CrossDevice: links lead out or in a circle; Invalid: not a
	// regular file; Access.
	ReadFile(path string, max int, within bool) (File, error)
	// ReadDir lists a directory, in any order.
	ReadDir(path string) (Listing, error)
}

// File is the beginning of a file, and how long it is.
type File struct {
	Data []byte
	Size int64
}

// Listing is a directory. ID is the same for the same directory, by whatever path
// it was reached.
type Listing struct {
	ID    string
	Names []Name
}

// Name is an entry that can be looked into: Dir says that it is a directory, or a
// link that may lead to one.
type Name struct {
	Name string
	Dir  bool
	Link bool
}

// Dir is the FS of a held root directory: absolute links mean the same root, and
// no link leaves it. The descriptor stays the caller's.
type Dir struct{ Root *os.File }

var _ FS = Dir{}

// maxNames bounds the entries of one directory that are looked at.
const maxNames = 65536

// open resolves a path as if the root were /.
func (d Dir) open(p string, flags int) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	for range 128 {
		fd, err := unix.Openat2(int(d.Root.Fd()), p, &how)
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

const fileFlags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// ReadFile implements FS.
func (d Dir) ReadFile(p string, max int, within bool) (File, error) {
	fd, err := d.openFile(p, within)
	if err != nil {
		return File{}, fault.FromOS("open", p, err)
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return File{}, fault.FromOS("stat", p, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return File{}, fault.E("open", p, fault.Invalid, fmt.Errorf("not a regular file"))
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(max)))
	if err != nil {
		return File{}, fault.FromOS("read", p, err)
	}
	return File{b, st.Size}, nil
}

func (d Dir) openFile(p string, within bool) (int, error) {
	if !within {
		return d.open(p, fileFlags)
	}
	parent, err := d.open(path.Dir(p), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	how := unix.OpenHow{Flags: fileFlags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for range 128 {
		fd, err := unix.Openat2(parent, path.Base(p), &how)
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
	return -1, unix.EAGAIN
}

// ReadDir implements FS.
func (d Dir) ReadDir(p string) (Listing, error) {
	fd, err := d.open(p, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return Listing{}, fault.FromOS("open", p, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Listing{}, fault.FromOS("stat", p, err)
	}
	l := Listing{ID: strconv.FormatUint(st.Dev, 16) + ":" + strconv.FormatUint(st.Ino, 16)}
	entries, err := beneath.ReadDir(fd)
	if err != nil {
		return Listing{}, fault.FromOS("read", p, err)
	}
	for _, e := range entries[:min(len(entries), maxNames)] {
		switch e.Type {
		case unix.DT_DIR:
			l.Names = append(l.Names, Name{Name: e.Name, Dir: true})
		case unix.DT_LNK:
			l.Names = append(l.Names, Name{Name: e.Name, Dir: true, Link: true})
		default:
			l.Names = append(l.Names, Name{Name: e.Name})
		}
	}
	return l, nil
}

// ancestors are the directories from / down to p, p included.
func ancestors(p string) []string {
	p = path.Clean("/" + p)
	out := []string{"/"}
	for i := 1; i < len(p); i++ {
		if p[i] == '/' {
			out = append(out, p[:i])
		}
	}
	if p != "/" {
		out = append(out, p)
	}
	return out
}

// why is an error in a few words, for a line of a report.
func why(err error) string {
	switch fault.KindOf(err) {
	case fault.Loop:
		return "links lead in a circle"
	case fault.CrossDevice:
		return "a link leads out of its directory"
	case fault.Access, fault.Perm:
		return "cannot be read by the agent"
	case fault.Invalid:
		return "not a regular file"
	case fault.NotExist:
		return "a link leads to nothing that the agent sees"
	case fault.NoDevice:
		return "not a regular file"
	}
	return "cannot be read: " + fault.KindOf(err).String()
}

// plainText accepts what files of other systems begin and end lines with: a byte
// order mark, CRLF.
func plainText(b []byte) string {
	s := strings.TrimPrefix(string(b), "\ufeff")
	return strings.ReplaceAll(s, "\r\n", "\n")
}
