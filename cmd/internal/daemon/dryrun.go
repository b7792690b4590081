package daemon

import (
	"context"
	"fmt"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node/agent"
	"cortexfs/sandbox"
)

// dryRun does everything of a start up to the mounts.
func (o *op) dryRun(ctx context.Context, obj *agent.Object, p place) (any, error) {
	cfg, err := judged(obj)
	if err != nil {
		return nil, err
	}
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
