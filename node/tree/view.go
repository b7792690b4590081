package tree

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/tool"
	"cortexfs/node/view"
	"cortexfs/node/vnode"
	"cortexfs/policy"
)

// viewID names a view: the agent's object, and whether it is seen through its own
// connection or below view/ of the main tree. The nodes are alike, but what the
// kernel may keep differs: only the own connection gets pushes of its own.
type viewID struct {
	obj *agent.Object
	own bool
}

// agentView is what one agent sees. It holds no authority: every lookup and open
// asks package view, which decides from the snapshots of that moment.
type agentView struct {
	t   *Tree
	id  viewID
	v   *view.View
	mod atomic.Int64 // when a listing last changed, ns

	mu      sync.Mutex // protects the fields below; a leaf
	tools   map[string]*viewTool
	tiers   []string // search path and grants at the last push
	granted []string
}

// viewOf is the canonical view of an agent.
func (t *Tree) viewOf(o *agent.Object, own bool) *agentView {
	id := viewID{o, own}
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.views[id]
	if v == nil {
		v = &agentView{t: t, id: id, v: t.o.Views.For(o), tools: map[string]*viewTool{}}
		v.mod.Store(t.born.UnixNano())
		t.views[id] = v
	}
	return v
}

// AgentFS is the file system of an agent's own connection: its view, read-only.
type AgentFS struct {
	v *agentView
}

// View is the view of an agent as a file system of its own, for the connection
// that the daemon mounts for it. NotExist.
func (t *Tree) View(k agent.Key) (*AgentFS, error) {
	o, err := t.agents.Lookup(k)
	if err != nil {
		return nil, err
	}
	v := t.viewOf(o, true)
	v.refresh()
	return &AgentFS{v}, nil
}

// Root is the agent's /ctx.
func (f *AgentFS) Root() vnode.Node { return f.v.root() }

// Statfs gives the store's numbers.
func (f *AgentFS) Statfs(r *vnode.Req) (vnode.Statfs, error) { return f.v.t.Statfs(r) }

// AddNotifier tells n about changes of what the agent sees until cancel is called.
func (f *AgentFS) AddNotifier(n vnode.Notifier) (cancel func()) { return f.v.t.addNotifier(f.v, n) }

func (v *agentView) root() vnode.Node { return viewDir{v: v, kind: vRoot} }

// owner of the agent, in whose home it lives.
func (v *agentView) cfg() *agent.Config { return v.id.obj.Config() }

// valid is how long the kernel may keep a tool's name, there or not.
func (v *agentView) valid() time.Duration {
	if v.id.own {
		return viewValid
	}
	return 0
}

// tierDir is the directory node of a tier.
func (v *agentView) tierDir(tier string) vnode.Node {
	d := viewDir{v: v, kind: vTools, a: tier}
	if v.id.own {
		return keptViewDir{d}
	}
	return d
}

// refresh pushes what a change of the agent's own texts may mean: every name that
// its policy grants now or granted before may have come or gone. The cost follows
// the agent's grants.
func (v *agentView) refresh() {
	cfg := v.cfg()
	tiers := v.v.Tiers()
	names := cfg.Policy.Names(cfg.Subject, policy.Tool, policy.Execute)
	v.mu.Lock()
	tiersBefore, namesBefore := v.tiers, v.granted
	v.tiers, v.granted = tiers, names
	v.mu.Unlock()
	v.mod.Store(time.Now().UnixNano())
	all := union(names, namesBefore)
	v.t.push(v, func(n vnode.Notifier) {
		for _, tier := range union(tiers, tiersBefore) {
			dir := v.tierDir(tier)
			for _, name := range all {
				n.EntryChanged(dir, name)
				n.EntryChanged(dir, name+".d")
			}
			n.NodeChanged(dir)
		}
	})
}

// union of two lists, sorted.
func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// toolChanged pushes one tool's names.
func (v *agentView) toolChanged(n vnode.Notifier, tier, name string) {
	v.mod.Store(time.Now().UnixNano())
	dir := v.tierDir(tier)
	n.EntryChanged(dir, name)
	n.EntryChanged(dir, name+".d")
	n.NodeChanged(dir)
	v.mu.Lock()
	vt := v.tools[tier+"/"+name]
	v.mu.Unlock()
	if vt != nil {
		n.NodeChanged(vt)
	}
}

// tool is the node of a projected tool: one for each content.
func (v *agentView) tool(t *tool.Tool) *viewTool {
	path := t.Path()
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.tools[path]
	if n == nil || n.gen != t.Info.Gen {
		n = &viewTool{v: v, tier: t.Tier, name: t.Name, gen: t.Info.Gen}
		v.tools[path] = n
	}
	n.shown.Store(t)
	return n
}

// allowed decides rows 3–7 now; a refusal of a tool that is there is logged.
func (v *agentView) allowed(tier, name, how string) (*tool.Tool, error) {
	t, ok := v.v.Allowed(tier, name)
	if ok {
		return t, nil
	}
	if t == nil {
		return nil, notExist(name)
	}
	found, verdict, ok := v.v.Decide(tier, name)
	if ok {
		return found, nil // allowed between the two looks
	}
	if v.id.own {
		v.id.obj.Log().Add(agent.Event{
			Type: "tool.denied", Object: name, Status: "denied", By: "rule",
			Reason: how + ": " + verdictText(verdict.Row, verdict.Name, verdict.File, verdict.Why),
		})
	}
	k := verdict.Kind
	if k == fault.IO {
		k = fault.Access
	}
	return nil, fault.Newf(k, "%s", verdict.Why)
}

// readOnly answers every change of a node: a view changes nothing.
type readOnly struct{}

var errReadOnly = fault.Newf(fault.ReadOnly, "an agent's view is read-only")

func (readOnly) Create(*vnode.Req, string, vnode.OpenFlags, uint32) (vnode.Entry, vnode.Handle, vnode.Mode, error) {
	return vnode.Entry{}, nil, vnode.Mode{}, errReadOnly
}
func (readOnly) Mkdir(*vnode.Req, string, uint32) (vnode.Entry, error) {
	return vnode.Entry{}, errReadOnly
}
func (readOnly) Mknod(*vnode.Req, string, vnode.Type, uint32) (vnode.Entry, error) {
	return vnode.Entry{}, errReadOnly
}
func (readOnly) Symlink(*vnode.Req, string, string) (vnode.Entry, error) {
	return vnode.Entry{}, errReadOnly
}
func (readOnly) Link(*vnode.Req, vnode.Node, string) (vnode.Entry, error) {
	return vnode.Entry{}, errReadOnly
}
func (readOnly) Unlink(*vnode.Req, string) error                     { return errReadOnly }
func (readOnly) Rmdir(*vnode.Req, string) error                      { return errReadOnly }
func (readOnly) Rename(*vnode.Req, string, vnode.Node, string) error { return errReadOnly }
func (readOnly) FsyncDir(*vnode.Req) error                           { return nil }
func (readOnly) Setattr(*vnode.Req, vnode.SetAttr) (vnode.Attr, error) {
	return vnode.Attr{}, errReadOnly
}
func (readOnly) Setxattr(*vnode.Req, string, []byte, uint32) error { return errReadOnly }
func (readOnly) Removexattr(*vnode.Req, string) error              { return errReadOnly }

// roNode shows a node of the main tree read-only: bin/, status, hooks, .tshrc.
type roNode struct {
	readOnly
	v *agentView
	n vnode.Node
}

func (n roNode) Attr(r *vnode.Req) (vnode.Attr, error) {
	a, err := n.n.Attr(r)
	return a, err
}

func (n roNode) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	l, ok := n.n.(vnode.Lookuper)
	if !ok {
		return vnode.Entry{}, fault.Newf(fault.NotDir, "no directory")
	}
	e, err := l.Lookup(r, name)
	if err != nil || e.Node == nil {
		return e, err
	}
	e.Node = roNode{v: n.v, n: e.Node}
	return e, nil
}

func (n roNode) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	l, ok := n.n.(vnode.Lister)
	if !ok {
		return nil, fault.Newf(fault.NotDir, "no directory")
	}
	return l.ReadDir(r)
}

func (n roNode) Readlink(r *vnode.Req) (string, error) {
	if l, ok := n.n.(vnode.Readlinker); ok {
		return l.Readlink(r)
	}
	return "", fault.Newf(fault.Invalid, "no symlink")
}

func (n roNode) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		return nil, vnode.Mode{}, errReadOnly
	}
	if o, ok := n.n.(vnode.Opener); ok {
		return o.Open(r, flags)
	}
	return nil, vnode.Mode{}, fault.Newf(fault.Access, "not to be opened")
}

func (n roNode) Unref() { unref(n.n) }

// viewTool is a projected tool: content-immutable, page cached; whether it may be
// executed is asked at every lookup and open and never at a read.
type viewTool struct {
	readOnly
	v          *agentView
	tier, name string
	gen        uint64
	shown      atomic.Pointer[tool.Tool]
}

func (n *viewTool) InMemory() {}

// Attr is the tool's real owner and mode, which the kernel checks too.
func (n *viewTool) Attr(*vnode.Req) (vnode.Attr, error) {
	t := n.shown.Load()
	if now, ok := n.v.t.tools.Lookup(n.tier, n.name); ok && now.Info.Gen == n.gen {
		t = now
	}
	i := t.Info
	a := vnode.Attr{
		Ino: inoOf("/"+n.tier+"/"+n.name) ^ n.gen<<40, Size: uint64(i.Size), Mode: i.Attr.Mode, UID: i.Attr.UID, GID: i.Attr.GID,
		Atime: i.Mod, Mtime: i.Mod, Ctime: i.Mod,
	}
	a.Valid = min(n.v.valid(), dirValid) // modes are pushed with the name; 1 s at most without
	return a, nil
}

// Open is the reference monitor: rows 3–7 hold now, or it fails.
func (n *viewTool) Open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, vnode.Mode, error) {
	if flags.Write() {
		return nil, vnode.Mode{}, errReadOnly
	}
	path := n.tier + "/" + n.name
	t, err := n.v.allowed(n.tier, n.name, "open")
	if err != nil {
		return nil, vnode.Mode{}, fault.At("open", node.Root+"/"+path, err)
	}
	if t.Info.Gen != n.gen {
		return nil, vnode.Mode{}, fault.E("open", node.Root+"/"+path, fault.Stale, nil)
	}
	c, err := n.v.t.count(r)
	if err != nil {
		return nil, vnode.Mode{}, err
	}
	h, err := n.v.t.openBytes(path, n.gen, c)
	if err != nil {
		c.done()
		return nil, vnode.Mode{}, fault.At("open", node.Root+"/"+path, err)
	}
	if n.v.id.own && flags&vnode.FlagExec != 0 {
		n.v.id.obj.Log().Add(agent.Event{Type: "tool.call", Object: n.name, Status: "ok", By: "rule", Reason: "exec"})
	}
	return h, vnode.Mode{KeepCache: true, NoFlush: true}, nil
}
