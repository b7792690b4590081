package ordinary

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// maxGroups is NGROUPS_MAX.
const maxGroups = 1 << 16

// checkPrivilege makes sure that taking another fsuid really takes root's powers
// over files away, as capabilities(7) says it does unless a securebit is set.
func (f *FS) checkPrivilege() error {
	if os.Geteuid() != 0 {
		return fault.Newf(fault.Perm, "ordinary files: not root")
	}
	bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	if err != nil {
		return fault.FromOS("read securebits", "", err)
	}
	const noSetuidFixup = 1 << 2
	if bits&noSetuidFixup != 0 {
		return fault.Newf(fault.Unavailable, "ordinary files: the securebit no_setuid_fixup is set, users' requests would keep root's capabilities")
	}
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &f.caps[0]); err != nil {
		return fault.FromOS("capget", "", err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		return fault.FromOS("getgroups", "", err)
	}
	for _, g := range groups {
		f.groups = append(f.groups, uint32(g))
	}
	return nil
}

// as runs fn with the rights of r's caller on one thread, and puts the thread
// back. fn must not start goroutines or block for long. r nil, or no root: fn
// runs as the daemon.
func (f *FS) as(r *vnode.Req, fn func() error) error {
	if !f.asRoot || r == nil {
		return fn()
	}
	groups, err := callerGroups(r)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r.UID != 0 { // root's groups add nothing to root
		if err := setgroups(groups); err != nil {
			return fault.FromOS("setgroups", "", err)
		}
		defer f.restoreGroups()
	}
	defer f.restoreIDs()
	if setfs(unix.SYS_SETFSGID, r.GID) != r.GID {
		return fault.Newf(fault.Access, "cannot act as gid %d", r.GID)
	}
	if err := f.become(r.UID); err != nil {
		return err
	}
	return fn()
}

// asUID is as with the uid alone, for what needs no group: a write through a
// descriptor that is already open, which as root would leave setuid bits alive
// and go on into the blocks that a disk keeps for root.
func (f *FS) asUID(uid uint32, fn func() error) error {
	if !f.asRoot || uid == 0 {
		return fn()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer f.restoreIDs()
	if err := f.become(uid); err != nil {
		return err
	}
	return fn()
}

// become takes the fsuid, which takes the capabilities over files away, and then
// the others: CAP_SYS_RESOURCE alone would pass quotas and reserved blocks.
func (f *FS) become(uid uint32) error {
	if setfs(unix.SYS_SETFSUID, uid) != uid {
		return fault.Newf(fault.Access, "cannot act as uid %d", uid)
	}
	if uid == 0 {
		return nil
	}
	return fault.FromOS("capset", "", setEffective(&f.caps, [2]uint32{}))
}

// setEffective is capset(2) on this thread: permitted and inheritable as in caps.
func setEffective(caps *[2]unix.CapUserData, effective [2]uint32) error {
	now := *caps
	now[0].Effective, now[1].Effective = effective[0], effective[1]
	return unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &now[0])
}

// setfs is setfsuid(2) or setfsgid(2) on this thread, and what it is now: the
// call itself tells the old id only, and no error.
func setfs(call uintptr, id uint32) uint32 {
	_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0)
	now, _, _ := unix.RawSyscall(call, uintptr(^uint32(0)), 0, 0)
	return uint32(now)
}

// restoreIDs puts the thread back: to the ids that are its real ones anyhow, which
// needs no capability, and to effective ones that it is permitted. It cannot fail;
// if it does, the thread must never run anything again, nor may a recovered panic
// let it.
func (f *FS) restoreIDs() {
	gid := uint32(os.Getegid())
	uidOK := setfs(unix.SYS_SETFSUID, 0) == 0
	gidOK := setfs(unix.SYS_SETFSGID, gid) == gid
	err := setEffective(&f.caps, [2]uint32{f.caps[0].Effective, f.caps[1].Effective})
	if !uidOK || !gidOK || err != nil {
		fmt.Fprintln(os.Stderr, "ordinary files: a thread kept the ids of a user: the daemon ends")
		os.Exit(70)
	}
}

// restoreGroups retries: the one error is a kernel short of memory, and groups
// without the uid give a root thread nothing.
func (f *FS) restoreGroups() {
	for range 100 {
		if setgroups(f.groups) == nil {
			return
		}
	}
	f.say("ordinary files: a thread keeps groups of a user until its next request")
}

// setgroups is the system call on this thread alone; the one of package syscall
// changes all threads.
func setgroups(groups []uint32) error {
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0); e != 0 {
		return e
	}
	return nil
}

// callerGroups reads the supplementary groups of the requesting thread while its
// request is pending. A thread that is not seen from here (or whose fsuid is not
// the request's, so that it must be another) has none: fewer rights, never more.
func callerGroups(r *vnode.Req) ([]uint32, error) {
	if r.TID == 0 || r.UID == 0 {
		return nil, nil
	}
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(r.TID), 10) + "/status")
	// The number belongs to the caller only as long as the caller waits.
	if r.Ctx != nil && r.Ctx.Err() != nil {
		return nil, fault.E("read groups", "", fault.Interrupted, r.Ctx.Err())
	}
	if err != nil {
		return nil, nil
	}
	groups, fsuid, err := parseStatus(text)
	if err != nil {
		return nil, fault.E("read groups", "", fault.IO, err)
	}
	if fsuid != r.UID {
		return nil, nil
	}
	return groups, nil
}

// parseStatus takes the Groups line and the fourth number of the Uid line from
// /proc/PID/status (proc_pid_status(5)).
func parseStatus(text []byte) (groups []uint32, fsuid uint32, err error) {
	uids, err := statusLine(text, "Uid:")
	if err != nil || len(uids) != 4 {
		return nil, 0, fmt.Errorf("no Uid line: %w", err)
	}
	groups, err = statusLine(text, "Groups:")
	if err != nil {
		return nil, 0, err
	}
	if len(groups) > maxGroups {
		return nil, 0, fmt.Errorf("%d groups", len(groups))
	}
	return groups, uids[3], nil
}

func statusLine(text []byte, key string) ([]uint32, error) {
	_, rest, found := bytes.Cut(text, []byte("\n"+key))
	if !found {
		return nil, fmt.Errorf("no %s line", key)
	}
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	var out []uint32
	for _, f := range strings.Fields(string(line)) {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, err
		}
		out = append(out, uint32(n))
	}
	return out, nil
}
