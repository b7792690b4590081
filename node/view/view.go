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
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
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
	tiers []searchTier
	mount *policy.MountFact

	searchFile, mountFile, policyFile, toolsFile string
}

// searchTier is a directory of the search path that can hold a hit.
type searchTier struct {
	dir   string // "home/1000/tool"
	space string // of a shared tier
	ok    bool   // the search bits on the way hold
	why   string // the directory that refuses
}

// listing is the tools of a tier that passed, and what that was decided from.
type listing struct {
	cfg   *agent.Config
	texts uint64
	gen   uint64
	tools []*tool.Tool
}

// Agent is whose view it is.
func (v *View) Agent() *agent.Object { return v.obj }

// derive follows the agent's texts. Unchanged it costs two loads.
func (v *View) derive() *derived {
	cfg := v.obj.Config()
	if d := v.derived.Load(); d != nil && d.cfg == cfg {
		return d
	}
	dir := v.obj.Key().TreeDir()
	d := &derived{
		cfg: cfg, mount: mountOf(cfg), searchFile: dir + "/path",
		mountFile: dir + "/mount", policyFile: dir + "/policy", toolsFile: dir + "/tools",
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
	t := searchTier{dir: dir, ok: true}
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
	if t.space == "" {
		return true
	}
	_, ok := d.cfg.Policy.Allows(d.cfg.Subject, policy.Shared, t.space, policy.Read)
	return ok
}

func (d *derived) tier(dir string) (searchTier, bool) {
	for _, t := range d.tiers {
		if t.dir == dir {
			return t, d.visible(t)
		}
	}
	return searchTier{}, false
}

// Allowed decides rows 3–7 for one tool of one tier, now. A tool that another
// tier of the search path shadows is one of its own: it can be named by its path.
func (v *View) Allowed(tier, name string) (*tool.Tool, bool) {
	d := v.derive()
	t, ok := d.tier(tier)
	if !ok {
		return nil, false
	}
	found, ok := v.vs.tools.Lookup(tier, name)
	if !ok {
		return nil, false
	}
	return found, d.allows(t, found)
}

// allows decides rows 3–7 for a hit.
func (d *derived) allows(t searchTier, found *tool.Tool) bool {
	var q policy.Request
	var hit policy.Hit
	d.fill(&q, &hit, t, found)
	_, ok := policy.Authorize(&q)
	return ok
}

// fill states the facts of rows 3–7 but the paths, which only a reader needs.
func (d *derived) fill(q *policy.Request, hit *policy.Hit, t searchTier, found *tool.Tool) {
	a := found.Info.Attr
	*hit = policy.Hit{Mode: a.Mode, UID: a.UID, GID: a.GID, Search: t.ok}
	*q = policy.Request{
		Tool: found.Name, Hit: hit, UID: d.cfg.UID, GID: d.cfg.GID, Groups: d.cfg.Groups, Mount: d.mount,
		Subject: d.cfg.Subject, AgentPolicy: d.cfg.Policy, ToolPolicy: found.Policy(),
	}
}

// Decide is Allowed with the row that refuses, and its file and line.
func (v *View) Decide(tier, name string) (*tool.Tool, policy.Verdict, bool) {
	if found, ok := v.Allowed(tier, name); ok {
		return found, policy.Verdict{OK: true}, true
	}
	q := v.request(name, []string{tier})
	verdict, ok := policy.Authorize(q)
	if !ok {
		return nil, verdict, false
	}
	// Allowed between the two looks.
	found, ok := v.vs.tools.Lookup(tier, name)
	return found, policy.Verdict{OK: ok}, ok
}

// Tools are the tools of the tier that pass rows 3–7 now, sorted by name. The
// slice is not to be changed.
func (v *View) Tools(tier string) []*tool.Tool {
	d, texts, gen := v.derive(), v.vs.agents.Store().TextChanges(), v.vs.tools.Gen(tier)
	if old, ok := v.lists.Load(tier); ok {
		if o := old.(*listing); o.cfg == d.cfg && o.texts == texts && o.gen == gen {
			return o.tools
		}
	}
	t, ok := d.tier(tier)
	if !ok {
		return nil
	}
	l := &listing{cfg: d.cfg, texts: texts, gen: gen}
	for _, name := range d.cfg.Policy.Names(d.cfg.Subject, policy.Tool, policy.Execute) {
		if found, ok := v.vs.tools.Lookup(tier, name); ok && d.allows(t, found) {
			l.tools = append(l.tools, found)
		}
	}
	v.lists.Store(tier, l)
	return l.tools
}

// Search is every hit of a name on the search path, in its order, allowed or not
// (`which -a`): the first is the one that counts, the others are shadowed.
func (v *View) Search(name string) []*tool.Tool {
	var hits []*tool.Tool
	for _, dir := range v.Tiers() {
		if found, ok := v.vs.tools.Lookup(dir, name); ok {
			hits = append(hits, found)
		}
	}
	return hits
}

// Request states every fact of spec section 8 about a tool, for Authorize and
// Explain: rows 3–7, and with hosted also rows 1, 2 and 9. The caller adds what
// was opened and what was approved.
func (v *View) Request(name string, hosted bool) *policy.Request {
	q := v.request(name, v.Tiers())
	d := v.derive()
	q.Hosted = hosted
	q.ToolsFile = d.toolsFile
	q.DeclaredLine, q.Declared = d.cfg.Declared(name)
	if d.cfg.Approval == "auto" {
		q.Approval = &policy.ApprovalFact{Auto: true}
	}
	return q
}

// request states the facts of rows 3–7, with their paths, for the first hit in
// the given tiers.
func (v *View) request(name string, tiers []string) *policy.Request {
	d := v.derive()
	for _, dir := range tiers {
		t, ok := d.tier(dir)
		if !ok {
			continue
		}
		found, ok := v.vs.tools.Lookup(dir, name)
		if !ok {
			continue
		}
		q, hit := new(policy.Request), new(policy.Hit)
		d.fill(q, hit, t, found)
		hit.Path, hit.SearchWhy = found.TreePath(), t.why
		q.ToolPolicyFile = found.TreePath() + ".d/policy"
		return d.name(q, d.cfg.Search)
	}
	q := &policy.Request{Tool: name, UID: d.cfg.UID, GID: d.cfg.GID, Groups: d.cfg.Groups, Mount: d.mount,
		Subject: d.cfg.Subject, AgentPolicy: d.cfg.Policy}
	return d.name(q, d.cfg.Search)
}

// name adds the files that decide.
func (d *derived) name(q *policy.Request, searched []string) *policy.Request {
	q.Searched, q.SearchFile = searched, d.searchFile
	q.MountFile, q.AgentPolicyFile = d.mountFile, d.policyFile
	return q
}

// Explain is every row about a tool (`ctx agent why`). ok: none refuses; rows 8
// and 9 of a hosted call are still open then.
func (v *View) Explain(name string, hosted bool) (rows []policy.Verdict, ok bool) {
	rows = policy.Explain(v.Request(name, hosted))
	_, denied := policy.Denied(rows)
	return rows, !denied
}

// Models are the model references that the agent's policy lets it use, as
// written, sorted. Which of them are installed the catalog of models knows.
func (v *View) Models() []string {
	cfg := v.obj.Config()
	return cfg.Policy.Names(cfg.Subject, policy.Model, policy.Use)
}

// ModelAllowed says whether the agent's policy lets it use a model reference.
func (v *View) ModelAllowed(ref string) bool { return v.has(policy.Model, ref, policy.Use) }

// Spaces are the shared spaces that the agent's policy lets it read, sorted.
func (v *View) Spaces() []string {
	cfg := v.obj.Config()
	return cfg.Policy.Names(cfg.Subject, policy.Shared, policy.Read)
}

// SpaceAllowed says whether the agent's policy lets it read a shared space.
func (v *View) SpaceAllowed(space string) bool { return v.has(policy.Shared, space, policy.Read) }

func (v *View) has(c policy.Class, name string, p policy.Permission) bool {
	cfg := v.obj.Config()
	_, ok := cfg.Policy.Allows(cfg.Subject, c, name, p)
	return ok
}

// Peer is an agent that another one sees.
type Peer struct {
	Key   agent.Key
	Self  bool
	Child bool // one of its own children: its controls; else name and status only
}

// Agents are the agents that this one sees besides itself: its children, and
// those of its owner that its policy lets it read. Sorted.
func (v *View) Agents() []Peer {
	cfg := v.obj.Config()
	var peers []Peer
	for _, k := range v.vs.agents.Children(v.obj.Key()) {
		peers = append(peers, Peer{Key: k, Child: true})
	}
	for _, name := range cfg.Policy.Names(cfg.Subject, policy.Agent, policy.Read) {
		for _, k := range []agent.Key{agent.System(name), agent.InHome(cfg.Owner, name)} {
			if p, ok := v.AgentVisible(k); ok && !p.Self && !p.Child {
				peers = append(peers, p)
			}
		}
	}
	slices.SortFunc(peers, func(a, b Peer) int { return a.Key.Compare(b.Key) })
	return peers
}

// AgentVisible says whether and how the agent sees another one, or itself.
func (v *View) AgentVisible(k agent.Key) (Peer, bool) {
	self := v.obj.Key()
	if k == self {
		return Peer{Key: k, Self: true}, !v.obj.Gone()
	}
	if p, ok := v.vs.agents.Parent(k); ok && p == self {
		return Peer{Key: k, Child: true}, true
	}
	if !v.has(policy.Agent, k.Name, policy.Read) {
		return Peer{}, false
	}
	o, err := v.vs.agents.Lookup(k)
	if err != nil {
		return Peer{}, false
	}
	mine, theirs := v.obj.Config(), o.Config()
	return Peer{Key: k}, mine.OwnerOK && theirs.OwnerOK && mine.Owner == theirs.Owner
}

// Control is one of the agent's own durable controls as it sees it: the sources
// of its mount table outside /ctx read "-" (spec section 9). false: not shown.
func (v *View) Control(name string) (text []byte, ok bool) { return ControlOf(v.obj, name) }

// ControlOf is Control for an agent that the viewer sees whole: itself or a
// child.
func ControlOf(o *agent.Object, name string) (text []byte, ok bool) {
	e := control.Agent.Lookup(name)
	if e == nil || e.Kind != control.Durable {
		return nil, false
	}
	text, _, err := o.Text(name)
	if err != nil {
		return nil, true
	}
	if name == "mount" {
		text = hideSources(text)
	}
	return text, true
}

// hideSources replaces what the host's paths would tell. It does not need the
// text to be a valid table.
func hideSources(text []byte) []byte {
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		source, rest, tabs := strings.Cut(line, "\t")
		if line != "" && source != node.Root && !strings.HasPrefix(source, node.Root+"/") {
			lines[i] = "-"
			if tabs {
				lines[i] += "\t" + rest
			}
		}
	}
	return []byte(strings.Join(lines, "\n"))
}

// ToolControl is a durable control of a projected tool as the agent sees it: the
// policy reduced to the lines about itself. false: not shown.
func (v *View) ToolControl(t *tool.Tool, name string) (text []byte, ok bool) {
	if name != "policy" {
		text, _, err := t.Text(name)
		return text, err == nil
	}
	subject := v.obj.Config().Subject
	for _, r := range t.Policy().Rules() {
		if r.Subject == subject {
			text = append(append(text, r.String()...), '\n')
		}
	}
	return text, true
}
