package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	cfs "cortexfs/fs"
	"cortexfs/node/fault"
)

// fsType is the type that the kernel shows for mounts of ours.
const fsType = "fuse.cortexfs"

// mountInfo is a line of /proc/self/mountinfo, as far as it is used here.
type mountInfo struct {
	Point  string
	Type   string
	Source string
}

// mounts reads the mount table, oldest mount first.
func mounts() ([]mountInfo, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []mountInfo
	for s := bufio.NewScanner(f); s.Scan(); {
		left, right, ok := strings.Cut(s.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 2 {
			continue
		}
		m := mountInfo{Point: unoctal(l[4]), Type: r[0], Source: unoctal(r[1])}
		all = append(all, m)
	}
	return all, nil
}

// unoctal undoes the \ooo escapes of the mount table.
func unoctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountAt returns the topmost mount whose mount point is exactly path.
func mountAt(path string) (mountInfo, bool, error) {
	all, err := mounts()
	if err != nil {
		return mountInfo{}, false, err
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Point == path {
			return all[i], true, nil
		}
	}
	return mountInfo{}, false, nil
}

// prepareMountpoint resolves the mount point and sees that nothing is mounted
// there. A dead mount of ours, what a crash leaves, is cleared; anything else is
// an error. The last component is not followed before that: a dead mount answers
// ENOTCONN to every look at it.
func prepareMountpoint(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", fault.FromOS("mount point", path, err)
	}
	real := filepath.Join(dir, filepath.Base(path))
	// Each round clears one dead mount; several crashes may have left several.
	for range 16 {
		m, mounted, err := mountAt(real)
		if err != nil {
			return "", fault.FromOS("read the mount table", "", err)
		}
		if mounted && m.Type == fsType {
			cleared, err := cfs.ClearDead(real, "cortexfs")
			if err != nil {
				return "", fault.E("clear the dead mount", real, fault.Busy, err)
			}
			if cleared {
				continue
			}
		}
		st, serr := os.Stat(real)
		switch {
		case mounted && m.Type == fsType:
			return "", fault.E("mount point", real, fault.Busy, errors.New("a CortexFS is mounted there already"))
		case mounted:
			return "", fault.E("mount point", real, fault.Busy, fmt.Errorf("%s (%s) is mounted there", m.Source, m.Type))
		case serr != nil:
			if errors.Is(serr, fs.ErrNotExist) {
				return "", fault.E("mount point", real, fault.NotExist, errors.New("no such directory; make it first"))
			}
			return "", fault.FromOS("mount point", real, serr)
		case !st.IsDir():
			return "", fault.E("mount point", real, fault.NotDir, errors.New("not a directory"))
		}
		final, err := filepath.EvalSymlinks(real)
		if err != nil {
			return "", fault.FromOS("mount point", real, err)
		}
		if final == real {
			return real, nil
		}
		real = final // the name was a link: look at what it names
	}
	return "", fault.E("mount point", real, fault.Busy, errors.New("too many dead mounts, clear them with umount -l"))
}

// checkApart refuses a store inside the mount point and the reverse, by inode
// all the way up, so that a bind of one elsewhere does not get by.
func checkApart(store, mountpoint string) error {
	switch inside, err := lies(store, mountpoint); {
	case err != nil:
		return err
	case inside:
		return fault.E("mount", mountpoint, fault.Invalid, fmt.Errorf("the store %s lies inside the mount point", store))
	}
	switch inside, err := lies(mountpoint, store); {
	case err != nil:
		return err
	case inside:
		return fault.E("mount", mountpoint, fault.Invalid, fmt.Errorf("the mount point lies inside the store %s", store))
	}
	return nil
}

// lies says whether path is dir or below it. A path that does not exist yet is
// judged by its nearest parent that does.
func lies(path, dir string) (bool, error) {
	want, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return path == dir || strings.HasPrefix(path, dir+"/"), nil
	}
	if err != nil {
		return false, fault.FromOS("stat", dir, err)
	}
	for p := path; ; p = filepath.Dir(p) {
		st, err := os.Stat(p)
		if err == nil && os.SameFile(st, want) {
			return true, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fault.FromOS("stat", p, err)
		}
		if p == "/" || p == "." {
			return false, nil
		}
	}
}
