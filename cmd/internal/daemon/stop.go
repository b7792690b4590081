package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node/fault"
)

func (o *op) stop(ctx context.Context, q *ctlproto.Stop) (any, error) {
	obj, cfg, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	grace, err := o.graceOf(q.GraceMS)
	if err != nil {
		return nil, err
	}
	was, _ := o.m.Live(obj.Key())
	if err := o.m.stopTree(context.WithoutCancel(ctx), obj.Key(), grace, fmt.Sprintf("stopped by uid %d", o.by.UID)); err != nil {
		return nil, err
	}
	return ctlproto.Stopped{Agent: o.named(obj.Key(), cfg), Was: string(was)}, nil
}

func (o *op) graceOf(ms int) (time.Duration, error) {
	g := time.Duration(ms) * time.Millisecond
	switch {
	case ms == 0:
		return o.m.w.conf.StopGrace, nil
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
	return u.m.ends(r, ctx, grace, why)
}

func (o *op) restart(ctx context.Context, q *ctlproto.Restart) (any, error) {
	obj, _, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	grace, err := o.graceOf(q.GraceMS)
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
	u.setAgain(true)
	err = o.m.stopTree(ctx, obj.Key(), grace, fmt.Sprintf("restarted by uid %d", o.by.UID))
	u.setAgain(false)
	if err != nil {
		return nil, err
	}
	r, joined, err := u.start(ctx, obj, p, o.by)
	if err != nil {
		return nil, err
	}
	return o.started(obj, r, joined), nil
}
