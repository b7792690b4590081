package daemon

import (
	"context"
	"fmt"
	"time"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// children lists an agent's children with their channels.
func (o *op) children(q *ctlproto.Children) error {
	obj, _, err := o.own(q.Agent)
	if err != nil {
		return err
	}
	for _, k := range o.w.agents.Children(obj.Key()) {
		kid, err := o.w.agents.Lookup(k)
		if err != nil || !o.mine(kid.Config()) {
			continue
		}
		if err := o.item(o.child(obj, kid, nil)); err != nil {
			return err
		}
	}
	return nil
}

// child describes one child; c is its channel where the caller knows that already.
func (o *op) child(parent, kid *agent.Object, c *channel) ctlproto.Child {
	cfg := kid.Config()
	it := ctlproto.Child{Agent: o.named(kid.Key(), cfg), Model: cfg.Model.String(), Life: cfg.Life, Parent: cfg.Parent.Session, Run: cfg.Parent.Run}
	_, it.PID = o.m.Live(kid.Key())
	_, it.PPID = o.m.Live(parent.Key())
	if c == nil {
		if found, ok := o.w.newest(parent.Config().Owner, parent.Key().Name, cfg.Parent.Session, kid.Key().Name); ok {
			c = &found
		}
	}
	if c != nil {
		it.Channel, _ = c.status()
		it.Session, it.Parent = c.own(), c.session
	}
	return it
}

// waitChild blocks until what the parent has handed to the child is done.
func (o *op) waitChild(ctx context.Context, q *ctlproto.Wait) (any, error) {
	parent, cfg, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	kid, err := o.childOf(parent.Key(), q.Child)
	if err != nil {
		return nil, err
	}
	name := q.Child
	if kid != nil {
		name = kid.Key().Name
	}
	c, ok := o.w.newest(cfg.Owner, parent.Key().Name, q.Session, name)
	if !ok {
		return nil, fault.E("wait", parent.Key().String(), fault.NotExist, fmt.Errorf("it has handed nothing to %s", name))
	}
	if q.TimeoutMS >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(q.TimeoutMS)*time.Millisecond)
		defer cancel()
	}
	if err := o.settleChannel(c, kid); err != nil {
		return nil, err
	}
	if _, err := c.await(ctx); err != nil {
		return nil, err
	}
	res := ctlproto.ChildResult{Result: c.result()}
	if kid != nil && !kid.Gone() {
		res.Child = o.child(parent, kid, &c)
	} else { // a temporary one; its channel stays
		res.Child = ctlproto.Child{Agent: ctlproto.Agent{Name: name, State: string(node.Dead)}, Session: c.own(), Parent: c.session}
	}
	res.Channel, err = c.status()
	return res, err
}

// childOf finds the child that a person means: one of the parent's; nil without an
// error if there is no such agent any more.
func (o *op) childOf(parent agent.Key, ref string) (*agent.Object, error) {
	for _, k := range o.w.agents.Children(parent) {
		if k.Name == ref || k.String() == ref {
			return o.w.agents.Lookup(k)
		}
	}
	if err := node.CheckAgentName(ref); err != nil {
		return nil, err
	}
	return nil, nil
}

// settleChannel records as cancelled what nobody works on any more: the channel is
// active, its agent is dead or gone.
func (o *op) settleChannel(c channel, kid *agent.Object) error {
	s, err := c.status()
	if err != nil || s != chanActive {
		return err
	}
	if kid != nil {
		if state, _ := o.m.Live(kid.Key()); state != node.Dead || !c.belongs(kid.Config()) {
			return nil
		}
	}
	return c.put("status", []byte(chanCancelled+"\n"))
}
