package harden

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (seccomp(2)). Arguments are 64-bit; on the
// little-endian machines that we build for, the low half comes first.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// Verdicts of seccomp(2).
const (
	retKill  = 0x80000000 // SECCOMP_RET_KILL_PROCESS
	retAllow = 0x7fff0000 // SECCOMP_RET_ALLOW
	retErrno = 0x00050000 // SECCOMP_RET_ERRNO, errno in the low 16 bits
)

const (
	x32Bit  = 0x40000000 // __X32_SYSCALL_BIT
	setBits = unix.S_ISUID | unix.S_ISGID
	// O_TMPFILE contains O_DIRECTORY; its own bit is what makes open read a mode.
	makes = unix.O_CREAT | (unix.O_TMPFILE &^ unix.O_DIRECTORY)
)

// Terminal requests that put input into somebody's terminal.
const (
	tiocsti   = 0x5412
	tioclinux = 0x541c
)

type block = []bpf.Instruction

func deny(errno unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: retErrno | uint32(errno)}
}

func allow() bpf.Instruction { return bpf.RetConstant{Val: retAllow} }

// arg loads the low 32 bits of argument n: what the kernel itself reads of an
// int, unsigned int or mode_t argument.
func arg(n int) bpf.Instruction {
	return bpf.LoadAbsolute{Off: uint32(offArgs + 8*n), Size: 4}
}

// refuseBits denies when argument n has one of bits set.
func refuseBits(n int, bits uint32) block {
	return block{arg(n), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: bits, SkipFalse: 1}, deny(unix.EPERM), allow()}
}

// refuseValues denies when argument n is one of values.
func refuseValues(n int, values ...uint32) block {
	b := block{arg(n)}
	for _, v := range values {
		b = append(b, bpf.JumpIf{Cond: bpf.JumpEqual, Val: v, SkipFalse: 1}, deny(unix.EPERM))
	}
	return append(b, allow())
}

// refuseMode denies set-id bits in argument mode when argument flags says that
// the call makes a file; without such a flag the mode is whatever was in the
// register.
func refuseMode(flags, mode int) block {
	return block{
		arg(flags), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: makes, SkipFalse: 3},
		arg(mode), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: setBits, SkipFalse: 1}, deny(unix.EPERM), allow(),
	}
}

// socketFamilies lets local, IP and netlink route sockets through: a list of
// what is needed, because every other family is kernel surface for nothing.
func socketFamilies() block {
	return block{
		arg(0),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 5},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET, SkipTrue: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_INET6, SkipTrue: 3},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_NETLINK, SkipFalse: 3},
		arg(2), bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.NETLINK_ROUTE, SkipFalse: 1},
		allow(), deny(unix.EPERM),
	}
}

type rule struct {
	nr   uint32
	body block
}

// rules is the table of spec 10.5.
func rules() []rule {
	var all []rule
	add := func(b block, numbers ...uint32) {
		for _, n := range numbers {
			all = append(all, rule{n, b})
		}
	}
	add(block{deny(unix.EPERM)},
		// the mount API
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN,
		unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, sysOpenTreeAttr,
		unix.SYS_SETNS,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
		unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
		unix.SYS_OPEN_BY_HANDLE_AT)
	// Programs fall back on ENOSYS: what a filter cannot look into (a structure
	// behind a pointer, a ring) has to look absent.
	add(block{deny(unix.ENOSYS)},
		unix.SYS_CLONE3, unix.SYS_OPENAT2,
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER)
	add(refuseBits(0, unix.CLONE_NEWUSER), unix.SYS_CLONE, unix.SYS_UNSHARE)
	add(refuseValues(1, tiocsti, tioclinux), unix.SYS_IOCTL)
	add(socketFamilies(), unix.SYS_SOCKET, unix.SYS_SOCKETPAIR)
	// No set-id file, by any way: in a directory that was handed over idmapped it
	// would be the owner's (root's) on the host. mkdir is not here: the kernel
	// masks these bits out of its mode, and a setgid parent hands its bit down
	// with no call that could be refused.
	add(refuseBits(1, setBits), unix.SYS_FCHMOD)
	add(refuseBits(2, setBits), unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_MKNODAT)
	add(refuseMode(2, 3), unix.SYS_OPENAT)
	return append(all, legacyRules()...)
}

// program is the whole filter. Each rule is "number equal? else skip the body";
// the kernel caches the numbers that are always allowed, so the length costs
// nothing there.
func program() block {
	p := block{
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: retKill},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: x32Bit, SkipFalse: 1},
		bpf.RetConstant{Val: retKill},
	}
	for _, r := range rules() {
		p = append(p, bpf.JumpIf{Cond: bpf.JumpEqual, Val: r.nr, SkipFalse: uint8(len(r.body))})
		p = append(p, r.body...)
	}
	return append(p, allow())
}

// Program is the filter as an array of struct sock_filter in the machine's byte
// order: what prctl(PR_SET_SECCOMP) and bwrap's --seccomp take.
func Program() ([]byte, error) {
	raw, err := bpf.Assemble(program())
	if err != nil {
		return nil, fmt.Errorf("assemble seccomp program: %w", err)
	}
	out := make([]byte, 0, 8*len(raw))
	for _, in := range raw {
		out = binary.NativeEndian.AppendUint16(out, in.Op)
		out = append(out, in.Jt, in.Jf)
		out = binary.NativeEndian.AppendUint32(out, in.K)
	}
	return out, nil
}

// ProgramFile is Program in a sealed memory file, at offset 0, close-on-exec.
func ProgramFile() (*os.File, error) {
	text, err := Program()
	if err != nil {
		return nil, err
	}
	return MemFile("seccomp", text)
}

// MemFile is a sealed memory file holding text, at offset 0, close-on-exec.
func MemFile(name string, text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(text, 0); err != nil {
		f.Close()
		return nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal memfd %s: %w", name, err)
	}
	return f, nil
}
