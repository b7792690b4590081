package ordinary

import (
	"path"
	"strconv"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// agentDirs are the directories of an agent's home (spec section 2).
var agentDirs = []string{"root", "session", "data", "cache", "log"}

// HomeDir is the path of a user's home below the root.
func HomeDir(uid uint32) string { return "home/" + strconv.FormatUint(uint64(uid), 10) }

// AgentDir is the path of an agent's home below the root.
func AgentDir(uid uint32, name string) string { return HomeDir(uid) + "/agent/" + name }

// MakeHome makes home/<uid> (0700, uid:gid) and home/<uid>/agent; existing ones
// stay as they are.
func (f *FS) MakeHome(uid, gid uint32) error {
	home := HomeDir(uid)
	if err := f.makeOwn(home, uid, gid, 0o700); err != nil {
		return err
	}
	return f.makeAs(&vnode.Req{UID: uid, GID: gid}, home+"/agent", 0o755)
}

// MakeAgentHome makes the home of agent name of uid, with root, session, data,
// cache and log in it (0700), and what is missing above; existing ones stay.
func (f *FS) MakeAgentHome(uid, gid uint32, name string) error {
	if err := node.CheckAgentName(name); err != nil {
		return err
	}
	if err := f.MakeHome(uid, gid); err != nil {
		return err
	}
	r, dir := &vnode.Req{UID: uid, GID: gid}, AgentDir(uid, name)
	if err := f.makeAs(r, dir, 0o700); err != nil {
		return err
	}
	for _, sub := range agentDirs {
		if err := f.makeAs(r, dir+"/"+sub, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// MakeShared makes shared/<space> with data (uid:gid, mode with setgid or sticky
// bits) and agent; existing ones stay.
func (f *FS) MakeShared(space string, uid, gid uint32, mode uint32) error {
	if err := node.CheckName(space); err != nil {
		return err
	}
	dir := "shared/" + space
	me, mine := uint32(unix.Geteuid()), uint32(unix.Getegid())
	if err := f.makeOwn(dir, me, mine, 0o755); err != nil {
		return err
	}
	if err := f.makeOwn(dir+"/agent", me, mine, 0o755); err != nil {
		return err
	}
	return f.makeOwn(dir+"/data", uid, gid, mode)
}

// makeOwn makes a directory for uid in one that only the daemon can write, so
// that nobody can exchange it between mkdir and chown.
func (f *FS) makeOwn(dir string, uid, gid, mode uint32) error {
	return f.makeIn(nil, dir, func(parent *dnode, base string) error {
		if err := unix.Mkdirat(parent.fd, base, 0o700); err != nil {
			return err
		}
		fd, err := beneath.Open(parent.fd, base, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if f.asRoot {
			if err := unix.Fchown(fd, int(uid), int(gid)); err != nil {
				return err
			}
		}
		return unix.Fchmod(fd, mode&0o7777) // last: chown drops setgid
	})
}

// makeAs makes a directory with the user's own rights, in one that is theirs.
func (f *FS) makeAs(r *vnode.Req, dir string, mode uint32) error {
	return f.makeIn(r, dir, func(parent *dnode, base string) error {
		return unix.Mkdirat(parent.fd, base, mode)
	})
}

func (f *FS) makeIn(r *vnode.Req, dir string, mk func(parent *dnode, base string) error) error {
	up, base := path.Split(dir)
	parent, err := f.find(r, f.root, path.Clean(up))
	if err != nil {
		return err
	}
	defer parent.Unref()
	err = parent.do(r, "mkdir", dir, func() error {
		err := mk(parent, base)
		if err == unix.EEXIST { // of another kind it is no use
			fd, err := beneath.Open(parent.fd, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
		return err
	})
	return fault.At("mkdir", dir, err)
}
