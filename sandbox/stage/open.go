package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"cortexfs/sandbox/harden"
)

// openerParams is argv[1] of the open helper.
type openerParams struct {
	Who  Account `json:"who"`
	Drop bool    `json:"drop"` // take the ids; else they are ours already
}

const (
	gitfileMax = 4096
	maxNames   = 256
)

// OpenMain is the open helper: it serves asks on descriptor 3 until its parent
// is gone. It does nothing that its uid could not do in a shell.
func OpenMain(args []string) int {
	if err := serveOpen(args); err != nil {
		fmt.Fprintln(os.Stderr, "open helper:", err)
		return 1
	}
	return 0
}

func serveOpen(args []string) error {
	if err := harden.NoDump(); err != nil {
		return err
	}
	var p openerParams
	if len(args) != 2 {
		return fmt.Errorf("want one argument")
	}
	if err := json.Unmarshal([]byte(args[1]), &p); err != nil {
		return err
	}
	if p.Drop {
		if err := become(p.Who); err != nil {
			return err
		}
	}
	buf, oob := make([]byte, maxAnswer), make([]byte, unix.CmsgSpace(4))
	for {
		n, on, _, _, err := unix.Recvmsg(3, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return err
		}
		at := unix.AT_FDCWD
		if fds, err := received(oob[:on]); err != nil {
			return err
		} else if len(fds) == 1 {
			at = fds[0]
		}
		var a ask
		if err := json.Unmarshal(buf[:n], &a); err != nil {
			return err
		}
		reply := a.serve(at)
		if at != unix.AT_FDCWD {
			unix.Close(at)
		}
		if err := send(reply); err != nil {
			return err
		}
	}
}

// become takes all ids of who, on every thread (the syscall package sees to
// that). After it the process is not dumpable and has no capability.
func become(who Account) error {
	groups := make([]int, len(who.Groups))
	for i, g := range who.Groups {
		groups[i] = int(g)
	}
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(int(who.GID), int(who.GID), int(who.GID)); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	if err := syscall.Setresuid(int(who.UID), int(who.UID), int(who.UID)); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	return harden.NoDump()
}

func send(reply *answer) error {
	text, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	var rights []byte
	if reply.fd >= 0 {
		rights = unix.UnixRights(reply.fd)
		defer unix.Close(reply.fd)
	}
	return unix.Sendmsg(3, text, rights, nil, 0)
}

// serve does one ask.
func (a ask) serve(at int) *answer {
	reply := &answer{fd: -1}
	fail := func(err error) *answer {
		num := syscall.EIO
		errors.As(err, &num)
		return &answer{Errno: num, fd: -1}
	}
	if a.List {
		names, cut, err := list(at)
		if err != nil {
			return fail(err)
		}
		reply.Names, reply.Cut = names, cut
		return reply
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	switch {
	case a.Beneath:
		// Without O_NOFOLLOW: with it a symlink at the end would be opened itself.
		how.Resolve |= unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS
	case a.Last:
		// A single name: O_NOFOLLOW with O_PATH opens a symlink itself.
		how.Resolve |= unix.RESOLVE_BENEATH
		how.Flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat2(at, a.Path, &how)
	if err != nil {
		return fail(err)
	}
	reply.fd = fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return fail(err)
	}
	reply.Mode, reply.UID, reply.GID, reply.Nlink = st.Mode, st.Uid, st.Gid, uint64(st.Nlink)
	if reply.isLink() {
		buf := make([]byte, unix.PathMax)
		if n, err := unix.Readlinkat(fd, "", buf); err == nil {
			reply.Link = string(buf[:n])
		}
	}
	if a.Git && reply.isRegular() {
		reply.Text = gitfile(at, a.Path)
	}
	return reply
}

// gitfile reads the start of a small regular file; what cannot be read is empty.
func gitfile(at int, name string) string {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	buf := make([]byte, gitfileMax)
	n, err := unix.Read(fd, buf)
	if err != nil || n < 0 {
		return ""
	}
	return string(buf[:n])
}

// list reads the names of a directory, as many as one answer carries. A name that
// does not survive JSON is left out, as if it were beyond the limit.
func list(at int) (names []string, cut bool, err error) {
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, err
	}
	dir := os.NewFile(uintptr(fd), "dir")
	defer dir.Close()
	found, err := dir.Readdirnames(maxNames + 1)
	if err != nil && err != io.EOF {
		return nil, false, err
	}
	room := maxAnswer / 2
	for _, name := range found {
		room -= len(name) + 3
		if len(names) == maxNames || room < 0 || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			cut = true
			continue
		}
		names = append(names, name)
	}
	return names, cut, nil
}
