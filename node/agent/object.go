package agent

import (
	"errors"
	"path"
	"sync/atomic"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
)

// Object is one agent. All methods may be called at the same time; after the
// agent was removed they speak of an agent without texts.
type Object struct {
	t   *Table
	key Key
	st  *store.Object
	log *Log

	config atomic.Pointer[Config]
	family atomic.Pointer[Family]
}

func (t *Table) newObject(k Key, so *store.Object) *Object {
	return &Object{t: t, key: k, st: so, log: newLog(t.state, k)}
}

// Key names the agent.
func (o *Object) Key() Key { return o.key }

// Store holds the agent's texts. Changes that skip Commit skip its checks.
func (o *Object) Store() *store.Object { return o.st }

// Gone says whether the agent was removed.
func (o *Object) Gone() bool { return o.st.Gone() }

// Gen is the generation of the newest change of the agent's texts.
func (o *Object) Gen() uint64 { return o.st.Snapshot().Gen }

// Log is the agent's log.
func (o *Object) Log() *Log { return o.log }

// Live is the agent's state and the pid of its host process in one snapshot.
func (o *Object) Live() (node.State, int) { return o.t.Live(o.key) }

// Config is what the texts say now. It is made again when the texts have
// changed; never nil.
func (o *Object) Config() *Config {
	snap := o.st.Snapshot()
	if c := o.config.Load(); c != nil && c.snap == snap {
		return c
	}
	c := o.t.build(o.key, snap)
	// Two may build at once; a lost Store only means that it is built again.
	o.config.Store(c)
	return c
}

// ControlObject is what the defaults of this agent's controls depend on, and who
// is shown to own them. Ids that nobody knows are replaced, because a kernel
// takes no file of such an owner: the uid by the daemon's, the gid by nogroup's.
func (o *Object) ControlObject() control.Object {
	obj := o.Config().object
	if obj.Owner == NoID {
		obj.Owner = o.t.o.DaemonUID
	}
	if obj.OwnerGID == NoID {
		obj.OwnerGID = noGroup
	}
	return obj
}

// noGroup is the gid of nogroup, in which nobody is.
const noGroup = 65534

// Origin of a text, as the attribute user.cortexfs.origin names it.
const (
	Durable = "durable"
	Default = "default"
)

// Text is the effective text of a durable control: what is in the store, or the
// default. An error says that what the store holds is no readable text; the text
// then is empty. A name that is no durable control is NotExist.
func (o *Object) Text(name string) (text []byte, origin string, err error) {
	e := control.Agent.Lookup(name)
	if e == nil || e.Kind != control.Durable {
		return nil, "", fault.E("read", o.path(name), fault.NotExist, nil)
	}
	if v, ok := o.st.Snapshot().Values[name]; ok {
		return v.Text, Durable, v.Err
	}
	obj := o.Config().object
	if (name == "owner" && obj.Owner == NoID) || (name == "gid" && obj.OwnerGID == NoID) {
		return nil, Default, nil // nobody knows it; a number would be a lie
	}
	return control.Normalize([]byte(e.DefaultText(obj))), Default, nil
}

// path is the control's path as people know it.
func (o *Object) path(name string) string { return path.Join(o.key.TreeDir(), name) }

// asFault is err as a fault error at a control's path.
func asFault(p string, err error) *fault.Error {
	var e *fault.Error
	if errors.As(fault.At("", p, err), &e) {
		return e
	}
	return fault.E("", p, fault.IO, err)
}
