package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/cmd/internal/bootstrap"
	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/cmd/internal/peer"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
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
		if q.Child != "" {
			if q.State != "" {
				return nil, fault.Newf(fault.Invalid, "wait for a state, or for a child")
			}
			return o.waitChild(ctx, q)
		}
		return o.wait(ctx, q)
	case *ctlproto.Grant:
		return o.grant(ctx, q)
	case *ctlproto.Children:
		return nil, o.children(q)
	case *ctlproto.Reload:
		return nil, o.reload()
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

// reach is for what happens inside a running sandbox. That has the ids and files
// of whoever owned the agent when it was started; an owner since then stops it
// first.
func (o *op) reach(k agent.Key, r *running) error {
	if o.by.Root || r.owner == o.by.UID {
		return nil
	}
	return fault.E("agent", k.String(), fault.Access, fmt.Errorf("it runs as it was started, for uid %d; stop it and start it anew", r.owner))
}

// reload is for who can edit the store, which is root: it reads everything again.
func (o *op) reload() error {
	if !o.by.Root {
		return fault.Newf(fault.Access, "only root edits the store and reloads it")
	}
	return o.w.st.Reload()
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
	if err := o.reach(obj.Key(), r); err != nil {
		return nil, err
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
	if err := o.reach(obj.Key(), r); err != nil {
		return nil, err
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
