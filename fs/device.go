package fs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"unsafe"

	"bazil.org/fuse"
	"golang.org/x/sys/unix"
)

// The connection's first exchange, INIT, is made here: bazil's own leaves no
// choice in it. We speak what bazil decodes, 7.33, and ask beyond it for
// FUSE_NO_EXPORT_SUPPORT (kernel 6.8; older ones ignore it): without file
// handles, open_by_handle_at cannot leave a bind-mounted subtree.
const (
	protoMajor = 7
	protoMinor = 33

	opInit         = 26
	inHeaderSize   = 40
	outHeaderSize  = 16
	initOutSize    = 64
	initExt        = 1 << 30 // FUSE_INIT_EXT: the second word of flags is valid
	noExport2      = 1 << 6  // FUSE_NO_EXPORT_SUPPORT, bit 38
	maxBackground  = 64      // RELEASE and read-ahead count as background
	congestion     = 48
	notifyIncEpoch = 8 // FUSE_NOTIFY_INC_EPOCH, kernel 6.16
)

const wantFlags = fuse.InitAsyncRead | fuse.InitPOSIXLocks | fuse.InitFlockLocks | fuse.InitBigWrites |
	fuse.InitAsyncDIO | fuse.InitParallelDirOps | fuse.InitSetxattrExt

var byteOrder = binary.NativeEndian

// handshake answers the kernel's INIT on a fresh device and returns what was
// agreed.
func handshake(dev *os.File) (fuse.InitFlags, error) {
	buf := make([]byte, 2*maxIO)
	n, err := readDevice(int(dev.Fd()), buf)
	if err != nil {
		return 0, fmt.Errorf("reading INIT: %w", err)
	}
	if n < inHeaderSize+16 || byteOrder.Uint32(buf[4:]) != opInit {
		return 0, errors.New("the kernel's first request is not INIT")
	}
	in := buf[inHeaderSize:]
	major, minor := byteOrder.Uint32(in), byteOrder.Uint32(in[4:])
	if major != protoMajor || minor < protoMinor {
		return 0, fmt.Errorf("kernel speaks FUSE %d.%d, needed is %d.%d (Linux 5.11)", major, minor, protoMajor, protoMinor)
	}
	offered := byteOrder.Uint32(in[12:])
	flags := uint32(wantFlags) & offered

	out := make([]byte, outHeaderSize+initOutSize)
	byteOrder.PutUint32(out, uint32(len(out)))
	copy(out[8:16], buf[8:16]) // the request's id
	o := out[outHeaderSize:]
	byteOrder.PutUint32(o[0:], protoMajor)
	byteOrder.PutUint32(o[4:], protoMinor)
	byteOrder.PutUint32(o[8:], byteOrder.Uint32(in[8:])) // read-ahead as offered
	byteOrder.PutUint32(o[12:], flags|offered&initExt)
	byteOrder.PutUint16(o[16:], maxBackground)
	byteOrder.PutUint16(o[18:], congestion)
	byteOrder.PutUint32(o[20:], maxIO)
	byteOrder.PutUint32(o[24:], 1) // time stamps are exact to 1 ns
	if offered&initExt != 0 && n >= inHeaderSize+20 {
		byteOrder.PutUint32(o[32:], noExport2&byteOrder.Uint32(in[16:]))
	}
	if _, err := unix.Write(int(dev.Fd()), out); err != nil {
		return 0, fmt.Errorf("answering INIT: %w", err)
	}
	return fuse.InitFlags(flags), nil
}

func readDevice(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN:
		case err != nil:
			return 0, err
		case n == 0:
			return 0, errors.New("closed")
		default:
			return n, nil
		}
	}
}

// adopt makes a bazil connection of a device that has done its INIT. bazil has
// no way in for that (its Mount starts a program found in PATH and cannot set
// noexec), so three private fields are set. A bazil with other fields is an
// error here, at every mount and in every test, not undefined behaviour.
func adopt(dev *os.File, flags fuse.InitFlags) (*fuse.Conn, error) {
	c := &fuse.Conn{}
	v := reflect.ValueOf(c).Elem()
	for name, value := range map[string]any{
		"dev":   dev,
		"proto": fuse.Protocol{Major: protoMajor, Minor: protoMinor},
		"flags": flags,
	} {
		f := v.FieldByName(name)
		if !f.IsValid() || f.Type() != reflect.TypeOf(value) {
			return nil, fmt.Errorf("bazil.org/fuse: Conn has no field %s of type %T", name, value)
		}
		reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().Set(reflect.ValueOf(value))
	}
	return c, nil
}

// incEpoch makes the kernel ask again for every name of the connection at its
// next use. Unlike an invalidation it takes no lock. EINVAL before Linux 6.16.
func incEpoch(dev *os.File) error {
	msg := make([]byte, outHeaderSize)
	byteOrder.PutUint32(msg, outHeaderSize)
	byteOrder.PutUint32(msg[4:], notifyIncEpoch)
	_, err := unix.Write(int(dev.Fd()), msg)
	return err
}

// abortByControl ends the connection of a mount's device number ("0:57") through
// the kernel's control file system. Where that is not mounted, root looks into an
// instance of its own that nobody else sees.
func abortByControl(dev string) error {
	_, id, ok := strings.Cut(dev, ":")
	if !ok {
		return errors.New("connection not known")
	}
	fd, err := unix.Open("/sys/fs/fuse/connections/"+id+"/abort", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		at, merr := controlFS()
		if merr != nil {
			return err
		}
		defer unix.Close(at)
		if fd, err = unix.Openat(at, id+"/abort", unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
			return err
		}
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("1\n"))
	return err
}

// controlFS is a detached mount of the control file system.
func controlFS() (int, error) {
	ctx, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(ctx)
	if err := unix.FsconfigCreate(ctx); err != nil {
		return -1, err
	}
	return unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, 0)
}

// cutDevice takes the device away from this process without waiting for the
// reads on it: the number becomes /dev/null, and the readers are made to read
// again from there. With its last user gone the kernel ends the connection.
func cutDevice(dev *os.File) error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	if err := unix.Dup3(null, int(dev.Fd()), unix.O_CLOEXEC); err != nil {
		return err
	}
	// SIGURG is what the Go runtime itself interrupts threads with, and it
	// tolerates foreign ones; the interrupted read(2) starts again with the new
	// file.
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		var tid int
		if _, err := fmt.Sscan(t.Name(), &tid); err == nil {
			_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // a thread may have ended
		}
	}
	return nil
}
