// Package beneath opens files below a held directory descriptor so that no path
// can lead out of it: openat2(2) with RESOLVE_BENEATH, NO_SYMLINKS,
// NO_MAGICLINKS and NO_XDEV (spec section 24; notes-security X9 measures why a
// path or O_NOFOLLOW is not enough). Store and ordinary files both use it.
//
// It holds no state and takes no locks. Descriptors are plain numbers, always
// close-on-exec; the caller closes them. Errors are bare errnos.
package beneath

import (
	"encoding/binary"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |
	unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// maxAgain bounds the retries of an openat2 that lost a race with renames.
const maxAgain = 128

// Open opens path below dir. ELOOP: a symlink on the way or at the end (unless
// flags has O_PATH|O_NOFOLLOW, which opens the link itself); EXDEV: another file
// system or a way out.
func Open(dir int, path string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: resolve}
	for again := 0; ; {
		fd, err := unix.Openat2(dir, path, &how)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR:
		case unix.EAGAIN:
			if again++; again > maxAgain {
				return -1, err
			}
		default:
			return -1, err
		}
	}
}

// Reopen opens the file of a held descriptor again, with other flags: through
// /proc/self/fd, the one magic link that cannot be moved. With O_NOFOLLOW it
// would open the link and not the file, so that flag is not for here.
func Reopen(fd, flags int) (int, error) {
	for {
		n, err := unix.Open(FDPath(fd), flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// FDPath is the /proc path of a descriptor of this process.
func FDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Clean says whether path is a plain relative path: components that are neither
// empty nor "." or "..", without NUL, at most 255 bytes each.
func Clean(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if !Name(part) {
			return false
		}
	}
	return true
}

// Name says whether s is one component that Clean accepts.
func Name(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= unix.NAME_MAX && !strings.ContainsAny(s, "/\x00")
}

// Dirent is one name of a directory; Type is a DT_ number of getdents64(2).
type Dirent struct {
	Name string
	Ino  uint64
	Type uint8
}

var buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// ReadDir reads all names of an open directory (not O_PATH) but "." and "..",
// in the file system's order. A file system that tells no types is asked for each.
func ReadDir(fd int) ([]Dirent, error) {
	var out []Dirent
	buf := buffers.Get().(*[32 << 10]byte)
	defer buffers.Put(buf)
	for {
		n, err := unix.Getdents(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return out, nil
		}
		out = parse(fd, buf[:n], out)
	}
}

// parse reads struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name.
func parse(fd int, b []byte, out []Dirent) []Dirent {
	const head = 19
	for len(b) > head {
		reclen := int(binary.NativeEndian.Uint16(b[16:]))
		if reclen < head || reclen > len(b) {
			return out
		}
		name, _, _ := strings.Cut(string(b[head:reclen]), "\x00")
		d := Dirent{Name: name, Ino: binary.NativeEndian.Uint64(b), Type: b[18]}
		b = b[reclen:]
		if name == "." || name == ".." {
			continue
		}
		if d.Type == unix.DT_UNKNOWN {
			var st unix.Stat_t
			if unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // gone between the two calls
			}
			d.Type = uint8((st.Mode & unix.S_IFMT) >> 12)
		}
		out = append(out, d)
	}
	return out
}
