// Package daemon composes the cortexfs daemon: the store, the tree, its mount,
// the running agents and the control socket (spec sections 10, 11, 13, 21, 24).
//
// Ideas. The daemon serves a mount that it never touches itself: whoever wants
// to know whether the tree answers looks from another process (launch.go). It
// starts two kinds of programs, ctxagent and the stage helper, and holds every
// process of an agent by a pidfd, so that no signal ever meets a stranger. An
// agent outlives it: what the next daemon needs to find it again lies in the
// runtime directory, and is believed only after it was compared with the
// processes that there really are (adopt.go).
//
// One agent is one unit (manager.go). Starts, stops and restarts of a unit come
// one after another; its state is a snapshot that anybody reads without waiting,
// derived at every read from the host process's pidfd.
//
// Locks: manager.mu > unit.mu > server.mu. All guard memory only and are held
// over no I/O; unit.turn is the queue of starts and stops and is held across
// them.
//
// The package decides nothing about tools or texts: that is node/view and
// node/agent. It mounts nothing itself (fs) and enters no namespace (sandbox).
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	cfs "cortexfs/fs"
	"cortexfs/node"
)

// stopBound is how long a clean end may take for all agents together, unless
// cortexfs.conf says otherwise; openBound is the same for the sources of a start.
const (
	stopBound = 10 * time.Second
	openBound = 5 * time.Second
)

// errKept is the end of a daemon whose agents live on for the next (SIGHUP).
var errKept = errors.New("ended by SIGHUP; the agents live on")

// serve is the daemon: it comes up, tells, and stays until a signal or an
// unmount. log nil: a log file in the store. An error other than errKept means
// that nothing was left behind.
func serve(c *Command, log *zap.Logger, tell func(verdict)) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Ignore(syscall.SIGPIPE)
	// Modes are the clients' business: the kernel has applied their umask already.
	unix.Umask(0)

	conf, err := ReadConf(ConfPath())
	if err != nil {
		return err
	}
	mp, err := prepareMountpoint(c.Mountpoint)
	if err != nil {
		return err
	}
	c.Mountpoint = mp
	if err := checkApart(c.Store, mp); err != nil {
		return err
	}
	w, err := openWorld(c, conf, log)
	if err != nil {
		return err
	}
	defer w.close()
	m := newManager(w)
	w.agents.SetRuntime(m)
	if err := w.st.Watch(w.changed); err != nil {
		return fmt.Errorf("watch the store: %w", err)
	}
	// Before the mount: an agent that lives is never shown as dead.
	m.adoptAll()
	srv, err := cfs.Mount(cfs.Options{
		Mountpoint: mp, FS: w.tree, AllowOther: w.root || c.Mount.AllowOther, DefaultPermissions: true,
		ReadOnly: c.Mount.ReadOnly, NoExec: c.Mount.NoExec, FSName: sourceName(c.Store), Log: w.log,
	})
	if err != nil {
		m.abandon()
		w.run.remove()
		return err
	}
	defer w.tree.AddNotifier(srv)()
	ctl, err := listenControl(w, m)
	if err != nil {
		m.stopAll(context.Background(), time.Second)
		_ = srv.Unmount()
		w.run.remove()
		return err
	}
	w.log.Info("ready", zap.String("version", node.Version), zap.String("store", w.st.Path()),
		zap.String("mountpoint", mp), zap.String("runtime", w.run.path), zap.Bool("root", w.root))
	tell(verdict{OK: true, Notes: notes(c)})
	c.notify.say("READY=1\nSTATUS=" + mp + " is up")
	unwatch := c.notify.watch(w.log, w.alive)
	keep := w.await(srv, signals)
	unwatch()
	c.notify.say("STOPPING=1")
	ctl.close()
	if keep {
		_ = srv.Unmount()
		m.abandon()
		return errKept
	}
	ctx, cancel := context.WithTimeout(context.Background(), conf.StopBound)
	defer cancel()
	m.stopAll(ctx, conf.StopGrace)
	if err := srv.TryUnmount(); err != nil {
		w.log.Warn("the tree is still in use: it vanishes when the last one leaves", zap.Error(err), zap.Strings("holders", holders(mp)))
	}
	if err := srv.Unmount(); err != nil {
		w.log.Error("unmount", zap.Error(err))
	}
	w.run.remove()
	w.log.Info("ended")
	return nil
}

// sourceName is what the mount table shows as the source: the store as fstab
// writes it, so that a second `mount -a` finds it mounted; but never a path that
// systemd takes for a device, for it would unmount at once what hangs on a device
// that is not there.
func sourceName(store string) string {
	if strings.HasPrefix(store, "/dev/") {
		return "cortexfs"
	}
	return store
}

// await stays until the daemon is to end; keep says that agents are to live on
// (SIGHUP).
func (w *world) await(srv *cfs.Server, signals <-chan os.Signal) (keep bool) {
	select {
	case s := <-signals:
		w.log.Info("signal", zap.String("signal", s.String()))
		return s == syscall.SIGHUP
	case <-srv.Done():
		w.log.Info("unmounted")
		return false
	}
}

// notes are what the person who mounts should know.
func notes(c *Command) []string {
	var list []string
	if c.Mount.NoExec {
		list = append(list, "noexec is set: no program of the tree can be executed on this host, agents are not affected (in fstab `user` and `users` bring it; write user,exec)")
	}
	return list
}
