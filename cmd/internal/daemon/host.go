package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/cmd/internal/companion"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// startHost starts ctxagent with its sockets and returns the guest's end of the
// wire.
func (l *attempt) startHost(r *running, p place) (guest *os.File, err error) {
	w, key := l.u.m.w, l.u.key
	bin, err := companion.Find("ctxagent")
	if err != nil {
		return nil, err
	}
	if r.exe, err = exeID(bin); err != nil {
		return nil, fault.FromOS("start", bin, err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fault.FromOS("wire", "", err)
	}
	wire := os.NewFile(uintptr(pair[0]), "wire")
	defer wire.Close()
	guest = os.NewFile(uintptr(pair[1]), "wire-guest")
	defer func() {
		if err != nil {
			guest.Close()
		}
	}()
	r.socket = w.run.socket(key.RuntimeKey(), p.Session)
	if err := ownDir(w.run.sockets(key.RuntimeKey()), 0o711); err != nil {
		return nil, err
	}
	term, err := listenAt(r.socket, 0o666)
	if err != nil {
		return nil, err
	}
	defer term.Close()
	ctl, err := listenIn(w.run.agent(key.RuntimeKey()), "ctl.sock", 0o600)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	lock, err := w.run.lock(key.RuntimeKey())
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	said, err := w.run.hostLog(key.RuntimeKey())
	if err != nil {
		return nil, err
	}
	defer said.Close()
	params := &agentd.Params{Agent: key.Name, Key: key.RuntimeKey(), Session: p.Session, Owner: l.cfg.Owner, DaemonUID: w.uid, Dir: key.TreeDir()}
	files := agentd.Files{Wire: wire, Term: term, Ctl: ctl, Lock: lock, Log: said}
	if err := l.runFiles(&files); err != nil {
		return nil, err
	}
	defer closeRunFiles(&files)
	r.runs = true
	proc, err := agentd.Start(bin, params, files, w.hostIdentity(l.cfg))
	if err != nil {
		return nil, failure{69, err}
	}
	go func() { _, _ = proc.Wait() }() // reap; the pidfd below tells when
	r.host, err = holdProcess(proc.Pid, 0)
	if err != nil {
		return nil, err
	}
	l.later(func() {
		_ = r.host.signal(unix.SIGKILL)
		_ = r.host.wait(context.Background())
		r.host.close()
	})
	return guest, nil
}

// hostIdentity is whom ctxagent runs as: the owner; for root's agents the
// agent's own ids; nil (the daemon's user) where nothing can be changed.
func (w *world) hostIdentity(cfg *agent.Config) *agentd.Credential {
	if !w.root {
		return nil
	}
	if cfg.Owner == 0 {
		return &agentd.Credential{UID: cfg.UID, GID: cfg.GID}
	}
	gid, ok := w.users.User(cfg.Owner)
	if !ok {
		gid = cfg.GID
	}
	return &agentd.Credential{UID: cfg.Owner, GID: gid, Groups: w.users.Groups(cfg.Owner)}
}

// handOver tells ctxagent the sandbox's processes and waits until the session
// program runs.
func (l *attempt) handOver(ctx context.Context, r *running) error {
	dir, err := os.Open(l.u.m.w.run.agent(l.u.key.RuntimeKey()))
	if err != nil {
		return fault.FromOS("open", "runtime directory", err)
	}
	defer dir.Close()
	// Through the directory's descriptor: the path itself may be too long for a
	// socket address.
	r.client, err = agentd.DialWith(ctx, fmt.Sprintf("/proc/self/fd/%d/ctl.sock", dir.Fd()), l.u.answer)
	if err != nil {
		return l.whyNot(r, failure{70, fault.At("reach the host process of", l.u.key.String(), err)})
	}
	l.later(func() { r.client.Close() })
	rec := r.box.Record()
	err = r.client.Sandbox(ctx, agentd.Sandbox{
		Bwrap: agentd.Proc{Pid: rec.Bwrap.PID, Start: rec.Bwrap.Start},
		Init:  agentd.Proc{Pid: rec.Init.PID, Start: rec.Init.Start},
	})
	if err != nil {
		return l.whyNot(r, err)
	}
	if err := r.client.WaitReady(ctx); err != nil {
		return l.whyNot(r, err)
	}
	return nil
}

// whyNot adds what the daemon knows to a failure inside: bwrap's own words, or
// the row of section 8 that refuses the shell. A sandbox that ends takes the host
// process along and the other way round, so which end is heard of first says
// nothing: it waits for the sandbox's, for a moment.
func (l *attempt) whyNot(r *running, err error) error {
	late := time.NewTimer(killBound / 2)
	defer late.Stop()
	select {
	case <-r.box.Done():
		e := r.box.Exit()
		if setup := e.Err(); setup != nil {
			return asFailure(setup)
		}
		if e.Message != "" {
			return failure{69, fault.E("start", l.u.key.String(), fault.Unavailable, fmt.Errorf("step 9: %s", e.Message))}
		}
	case <-late.C:
	}
	kind := fault.KindOf(err)
	if kind != fault.Access && kind != fault.NotExist && kind != fault.Loop {
		return asFailure(fault.At("start", l.u.key.String(), err))
	}
	o, lerr := l.u.m.w.agents.Lookup(l.u.key)
	if lerr != nil {
		return asFailure(lerr)
	}
	rows, _ := l.u.m.w.views.For(o).Explain("tsh", false)
	for _, v := range rows {
		if v.Asked && !v.OK {
			why := fmt.Sprintf("step 9: the shell tsh is refused by row %d (%s): %s", v.Row, v.Name, v.Why)
			if v.Missing != "" {
				why += fmt.Sprintf("; missing in %s: %s", v.File, v.Missing)
			}
			return failure{13, fault.E("start", l.u.key.String(), fault.Access, errors.New(why))}
		}
	}
	return asFailure(fault.At("start", l.u.key.String(), err))
}
