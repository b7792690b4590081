package stage

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// place is a directory or file as the kernel names it: a file system and a path
// inside that file system. Two mounts of the same directory have one place,
// whatever their paths on the host are. Nothing here asks the server of a file
// system: descriptor information and mountinfo are the kernel's own.
type place struct {
	dev, path string
	ino       uint64 // 0: unknown
}

// in says whether p is q or lies in it, by path inside the file system.
func (p place) in(q place) bool {
	if p.dev != q.dev {
		return false
	}
	_, ok := below(p.path, q.path)
	return ok
}

// same is identity: by path, or by inode where both are known.
func (p place) same(q place) bool {
	return p.dev == q.dev && (p.path == q.path || p.ino != 0 && p.ino == q.ino)
}

// mountTable is the mount table of the namespace that sources are opened in.
type mountTable struct {
	all  []Mount
	byID map[int]*Mount
}

func readTable() (*mountTable, error) {
	all, err := ReadMounts("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	t := &mountTable{all: all, byID: make(map[int]*Mount, len(all))}
	for i := range all {
		t.byID[all[i].ID] = &all[i]
	}
	return t, nil
}

// located is an open descriptor's place, its mount and its path on the host.
type located struct {
	place
	mount *Mount
	host  string
}

// locate finds out what an O_PATH descriptor is.
func (t *mountTable) locate(fd int) (located, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if err != nil {
		return located{}, err
	}
	id, ok := field(string(info), "mnt_id:")
	if !ok {
		return located{}, fmt.Errorf("fdinfo of %d has no mnt_id", fd)
	}
	ino, _ := field(string(info), "ino:") // since Linux 5.14
	m := t.byID[int(id)]
	if m == nil {
		return located{}, fmt.Errorf("mount %d is not in this mount namespace", id)
	}
	host, err := os.Readlink(fmt.Sprintf("/proc/thread-self/fd/%d", fd))
	if err != nil {
		return located{}, err
	}
	rel, ok := below(host, m.Point)
	if !ok {
		return located{}, fmt.Errorf("%s is not below its mount point %s", host, m.Point)
	}
	return located{place{m.Dev, join(m.Root, rel), ino}, m, host}, nil
}

func field(text, name string) (uint64, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// chain is the place itself and then the places of the mount points above it, up
// to the root of the namespace.
func (t *mountTable) chain(p place, m *Mount) []place {
	list := []place{p}
	for range len(t.all) { // a bound, should the table be odd
		up := t.byID[m.Parent]
		if up == nil || up == m {
			break
		}
		rel, ok := below(m.Point, up.Point)
		if !ok {
			break
		}
		list = append(list, place{dev: up.Dev, path: join(up.Root, rel)})
		m = up
	}
	return list
}

// above are the mounts from m to the root of the namespace.
func (t *mountTable) above(m *Mount) []*Mount {
	list := []*Mount{m}
	for range len(t.all) {
		up := t.byID[m.Parent]
		if up == nil || up == m {
			break
		}
		list = append(list, up)
		m = up
	}
	return list
}

// inside are the mounts that hang below the place l, at any depth.
func (t *mountTable) inside(l located) []*Mount {
	var list []*Mount
	for i := range t.all {
		m := &t.all[i]
		if m.ID == l.mount.ID {
			continue
		}
		// Only mounts on this very mount (or on one below it) come along; the same
		// directory seen through another mount carries other children.
		for up := m; ; {
			parent := t.byID[up.Parent]
			if parent == nil || parent == up {
				break
			}
			if parent.ID == l.mount.ID {
				if _, ok := below(up.Point, l.host); ok {
					list = append(list, m)
				}
				break
			}
			up = parent
		}
	}
	return list
}

// byName locates an absolute clean path by the table alone: nothing on the disk
// is looked at, so symlinks are not seen.
func (t *mountTable) byName(name string) (located, bool) {
	var m *Mount
	for i := range t.all { // of equals the last: it lies on top
		if _, ok := below(name, t.all[i].Point); ok && (m == nil || len(t.all[i].Point) >= len(m.Point)) {
			m = &t.all[i]
		}
	}
	if m == nil {
		return located{}, false
	}
	rel, _ := below(name, m.Point)
	return located{place{dev: m.Dev, path: join(m.Root, rel)}, m, name}, true
}

// servedTypes are file systems where a look-up waits for somebody.
var servedTypes = map[string]bool{"autofs": true, "nfs": true, "nfs4": true, "cifs": true, "smb3": true, "9p": true, "ceph": true, "afs": true, "virtiofs": true}

// served says whether walking to a directory may wait for a server.
func (t *mountTable) served(dir string) bool {
	l, ok := t.byName(dir)
	if !ok {
		return true
	}
	for _, m := range t.above(l.mount) {
		if servedTypes[m.Type] || strings.HasPrefix(m.Type, "fuse") {
			return true
		}
	}
	return false
}
