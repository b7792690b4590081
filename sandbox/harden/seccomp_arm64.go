package harden

import "golang.org/x/sys/unix"

const (
	auditArch       = unix.AUDIT_ARCH_AARCH64
	sysOpenTreeAttr = 467 // Linux 6.15, not in x/sys yet
)

func legacyRules() []rule { return nil }
