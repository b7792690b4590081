package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/stage"
)

// mountPoints are the directories of "/" that exist in every sandbox.
var mountPoints = []string{"usr", "etc", "etc/profile.d", "proc", "dev", "tmp", "home", "home/agent", "workspace", "ctx", "run", "run/cortexfs", stage.MaskDir}

// merged are names that are links into /usr on a merged host, directories else.
var merged = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// hostEtc are the files of the host's /etc that programs need and that tell
// nothing of this host's people (spec 10.3). Those that are missing are left
// out. alternatives is bound, not copied: it is large.
var hostEtc = []string{"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "services", "protocols", "shells", "host.conf",
	"gai.conf", "mime.types", "magic", "inputrc", "terminfo", "ssl/openssl.cnf"}

const maxEtcFile = 4 << 20

// MakeSkeleton makes the directory that becomes the sandbox's "/" at dir: mount
// points, usr-merge links and the synthetic /etc with the plan's ids. What stood
// there before is removed. It must be called before the view is mounted on
// dir/ctx.
func MakeSkeleton(dir string, p *Plan) error {
	if err := RemoveSkeleton(dir); err != nil {
		return err
	}
	if err := makeSkeleton(dir, p); err != nil {
		return errors.Join(fault.At("make skeleton", dir, err), RemoveSkeleton(dir))
	}
	return nil
}

func makeSkeleton(dir string, p *Plan) error {
	if err := mkdir(dir); err != nil {
		return err
	}
	for _, name := range mountPoints {
		if err := mkdir(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range merged {
		text, err := os.Readlink("/" + name)
		switch {
		case err == nil:
			err = os.Symlink(text, filepath.Join(dir, name))
		case errors.Is(err, fs.ErrNotExist):
			continue
		default: // a directory of its own: the stage binds it
			err = mkdir(filepath.Join(dir, name))
		}
		if err != nil {
			return err
		}
	}
	for name, text := range synthetic(&p.Spec) {
		if err := write(filepath.Join(dir, name), []byte(text)); err != nil {
			return err
		}
	}
	for _, name := range hostEtc {
		if err := copyEtc(filepath.Join("/etc", name), filepath.Join(dir, "etc", name)); err != nil {
			return err
		}
	}
	return nil
}

// synthetic are the files that we write: who the agent is and nobody else.
func synthetic(s *Spec) map[string]string {
	group := fmt.Sprintf("%s:x:%d:\n", s.Agent, s.GID)
	for _, g := range s.Groups {
		if g != s.GID {
			group += fmt.Sprintf("g%d:x:%d:%s\n", g, g, s.Agent)
		}
	}
	return map[string]string{
		"etc/passwd":        fmt.Sprintf("%s:x:%d:%d:%s:%s:/usr/bin/bash\n", s.Agent, s.UID, s.GID, s.Agent, HomePath),
		"etc/group":         group,
		"etc/hosts":         fmt.Sprintf("127.0.0.1\tlocalhost %s\n::1\tlocalhost ip6-localhost ip6-loopback\n", s.Agent),
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\nnetworks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n",
		"etc/profile":       "",
		"etc/bash.bashrc":   "",
		stage.MaskFile:      "",
	}
}

// copyEtc copies a file, link or small directory of the host's /etc. A link into
// /usr stays a link; any other is replaced by what it leads to.
func copyEtc(from, to string) error {
	st, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		real, err := filepath.EvalSymlinks(from)
		if err != nil {
			return nil // dangling: as good as missing
		}
		if strings.HasPrefix(real, "/usr/") {
			return os.Symlink(real, to)
		}
		if st, err = os.Stat(from); err != nil {
			return err
		}
	}
	if err := mkdir(filepath.Dir(to)); err != nil {
		return err
	}
	switch {
	case st.Mode().IsRegular() && st.Size() <= maxEtcFile:
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return write(to, text)
	case st.IsDir():
		list, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		if err := mkdir(to); err != nil {
			return err
		}
		for _, e := range list {
			if err := copyEtc(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// mkdir and write do not leave modes to the daemon's umask: another uid has to
// read all this.
func mkdir(name string) error {
	if err := os.Mkdir(name, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(name, 0o755)
}

func write(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Chmod(0o644), f.Close())
}

// RemoveSkeleton removes what MakeSkeleton and Start made at dir; nothing there
// is no error. It does not cross a mount: while the view (or anything else) is
// mounted below dir the answer is fault.Busy, and what is there stays.
func RemoveSkeleton(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fault.FromOS("remove skeleton", dir, err)
	}
	if err := mountedBelow(dir); err != nil {
		unix.Close(fd)
		return err
	}
	if err := empty(fd); err != nil {
		return fault.FromOS("remove skeleton", dir, err)
	}
	if err := unix.Rmdir(dir); err != nil {
		return fault.FromOS("remove skeleton", dir, err)
	}
	return nil
}

func mountedBelow(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fault.FromOS("remove skeleton", dir, err)
	}
	mounts, err := stage.ReadMounts("/proc/self/mountinfo")
	if err != nil {
		return fault.FromOS("remove skeleton", dir, err)
	}
	for i := range mounts {
		if under(mounts[i].Point, real) {
			return fault.E("remove skeleton", dir, fault.Busy, fmt.Errorf("%s is mounted there", mounts[i].Source))
		}
	}
	return nil
}

// empty removes everything in the directory fd and closes it.
func empty(fd int) error {
	dir := os.NewFile(uintptr(fd), "skeleton")
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := unix.Unlinkat(fd, name, 0)
		if err == nil {
			continue
		}
		if err != unix.EISDIR {
			return err
		}
		how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
		sub, err := unix.Openat2(fd, name, &how)
		if err != nil {
			return err
		}
		if err := empty(sub); err != nil {
			return err
		}
		if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil {
			return err
		}
	}
	return nil
}
