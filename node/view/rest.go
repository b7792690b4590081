package view

import (
	"encoding/json"
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/tool"
	"cortexfs/policy"
)

// Models are the model references that the agent's policy lets it use, as
// written, sorted. Which of them are installed the catalog of models knows.
func (v *View) Models() []string {
	return v.names(policy.Model, policy.Use)
}

// names are the names on which the agent has a permission now, its ancestors too.
func (v *View) names(c policy.Class, p policy.Permission) []string {
	fam := v.obj.Family()
	cfg := fam.Config()
	return slices.DeleteFunc(cfg.Policy.Names(cfg.Subject, c, p), func(name string) bool { return !fam.Allows(c, name, p) })
}

// ModelAllowed says whether the agent's policy lets it use a model reference.
func (v *View) ModelAllowed(ref string) bool { return v.has(policy.Model, ref, policy.Use) }

// Spaces are the shared spaces that the agent's policy lets it read, sorted.
func (v *View) Spaces() []string {
	return v.names(policy.Shared, policy.Read)
}

// SpaceAllowed says whether the agent's policy lets it read a shared space.
func (v *View) SpaceAllowed(space string) bool { return v.has(policy.Shared, space, policy.Read) }

func (v *View) has(c policy.Class, name string, p policy.Permission) bool {
	return v.obj.Allows(c, name, p)
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
	for _, name := range v.names(policy.Agent, policy.Read) {
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
// policy reduced to the lines about itself, a locator without the host's paths. false: not shown.
func (v *View) ToolControl(t *tool.Tool, name string) (text []byte, ok bool) {
	if name != "policy" {
		text, _, err := t.Text(name)
		if name == "mcp" && err == nil {
			text = hideConfig(text)
		}
		return text, err == nil
	}
	return v.About(t.Policy()), true
}

// hideConfig replaces the path of a configuration that is the host's; one in the
// sandbox is the agent's own path. What is no locator tells nothing.
func hideConfig(text []byte) []byte {
	if len(text) == 0 {
		return nil
	}
	m, err := control.ParseMCP(text)
	if err != nil {
		return nil
	}
	if m.Where != "host" {
		return text
	}
	m.Config = "-"
	hidden, err := json.Marshal(m)
	if err != nil {
		return nil
	}
	return append(hidden, '\n')
}

// About is the text of the rules that are about the agent; of a nil set nothing.
func (v *View) About(set *policy.Set) (text []byte) {
	subject := v.obj.Config().Subject
	for _, r := range set.Rules() {
		if r.Subject == subject {
			text = append(append(text, r.String()...), '\n')
		}
	}
	return text
}
