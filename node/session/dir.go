package session

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// dir is a held directory; everything below it is opened from its descriptor.
type dir struct {
	f    *os.File
	path string // for messages
}

// sub opens a directory in d, with create made where it is missing.
func (d *dir) sub(name string, create bool) (*dir, error) {
	path := d.path + "/" + name
	if create {
		switch err := unix.Mkdirat(int(d.f.Fd()), name, 0o700); err {
		case nil:
			if err := d.f.Sync(); err != nil {
				return nil, fault.FromOS("fsync", d.path, err)
			}
		case unix.EEXIST:
		default:
			return nil, fault.FromOS("mkdir", path, err)
		}
	}
	fd, err := beneath.Open(int(d.f.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, strange("open", path, err)
	}
	return &dir{os.NewFile(uintptr(fd), path), path}, nil
}

// strange turns what only a planted entry can cause into EIO: a link, a file
// where a directory should be, another file system.
func strange(op, path string, err error) error {
	switch err {
	case unix.ELOOP, unix.ENOTDIR, unix.EXDEV, unix.EISDIR, unix.ENXIO:
		return fault.E(op, path, fault.IO, fmt.Errorf("not a plain file or directory of ours: %w", err))
	}
	return fault.FromOS(op, path, err)
}

// open opens a file of ours in d: regular, with one name, owned by who we are.
func (d *dir) open(name string, flags int) (*os.File, error) {
	path := d.path + "/" + name
	flags |= unix.O_NONBLOCK | unix.O_NOCTTY
	mode := uint32(0)
	if flags&unix.O_CREAT != 0 {
		mode = 0o600
	}
	fd, err := beneath.Open(int(d.f.Fd()), name, flags, mode)
	if err != nil {
		return nil, strange("open", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		f.Close()
		return nil, fault.FromOS("stat", path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		f.Close()
		return nil, fault.E("open", path, fault.IO, fmt.Errorf("not a regular file"))
	case st.Nlink > 1:
		f.Close()
		return nil, fault.E("open", path, fault.IO, fmt.Errorf("has %d names", st.Nlink))
	case int(st.Uid) != os.Geteuid():
		f.Close()
		return nil, fault.E("open", path, fault.IO, fmt.Errorf("belongs to uid %d", st.Uid))
	}
	return f, nil
}

// torn is what was moved aside.
type torn struct {
	name  string
	bytes int64
}

// lines opens a file of lines, made where it is missing. A torn end is moved to
// NAME.torn first.
func (d *dir) lines(name string) (l *fileLines, last []byte, moved *torn, err error) {
	f, err := d.open(name, unix.O_RDWR|unix.O_APPEND)
	if fault.Is(err, fault.NotExist) {
		f, err = d.open(name, unix.O_RDWR|unix.O_APPEND|unix.O_CREAT)
		if err == nil {
			if err = d.f.Sync(); err != nil {
				err = fault.FromOS("fsync", d.path, err)
			}
		}
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, nil, nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		f.Close()
		return nil, nil, nil, fault.FromOS("seek", f.Name(), err)
	}
	end, last, err := goodEnd(f, size)
	if err == nil && end < size {
		err = d.tear(f, name, end, size)
		moved = &torn{name, size - end}
	}
	if err != nil {
		f.Close()
		return nil, nil, nil, fault.At("open", f.Name(), err)
	}
	return newFileLines(f, f.Name(), end), last, moved, nil
}

// tear moves f's bytes from end on to NAME.torn. They are durable there before
// they leave f.
func (d *dir) tear(f *os.File, name string, end, size int64) error {
	to, err := d.open(name+".torn", unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, io.NewSectionReader(f, end, size-end)); err != nil {
		return fault.FromOS("write", to.Name(), err)
	}
	if _, err := to.WriteString("\n"); err != nil {
		return fault.FromOS("write", to.Name(), err)
	}
	if err := to.Sync(); err != nil {
		return fault.FromOS("fsync", to.Name(), err)
	}
	if err := d.f.Sync(); err != nil {
		return fault.FromOS("fsync", d.path, err)
	}
	if err := f.Truncate(end); err != nil {
		return fault.FromOS("truncate", f.Name(), err)
	}
	return fault.FromOS("fsync", f.Name(), f.Sync())
}

const tempMark = ".tmp-"

// put replaces a derived file whole. It is not fsynced: what it says can be told
// from the JSONL files.
func (d *dir) put(name string, data []byte) error {
	var r [8]byte
	rand.Read(r[:])
	tmp := "." + name + tempMark + hex.EncodeToString(r[:])
	f, err := d.open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = unix.Renameat(int(d.f.Fd()), tmp, int(d.f.Fd()), name)
	}
	if err != nil {
		unix.Unlinkat(int(d.f.Fd()), tmp, 0)
		return fault.FromOS("write", d.path+"/"+name, err)
	}
	return nil
}

// get reads a small file of ours; at most max bytes.
func (d *dir) get(name string, max int) ([]byte, error) {
	f, err := d.open(name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(max)+1))
	if err != nil {
		return nil, fault.FromOS("read", f.Name(), err)
	}
	if len(b) > max {
		return nil, fault.E("read", f.Name(), fault.TooBig, nil)
	}
	return b, nil
}

// sweep removes what a put that was killed left behind.
func (d *dir) sweep() {
	entries, err := beneath.ReadDir(int(d.f.Fd()))
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name, ".") && strings.Contains(e.Name, tempMark) {
			unix.Unlinkat(int(d.f.Fd()), e.Name, 0)
		}
	}
}

func (d *dir) close() { d.f.Close() }
