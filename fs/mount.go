package fs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// mountDevice mounts at dir and returns the device. As root by mount(2) itself
// on a held descriptor (the name cannot be swapped for a link); where that is
// not permitted, by fusermount3.
func mountDevice(dir string, o *Options) (*os.File, error) {
	if os.Geteuid() == 0 {
		dev, err := mountDirect(dir, o)
		if err == nil || !errors.Is(err, unix.EPERM) {
			return dev, err
		}
	}
	return mountHelper(dir, o)
}

func mountDirect(dir string, o *Options) (*os.File, error) {
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("mountpoint %s: %w", dir, err)
	}
	defer unix.Close(at)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, os.Geteuid(), os.Getegid())
	if o.AllowOther {
		data += ",allow_other"
	}
	if o.DefaultPermissions {
		data += ",default_permissions"
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if o.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	if o.NoExec {
		flags |= unix.MS_NOEXEC
	}
	target := fmt.Sprintf("/proc/self/fd/%d", at)
	if err := unix.Mount(o.FSName, target, "fuse."+o.Subtype, flags, data); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("mount on %s: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// helperPaths is where fusermount3 is: never looked up in PATH, which is empty
// under mount(8) and may lead into our own tree.
var helperPaths = []string{
	"/usr/bin/fusermount3", "/bin/fusermount3", "/usr/local/bin/fusermount3",
	"/usr/sbin/fusermount3", "/sbin/fusermount3", "/run/wrappers/bin/fusermount3",
}

// helper runs fusermount3 and returns its message as the error. comm is the
// socket that it sends the device over, or nil.
func helper(comm *os.File, args ...string) error {
	path := ""
	for _, p := range helperPaths {
		if unix.Access(p, unix.X_OK) == nil {
			path = p
			break
		}
	}
	if path == "" {
		return errors.New("fusermount3 is not installed (package fuse3)")
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	messages, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer messages.Close()
	attr := &os.ProcAttr{Dir: "/", Env: []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"}, Files: []*os.File{null, null, out}}
	if comm != nil {
		attr.Env = append(attr.Env, "_FUSE_COMMFD=3")
		attr.Files = append(attr.Files, comm)
	}
	p, err := os.StartProcess(path, append([]string{path}, args...), attr)
	out.Close()
	if err != nil {
		return err
	}
	kill := time.AfterFunc(helperBound, func() { _ = p.Kill() })
	text, _ := io.ReadAll(io.LimitReader(messages, 4096))
	state, err := p.Wait()
	kill.Stop()
	if err != nil {
		return err
	}
	if !state.Success() {
		return fmt.Errorf("%s (%s)", strings.TrimSpace(string(text)), state)
	}
	return nil
}

func mountHelper(dir string, o *Options) (*os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "fusermount3")
	opts := []string{"nosuid", "nodev", "fsname=" + optionText(o.FSName), "subtype=" + optionText(o.Subtype)}
	for word, wanted := range map[string]bool{
		"allow_other":         o.AllowOther,
		"default_permissions": o.DefaultPermissions,
		"ro":                  o.ReadOnly,
		"noexec":              o.NoExec,
	} {
		if wanted {
			opts = append(opts, word)
		}
	}
	err = helper(theirs, "-o", strings.Join(opts, ","), "--", dir)
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", dir, err)
	}
	fd, err := receiveFile(pair[0])
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), "/dev/fuse"), nil
}

// optionText escapes what separates mount options.
func optionText(s string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(s)
}

// receiveFile takes the one descriptor that fusermount3 left on the socket.
func receiveFile(sock int) (int, error) {
	data, oob := make([]byte, 16), make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(sock, data, oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fusermount3 sent no device: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	for i := range msgs {
		if fds, err := unix.ParseUnixRights(&msgs[i]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, errors.New("fusermount3 sent no device")
}

// A mounted is one line of /proc/self/mountinfo.
type mounted struct {
	id     string // mount id
	dev    string // "0:57"; the second number is the connection's
	path   string
	fstype string
}

// mountAt is the topmost mount at a path, ok=false if nothing is mounted there.
func mountAt(path string) (m mounted, ok bool, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return m, false, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 7 || unescapeMount(f[4]) != path {
			continue
		}
		m = mounted{id: f[0], dev: f[2], path: path}
		for i := 6; i+1 < len(f); i++ {
			if f[i] == "-" {
				m.fstype = f[i+1]
				break
			}
		}
		ok = true
	}
	return m, ok, nil
}

// unescapeMount undoes the octal escapes of mountinfo (space, tab, newline,
// backslash).
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// detach takes away the topmost mount at a path; lazy also where it is in use.
func detach(path string, lazy bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if lazy {
		flags |= unix.MNT_DETACH
	}
	err := unix.Unmount(path, flags)
	if err != unix.EPERM {
		return err
	}
	args := []string{"-u"}
	if lazy {
		args = append(args, "-z")
	}
	return helper(nil, append(args, "--", path)...)
}

// ClearDead takes away a dead mount of ours at a mountpoint: one whose daemon has
// gone, so that everything in it is ENOTCONN, and whose type is "fuse.<subtype>"
// (spec section 21). It says whether there was one. What else is mounted there
// it leaves alone; one that does not answer within 2 s is TimedOut.
func ClearDead(mountpoint, subtype string) (bool, error) {
	path, err := mountPath(mountpoint)
	if err != nil {
		return false, err
	}
	answer := make(chan error, 1)
	go func() {
		// Past the kernel's attributes, which may outlive the daemon by a second.
		var st unix.Statx_t
		answer <- unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	}()
	select {
	case err := <-answer:
		if err != unix.ENOTCONN && err != unix.ECONNABORTED { // the latter while it dies
			return false, nil
		}
	case <-time.After(deadBound):
		return false, fault.E("mount", path, fault.TimedOut, errors.New("what is mounted there does not answer"))
	}
	m, ok, err := mountAt(path)
	if err != nil || !ok || m.fstype != "fuse."+subtype {
		return false, err
	}
	if err := detach(path, true); err != nil {
		return false, fmt.Errorf("clearing the dead mount on %s: %w", path, err)
	}
	return true, nil
}

// mountPath makes a mountpoint absolute, with the links of its parents resolved:
// the last component may be a dead mount that cannot be looked at.
func mountPath(mountpoint string) (string, error) {
	abs, err := filepath.Abs(mountpoint)
	if err != nil {
		return "", err
	}
	if full, err := filepath.EvalSymlinks(abs); err == nil {
		return full, nil
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(abs)), nil
}
