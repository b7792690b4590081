package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// homeOf is a uid's home directory in the account database, "" if there is none.
func homeOf(uid uint32) string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil || !filepath.IsAbs(u.HomeDir) {
		return ""
	}
	return u.HomeDir
}

// primary is a uid's primary gid; that of an unknown uid is the same number.
func (w *world) primary(uid uint32) uint32 {
	if !w.root && uid == w.uid {
		return w.gid
	}
	if gid, ok := w.users.User(uid); ok {
		return gid
	}
	return uid
}

// makeHomes makes the directories of an agent that are not there yet.
func (w *world) makeHomes(cfg *agent.Config) error {
	gid := w.primary(cfg.Owner)
	if err := w.ord.MakeHome(cfg.Owner, gid); err != nil {
		return fault.At("make the home of", fmt.Sprintf("uid %d", cfg.Owner), err)
	}
	return fault.At("make the home of", cfg.Key.String(), w.ord.MakeAgentHome(cfg.Owner, gid, cfg.Key.Name))
}

// as is a request that acts with the rights of a uid: package ordinary takes its
// fsuid on the thread that works.
func (w *world) as(uid uint32) *vnode.Req {
	return &vnode.Req{Ctx: context.Background(), UID: uid, GID: w.primary(uid)}
}

// mkdirOwned makes base/sub component by component, as the owner, and returns
// when all of it exists. It follows no link of theirs.
func (w *world) mkdirOwned(owner uint32, base, sub string) error {
	_, err := w.walkOwned(owner, base, sub, func(vnode.Node) error { return nil })
	return err
}

// walkOwned makes base/sub and hands its node to then.
func (w *world) walkOwned(owner uint32, base, sub string, then func(vnode.Node) error) (string, error) {
	r := w.as(owner)
	at := base
	for _, name := range strings.Split(sub, "/") {
		n, err := w.ord.Node(r, at)
		if err != nil {
			return at, err
		}
		mk, ok := n.(vnode.Mkdirer)
		if !ok {
			unref(n)
			return at, fault.E("make", at, fault.NotDir, errors.New("not a directory"))
		}
		e, err := mk.Mkdir(r, name, 0o700)
		unref(n)
		if err != nil && !fault.Is(err, fault.Exist) {
			return at, err
		}
		unref(e.Node)
		at = path.Join(at, name)
	}
	n, err := w.ord.Node(r, at)
	if err != nil {
		return at, err
	}
	defer unref(n)
	return at, then(n)
}

func unref(n vnode.Node) {
	if c, ok := n.(vnode.Refcounted); ok && n != nil {
		c.Unref()
	}
}

// terminalDir is where a session's terminal link lies, below the agent's home.
func terminalDir(session string) string { return path.Join("session", session, "terminal") }

// link puts the terminal's link into the session directory (spec section 12).
// It is a convenience: a start does not fail for it.
func (w *world) link(cfg *agent.Config, session, socket string) {
	home := fmt.Sprintf("home/%d/agent/%s", cfg.Owner, cfg.Key.Name)
	r := w.as(cfg.Owner)
	_, err := w.walkOwned(cfg.Owner, home, terminalDir(session), func(n vnode.Node) error {
		if rm, ok := n.(vnode.Remover); ok {
			if err := rm.Unlink(r, "main.sock"); err != nil && !fault.Is(err, fault.NotExist) {
				return err
			}
		}
		ln, ok := n.(vnode.Symlinker)
		if !ok {
			return fault.Newf(fault.NotDir, "not a directory")
		}
		e, err := ln.Symlink(r, "main.sock", socket)
		if err == nil {
			unref(e.Node)
		}
		return err
	})
	if err != nil {
		w.log.Warn("terminal link", zap.String("agent", cfg.Key.String()), zap.Error(err))
	}
}

// unlink takes the terminal's link away.
func (m *manager) unlink(k agent.Key, owner uint32, session string) {
	r := m.w.as(owner)
	n, err := m.w.ord.Node(r, path.Join(fmt.Sprintf("home/%d/agent/%s", owner, k.Name), terminalDir(session)))
	if err != nil {
		return
	}
	defer unref(n)
	if rm, ok := n.(vnode.Remover); ok {
		_ = rm.Unlink(r, "main.sock")
	}
}

// holders names processes that have a working directory, root or open file on
// the mount, for the message of an unmount that has to wait. It compares device
// numbers of links in /proc and never enters the mount.
func holders(mountpoint string) []string {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var list []string
	for _, p := range procs {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", p.Name())
		if p.Name() != strconv.Itoa(os.Getpid()) && holds(dir, mountpoint) {
			comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
			list = append(list, fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), p.Name()))
		}
		if len(list) == 16 {
			break
		}
	}
	return list
}

func holds(proc, mountpoint string) bool {
	inside := func(link string) bool {
		to, err := os.Readlink(link)
		return err == nil && (to == mountpoint || strings.HasPrefix(to, mountpoint+"/"))
	}
	if inside(filepath.Join(proc, "cwd")) || inside(filepath.Join(proc, "root")) {
		return true
	}
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if inside(filepath.Join(proc, "fd", fd.Name())) {
			return true
		}
	}
	return false
}

// exists says whether a path is there, without following its last component.
func exists(p string) bool {
	var st unix.Stat_t
	return !errors.Is(unix.Lstat(p, &st), fs.ErrNotExist)
}
