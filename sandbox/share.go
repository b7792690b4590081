package sandbox

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/stage"
)

// ShareRuntime makes dir a mount point of its own with shared propagation, so
// that what is mounted below it later reaches the sandboxes that hold a slave of
// it. It needs root; doing it twice is fine. UnshareRuntime takes it away again.
func ShareRuntime(dir string) error {
	m, err := mountAt(dir)
	if err != nil {
		return err
	}
	if m == nil {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fault.FromOS("bind", dir, err)
		}
		// Out of the peer group of the mount that it was copied from: else every
		// mount below dir would come twice.
		if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
			return fault.FromOS("make private", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fault.FromOS("make shared", dir, err)
	}
	return nil
}

// UnshareRuntime undoes ShareRuntime; a dir that is no mount point is no error.
func UnshareRuntime(dir string) error {
	m, err := mountAt(dir)
	if err != nil || m == nil {
		return err
	}
	return fault.FromOS("unmount", dir, unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
}

// Propagates says whether what is mounted below dir reaches running sandboxes:
// whether the mount that dir lies on is shared.
func Propagates(dir string) (bool, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, fault.FromOS("resolve", dir, err)
	}
	mounts, err := stage.ReadMounts("/proc/self/mountinfo")
	if err != nil {
		return false, fault.FromOS("read mounts", dir, err)
	}
	best := -1
	for i := range mounts { // of equals the last: it lies on top
		if point := strings.TrimSuffix(mounts[i].Point, "/"); under(real, point) && (best < 0 || len(mounts[i].Point) >= len(mounts[best].Point)) {
			best = i
		}
	}
	return best >= 0 && hasTag(&mounts[best], "shared:"), nil
}

func mountAt(dir string) (*stage.Mount, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fault.FromOS("resolve", dir, err)
	}
	mounts, err := stage.ReadMounts("/proc/self/mountinfo")
	if err != nil {
		return nil, fault.FromOS("read mounts", dir, err)
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if mounts[i].Point == real {
			return &mounts[i], nil
		}
	}
	return nil, nil
}

func hasTag(m *stage.Mount, prefix string) bool {
	for _, t := range m.Tags {
		if strings.HasPrefix(t, prefix) {
			return true
		}
	}
	return false
}
