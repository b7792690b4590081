package tree

import (
	"time"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/tool"
	"cortexfs/node/view"
	"cortexfs/node/vnode"
	"cortexfs/policy"
)

// viewLink is a link to where the agent's table mounts something.
type viewLink struct {
	readOnly
	v      *agentView
	path   string
	target string
}

func (l viewLink) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := l.v.t.daemonIDs()
	at := l.v.t.born
	return vnode.Attr{
		Type: vnode.Symlink, Ino: inoOf("view/" + l.path), Size: uint64(len(l.target)), Mode: 0o777, UID: uid, GID: gid,
		Atime: at, Mtime: at, Ctime: at,
	}, nil
}

func (l viewLink) Readlink(*vnode.Req) (string, error) { return l.target, nil }

// viewText is a text of a view: a control of a tool (kind vToolObj, a tier, b
// tool), of a model (vModelObj, a provider, b model), of an agent (vAgentObj, a
// key), or .tshrc (vHome).
type viewText struct {
	readOnly
	v    *agentView
	kind viewKind
	a, b string
	name string
}

func (f viewText) dir() viewDir { return viewDir{v: f.v, kind: f.kind, a: f.a, b: f.b} }

// text is what the file reads as now; NotExist when it is not to be seen any more.
func (f viewText) text() ([]byte, error) {
	gone := notExist(f.name)
	switch f.kind {
	case vToolObj:
		t, err := f.v.allowed(f.a, f.b, "open")
		if err != nil {
			return nil, gone
		}
		text, ok := f.textOfTool(t)
		if !ok {
			return nil, gone
		}
		return text, nil
	case vModelObj:
		d, ok := f.dir().model()
		if !ok {
			return nil, gone
		}
		return f.textOfModel(d)
	case vAgentObj:
		o, p, ok := f.dir().peer()
		e := control.Agent.Lookup(f.name)
		if !ok || e == nil || !shownOfAgent(p, e) {
			return nil, gone
		}
		if e.Kind == control.Live {
			d, err := f.v.t.agentDir(o.Key())
			if err != nil {
				return nil, gone
			}
			return d.liveText(f.name), nil
		}
		text, ok := view.ControlOf(o, f.name)
		if !ok {
			return nil, gone
		}
		return text, nil
	}
	return f.tshrc()
}

func (f viewText) textOfTool(t *tool.Tool) ([]byte, bool) {
	if e := control.Tool.Lookup(f.name); e != nil && e.Kind == control.Live {
		return []byte(e.DefaultText(t.ControlObject())), true
	}
	return f.v.v.ToolControl(t, f.name)
}

// model is the object behind the directory, as long as the agent may use it.
func (d viewDir) model() (*ctlDir, bool) {
	if !d.v.v.ModelAllowed(d.a + "/" + d.b) {
		return nil, false
	}
	c, err := d.v.t.modelObject(modelDir{t: d.v.t, dir: "model", provider: d.a}, d.b)
	return c, err == nil
}

// findModelControl shows what a tool's .d shows of a tool.
func (d viewDir) findModelControl(name string) vnode.Node {
	e := control.Model.Lookup(name)
	if _, ok := d.model(); !ok || e == nil || !shownOfTool(e) {
		return nil
	}
	return viewText{v: d.v, kind: vModelObj, a: d.a, b: d.b, name: name}
}

// textOfModel is a control of a model: the policy reduced to the lines about the
// agent, none where the text is no policy.
func (f viewText) textOfModel(d *ctlDir) ([]byte, error) {
	e := control.Model.Lookup(f.name)
	if e.Kind == control.Live {
		return d.liveText(f.name), nil
	}
	text, _, err := d.sub.text(e)
	if err != nil {
		return nil, notExist(f.name)
	}
	if f.name != "policy" {
		return text, nil
	}
	set, err := policy.Parse(text)
	if err != nil {
		return nil, nil
	}
	return f.v.v.About(set), nil
}

// tshrc reads the owner's .tshrc with the owner's rights; 64 KiB of it.
func (f viewText) tshrc() ([]byte, error) {
	owner := f.v.cfg().Owner
	r := &vnode.Req{Ctx: background, UID: owner, GID: f.v.t.primaryGID(owner)}
	n, err := f.v.t.ord.Node(nil, homePath(owner)+"/"+tshrc)
	if err != nil || n == nil {
		return nil, notExist(tshrc)
	}
	defer unref(n)
	o, ok := n.(vnode.Opener)
	if !ok {
		return nil, notExist(tshrc)
	}
	h, _, err := o.Open(r, 0)
	if err != nil {
		return nil, err
	}
	defer h.Release(r)
	text := make([]byte, node.MaxText)
	count := 0
	for rd, ok := h.(vnode.Reader); ok && count < len(text); {
		n, err := rd.Read(r, text[count:], int64(count))
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		count += n
	}
	return text[:count], nil
}

// Attr: the agent itself may read its own controls; the mode is the entry's.
func (f viewText) Attr(*vnode.Req) (vnode.Attr, error) {
	text, err := f.text()
	if err != nil {
		return vnode.Attr{}, err
	}
	cfg := f.v.cfg()
	mode, uid, gid := uint32(0o644), cfg.UID, cfg.GID
	if !f.v.id.own { // people look at it
		uid, gid = cfg.Owner, f.v.t.primaryGID(cfg.Owner)
	}
	switch f.kind {
	case vToolObj:
		uid, gid = f.v.t.daemonIDs()
		mode = control.Tool.Lookup(f.name).Mode
	case vModelObj:
		uid, gid = f.v.t.daemonIDs()
		mode = control.Model.Lookup(f.name).Mode
	case vAgentObj:
		mode = control.Agent.Lookup(f.name).Mode
	}
	at := time.Unix(0, f.v.mod.Load())
	return vnode.Attr{
		Ino: inoOf("view/" + f.v.id.obj.Key().String() + "/" + f.dir().path() + "/" + f.name), Size: uint64(len(text)),
		Mode: mode, UID: uid, GID: gid, Atime: at, Mtime: at, Ctime: at,
	}, nil
}

func (f viewText) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		return nil, vnode.Mode{}, errReadOnly
	}
	text, err := f.text()
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	if e := control.Agent.Lookup(f.name); f.kind == vAgentObj && e.Kind == control.Live {
		return f.openLive(r, text, e)
	}
	return f.v.t.openText(r, text)
}

// openLive is a status that can be polled.
func (f viewText) openLive(r *vnode.Req, text []byte, e *control.Entry) (vnode.Handle, vnode.Mode, error) {
	o, _, ok := f.dir().peer()
	if !ok {
		return nil, vnode.Mode{}, notExist(f.name)
	}
	d, err := f.v.t.agentDir(o.Key())
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	c, err := f.v.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	now := func() []byte {
		text, err := f.text()
		if err != nil {
			return nil // not to be seen any more
		}
		return text
	}
	return &liveHandle{c: c, text: text, now: now, on: &d.wake}, vnode.Mode{Direct: true, NoFlush: true}, nil
}
