package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"go.uber.org/zap"

	"cortexfs/cmd/internal/companion"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/ordinary"
	"cortexfs/node/store"
	"cortexfs/node/tool"
	"cortexfs/node/tree"
	"cortexfs/node/view"
)

// world is everything that one daemon composes. Fixed after openWorld.
type world struct {
	log        *zap.Logger
	conf       Conf
	root       bool // the daemon runs as root
	uid, gid   uint32
	groups     []uint32
	mountpoint string

	st     *store.Store
	run    *runDir
	users  agent.UserDB
	agents *agent.Table
	tools  *tool.Catalog
	views  *view.Views
	ord    *ordinary.FS
	tree   *tree.Tree

	digests  digests
	socketOf atomic.Pointer[func(agent.Key) (string, bool)] // the manager's, once there is one

	degraded atomic.Bool
	closers  []func() error
}

// openWorld opens the store and builds the tree over it. On an error nothing
// stays open.
func openWorld(c *Command, conf Conf, log *zap.Logger) (_ *world, err error) {
	toFile := log == nil
	if toFile {
		log = newLog(os.Stderr, c.Mount.Debug) // until the store is open
	}
	w := &world{log: log, conf: conf, root: os.Geteuid() == 0, uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), mountpoint: c.Mountpoint}
	defer func() {
		if err != nil {
			w.close()
			if w.run != nil {
				w.run.remove()
			}
		}
	}()
	ids, err := os.Getgroups()
	if err != nil {
		return nil, fmt.Errorf("own groups: %w", err)
	}
	for _, g := range ids {
		w.groups = append(w.groups, uint32(g))
	}
	warn := func(msg string) { w.log.Warn(msg) }
	w.st, err = store.Open(c.Store, store.Options{Mountpoint: c.Mountpoint, Create: true, Log: warn})
	if err != nil {
		return nil, err
	}
	w.closers = append(w.closers, w.st.Close)
	if toFile {
		f, err := openLog(w.st.StateRoot())
		if err != nil {
			return nil, fmt.Errorf("open the log: %w", err)
		}
		w.log = newLog(f, c.Mount.Debug)
	}
	real, err := filepath.EvalSymlinks(c.Store)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if w.run, err = openRunDir(real); err != nil {
		return nil, err
	}
	return w, w.openTree(c, warn)
}

func (w *world) openTree(c *Command, warn func(string)) (err error) {
	w.users = agent.SystemUsers()
	w.tools = tool.New(w.st)
	w.agents, err = agent.New(w.st, agent.Options{
		Users: w.users, Root: w.root, DaemonUID: w.uid, DaemonGID: w.gid, DaemonGroups: w.groups, Subjects: w.tools,
	})
	if err != nil {
		return err
	}
	w.closers = append(w.closers, w.agents.Close)
	w.views = view.New(w.agents, w.tools)
	if w.ord, err = ordinary.New(w.st.DurableRoot(), ordinary.Options{Root: w.root, Log: warn}); err != nil {
		return err
	}
	w.closers = append(w.closers, w.ord.Close)
	group, _, err := c.Mount.gid()
	if err != nil {
		return err
	}
	w.tree, err = tree.New(tree.Options{
		Store: w.st, Agents: w.agents, Tools: w.tools, Views: w.views, Ordinary: w.ord, Users: w.users,
		Root: w.root, DaemonUID: w.uid, DaemonGID: w.gid, AgentGroup: group, ForeignNS: c.Mount.ForeignNS,
		Bin: programs(), AgentExec: agentProgram(), Status: w.status, Socket: w.socket, Runtime: w.run.path, Version: node.Version, Log: warn,
	})
	if err != nil {
		return err
	}
	w.closers = append(w.closers, func() error { w.tree.Close(); return nil })
	return nil
}

// agentProgram is what agent/NAME executes: ctx, which knows by its own path that
// it is to give the agent a task.
func agentProgram() tree.File {
	p, err := companion.Find("ctx")
	if err != nil {
		return tree.File{Data: []byte("#!/bin/sh\necho \"${0##*/}: ctx is not installed beside the daemon\" >&2\nexit 69\n")}
	}
	return tree.File{Path: p}
}

// programs are the files of bin/: our own, beside the daemon.
func programs() map[string]tree.File {
	m := map[string]tree.File{}
	for _, name := range []string{"ctx", "ctxterm", "tsh"} {
		if p, err := companion.Find(name); err == nil {
			m[name] = tree.File{Path: p}
		}
	}
	return m
}

// socket is where agent/NAME.sock points while something listens there.
func (w *world) socket(k agent.Key) (string, bool) {
	if f := w.socketOf.Load(); f != nil {
		return (*f)(k)
	}
	return "", false
}

func (w *world) status() string {
	if w.degraded.Load() {
		return "degraded"
	}
	return "ready"
}

// close releases everything, last opened first.
func (w *world) close() error {
	var errs []error
	for i := len(w.closers) - 1; i >= 0; i-- {
		errs = append(errs, w.closers[i]())
	}
	w.closers = nil
	return errors.Join(errs...)
}

// changed tells the tree that somebody else changed something below object/dir.
func (w *world) changed(dir string) {
	w.tree.StoreChanged(dir)
}

// toolChanged tells everybody that a tool was installed or changed.
func (w *world) toolChanged(tier, name string) {
	w.tools.Changed(tier, name)
	w.tree.StoreChanged(tier)
	w.tree.StoreChanged(tier + "/" + name + ".d")
}
