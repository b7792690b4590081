package stage

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// kernelTypes are the file systems that speak for the kernel. devtmpfs is here
// for itself only: /dev/shm, a mount below it, may be handed over in part.
var kernelTypes = map[string]bool{
	"proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "devtmpfs": true, "devpts": true, "mqueue": true,
	"debugfs": true, "tracefs": true, "securityfs": true, "configfs": true, "pstore": true, "bpf": true, "efivarfs": true,
	"selinuxfs": true, "smackfs": true, "fusectl": true, "binfmt_misc": true, "hugetlbfs": true, "nsfs": true, "pipefs": true,
	"sockfs": true, "rpc_pipefs": true, "nfsd": true, "resctrl": true, "xenfs": true,
}

// isCortex says whether m is a mount of ours, of whichever daemon.
func isCortex(m *Mount) bool {
	return strings.HasPrefix(m.Type, "fuse") && (m.Source == "cortexfs" || strings.HasPrefix(m.Type, "fuse.cortexfs"))
}

// shallow are directories that everybody shares: never handed over themselves.
var shallow = []string{"/", "/tmp", "/var/tmp", "/dev/shm", "/run"}

// sharedDirs are those of them whose children may hold somebody's sockets.
var sharedDirs = shallow[1:]

// fixed are the refusals of spec 10.3 that hold on every host.
var fixed = []Refusal{
	{"/etc/cortexfs", "the configuration of CortexFS"},
	{"/run/cortexfs", "a runtime directory"},
	{"/run/user", "a runtime directory"},
	{"/var/lib/cortexfs", "a store of CortexFS"},
}

type guarded struct {
	place
	reason string
	chain  []place
}

// guard knows what is never handed over, as places.
type guard struct {
	table   *mountTable
	never   []guarded // not be, contain or lie in
	homes   []guarded // not be or contain
	shared  []guarded // not be
	sockets []string  // paths of listening sockets

	people map[string]uint32 // home directories, by path
}

// newGuard finds the directories of the list. What lies in the owner's home is
// looked for by ask, with the owner's rights; everything else without leaving
// directories that are root's.
func newGuard(t *mountTable, refuse []Refusal, owner uint32, ask func(string) (*answer, error)) (*guard, error) {
	g := &guard{table: t}
	users, err := readPasswd()
	if err != nil {
		return nil, err
	}
	first := uidMin()
	users = slices.DeleteFunc(users, func(u user) bool {
		return u.UID != 0 && u.UID != owner && u.UID < first || !path.IsAbs(u.Home) || path.Clean(u.Home) == "/"
	})
	g.people = make(map[string]uint32, len(users))
	list := append(slices.Clone(fixed), refuse...)
	for _, u := range users {
		home := path.Clean(u.Home)
		g.people[home] = u.UID
		if u.UID == owner {
			list = append(list, Refusal{home + "/.config/cortexfs", "the configuration of CortexFS"}, Refusal{home + "/.local/share/cortexfs", "a store of CortexFS"})
		}
	}
	for _, r := range list {
		l, ok := located{}, false
		if uid, in := g.inHome(r.Path); in && uid == owner {
			if l, ok, err = g.asked(r.Path, ask); err != nil {
				return nil, err
			}
		} else {
			l, ok = g.find(r.Path)
		}
		if ok {
			g.never = append(g.never, g.keep(l, r.Reason))
		}
	}
	for _, u := range users {
		if l, ok := g.find(path.Clean(u.Home)); ok {
			g.homes = append(g.homes, g.keep(l, "the home directory of "+u.Name))
		}
	}
	for _, dir := range shallow {
		if l, ok := g.find(dir); ok {
			g.shared = append(g.shared, g.keep(l, dir+" itself"))
		}
	}
	g.sockets, err = listening()
	return g, err
}

func (g *guard) keep(l located, reason string) guarded {
	return guarded{l.place, reason, g.table.chain(l.place, l.mount)}
}

// inHome says in whose home directory a path lies.
func (g *guard) inHome(name string) (uid uint32, in bool) {
	for dir := path.Dir(path.Clean(name)); dir != "/" && dir != "."; dir = path.Dir(dir) {
		if uid, in = g.people[dir]; in {
			return uid, true
		}
	}
	return 0, false
}

// asked locates a path with the owner's rights; one that is not there for the
// owner guards nothing, the agent cannot come by it either.
func (g *guard) asked(name string, ask func(string) (*answer, error)) (located, bool, error) {
	a, err := ask(name)
	var num syscall.Errno
	if errors.As(err, &num) {
		return located{}, false, nil
	}
	if err != nil {
		return located{}, false, fmt.Errorf("look for %s: %w", name, err)
	}
	defer unix.Close(a.fd)
	l, err := g.table.locate(a.fd)
	return l, err == nil, nil
}

// find locates a path with our own rights, if no server and no user has a say on
// the way to it; else by the mount table alone. O_PATH neither triggers an
// automount nor asks the server of a mount that stands at the very end.
func (g *guard) find(name string) (located, bool) {
	l, ok := g.table.byName(path.Clean(name))
	if _, in := g.inHome(name); in || !ok || g.table.served(path.Dir(path.Clean(name))) {
		return l, ok
	}
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return located{}, false
	}
	defer unix.Close(fd)
	l, err = g.table.locate(fd)
	return l, err == nil
}

// check ends the start when the source must not be handed over: by mount and
// inode, whatever name it came by.
func (g *guard) check(row *Row, l located, allowHome bool) error {
	refuse := func(format string, args ...any) error {
		return Fail(StepMount, row.Control(), row.Line, fault.Perm, "name a directory further down", "%s is never handed over: it "+format, append([]any{show(row, l)}, args...)...)
	}
	for _, s := range g.shared {
		if l.same(s.place) {
			return refuse("is %s", s.reason)
		}
	}
	for i, m := range g.table.above(l.mount) {
		if kernelTypes[m.Type] && (i == 0 || m.Type != "devtmpfs") {
			return refuse("lies in a kernel file system (%s at %s)", m.Type, m.Point)
		}
		if isCortex(m) {
			return refuse("lies in a mount of CortexFS (%s); the tree is reached by a source below /ctx only", m.Point)
		}
	}
	down := g.table.inside(l)
	for _, m := range down {
		if isCortex(m) {
			return refuse("contains a mount of CortexFS (%s)", m.Point)
		}
		if kernelTypes[m.Type] {
			return refuse("contains a kernel file system (%s at %s)", m.Type, m.Point)
		}
	}
	for _, h := range g.homes {
		if (l.same(h.place) || contains(l, down, h, false)) && !(allowHome && !row.RW) {
			return refuse("is or contains %s", h.reason)
		}
	}
	up := g.table.chain(l.place, l.mount)
	for _, n := range g.never {
		if l.same(n.place) {
			return refuse("is %s", n.reason)
		}
		for _, p := range up {
			if p.in(n.place) {
				return refuse("lies in %s", n.reason)
			}
		}
		if contains(l, down, n, true) {
			return refuse("contains %s", n.reason)
		}
	}
	if dir := path.Dir(l.host); row.Kind == Host {
		for _, d := range sharedDirs {
			if dir == d && len(g.below(l.host)) > 0 {
				return refuse("holds a listening socket (%s)", g.below(l.host)[0])
			}
		}
	}
	return nil
}

// contains says whether n, or a mount point on the way to it, lies in the source
// or in a mount that comes along with it. A mount below the source may also show
// a part of n (whole is true: that counts as well).
func contains(l located, down []*Mount, n guarded, whole bool) bool {
	for _, p := range n.chain {
		if p.in(l.place) {
			return true
		}
	}
	for _, m := range down {
		shown := place{dev: m.Dev, path: m.Root}
		if n.in(shown) || whole && shown.in(n.place) {
			return true
		}
	}
	return false
}

// below are the listening sockets under a host path.
func (g *guard) below(dir string) []string {
	var list []string
	for _, s := range g.sockets {
		if _, ok := below(s, dir); ok {
			list = append(list, s)
		}
	}
	return list
}

// show is how a message names a source: as written, and where that led.
func show(row *Row, l located) string {
	if row.Source == l.host {
		return row.Source
	}
	return row.Source + " (" + l.host + ")"
}
