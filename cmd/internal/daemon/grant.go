package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// revokeNotice is how long an agent that loses a mount or a group with a grant has
// to end by itself (spec section 9).
const revokeNotice = 5 * time.Second

// grant is the supervisor's word (spec section 17): the only way by which a child
// gets what its parents have not.
func (o *op) grant(ctx context.Context, q *ctlproto.Grant) (any, error) {
	if !o.by.Root {
		return nil, fault.Newf(fault.Access, "only root grants more than a parent has")
	}
	if q.List && q.Agent == "" {
		for _, k := range o.w.agents.All() {
			if obj, err := o.w.agents.Lookup(k); err == nil {
				if err := o.grantItems(obj); err != nil {
					return nil, err
				}
			}
		}
		return nil, nil
	}
	obj, err := o.find(q.Agent)
	if err != nil {
		return nil, err
	}
	by := fmt.Sprintf("uid %d", o.by.UID)
	var g agent.Grant
	switch {
	case q.List:
		return nil, o.grantItems(obj)
	case q.Revoke != 0 && q.Kind == "":
		if g, err = obj.Revoke(q.Revoke, by); err == nil {
			err = o.revoked(ctx, obj, g)
		}
	case q.Revoke == 0:
		g, err = obj.Grant(q.Kind, q.Value, q.Reason, by)
	default:
		err = fault.Newf(fault.Invalid, "either a grant or a revocation")
	}
	// The decisions have it already; what kernels keep of the view is told.
	o.w.changed(obj.Key().StoreDir())
	if err != nil {
		return nil, err
	}
	return granted(g, false), nil
}

// revoked takes away what a running agent has got by the grant and cannot lose in
// place: a mount or a group goes with the agent.
func (o *op) revoked(ctx context.Context, obj *agent.Object, g agent.Grant) error {
	if g.Kind != agent.GrantMount && g.Kind != agent.GrantGroup {
		return nil
	}
	state, _ := o.m.Live(obj.Key())
	if state == node.Dead {
		return nil
	}
	o.note("%s runs with what grant %d gave it and is stopped", obj.Key(), g.N)
	why := fmt.Sprintf("grant %d (%s) was revoked", g.N, g.Kind)
	return o.m.stopTree(context.WithoutCancel(ctx), obj.Key(), revokeNotice, why)
}

func (o *op) grantItems(obj *agent.Object) error {
	list, void := obj.Grants()
	var errs error
	for i, g := range list {
		errs = errors.Join(errs, o.item(granted(g, void[i])))
	}
	return errs
}

func granted(g agent.Grant, void bool) ctlproto.Granted {
	return ctlproto.Granted{
		N: g.N, Ref: g.Agent, Parent: g.Parent, Kind: g.Kind, Value: g.Value, Reason: g.Reason, By: g.By, At: g.At.Format(time.RFC3339), Void: void,
	}
}

// grants are those of one agent, for its status.
func grantsOf(obj *agent.Object) []ctlproto.Granted {
	list, void := obj.Grants()
	var all []ctlproto.Granted
	for i, g := range list {
		all = append(all, granted(g, void[i]))
	}
	return all
}

// lineageNotes are what a child's status says about where it stands.
func (w *world) lineageNotes(obj *agent.Object) []string {
	f := obj.Family()
	if f.Broken != nil {
		return []string{f.Broken.Error() + ": nothing is allowed to it"}
	}
	if len(f.Above) == 0 {
		return nil
	}
	var notes []string
	cfg := obj.Config()
	if p := f.Above[0]; p.Subject == cfg.Subject && cfg.Subject != "" {
		notes = append(notes, fmt.Sprintf("label type %s is its parent's too: both are one security subject", cfg.Subject))
	}
	if f.Born[0] {
		notes = append(notes, fmt.Sprintf("created by %s: what a tool's policy allows to that, it allows to this one", f.Above[0].Key))
	}
	return notes
}
