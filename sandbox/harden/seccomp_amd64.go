package harden

import "golang.org/x/sys/unix"

const (
	auditArch       = unix.AUDIT_ARCH_X86_64
	sysOpenTreeAttr = 467 // Linux 6.15, not in x/sys yet
)

// legacyRules are the calls that newer architectures never had.
func legacyRules() []rule {
	return []rule{
		{unix.SYS_CHMOD, refuseBits(1, setBits)},
		{unix.SYS_MKNOD, refuseBits(1, setBits)},
		{unix.SYS_CREAT, refuseBits(1, setBits)},
		{unix.SYS_OPEN, refuseMode(1, 2)},
	}
}
