package harden

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// data is struct seccomp_data as x/net's machine reads it: big-endian words, the
// halves of the arguments at the places where a little-endian kernel has them.
func data(nr, arch uint32, args [6]uint64) []byte {
	b := make([]byte, offArgs+6*8)
	binary.BigEndian.PutUint32(b[offNumber:], nr)
	binary.BigEndian.PutUint32(b[offArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(b[offArgs+8*i:], uint32(a))
		binary.BigEndian.PutUint32(b[offArgs+8*i+4:], uint32(a>>32))
	}
	return b
}

func verdict(t *testing.T, nr, arch uint32, args ...uint64) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(program())
	if err != nil {
		t.Fatal(err)
	}
	var six [6]uint64
	copy(six[:], args)
	n, err := vm.Run(data(nr, arch, six))
	if err != nil {
		t.Fatal(err)
	}
	return uint32(n)
}

const (
	eperm  = retErrno | uint32(unix.EPERM)
	enosys = retErrno | uint32(unix.ENOSYS)
)

func TestArchitecture(t *testing.T) {
	for _, arch := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0, auditArch ^ 1} {
		if v := verdict(t, unix.SYS_GETPID, arch); v != retKill {
			t.Errorf("arch %x: %x", arch, v)
		}
	}
	for _, nr := range []uint32{x32Bit, x32Bit | unix.SYS_GETPID, x32Bit | 512, 0xffffffff} {
		if v := verdict(t, nr, auditArch); v != retKill {
			t.Errorf("number %x: %x", nr, v)
		}
	}
}

// Every number below 1024 that no rule names is allowed with all arguments, and
// every number with a rule has one verdict by its arguments.
func TestNumbers(t *testing.T) {
	named := map[uint32]bool{}
	for _, r := range rules() {
		if named[r.nr] {
			t.Errorf("two rules for %d", r.nr)
		}
		named[r.nr] = true
	}
	ones := []uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
	for nr := range uint32(1024) {
		if v := verdict(t, nr, auditArch, ones...); !named[nr] && v != retAllow || named[nr] && v == retAllow && nr != unix.SYS_IOCTL {
			t.Errorf("number %d with all bits set: %x", nr, v)
		}
	}
}

// Arguments are compared as the kernel reads them: the high half says nothing.
func TestArguments(t *testing.T) {
	const high = 0xdeadbeef << 32
	for _, c := range []struct {
		name string
		nr   uint32
		args []uint64
		want uint32
	}{
		{"TIOCSTI", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI}, eperm},
		{"TIOCSTI high", unix.SYS_IOCTL, []uint64{0, high | unix.TIOCSTI}, eperm},
		{"TIOCLINUX", unix.SYS_IOCTL, []uint64{0, high | unix.TIOCLINUX}, eperm},
		{"TCGETS", unix.SYS_IOCTL, []uint64{0, unix.TCGETS}, retAllow},
		{"clone thread", unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, retAllow},
		{"clone user", unix.SYS_CLONE, []uint64{high | unix.CLONE_NEWUSER}, eperm},
		{"unshare user", unix.SYS_UNSHARE, []uint64{unix.CLONE_NEWUSER | unix.CLONE_NEWNS}, eperm},
		{"clone3", unix.SYS_CLONE3, nil, enosys},
		{"openat create", unix.SYS_OPENAT, []uint64{0, 0, unix.O_CREAT, 0o644}, retAllow},
		{"openat create setuid", unix.SYS_OPENAT, []uint64{0, 0, unix.O_CREAT, 0o4644}, eperm},
		{"openat tmpfile setgid", unix.SYS_OPENAT, []uint64{0, 0, unix.O_TMPFILE, 0o2644}, eperm},
		{"openat garbage mode", unix.SYS_OPENAT, []uint64{0, 0, unix.O_RDWR, ^uint64(0)}, retAllow},
		{"openat directory", unix.SYS_OPENAT, []uint64{0, 0, unix.O_DIRECTORY, ^uint64(0)}, retAllow},
		{"fchmodat sticky", unix.SYS_FCHMODAT, []uint64{0, 0, 0o1777}, retAllow},
		{"fchmodat setuid", unix.SYS_FCHMODAT, []uint64{0, 0, high | 0o4000}, eperm},
		{"fchmodat2 setgid", unix.SYS_FCHMODAT2, []uint64{0, 0, 0o2000}, eperm},
		{"mkdirat setgid", unix.SYS_MKDIRAT, []uint64{0, 0, 0o2755}, retAllow},
		{"socket vsock", unix.SYS_SOCKET, []uint64{high | unix.AF_VSOCK}, eperm},
		{"socket inet", unix.SYS_SOCKET, []uint64{high | unix.AF_INET, 1, 0}, retAllow},
		{"netlink route", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, unix.NETLINK_ROUTE}, retAllow},
		{"netlink uevent", unix.SYS_SOCKET, []uint64{unix.AF_NETLINK, 3, unix.NETLINK_KOBJECT_UEVENT}, eperm},
		{"openat2", unix.SYS_OPENAT2, nil, enosys},
		{"io_uring", unix.SYS_IO_URING_SETUP, nil, enosys},
		{"ptrace", unix.SYS_PTRACE, nil, retAllow},
	} {
		if v := verdict(t, c.nr, auditArch, c.args...); v != c.want {
			t.Errorf("%s: %x, want %x", c.name, v, c.want)
		}
	}
}

// Program is in the form that the kernel reads: the file seals hold, and each
// instruction is eight bytes.
func TestProgramFile(t *testing.T) {
	f, err := ProgramFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() != int64(8*len(program())) || st.Size() > 8*4096 {
		t.Errorf("size %v, %v", st, err)
	}
	if _, err := f.WriteAt([]byte{0}, 0); err == nil {
		t.Error("the file can be written")
	}
}
