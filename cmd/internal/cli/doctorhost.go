package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/companion"
	"cortexfs/sandbox/bwrap"
)

// distro is how this system installs a package. What it is called differs little
// enough that one table does.
type distro struct {
	install string
	names   map[string]string // where they differ from Debian's
}

var distros = map[string]distro{
	"debian":   {install: "apt-get install -y"},
	"fedora":   {install: "dnf install -y"},
	"rhel":     {install: "dnf install -y"},
	"arch":     {install: "pacman -S --noconfirm", names: map[string]string{"mount": "util-linux"}},
	"suse":     {install: "zypper install -y", names: map[string]string{"mount": "util-linux"}},
	"opensuse": {install: "zypper install -y", names: map[string]string{"mount": "util-linux"}},
	"alpine":   {install: "apk add"},
}

// packageCure is the one command that installs a package here, from
// os-release(5)'s ID and ID_LIKE.
func (s *State) packageCure(pkg, osRelease string) string {
	sudo := ""
	if s.UID != 0 {
		sudo = "sudo "
	}
	for _, key := range []string{"ID=", "ID_LIKE="} {
		for line := range strings.Lines(osRelease) {
			v, found := strings.CutPrefix(strings.TrimSpace(line), key)
			if !found {
				continue
			}
			for _, id := range strings.Fields(strings.Trim(v, `"'`)) {
				if d, known := distros[id]; known {
					if n := d.names[pkg]; n != "" {
						pkg = n
					}
					return sudo + d.install + " " + pkg
				}
			}
		}
	}
	return "install the package " + pkg
}

func (s *State) install(pkg string) string {
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		text, _ = os.ReadFile("/usr/lib/os-release")
	}
	return s.packageCure(pkg, string(text))
}

func (s *State) sudo(command string) string {
	if s.UID != 0 {
		return "sudo " + command
	}
	return command
}

// checkHost tries the facilities of this machine.
func (s *State) checkHost() []finding {
	list := []finding{s.checkDevice()}
	if path := firstFile("/usr/bin/fusermount3", "/bin/fusermount3"); path != "" {
		list = append(list, ok("fusermount3", path))
	} else if s.UID != 0 {
		list = append(list, missing("fusermount3", errors.New("not installed"), s.install("fuse3")))
	} else {
		list = append(list, ok("fusermount3", "not installed, and not needed by root"))
	}
	list = append(list, s.checkHelper())
	list = append(list, s.checkNamespaces()...)
	path, err := bwrap.Locate("")
	if err != nil {
		list = append(list, missing("bubblewrap", err, s.install("bubblewrap")))
	} else {
		list = append(list, s.bwrapVersion(path), s.probe(path))
	}
	list = append(list, s.checkTerminal(), s.checkInotify())
	for _, p := range []string{"cortexfs", "ctxagent", "ctxterm", "tsh"} {
		if at, err := companion.Find(p); err != nil {
			list = append(list, missing("program "+p, err, "install it beside ctx: make install"))
		} else {
			list = append(list, ok("program "+p, at))
		}
	}
	return list
}

func (s *State) checkDevice() finding {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return missing("/dev/fuse", err, s.sudo("modprobe fuse"))
	case errors.Is(err, os.ErrPermission):
		return invalid("/dev/fuse", err.Error(), s.sudo("chmod 666 /dev/fuse"))
	case err != nil:
		return invalid("/dev/fuse", err.Error(), "")
	}
	f.Close()
	return ok("/dev/fuse", "")
}

const mountHelper = "helper of mount(8)"

// checkHelper looks for what mount(8) needs for a line of fstab.
func (s *State) checkHelper() finding {
	for _, p := range []string{"/sbin/mount.fuse.cortexfs", "/usr/sbin/mount.fuse.cortexfs"} {
		if firstFile(p) != "" {
			return ok(mountHelper, p)
		}
	}
	generic := firstFile("/sbin/mount.fuse3", "/usr/sbin/mount.fuse3", "/sbin/mount.fuse")
	daemon := firstFile("/usr/local/sbin/cortexfs", "/usr/local/bin/cortexfs", "/usr/sbin/cortexfs", "/usr/bin/cortexfs")
	switch {
	case s.UID != 0:
		return ok(mountHelper, "not installed, and not needed by ctx up")
	case generic == "":
		return missing(mountHelper, errors.New("neither mount.fuse.cortexfs nor mount.fuse3 is installed: no line of fstab works"), "make install")
	case daemon == "":
		return missing(mountHelper, errors.New("mount.fuse3 would not find cortexfs: no line of fstab works"), "make install")
	}
	return ok(mountHelper, generic)
}

// checkNamespaces looks at what may forbid user namespaces; the sandbox's own
// probe says whether they work.
func (s *State) checkNamespaces() []finding {
	var list []finding
	if n, err := readNumber("/proc/sys/user/max_user_namespaces"); err == nil && n == 0 {
		list = append(list, invalid("user namespaces", "user.max_user_namespaces is 0", s.sudo("sysctl -w user.max_user_namespaces=15000")))
	}
	if n, err := readNumber("/proc/sys/kernel/unprivileged_userns_clone"); err == nil && n == 0 && s.UID != 0 {
		list = append(list, invalid("user namespaces", "kernel.unprivileged_userns_clone is 0", s.sudo("sysctl -w kernel.unprivileged_userns_clone=1")))
	}
	if len(list) == 0 {
		list = append(list, ok("user namespaces", "not forbidden"))
	}
	return list
}

const apparmorSysctl = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"

// The release in which bubblewrap no longer follows a symlink in a directory that
// it makes mount points in (CVE-2026-87766).
var bwrapFixed = [2]int{0, 12}

var versionWords = regexp.MustCompile(`(\d+)\.(\d+)`)

func (s *State) bwrapVersion(path string) finding {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		return invalid("bubblewrap", err.Error(), s.install("bubblewrap"))
	}
	return ok("bubblewrap", describeBwrap(path, strings.TrimSpace(string(out))))
}

func describeBwrap(path, said string) string {
	note := path + ", " + said
	m := versionWords.FindStringSubmatch(said)
	if m == nil {
		return note
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < bwrapFixed[0] || major == bwrapFixed[0] && minor < bwrapFixed[1] {
		note += "; it has CVE-2026-87766 (fixed in 0.12.0), which CortexFS does not expose: it never lets bwrap make a mount point in a directory that an agent can write"
	}
	return note
}

// probe makes a real sandbox as the ids that an agent would have.
func (s *State) probe(path string) finding {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	if uid == 0 {
		uid, gid = 65534, 65534 // an agent is never root: try as nobody
	}
	if err := bwrap.Probe(ctx, path, uid, gid); err != nil {
		cure := s.sudo("sysctl -w user.max_user_namespaces=15000")
		if n, rerr := readNumber(apparmorSysctl); rerr == nil && n == 1 {
			cure = s.sudo("cp /usr/share/doc/cortexfs/examples/cortexfs-bwrap /etc/apparmor.d/ && " + s.sudo("apparmor_parser -r /etc/apparmor.d/cortexfs-bwrap"))
		}
		return invalid("sandbox", err.Error(), cure)
	}
	return ok("sandbox", "bubblewrap makes one here, with every option that is used")
}

func (s *State) checkTerminal() finding {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return invalid("terminals", err.Error(), s.sudo("sysctl -w kernel.pty.max=4096"))
	}
	f.Close()
	most, err1 := readNumber("/proc/sys/kernel/pty/max")
	used, err2 := readNumber("/proc/sys/kernel/pty/nr")
	if err1 != nil || err2 != nil {
		return ok("terminals", "")
	}
	note := fmt.Sprintf("%d of %d in use", used, most)
	if most-used < 64 {
		return invalid("terminals", note, s.sudo("sysctl -w kernel.pty.max=4096"))
	}
	return ok("terminals", note)
}

// checkInotify takes a watch: the daemon notices edits of the store by them, and
// without falls back to looking every other second.
func (s *State) checkInotify() finding {
	const what = "change notices (inotify)"
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return invalid(what, err.Error(), s.sudo("sysctl -w fs.inotify.max_user_instances=1024"))
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, "/", unix.IN_ATTRIB); err != nil {
		return invalid(what, err.Error(), s.sudo("sysctl -w fs.inotify.max_user_watches=524288"))
	}
	n, err := readNumber("/proc/sys/fs/inotify/max_user_watches")
	if err != nil {
		return ok(what, "")
	}
	if n < 8192 {
		return invalid(what, fmt.Sprintf("only %d watches", n), s.sudo("sysctl -w fs.inotify.max_user_watches=524288"))
	}
	return ok(what, fmt.Sprintf("%d watches", n))
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func firstFile(paths ...string) string {
	for _, p := range paths {
		if unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return ""
}
