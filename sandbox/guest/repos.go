package guest

import (
	"bufio"
	"os"
	"path"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cortexfs/sandbox/wire"
)

// A repository that appears at the top of a directory that people work in too is
// a trap for them: git on the host runs what its config says. One that was there
// is over-mounted read-only; where there was none, nothing can be mounted without
// making it, so its coming is watched for, here: inside, as the agent's uid, the
// directories are at hand without any path of the host, and whoever creates the
// name, inside or outside, is seen.

// ownPlaces hold nothing that people on the host would run git in.
var ownPlaces = []string{"/tmp", "/dev", "/proc", "/run", "/ctx"}

// watchRepositories reports each .git that appears, once. It returns when there is
// nothing to watch or the watch ends, and runs beside everything else: a file
// system that hangs holds up nothing but it.
func (g *guest) watchRepositories() {
	dirs, err := writableMounts("/proc/self/mountinfo")
	if err != nil || len(dirs) == 0 {
		return
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	watched := map[int32]string{}
	for _, dir := range dirs {
		wd, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
		if err != nil {
			continue
		}
		watched[int32(wd)] = dir
		// It may have come since the start looked.
		if _, err := os.Lstat(dir + "/.git"); err == nil {
			g.found(watched, int32(wd))
		}
	}
	buf := make([]byte, 64<<10)
	for len(watched) > 0 {
		n, err := events.Read(buf)
		if err != nil {
			return
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			ev := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			end := unix.SizeofInotifyEvent + int(ev.Len)
			name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:end]), "\x00")
			rest = rest[end:]
			// A queue that ran over has lost names: look.
			if ev.Mask&unix.IN_Q_OVERFLOW != 0 {
				for wd, dir := range watched {
					if _, err := os.Lstat(dir + "/.git"); err == nil {
						g.found(watched, wd)
					}
				}
			} else if name == ".git" {
				g.found(watched, ev.Wd)
			}
		}
	}
}

// found tells the host once and forgets the directory.
func (g *guest) found(watched map[int32]string, wd int32) {
	if dir, ok := watched[wd]; ok {
		delete(watched, wd)
		g.wire.Found(wire.FoundMsg{Path: dir + "/.git"})
	}
}

// writableMounts are the mount points where files can be made and where no .git is
// mounted over.
func writableMounts(file string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	points := map[string]bool{} // writable
	var order []string
	for in := bufio.NewScanner(f); in.Scan(); {
		fields := strings.Fields(in.Text())
		if len(fields) < 6 {
			continue
		}
		point := unescape(fields[4])
		points[point] = strings.HasPrefix(fields[5]+",", "rw,")
		order = append(order, point)
	}
	var dirs []string
	for _, point := range order {
		if _, covered := points[path.Join(point, ".git")]; points[point] && !covered && !own(point) {
			dirs = append(dirs, point)
			points[point] = false // once
		}
	}
	return dirs, nil
}

func own(point string) bool {
	for _, p := range ownPlaces {
		if point == p || strings.HasPrefix(point, p+"/") {
			return true
		}
	}
	return false
}

// unescape undoes mountinfo's octal escapes of blanks and backslashes.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
