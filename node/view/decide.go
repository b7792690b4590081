package view

import (
	"cortexfs/node/tool"
	"cortexfs/policy"
)

// Allowed decides rows 3–7 for one tool of one tier, now. On a refusal the tool
// is nil if row 3 refused it, else the one that a later row refused. A tool that
// another tier of the search path shadows is one of its own: it can be named by
// its path.
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
		Subject: d.cfg.Subject, AgentPolicy: d.cfg.Policy, ToolPolicy: found.Policy(), HitDir: t.path,
	}
	d.bound(q)
}

// bound states what stands above the agent.
func (d *derived) bound(q *policy.Request) {
	q.Above = d.above
	if d.fam.Broken != nil {
		q.Lineage = d.fam.Broken.Error()
	}
	if d.fam.Grants != nil {
		q.GrantedRule = d.fam.Grants.Rule(d.cfg.Subject, policy.Tool, q.Tool, policy.Execute)
		q.GrantedTool = d.fam.Grants.Tool(q.Tool)
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
		if o := old.(*listing); o.cfg == d.cfg && o.fam == d.fam && o.texts == texts && o.gen == gen {
			return o.tools
		}
	}
	t, ok := d.tier(tier)
	if !ok {
		return nil
	}
	l := &listing{cfg: d.cfg, fam: d.fam, texts: texts, gen: gen}
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
	if v.obj.Approval() == "auto" {
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
	d.bound(q)
	return d.name(q, d.cfg.Search)
}

// name adds the files that decide.
func (d *derived) name(q *policy.Request, searched []string) *policy.Request {
	q.Searched, q.SearchFile = searched, d.searchFile
	q.MountFile, q.AgentPolicyFile = d.mountFile, d.policyFile
	q.LineageFile = d.lineageFile()
	return q
}

// lineageFile is the text that does not lead to a parent.
func (d *derived) lineageFile() string {
	at := d.cfg.Key
	if n := len(d.fam.Above); n > 0 {
		at = d.fam.Above[n-1].Key
	}
	return at.TreeDir() + "/parent"
}

// Explain is every row about a tool (`ctx agent why`). ok: none refuses; rows 8
// and 9 of a hosted call are still open then.
func (v *View) Explain(name string, hosted bool) (rows []policy.Verdict, ok bool) {
	rows = policy.Explain(v.Request(name, hosted))
	_, denied := policy.Denied(rows)
	return rows, !denied
}
