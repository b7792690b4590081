package tree

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// namespaces are the pid and user namespace of a thread, by inode.
type namespaces struct{ pid, user nsID }

type nsID struct{ dev, ino uint64 }

func namespacesOf(proc string) (namespaces, error) {
	var n namespaces
	for _, l := range []struct {
		name string
		to   *nsID
	}{{"/ns/pid", &n.pid}, {"/ns/user", &n.user}} {
		var st unix.Stat_t
		if err := unix.Stat(proc+l.name, &st); err != nil {
			return namespaces{}, err
		}
		*l.to = nsID{st.Dev, st.Ino}
	}
	return n, nil
}

// foreign refuses a change that comes from a thread of another pid or user
// namespace than ours: a mount of ours that became visible in a sandbox does not
// make the agent its owner (spec section 4.8). The thread cannot vanish before
// the request is answered, so /proc/<tid> is still the one that asks. A thread
// that we cannot name or look at is refused.
func (t *Tree) foreign(r *vnode.Req) error {
	if t.o.ForeignNS {
		return nil
	}
	if r.TID != 0 {
		n, err := namespacesOf("/proc/" + strconv.FormatUint(uint64(r.TID), 10))
		if err == nil && n == t.ns {
			return nil
		}
	}
	return fault.Newf(fault.Access, "the caller is in another pid or user namespace; only the host writes here")
}

// isRoot is the root of spec section 1: uid 0, and in a user's daemon that user.
func (t *Tree) isRoot(uid uint32) bool {
	return uid == 0 || (!t.o.Root && uid == t.o.DaemonUID)
}

// writer makes the identity that judges everything written through an open: the
// ids of this request, with the groups that the thread has now.
func (t *Tree) writer(r *vnode.Req) agent.Writer {
	w := agent.Writer{UID: r.UID, GID: r.GID, Root: t.isRoot(r.UID)}
	if !w.Root {
		w.Groups = t.groups(r)
	}
	return w
}

// groups are the supplementary groups of the caller.
func (t *Tree) groups(r *vnode.Req) []uint32 {
	if t.o.Groups != nil {
		return t.o.Groups(r)
	}
	return groupsOf(r.TID, r.UID)
}

// groupsOf reads the supplementary groups of a thread that acts as uid; none if it
// is not to be seen, or acts as somebody else: then the request has its ids from
// elsewhere (an overlay's mounter), and the thread's groups are not theirs.
func groupsOf(tid, uid uint32) []uint32 {
	if tid == 0 {
		return nil
	}
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	if err != nil {
		return nil
	}
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		if ids, ok := strings.CutPrefix(sc.Text(), "Uid:"); ok { // the fourth is the fsuid
			if f := strings.Fields(ids); len(f) != 4 || f[3] != strconv.FormatUint(uint64(uid), 10) {
				return nil
			}
		}
		rest, ok := strings.CutPrefix(sc.Text(), "Groups:")
		if !ok {
			continue
		}
		var gids []uint32
		for _, f := range strings.Fields(rest) {
			if n, err := strconv.ParseUint(f, 10, 32); err == nil {
				gids = append(gids, uint32(n))
			}
		}
		return gids
	}
	return nil
}

// inGroup says whether the caller is a member of gid.
func (t *Tree) inGroup(r *vnode.Req, gid uint32) bool {
	return r.GID == gid || slices.Contains(t.groups(r), gid)
}
