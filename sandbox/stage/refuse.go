package stage

import (
	"os"
	"path"
	"strings"

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
}

// newGuard opens the directories of the list with our own rights: they are
// root's or the installation's, never a name that an agent's owner chose.
func newGuard(t *mountTable, refuse []Refusal, owner uint32) (*guard, error) {
	g := &guard{table: t}
	users, err := readPasswd()
	if err != nil {
		return nil, err
	}
	list := append(append([]Refusal{}, fixed...), refuse...)
	for _, u := range users {
		if u.UID == owner && strings.HasPrefix(u.Home, "/") {
			list = append(list, Refusal{path.Join(u.Home, ".config/cortexfs"), "the configuration of CortexFS"},
				Refusal{path.Join(u.Home, ".local/share/cortexfs"), "a store of CortexFS"})
		}
	}
	for _, r := range list {
		if l, ok := g.find(r.Path); ok {
			g.never = append(g.never, g.keep(l, r.Reason))
		}
	}
	first := uidMin()
	for _, u := range users {
		if u.UID != 0 && u.UID != owner && u.UID < first || !strings.HasPrefix(u.Home, "/") {
			continue
		}
		if l, ok := g.find(u.Home); ok && l.host != "/" {
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

// find locates a path; one that is not there guards nothing. O_PATH neither
// triggers an automount nor asks the server of a mount that stands there.
func (g *guard) find(name string) (located, bool) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return located{}, false
	}
	defer unix.Close(fd)
	l, err := g.table.locate(fd)
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
	for _, h := range g.homes {
		if (l.same(h.place) || contains(l, down, h, false)) && !(allowHome && !row.RW) {
			return refuse("is or contains %s", h.reason)
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

// listening reads the paths of listening local sockets of this network
// namespace: field 4 holds __SO_ACCEPTCON (unix(7), /proc/net/unix).
func listening() ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 8)
		if len(f) == 8 && f[3] == "00010000" && strings.HasPrefix(strings.TrimLeft(f[7], " 0123456789"), "/") {
			list = append(list, f[7][strings.IndexByte(f[7], '/'):])
		}
	}
	return list, nil
}
