// Package view computes what an agent sees: the projection of the tiers onto one
// agent, and whether it may execute a tool now (spec sections 8 and 9). It is the
// reference monitor's judgement; the tree and the host process only ask.
//
// Ideas. A view holds nothing of its own. Every answer is made from the snapshots
// that are published at the moment of the call: the agent's Config, the tool's
// file and attributes, both policies. What is kept between calls is kept with
// what it was made from, and compared. So a right that was taken away before a
// call is refused by that call, and nobody has to be told. And a listing walks the
// agent's grants and asks for each of them, never the catalog: its cost follows
// what the agent may do, not what is installed.
//
// Locks: none; caches are atomic pointers to immutable values.
//
// The package writes nothing, reads no file of an agent, and knows no FUSE. Row 8
// (the opened file) and row 9 (approval) need what happens inside the sandbox:
// callers add those facts to a Request.
package view

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/tool"
	"cortexfs/policy"
)

// Views are the views of all agents of a store.
type Views struct {
	agents *agent.Table
	tools  *tool.Catalog
	views  sync.Map // agent.Key → *View
}

// New makes the views of the agents in a table.
func New(agents *agent.Table, tools *tool.Catalog) *Views {
	return &Views{agents: agents, tools: tools}
}

// For is the view of an agent. The same object has the same view.
func (vs *Views) For(o *agent.Object) *View {
	for {
		found, ok := vs.views.Load(o.Key())
		if ok && found.(*View).obj == o {
			return found.(*View)
		}
		made := &View{vs: vs, obj: o}
		if ok && !vs.views.CompareAndSwap(o.Key(), found, made) {
			continue // an agent of that name was there before
		}
		if !ok {
			if _, raced := vs.views.LoadOrStore(o.Key(), made); raced {
				continue
			}
		}
		return made
	}
}

// Forget drops the view of a removed agent.
func (vs *Views) Forget(k agent.Key) { vs.views.Delete(k) }

// View is what one agent sees. All methods may be called at the same time.
type View struct {
	vs      *Views
	obj     *agent.Object
	derived atomic.Pointer[derived]
	lists   sync.Map // tier directory → *listing
}

// derived is what follows from the agent's own texts.
type derived struct {
	cfg   *agent.Config
	fam   *agent.Family // what stands above it
	tiers []searchTier
	mount *policy.MountFact
	above []policy.Ancestor // the same as facts of a request

	searchFile, mountFile, policyFile, toolsFile string
}

// searchTier is a directory of the search path that can hold a hit.
type searchTier struct {
	dir   string // "home/1000/tool"
	path  string // "/ctx/home/1000/tool"
	space string // of a shared tier
	ok    bool   // the search bits on the way hold
	why   string // the directory that refuses
}

// listing is the tools of a tier that passed, and what that was decided from.
type listing struct {
	cfg   *agent.Config
	fam   *agent.Family
	texts uint64
	gen   uint64
	tools []*tool.Tool
}

// Agent is whose view it is.
func (v *View) Agent() *agent.Object { return v.obj }

// derive follows the agent's texts and those of its ancestors. Unchanged it costs
// a few loads.
func (v *View) derive() *derived {
	fam := v.obj.Family()
	cfg := fam.Config()
	if d := v.derived.Load(); d != nil && d.cfg == cfg && d.fam == fam {
		return d
	}
	dir := v.obj.Key().TreeDir()
	d := &derived{
		cfg: cfg, fam: fam, mount: mountOf(cfg), searchFile: dir + "/path",
		mountFile: dir + "/mount", policyFile: dir + "/policy", toolsFile: dir + "/tools",
	}
	for i, c := range fam.Above {
		dir := c.Key.TreeDir()
		d.above = append(d.above, policy.Ancestor{
			Name: c.Key.String(), Subject: c.Subject, Policy: c.Policy, PolicyFile: dir + "/policy",
			Declares: c.Declared, ToolsFile: dir + "/tools", Searched: c.Search, SearchFile: dir + "/path",
			Mount: mountOf(c), MountFile: dir + "/mount", Born: fam.Born[i],
		})
	}
	for _, path := range cfg.Search {
		if t, ok := tierOf(cfg, path); ok {
			d.tiers = append(d.tiers, t)
		}
	}
	v.derived.Store(d)
	return d
}

// tierOf is the tier that a directory of the search path is; only tiers of this
// tree count, and of the homes only the owner's (spec section 8).
func tierOf(cfg *agent.Config, path string) (searchTier, bool) {
	dir, ok := strings.CutPrefix(path, node.Root+"/")
	if !ok || !cfg.OwnerOK {
		return searchTier{}, false
	}
	t := searchTier{dir: dir, path: path, ok: true}
	if dir == tool.System {
		return t, true
	}
	if uid, ok := tool.HomeOf(dir); ok {
		// home/<uid> is 0700 and its uid's; the other directories are open to all.
		t.ok = cfg.UID == uid
		t.why = node.Root + "/home/" + strconv.FormatUint(uint64(uid), 10) + " is 0700 and uid " + strconv.FormatUint(uint64(uid), 10) + "'s"
		return t, uid == cfg.Owner
	}
	t.space, ok = tool.SpaceOf(dir)
	return t, ok
}

// mountOf is the line of the agent's table that exposes its tree. Only /ctx
// itself can be a target there, from /ctx.
func mountOf(cfg *agent.Config) *policy.MountFact {
	for _, m := range cfg.Mounts {
		if m.Target == node.Root && m.Source == node.Root {
			return &policy.MountFact{Line: m.Line, Target: m.Target, NoExec: m.NoExec}
		}
	}
	return nil
}

// Gen is another number when what the view shows may be something else. It does
// not grow.
func (v *View) Gen() uint64 {
	const prime = 1099511628211 // of FNV-1a: no two sums of counters look alike
	gen := v.vs.agents.Store().TextChanges()*prime ^ v.vs.agents.NamesGen()
	for _, t := range v.derive().tiers {
		gen = gen*prime ^ v.vs.tools.Gen(t.dir)
	}
	return gen
}

// Tiers are the tiers of the agent's search path that it can see, in its order.
func (v *View) Tiers() []string {
	d := v.derive()
	dirs := make([]string, 0, len(d.tiers))
	for _, t := range d.tiers {
		if d.visible(t) {
			dirs = append(dirs, t.dir)
		}
	}
	return dirs
}

// visible: a shared space takes a rule to be seen at all.
func (d *derived) visible(t searchTier) bool {
	return t.space == "" || d.fam.Allows(policy.Shared, t.space, policy.Read)
}

func (d *derived) tier(dir string) (searchTier, bool) {
	for _, t := range d.tiers {
		if t.dir == dir {
			return t, d.visible(t)
		}
	}
	return searchTier{}, false
}
