package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/cmd/internal/bootstrap"
	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/cmd/internal/peer"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// op is one request with who asks it.
type op struct {
	c    *server
	w    *world
	m    *manager
	conn *ctlproto.Conn
	peer *peer.Peer
	by   caller
}

// do is the table of operations.
func (o *op) do(ctx context.Context, q ctlproto.Request) (any, error) {
	switch q := q.(type) {
	case *ctlproto.New:
		return o.create(q)
	case *ctlproto.Rm:
		return o.remove(q)
	case *ctlproto.Start:
		return o.start(ctx, q)
	case *ctlproto.Stop:
		return o.stop(ctx, q)
	case *ctlproto.Restart:
		return o.restart(ctx, q)
	case *ctlproto.Attach:
		return o.terminal(q.Agent, q.Session)
	case *ctlproto.Watch:
		return o.terminal(q.Agent, q.Session)
	case *ctlproto.PS:
		return nil, o.ps(q)
	case *ctlproto.Status:
		return o.status(q)
	case *ctlproto.Why:
		return o.why(q)
	case *ctlproto.View:
		return nil, o.view(q)
	case *ctlproto.Env:
		return nil, o.env(q)
	case *ctlproto.Wait:
		return o.wait(ctx, q)
	case *ctlproto.Reload:
		return nil, o.w.st.Reload()
	case *ctlproto.Bootstrap:
		return o.bootstrap(q)
	case *ctlproto.Exec:
		return o.exec(ctx, q)
	}
	return nil, fault.Newf(fault.Invalid, "operation %s is not served", q.Op())
}

// note sends a remark for people ahead of the result.
func (o *op) note(format string, args ...any) {
	_ = o.conn.Write(&ctlproto.Frame{Type: "note", Text: fmt.Sprintf(format, args...)})
}

func (o *op) item(v any) error {
	f, err := ctlproto.Item(v)
	if err != nil {
		return err
	}
	return o.conn.Write(f)
}

// find looks an agent up as the caller means it.
func (o *op) find(ref string) (*agent.Object, error) {
	key, err := o.w.agents.ByBareName(o.by.UID, ref)
	if err != nil {
		return nil, fault.At("agent", ref, err)
	}
	return o.w.agents.Lookup(key)
}

// own is find for what only the owner and root may do.
func (o *op) own(ref string) (*agent.Object, *agent.Config, error) {
	obj, err := o.find(ref)
	if err != nil {
		return nil, nil, err
	}
	cfg := obj.Config()
	if !o.mine(cfg) {
		return nil, nil, fault.E("agent", obj.Key().String(), fault.Access, errors.New("only its owner and root may do that"))
	}
	return obj, cfg, nil
}

func (o *op) mine(cfg *agent.Config) bool {
	return o.by.Root || cfg.OwnerOK && cfg.Owner == o.by.UID
}

// named is an agent as answers name it.
func (o *op) named(k agent.Key, cfg *agent.Config) ctlproto.Agent {
	state, _ := o.m.Live(k)
	return ctlproto.Agent{Ref: k.String(), Name: k.Name, Owner: cfg.Owner, State: string(state)}
}

func (o *op) start(ctx context.Context, q *ctlproto.Start) (any, error) {
	obj, cfg, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	p, err := o.place(q, cfg)
	if err != nil {
		return nil, err
	}
	if q.DryRun {
		return o.dryRun(ctx, obj, p)
	}
	// A start goes on when its caller leaves: others may have joined it.
	ctx = context.WithoutCancel(ctx)
	r, joined, err := o.m.unit(obj.Key()).start(ctx, obj, p, o.by)
	if err != nil {
		return nil, err
	}
	return o.started(obj, r, joined), nil
}

// place says where a start is to run, and checks what the caller said.
func (o *op) place(q *ctlproto.Start, cfg *agent.Config) (place, error) {
	p := place{Session: q.Session, Workspace: q.CWD, NoWorkspace: q.NoWorkspace, Mounts: q.Mounts,
		GitRW: q.Git == "rw", AllowHome: q.AllowHome, CallerUID: o.by.UID}
	if p.Session == "" {
		p.Session = "default"
	}
	if err := node.CheckName(p.Session); err != nil || p.Session == "index" {
		return p, fault.Newf(fault.Invalid, "%q is no session name", p.Session)
	}
	if q.Git != "" && q.Git != "rw" {
		return p, fault.Newf(fault.Invalid, "git is rw or nothing")
	}
	for _, m := range q.Mounts {
		if len(m) != 3 || m[2] != "ro" && m[2] != "rw" {
			return p, fault.Newf(fault.Invalid, "a mount is source, target and ro or rw")
		}
		if !cleanAbs(m[0]) || !cleanAbs(m[1]) {
			return p, fault.Newf(fault.Invalid, "mount %s %s: both are absolute paths without . and ..", m[0], m[1])
		}
	}
	if p.NoWorkspace {
		p.Workspace = ""
	}
	if p.Workspace != "" && !cleanAbs(p.Workspace) {
		return p, fault.Newf(fault.Invalid, "cwd %s: an absolute path without . and ..", p.Workspace)
	}
	if o.by.UID != cfg.Owner && p.Workspace != "" {
		o.note("%s belongs to uid %d: it gets an empty /workspace", cfg.Key, cfg.Owner)
		p.Workspace = ""
	}
	if p.Workspace != "" {
		if err := o.sameMounts(); err != nil {
			return p, err
		}
	}
	return p, nil
}

func cleanAbs(p string) bool {
	return strings.HasPrefix(p, "/") && filepath.Clean(p) == p && !strings.ContainsAny(p, "\x00\n\t")
}

// sameMounts refuses a workspace of a caller in another mount namespace: its
// path means something else there.
func (o *op) sameMounts() error {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fault.FromOS("own namespace", "mnt", err)
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", o.peer.PID))
	if err != nil || !o.peer.Alive() {
		return fault.Newf(fault.Access, "the caller's mount namespace cannot be read")
	}
	if ours != theirs {
		return fault.Newf(fault.CrossDevice, "you are in another mount namespace than the daemon; use --no-default-workspace")
	}
	return nil
}

func (o *op) started(obj *agent.Object, r *running, joined bool) ctlproto.Started {
	cfg := obj.Config()
	for _, w := range r.warn {
		o.note("warning: %s", w)
	}
	return ctlproto.Started{
		Agent: o.named(obj.Key(), cfg), Joined: joined, PID: r.host.PID, UID: r.ids.UID, GID: r.ids.GID, Groups: r.ids.Groups,
		Label: cfg.Label.String(), Model: cfg.Model.String(), Life: cfg.Life, Session: r.want.Session, CWD: r.ids.Cwd,
		Workspace: r.want.Workspace, Socket: r.socket, Since: r.since.Format(time.RFC3339),
	}
}

// dryRun does everything of a start up to the mounts.
func (o *op) dryRun(ctx context.Context, obj *agent.Object, p place) (any, error) {
	if faults := obj.StartFaults(); len(faults) > 0 {
		return nil, faultsError(faults)
	}
	cfg := obj.Config()
	if err := o.w.makeHomes(cfg); err != nil {
		return nil, err
	}
	comp, err := o.w.compose(cfg, p, o.by)
	if err != nil {
		return nil, asFailure(err)
	}
	defer comp.close()
	plan, err := comp.spec.Plan()
	if err != nil {
		return nil, asFailure(err)
	}
	u := o.m.unit(obj.Key())
	if err := u.take(ctx); err != nil {
		return nil, err
	}
	defer u.give()
	if u.current() == nil {
		// The check opens the skeleton; one of a running agent is there already.
		l := &attempt{u: u, cfg: cfg}
		defer l.rollBack()
		if err := l.stage(plan); err != nil {
			return nil, err
		}
		if err := l.mountView(&running{unit: u}, plan.Spec.Skeleton); err != nil {
			return nil, err
		}
	}
	table, warnings, err := sandbox.Check(ctx, plan, sandbox.StartFiles{Store: comp.store})
	if err != nil {
		return nil, asFailure(err)
	}
	d := &ctlproto.DryRun{
		Identity: []string{
			fmt.Sprintf("uid=%d gid=%d groups=%v iso=%s", comp.spec.UID, comp.spec.GID, comp.spec.Groups, comp.spec.Iso),
			"label=" + cfg.Label.String(),
		},
		Env: plan.Spec.Env, Argv: plan.Argv, Text: plan.Print(table, warnings),
	}
	for _, e := range table {
		d.Mounts = append(d.Mounts, mountText(e))
	}
	return ctlproto.Started{Agent: o.named(obj.Key(), cfg), Session: p.Session, Workspace: p.Workspace, Plan: d}, nil
}

// mountText is a mounted row in the form of the mount control, with what was
// really set.
func mountText(e sandbox.Effective) string {
	mode := "ro"
	if e.RW {
		mode = "rw"
	}
	opts := "bind"
	if e.Recursive {
		opts = "rbind"
	}
	for _, f := range []struct {
		on   bool
		name string
	}{{e.NoSuid, "nosuid"}, {e.NoDev, "nodev"}, {e.NoExec, "noexec"}, {e.IDMapped, "idmapped"}} {
		if f.on {
			opts += "," + f.name
		}
	}
	src := e.Resolved
	if src == "" || e.Kind == sandbox.Store {
		src = e.Source
	}
	text := fmt.Sprintf("%s\t%s\t%s\t%s", src, e.Target, mode, opts)
	if e.Made != "" {
		text += "\t(" + e.Made + ")"
	}
	return text
}

func (o *op) stop(ctx context.Context, q *ctlproto.Stop) (any, error) {
	obj, cfg, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	grace, err := graceOf(q.GraceMS)
	if err != nil {
		return nil, err
	}
	was, _ := o.m.Live(obj.Key())
	if u := o.m.lookup(obj.Key()); u != nil {
		if err := u.stop(context.WithoutCancel(ctx), grace, fmt.Sprintf("stopped by uid %d", o.by.UID)); err != nil {
			return nil, err
		}
	}
	return ctlproto.Stopped{Agent: o.named(obj.Key(), cfg), Was: string(was)}, nil
}

func graceOf(ms int) (time.Duration, error) {
	g := time.Duration(ms) * time.Millisecond
	switch {
	case ms == 0:
		return agentd.DefaultGrace, nil
	case g < 0 || g > agentd.MaxGrace:
		return 0, fault.Newf(fault.Invalid, "grace is between 0 and %v", agentd.MaxGrace)
	}
	return g, nil
}

// stop ends the unit's agent, also one that is just being started.
func (u *unit) stop(ctx context.Context, grace time.Duration, why string) error {
	u.mu.Lock()
	if u.cancel != nil {
		u.cancel()
	}
	u.mu.Unlock()
	if err := u.take(ctx); err != nil {
		return err
	}
	defer u.give()
	u.mu.Lock()
	r := u.live
	u.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.stop(ctx, grace, why)
}

func (o *op) restart(ctx context.Context, q *ctlproto.Restart) (any, error) {
	obj, _, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	grace, err := graceOf(q.GraceMS)
	if err != nil {
		return nil, err
	}
	u := o.m.unit(obj.Key())
	r := u.current()
	if r == nil {
		return nil, fault.E("restart", obj.Key().String(), fault.NoProcess, errors.New("it does not run; start it"))
	}
	p := r.want
	if p.Workspace != "" && p.CallerUID != o.by.UID {
		return nil, fault.E("restart", obj.Key().String(), fault.Perm,
			fmt.Errorf("its workspace was handed over by uid %d, who alone may do so again; stop it and start it", p.CallerUID))
	}
	ctx = context.WithoutCancel(ctx)
	if err := u.stop(ctx, grace, fmt.Sprintf("restarted by uid %d", o.by.UID)); err != nil {
		return nil, err
	}
	r, joined, err := u.start(ctx, obj, p, o.by)
	if err != nil {
		return nil, err
	}
	return o.started(obj, r, joined), nil
}

// terminal tells where the agent's terminal listens.
func (o *op) terminal(ref, session string) (any, error) {
	obj, cfg, err := o.own(ref)
	if err != nil {
		return nil, err
	}
	var r *running
	if u := o.m.lookup(obj.Key()); u != nil {
		r = u.current()
	}
	if r == nil {
		return nil, fault.E("terminal", obj.Key().String(), fault.Unavailable, fmt.Errorf("it does not run; start it with: ctx agent start %s", ref))
	}
	if session != "" && session != r.want.Session {
		return nil, fault.E("terminal", obj.Key().String(), fault.NotExist, fmt.Errorf("it runs session %s, not %s", r.want.Session, session))
	}
	return ctlproto.Terminal{Agent: o.named(obj.Key(), cfg), Path: r.socket, Session: r.want.Session, PID: r.host.PID, Server: o.w.uid}, nil
}

func (o *op) wait(ctx context.Context, q *ctlproto.Wait) (any, error) {
	obj, err := o.find(q.Agent)
	if err != nil {
		return nil, err
	}
	want := node.State(q.State)
	switch want {
	case node.Start, node.Ready, node.Busy, node.Idle, node.Stopping, node.Dead:
	default:
		return nil, fault.Newf(fault.Invalid, "%q is no state: start ready busy idle stopping dead", q.State)
	}
	if q.TimeoutMS >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(q.TimeoutMS)*time.Millisecond)
		defer cancel()
	}
	reached := o.m.unit(obj.Key()).await(ctx, want)
	return ctlproto.Waited{Agent: o.named(obj.Key(), obj.Config()), Reached: reached}, nil
}

func (o *op) bootstrap(q *ctlproto.Bootstrap) (any, error) {
	if !o.by.Root {
		return nil, fault.Newf(fault.Access, "bootstrap makes system agents and tools: only root may")
	}
	b := bootstrap.World{
		Store: o.w.st, Agents: o.w.agents, Ordinary: o.w.ord, Users: o.w.users, UID: o.w.uid, GID: o.w.gid,
		Changed: o.w.toolChanged,
	}
	owner := o.by.UID
	if q.Owner != nil {
		owner = *q.Owner
	}
	if !o.w.root {
		owner = o.w.uid // a user's own mount has no other owner
	}
	lines, changed, err := b.Run(bootstrap.Options{Owner: owner, DryRun: q.DryRun})
	for _, l := range lines {
		if err := o.item(ctlproto.Line{Text: l}); err != nil {
			return nil, err
		}
	}
	if changed && !q.DryRun {
		for _, k := range o.w.agents.List(false, 0) {
			o.w.changed(k.StoreDir())
		}
		o.w.changed("bin")
	}
	return ctlproto.Bootstrapped{Changed: changed}, err
}

func (o *op) exec(ctx context.Context, q *ctlproto.Exec) (any, error) {
	obj, _, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	if len(q.Argv) == 0 {
		return nil, fault.Newf(fault.Invalid, "exec needs a command")
	}
	var r *running
	if u := o.m.lookup(obj.Key()); u != nil {
		r = u.current()
	}
	if r == nil {
		return nil, fault.E("exec", obj.Key().String(), fault.Unavailable, fmt.Errorf("it does not run; start it with: ctx agent start %s", q.Agent))
	}
	res, err := r.client.Run(ctx, agentd.RunRequest{Argv: q.Argv, Cwd: q.CWD, Timeout: time.Duration(q.TimeoutMS) * time.Millisecond})
	if err != nil {
		return nil, fault.At("exec", obj.Key().String(), err)
	}
	for _, s := range []struct {
		name string
		b    []byte
	}{{"stdout", res.Stdout}, {"stderr", res.Stderr}} {
		for b := s.b; len(b) > 0; {
			n := min(len(b), 32<<10)
			if err := o.conn.Write(&ctlproto.Frame{Type: "output", Stream: s.name, Bytes: b[:n]}); err != nil {
				return nil, err
			}
			b = b[n:]
		}
	}
	return ctlproto.Exited{Code: res.Code, Truncated: res.Truncated, TimedOut: res.TimedOut, Errno: res.Errno}, nil
}
