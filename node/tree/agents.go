package tree

import (
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// agentsDir is agent/ or home/<uid>/agent/: the triples of its agents. In a home
// the name without suffix is the agent's state directory, an ordinary one; in
// agent/ it is the generated executable.
type agentsDir struct {
	noACL
	t    *Tree
	home bool
	uid  uint32 // of the home
}

func (d agentsDir) key(name string) agent.Key {
	return agent.Key{Home: d.home, UID: d.uid, Name: name}
}

func (d agentsDir) path() string {
	if !d.home {
		return "agent"
	}
	return homePath(d.uid) + "/agent"
}

// Attr: the system's directory is open to the group that may make agents.
func (d agentsDir) Attr(*vnode.Req) (vnode.Attr, error) {
	var a vnode.Attr
	switch {
	case d.home:
		a = dirAttr("/"+d.path(), 0o755, d.uid, d.t.primaryGID(d.uid), d.t.born)
	case d.t.o.AgentGroup != 0:
		uid, _ := d.t.daemonIDs()
		a = dirAttr("/agent", 0o775, uid, d.t.o.AgentGroup, d.t.born)
	default:
		uid, gid := d.t.daemonIDs()
		a = dirAttr("/agent", 0o755, uid, gid, d.t.born)
	}
	return a, nil
}

// Lookup finds NAME, NAME.sock, NAME.d.
func (d agentsDir) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	if base, ok := strings.CutSuffix(name, ".d"); ok {
		dir, err := d.object(base)
		if err != nil {
			return vnode.Entry{}, err
		}
		return vnode.Entry{Node: dir, Valid: dirValid}, nil
	}
	if base, ok := strings.CutSuffix(name, ".sock"); ok {
		link := sockLink{d.t, d.key(base)}
		if !d.exists(base) || !link.live() {
			return vnode.Entry{}, notExist(name)
		}
		return vnode.Entry{Node: link}, nil
	}
	if d.home {
		n, err := d.t.ord.Node(r, d.path()+"/"+name)
		if err != nil {
			return vnode.Entry{}, err
		}
		return vnode.Entry{Node: n}, nil
	}
	if !d.exists(name) {
		if err := checkLen(name); err != nil {
			return vnode.Entry{}, err
		}
		return vnode.Entry{}, notExist(name)
	}
	return vnode.Entry{Node: d.program(name), Valid: dirValid}, nil
}

func (d agentsDir) exists(name string) bool {
	if node.CheckAgentName(name) != nil {
		return false
	}
	_, err := d.t.agents.Lookup(d.key(name))
	return err == nil
}

func (d agentsDir) object(name string) (*ctlDir, error) {
	if node.CheckAgentName(name) != nil {
		return nil, notExist(name + ".d")
	}
	return d.t.agentDir(d.key(name))
}

// program is agent/NAME.
func (d agentsDir) program(name string) vnode.Node {
	uid, gid := d.t.daemonIDs()
	if o, err := d.t.agents.Lookup(d.key(name)); err == nil {
		uid, gid = d.t.ownerOf(o)
	}
	return hostNode{t: d.t, path: "/" + d.path() + "/" + name, kind: "agent.exec", uid: uid, gid: gid}
}

// ReadDir lists every agent's triple.
func (d agentsDir) ReadDir(*vnode.Req) ([]vnode.Dirent, error) {
	base := "/" + d.path() + "/"
	var out []vnode.Dirent
	for _, k := range d.t.agents.List(d.home, d.uid) {
		out = append(out, vnode.Dirent{Name: k.Name + ".d", Ino: inoOf(base + k.Name + ".d"), Type: vnode.Directory})
		if !d.home {
			out = append(out, vnode.Dirent{Name: k.Name, Ino: inoOf(base + k.Name), Type: vnode.Regular})
		}
		if (sockLink{d.t, k}).live() {
			out = append(out, vnode.Dirent{Name: k.Name + ".sock", Ino: inoOf(base + k.Name + ".sock"), Type: vnode.Symlink})
		}
	}
	if d.home {
		for _, e := range d.t.ordList(d.path()) {
			if node.IsName(e.Name) {
				out = append(out, e)
			}
		}
	}
	slices.SortFunc(out, func(a, b vnode.Dirent) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// mayMake decides who makes agents here.
func (d agentsDir) mayMake(r *vnode.Req) error {
	if err := d.t.foreign(r); err != nil {
		return err
	}
	switch {
	case d.t.isRoot(r.UID), d.home && r.UID == d.uid:
		return nil
	case !d.home && d.t.o.AgentGroup != 0 && d.t.inGroup(r, d.t.o.AgentGroup):
		return nil
	}
	return fault.Newf(fault.Access, "not the directory's owner")
}

// Mkdir of NAME.d makes an agent with every default in place.
func (d agentsDir) Mkdir(r *vnode.Req, name string, mode uint32) (vnode.Entry, error) {
	ent, err := d.mkdir(r, name, mode)
	return ent, fault.At("mkdir", "/"+d.path()+"/"+name, err)
}

func (d agentsDir) mkdir(r *vnode.Req, name string, mode uint32) (vnode.Entry, error) {
	if err := d.mayMake(r); err != nil {
		return vnode.Entry{}, err
	}
	if err := checkLen(name); err != nil {
		return vnode.Entry{}, err
	}
	base, ok := strings.CutSuffix(name, ".d")
	if !ok {
		return d.mkdirState(r, name, mode)
	}
	if err := node.CheckAgentName(base); err != nil {
		return vnode.Entry{}, err
	}
	k := d.key(base)
	o, err := d.t.agents.Create(k, agent.CreateOptions{Writer: d.t.writer(r), Owner: r.UID})
	if err != nil {
		return vnode.Entry{}, err
	}
	d.t.makeState(o)
	dir, err := d.t.agentDir(k)
	if err != nil {
		return vnode.Entry{}, err
	}
	return vnode.Entry{Node: dir, Valid: dirValid}, nil
}

// makeState makes the state directory of a new agent. Without it the agent is
// there all the same; a start makes it again.
func (t *Tree) makeState(o *agent.Object) {
	uid, gid := t.ownerOf(o)
	err := t.makeHome(uid)
	if err == nil {
		err = t.ord.MakeAgentHome(uid, gid, o.Key().Name)
	}
	if err != nil {
		t.log("make state directory of " + o.Key().String() + ": " + err.Error())
	}
}

// mkdirState makes a state directory in a home by hand.
func (d agentsDir) mkdirState(r *vnode.Req, name string, mode uint32) (vnode.Entry, error) {
	if err := node.CheckAgentName(name); err != nil {
		return vnode.Entry{}, err
	}
	if !d.home {
		return vnode.Entry{}, perm("mkdir %s.d makes an agent", name)
	}
	n, err := d.t.ord.Node(r, d.path())
	if err != nil {
		return vnode.Entry{}, err
	}
	defer unref(n)
	if m, ok := n.(vnode.Mkdirer); ok {
		return m.Mkdir(r, name, mode)
	}
	return vnode.Entry{}, perm("mkdir %s.d makes an agent", name)
}

// Rmdir of NAME.d removes a dead agent; its sessions stay.
func (d agentsDir) Rmdir(r *vnode.Req, name string) error {
	return fault.At("rmdir", "/"+d.path()+"/"+name, d.rmdir(r, name))
}

func (d agentsDir) rmdir(r *vnode.Req, name string) error {
	base, ok := strings.CutSuffix(name, ".d")
	if !ok {
		if !d.home {
			return fault.Newf(fault.NotDir, "no directory")
		}
		if err := d.mayMake(r); err != nil {
			return err
		}
		n, err := d.t.ord.Node(r, d.path())
		if err != nil {
			return err
		}
		defer unref(n)
		return n.(vnode.Remover).Rmdir(r, name)
	}
	dir, err := d.object(base)
	if err != nil {
		return err
	}
	if _, err := dir.writer(r); err != nil {
		return err
	}
	return d.t.RemoveAgent(d.key(base))
}

// RemoveAgent removes a dead agent's object and everything that shows it.
func (t *Tree) RemoveAgent(k agent.Key) error {
	o, err := t.agents.Lookup(k)
	if err != nil {
		return err
	}
	if err := t.agents.Remove(k); err != nil {
		return err
	}
	t.dropDir(k.StoreDir())
	t.o.Views.Forget(k)
	t.mu.Lock()
	delete(t.views, viewID{o, false})
	delete(t.views, viewID{o, true})
	t.mu.Unlock()
	return nil
}

// The names in this directory come and go with their agents.

var errAgents = fault.Newf(fault.Perm, "agents are made by mkdir NAME.d")

func (d agentsDir) Create(*vnode.Req, string, vnode.OpenFlags, uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	return vnode.Entry{}, nil, vnode.Mode{}, errAgents
}
func (d agentsDir) Mknod(*vnode.Req, string, vnode.Type, uint32) (vnode.Entry, error) {
	return vnode.Entry{}, errAgents
}
func (d agentsDir) Symlink(*vnode.Req, string, string) (vnode.Entry, error) {
	return vnode.Entry{}, errAgents
}
func (d agentsDir) Unlink(*vnode.Req, string) error { return errAgents }
func (d agentsDir) FsyncDir(*vnode.Req) error       { return nil }

// Link is another device for everything but what is refused anyway.
func (d agentsDir) Link(*vnode.Req, vnode.Node, string) (vnode.Entry, error) {
	return vnode.Entry{}, fault.Newf(fault.CrossDevice, "objects are not linked")
}

// Rename within is refused, anything else is another device.
func (d agentsDir) Rename(_ *vnode.Req, oldName string, newDir vnode.Node, _ string) error {
	k := fault.CrossDevice
	if to, ok := newDir.(agentsDir); ok && to == d {
		k = fault.Perm
	}
	return fault.At("rename", "/"+d.path()+"/"+oldName, fault.Newf(k, "an agent keeps its name"))
}

// sockLink is NAME.sock: a symlink into the runtime directory while something
// listens there.
type sockLink struct {
	t *Tree
	k agent.Key
}

func (l sockLink) live() bool {
	if l.t.o.Socket == nil {
		return false
	}
	_, live := l.t.o.Socket(l.k)
	return live
}

func (l sockLink) Attr(*vnode.Req) (vnode.Attr, error) {
	target, err := l.Readlink(nil)
	if err != nil {
		return vnode.Attr{}, err
	}
	uid, gid := l.t.daemonIDs()
	return vnode.Attr{
		Type: vnode.Symlink, Ino: inoOf("/" + l.k.String() + ".sock"), Size: uint64(len(target)), Mode: 0o777, UID: uid, GID: gid,
		Atime: l.t.born, Mtime: l.t.born, Ctime: l.t.born,
	}, nil
}

func (l sockLink) Readlink(*vnode.Req) (string, error) {
	if l.t.o.Socket != nil {
		if target, live := l.t.o.Socket(l.k); live {
			return target, nil
		}
	}
	return "", fault.E("readlink", "/"+l.k.String()+".sock", fault.NotExist, nil)
}
