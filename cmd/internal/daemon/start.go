package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"cortexfs/cmd/internal/agentd"
	cfs "cortexfs/fs"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

var errStuck = errors.New("processes of the agent are left; the log names them")

// failure is an error with an exit code of its own (spec 10.1: a failed start
// is 1, whatever its errno, unless policy or a missing facility is the reason).
type failure struct {
	exit int
	err  error
}

func (f failure) Error() string { return f.err.Error() }
func (f failure) Unwrap() error { return f.err }

// ExitCode is read by ctlproto.ErrorFrame.
func (f failure) ExitCode() int { return f.exit }

// start brings the agent up, or joins it: joined says that it ran already.
func (u *unit) start(ctx context.Context, o *agent.Object, p place, by caller) (r *running, joined bool, err error) {
	if err := u.take(ctx); err != nil {
		return nil, false, err
	}
	defer u.give()
	if r := u.current(); r != nil {
		if err := r.sameAs(p); err != nil {
			return nil, false, err
		}
		return r, true, nil
	}
	if err := u.settle(ctx); err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, agentd.StartTimeout+10*time.Second)
	defer cancel()
	if err := u.admit(cancel); err != nil {
		return nil, false, err
	}
	u.set(node.Start, nil, "")
	began := time.Now()
	r, err = u.m.begins(u, ctx, o, p, by)
	u.mu.Lock()
	u.cancel = nil
	u.mu.Unlock()
	if err != nil {
		u.set(node.Dead, nil, err.Error())
		o.Log().Add(agent.Event{Type: "agent.start", Session: p.Session, Status: "error", Reason: err.Error(), By: fmt.Sprintf("uid %d", by.UID)})
		u.m.w.log.Warn("start failed", zap.String("agent", u.key.String()), zap.Error(err))
		return nil, false, err
	}
	o.Log().Add(agent.Event{Type: "agent.start", Session: p.Session, Status: "ready", By: fmt.Sprintf("uid %d", by.UID)})
	u.m.w.log.Info("started", zap.String("agent", u.key.String()), zap.Int("pid", r.host.PID), zap.Duration("took", time.Since(began)))
	return r, false, nil
}

// settle waits until what is left of an agent that just died is put away.
func (u *unit) settle(ctx context.Context) error {
	u.mu.Lock()
	old := u.live
	u.mu.Unlock()
	if old == nil {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, 3*killBound)
	defer cancel()
	select {
	case <-old.done:
		return nil
	case <-wait.Done():
		return fault.E("start", u.key.String(), fault.Busy, errStuck)
	}
}

// sameAs lets a start join only what it would have started.
func (r *running) sameAs(p place) error {
	differs := func(what, is, wanted string) error {
		return fault.E("start", r.unit.key.String(), fault.Busy, fmt.Errorf(
			"it runs already, with another %s: %s, not %s (pid %d, session %s, workspace %s)",
			what, orNone(is), orNone(wanted), r.host.PID, r.want.Session, orNone(r.want.Workspace)))
	}
	switch {
	case r.want.Session != p.Session:
		return differs("session", r.want.Session, p.Session)
	case r.want.Workspace != p.Workspace:
		return differs("workspace", r.want.Workspace, p.Workspace)
	case !slices.EqualFunc(r.want.Mounts, p.Mounts, slices.Equal[[]string]):
		return differs("mount list", fmt.Sprint(r.want.Mounts), fmt.Sprint(p.Mounts))
	case r.want.GitRW != p.GitRW:
		return differs("--git mode", fmt.Sprint(r.want.GitRW), fmt.Sprint(p.GitRW))
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// attempt is a start under way: what has been made so far, to be undone in
// reverse order if a later step fails.
type attempt struct {
	u    *unit
	cfg  *agent.Config
	undo []func()
}

func (l *attempt) later(f func()) { l.undo = append(l.undo, f) }

func (l *attempt) rollBack() {
	for i := len(l.undo) - 1; i >= 0; i-- {
		l.undo[i]()
	}
}

// bringUp takes the steps of spec 10.1. On an error nothing is left running or
// mounted.
func (u *unit) bringUp(ctx context.Context, o *agent.Object, p place, by caller) (_ *running, err error) {
	w := u.m.w
	cfg, err := judged(o)
	if err != nil {
		return nil, err
	}
	if err := u.m.mayRun(cfg.Owner); err != nil {
		return nil, err
	}
	l := &attempt{u: u, cfg: cfg}
	defer func() {
		if err != nil {
			l.rollBack()
		}
	}()
	if err := w.makeHomes(cfg); err != nil {
		return nil, err
	}
	comp, err := w.compose(cfg, p, by)
	if err != nil {
		return nil, asFailure(err)
	}
	defer comp.close()
	plan, err := comp.spec.Plan()
	if err != nil {
		return nil, asFailure(err)
	}
	if err := l.stage(plan); err != nil {
		return nil, err
	}
	r := &running{
		unit: u, owner: cfg.Owner, want: p, ids: ids{comp.spec.UID, comp.spec.GID, comp.spec.Groups, comp.spec.Cwd}, since: time.Now(), texts: startTexts(cfg),
		done: make(chan struct{}), stopped: make(chan struct{}),
	}
	if err := l.mountView(r, comp.spec.Skeleton); err != nil {
		return nil, err
	}
	wire, err := l.startHost(r, p)
	if err != nil {
		return nil, err
	}
	files := sandbox.StartFiles{Wire: wire, Store: comp.store}
	r.box, err = sandbox.Start(ctx, plan, files)
	wire.Close()
	if err != nil {
		return nil, asFailure(err)
	}
	l.later(func() { kill(r.box) })
	if err := l.handOver(ctx, r); err != nil {
		return nil, err
	}
	if err := r.box.Verify(plan); err != nil {
		return nil, asFailure(err)
	}
	if err := r.record(); err != nil {
		return nil, err
	}
	w.link(cfg, p.Session, r.socket)
	r.warn = r.box.Warnings
	u.set(node.Ready, r, "")
	go r.follow()
	r.reviewed("a change during the start")
	return r, nil
}

// judged is the Config of a start, without faults: exactly the texts that were
// judged. An owner who writes at that moment starts nothing unjudged.
func judged(o *agent.Object) (*agent.Config, error) {
	for range 16 {
		gen := o.Gen()
		if faults := o.StartFaults(); len(faults) > 0 {
			return nil, faultsError(faults)
		}
		if cfg := o.Config(); cfg.Gen == gen {
			return cfg, nil
		}
	}
	return nil, fault.E("start", o.Key().String(), fault.Again, errors.New("its controls are being written without a pause"))
}

// faultsError lists every fault of a start.
func faultsError(faults []*fault.Error) error {
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = f.Error()
	}
	kind := faults[0].Kind
	exit := 1
	for _, f := range faults {
		if f.Kind == fault.Perm || f.Kind == fault.Access {
			exit, kind = 13, f.Kind
		}
	}
	return failure{exit, fault.E("start", "", kind, errors.New("step 1: "+strings.Join(lines, "\n")))}
}

// asFailure gives an error of a start the exit code of spec 10.1.
func asFailure(err error) error {
	var se *sandbox.StartError
	if errors.As(err, &se) && se.Exit > 0 {
		return failure{se.Exit, err}
	}
	switch fault.KindOf(err) {
	case fault.Perm, fault.Access:
		return failure{13, err}
	case fault.Unavailable:
		return failure{69, err}
	}
	return failure{1, err}
}

// stage makes the runtime directory and the skeleton of the sandbox's /.
func (l *attempt) stage(plan *sandbox.Plan) error {
	run, key := l.u.m.w.run, l.u.key.RuntimeKey()
	if err := run.clear(key); err != nil { // what an earlier daemon may have left
		return fault.At("start", l.u.key.String(), err)
	}
	if err := ownDir(run.agent(key), 0o700); err != nil {
		return err
	}
	l.later(func() { _ = run.clear(key) })
	if err := sandbox.MakeSkeleton(plan.Spec.Skeleton, plan); err != nil {
		return asFailure(err)
	}
	return nil
}

// mountView mounts the agent's own connection on the skeleton's ctx.
func (l *attempt) mountView(r *running, skeleton string) error {
	w := l.u.m.w
	vt, err := w.tree.View(l.u.key)
	if err != nil {
		return fault.At("start", l.u.key.String(), err)
	}
	r.view, err = cfs.Mount(cfs.Options{
		Mountpoint: filepath.Join(skeleton, "ctx"), FS: vt, AllowOther: w.root, DefaultPermissions: true,
		ReadOnly: true, View: true, Log: w.log.With(zap.String("view", l.u.key.String())),
	})
	if err != nil {
		return failure{69, fault.At("mount the view of", l.u.key.String(), err)}
	}
	r.unview = vt.AddNotifier(r.view)
	l.later(func() {
		r.unview()
		_ = r.view.Abort()
		<-r.view.Done()
	})
	return nil
}

// kill ends a sandbox that never got as far as being an agent.
func kill(box *sandbox.Running) {
	ctx, cancel := context.WithTimeout(context.Background(), killBound)
	defer cancel()
	_ = box.Kill(ctx)
}
