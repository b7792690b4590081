package tree

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/view"
	"cortexfs/node/vnode"
)

// viewKind is what a directory of a view shows.
type viewKind uint8

const (
	vRoot     viewKind = iota
	vTools             // a: tier
	vToolObj           // a: tier, b: tool
	vHomes             // home/
	vHome              // home/<owner>/
	vHomeObjs          // home/<owner>/agent/
	vShared            // shared/
	vSpace             // a: space
	vModels            // a: provider, or "" for model/
	vModelObj          // a: provider, b: model
	vAgents            // agent/
	vAgentObj          // a: agent.Key as text
)

// viewDir is a directory of a view; comparable.
type viewDir struct {
	readOnly
	v    *agentView
	kind viewKind
	a, b string
}

// keptViewDir is a tool directory on the agent's own connection: the kernel keeps
// its listing until a push.
type keptViewDir struct{ viewDir }

func (keptViewDir) InMemory() {}

func verdictText(row int, name, file, why string) string {
	return fmt.Sprintf("row %d %s: %s (%s)", row, name, why, file)
}

func (d viewDir) path() string {
	home := homePath(d.v.cfg().Owner)
	switch d.kind {
	case vTools:
		return d.a
	case vToolObj:
		return d.a + "/" + d.b + ".d"
	case vHomes:
		return "home"
	case vHome:
		return home
	case vHomeObjs:
		return home + "/agent"
	case vShared:
		return "shared"
	case vSpace:
		return "shared/" + d.a
	case vModels:
		return strings.TrimSuffix("model/"+d.a, "/")
	case vModelObj:
		return "model/" + d.a + "/" + d.b + ".d"
	case vAgents:
		return "agent"
	case vAgentObj:
		return d.a + ".d"
	}
	return ""
}

func (d viewDir) Attr(*vnode.Req) (vnode.Attr, error) {
	if d.v.id.obj.Gone() {
		return vnode.Attr{}, fault.E("stat", node.Root+"/"+d.path(), fault.Stale, nil)
	}
	uid, gid := d.v.t.daemonIDs()
	if d.kind == vHome || d.kind == vHomeObjs || d.kind == vAgentObj {
		uid, gid = d.v.cfg().Owner, d.v.t.primaryGID(d.v.cfg().Owner)
	}
	mode := uint32(0o755)
	if d.kind == vRoot && !d.v.id.own { // view/ below an agent's .d is its owner's (spec 2)
		mode, uid, gid = 0o700, d.v.cfg().Owner, d.v.t.primaryGID(d.v.cfg().Owner)
	}
	a := dirAttr("view/"+d.v.id.obj.Key().String()+"/"+d.path(), mode, uid, gid, time.Unix(0, d.v.mod.Load()))
	switch {
	case !d.v.id.own:
		a.Valid = 0
	case d.kind == vRoot || d.kind == vTools: // the listing of tools is pushed
		a.Valid = viewValid
	case d.kind != vHomes && d.kind != vHome:
		a.Valid = 0
	}
	return a, nil
}

// Lookup decides what the agent sees under a name, now.
func (d viewDir) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	if d.v.id.obj.Gone() {
		return vnode.Entry{}, notExist(name)
	}
	if d.kind == vTools {
		return d.lookupTool(name)
	}
	n, err := d.find(r, name)
	if err != nil {
		return vnode.Entry{}, err
	}
	if n == nil {
		return vnode.Entry{}, notExist(name)
	}
	return vnode.Entry{Node: n, Valid: d.fixedValid()}, nil
}

// fixedValid is how long the kernel may keep a name that does not depend on a
// grant, on the agent's own connection.
func (d viewDir) fixedValid() time.Duration {
	switch {
	case !d.v.id.own:
		return 0
	case d.kind == vRoot:
		return viewValid
	case d.kind == vHomes || d.kind == vHome:
		return dirValid // the home of another owner is another name
	}
	return 0
}

// lookupTool answers with a node or, on the agent's own connection, with a "no"
// that the kernel may keep until the push.
func (d viewDir) lookupTool(name string) (vnode.Entry, error) {
	base := strings.TrimSuffix(name, ".d")
	t, err := d.v.allowed(d.a, base, "lookup")
	switch {
	case err != nil && d.v.id.own:
		return vnode.Entry{Valid: d.v.valid()}, nil
	case err != nil:
		return vnode.Entry{}, notExist(name)
	case base != name:
		return vnode.Entry{Node: viewDir{v: d.v, kind: vToolObj, a: d.a, b: base}, Valid: d.v.valid()}, nil
	}
	return vnode.Entry{Node: d.v.tool(t), Valid: d.v.valid()}, nil
}

// find is the node of a name in every other directory; nil: no such name.
func (d viewDir) find(r *vnode.Req, name string) (vnode.Node, error) {
	owner := d.v.cfg().Owner
	sub := func(kind viewKind, a string) (vnode.Node, error) {
		return viewDir{v: d.v, kind: kind, a: a, b: ""}, nil
	}
	switch d.kind {
	case vRoot:
		switch name {
		case "status", "bin":
			return roNode{v: d.v, n: d.v.t.root.entry(name)}, nil
		case "tool":
			return d.v.tierDir("tool"), nil
		case "home":
			return sub(vHomes, "")
		case "shared":
			return sub(vShared, "")
		case "model":
			return sub(vModels, "")
		case "agent":
			return sub(vAgents, "")
		}
	case vHomes:
		if name == strconv.FormatUint(uint64(owner), 10) {
			return sub(vHome, "")
		}
	case vHome:
		switch name {
		case "tool":
			return d.v.tierDir(homePath(owner) + "/tool"), nil
		case "agent":
			return sub(vHomeObjs, "")
		case tshrc:
			return d.findTshrc()
		}
	case vShared:
		if d.v.v.SpaceAllowed(name) {
			if _, ok := d.v.t.ordAttr("shared/" + name); ok {
				return sub(vSpace, name)
			}
		}
	case vSpace:
		return d.findInSpace(name), nil
	case vModels:
		return d.findModel(name), nil
	case vToolObj:
		return d.findToolControl(name), nil
	case vModelObj:
		return d.findModelControl(name), nil
	case vAgents, vHomeObjs:
		return d.findAgent(name), nil
	case vAgentObj:
		return d.findControl(name), nil
	}
	return nil, nil
}

func (d viewDir) findTshrc() (vnode.Node, error) {
	n, err := d.v.t.ord.Node(nil, d.path()+"/"+tshrc)
	if err != nil || n == nil {
		return nil, err
	}
	defer unref(n)
	if a, err := n.Attr(d.v.t.own()); err != nil || a.Type != vnode.Regular {
		return nil, err
	}
	return viewText{v: d.v, kind: vHome, name: tshrc}, nil
}

// findInSpace: tool/ like tool/, data as a link to where the agent's table mounts
// it, nothing else.
func (d viewDir) findInSpace(name string) vnode.Node {
	if !d.v.v.SpaceAllowed(d.a) {
		return nil
	}
	switch name {
	case "tool":
		return d.v.tierDir(d.path() + "/tool")
	case "data":
		base := node.Root + "/" + d.path()
		if at, ok := d.v.mounted(base + "/data"); ok {
			return viewLink{v: d.v, path: d.path() + "/data", target: at}
		}
		if at, ok := d.v.mounted(base); ok {
			return viewLink{v: d.v, path: d.path() + "/data", target: at + "/data"}
		}
	}
	return nil
}

// mounted is where the agent's table mounts a source.
func (v *agentView) mounted(source string) (target string, ok bool) {
	for _, m := range v.cfg().Mounts {
		if m.Source == source {
			return m.Target, true
		}
	}
	return "", false
}

// findModel shows what model:<ref> use names; of an alias the alias.
func (d viewDir) findModel(name string) vnode.Node {
	main := modelDir{t: d.v.t, dir: "model", provider: d.a}
	if d.a != "" {
		base := strings.TrimSuffix(name, ".d")
		if !d.v.v.ModelAllowed(d.a + "/" + base) {
			return nil
		}
		n, err := main.find(name)
		switch {
		case err != nil:
			return nil
		case base != name:
			return viewDir{v: d.v, kind: vModelObj, a: d.a, b: base}
		}
		return roNode{v: d.v, n: n}
	}
	for _, ref := range d.v.v.Models() {
		provider, _, isFull := strings.Cut(ref, "/")
		if isFull && provider == name {
			return viewDir{v: d.v, kind: vModels, a: name}
		}
		if !isFull && ref == name {
			if n, err := main.find(name); err == nil {
				return roNode{v: d.v, n: n}
			}
		}
	}
	return nil
}

// shownOfTool are the entries of a projected tool's .d: all but log and what a
// view never shows.
func shownOfTool(e *control.Entry) bool {
	return e.Kind == control.Durable || (e.Kind == control.Live && e.Name != "log")
}

func (d viewDir) findToolControl(name string) vnode.Node {
	t, err := d.v.allowed(d.a, d.b, "lookup")
	if err != nil {
		return nil
	}
	e := control.Tool.Lookup(name)
	if e == nil || !shownOfTool(e) || (e.Only != "" && e.Only != d.b) {
		return nil
	}
	n := viewText{v: d.v, kind: vToolObj, a: d.a, b: d.b, name: name}
	if e.Optional {
		if text, ok := n.textOfTool(t); !ok || len(text) == 0 {
			return nil
		}
	}
	return n
}

// findAgent: in agent/ the own .d whatever its tier, and the system agents that
// it sees; in the home its own state as a link, and the home's agents.
func (d viewDir) findAgent(name string) vnode.Node {
	self := d.v.id.obj.Key()
	base, isObject := strings.CutSuffix(name, ".d")
	if !isObject {
		if d.kind == vHomeObjs && name == self.Name {
			if at, ok := d.v.mounted(d.v.cfg().StateDir()); ok {
				return viewLink{v: d.v, path: d.path() + "/" + name, target: at}
			}
		}
		return nil
	}
	if node.CheckAgentName(base) != nil {
		return nil
	}
	if d.kind == vAgents && base == self.Name {
		return viewDir{v: d.v, kind: vAgentObj, a: self.String()}
	}
	k := agent.System(base)
	if d.kind == vHomeObjs {
		k = agent.InHome(d.v.cfg().Owner, base)
	}
	if _, ok := d.v.v.AgentVisible(k); !ok {
		return nil
	}
	return viewDir{v: d.v, kind: vAgentObj, a: k.String()}
}

// peer is the agent behind a .d of the view.
func (d viewDir) peer() (*agent.Object, view.Peer, bool) {
	k, ok := agent.ParseKey(d.a)
	if !ok {
		return nil, view.Peer{}, false
	}
	p, ok := d.v.v.AgentVisible(k)
	if !ok {
		return nil, view.Peer{}, false
	}
	o, err := d.v.t.agents.Lookup(k)
	return o, p, err == nil
}

// shownOfAgent says what of an agent's .d the view shows: of itself and its
// children the controls, of others the status.
func shownOfAgent(p view.Peer, e *control.Entry) bool {
	switch {
	case e.Name == "status":
		return true
	case !p.Self && !p.Child:
		return false
	}
	return e.Kind == control.Durable || e.Name == "pid" || (e.Kind == control.Dir && p.Self)
}

func (d viewDir) findControl(name string) vnode.Node {
	o, p, ok := d.peer()
	e := control.Agent.Lookup(name)
	if !ok || e == nil || !shownOfAgent(p, e) {
		return nil
	}
	if e.Kind == control.Dir {
		dir, err := d.v.t.agentDir(o.Key())
		if err != nil {
			return nil
		}
		return roNode{v: d.v, n: hooksDir{dir, e}}
	}
	return viewText{v: d.v, kind: vAgentObj, a: d.a, name: name}
}

// ReadDir lists what Lookup finds.
func (d viewDir) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	if d.v.id.obj.Gone() {
		return nil, fault.E("readdir", node.Root+"/"+d.path(), fault.Stale, nil)
	}
	if d.kind == vTools {
		return d.listTools(), nil
	}
	return listOf(r, d.names(), func(name string) vnode.Node {
		n, err := d.find(r, name)
		if err != nil {
			return nil
		}
		return n
	})
}

func (d viewDir) listTools() []vnode.Dirent {
	var out []vnode.Dirent
	for _, t := range d.v.v.Tools(d.a) {
		path := "/" + d.a + "/" + t.Name
		out = append(out,
			vnode.Dirent{Name: t.Name, Ino: inoOf(path) ^ t.Info.Gen<<40, Type: vnode.Regular},
			vnode.Dirent{Name: t.Name + ".d", Ino: inoOf("view/" + d.v.id.obj.Key().String() + path + ".d"), Type: vnode.Directory})
	}
	return out
}

// names are the names that a directory may have; find says which it has.
func (d viewDir) names() []string {
	switch d.kind {
	case vRoot:
		return rootNames
	case vHomes:
		return []string{strconv.FormatUint(uint64(d.v.cfg().Owner), 10)}
	case vHome:
		return []string{tshrc, "agent", "tool"}
	case vShared:
		return d.v.v.Spaces()
	case vSpace:
		return []string{"data", "tool"}
	case vModels:
		return d.modelNames()
	case vToolObj:
		return entryNames(control.Tool)
	case vModelObj:
		return entryNames(control.Model)
	case vAgents, vHomeObjs:
		return d.agentNames()
	case vAgentObj:
		return entryNames(control.Agent)
	}
	return nil
}

func (d viewDir) modelNames() []string {
	var names []string
	for _, ref := range d.v.v.Models() {
		provider, model, isFull := strings.Cut(ref, "/")
		switch {
		case d.a == "":
			names = append(names, provider)
		case isFull && provider == d.a:
			names = append(names, model, model+".d")
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (d viewDir) agentNames() []string {
	self := d.v.id.obj.Key()
	names := []string{self.Name + ".d"}
	if d.kind == vHomeObjs {
		names = append(names, self.Name)
	}
	for _, p := range d.v.v.Agents() {
		if p.Key.Home == (d.kind == vHomeObjs) {
			names = append(names, p.Key.Name+".d")
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func entryNames(s *control.Set) []string {
	var names []string
	for _, e := range s.Entries() {
		names = append(names, e.Name)
	}
	return names
}
