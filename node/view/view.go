// Package view computes what an agent sees (spec section 9).
package view

import (
	"cortexfs/node/agent"
	"cortexfs/node/tool"
	"cortexfs/policy"
)

// Views are the views of all agents.
type Views struct{}

// View is what one agent sees now. All answers are from the published snapshots at the call.
type View struct{}

// Peer is another agent that this one sees.
type Peer struct {
	Key   agent.Key
	Child bool // one of its own children: all controls; else name and status only
}

func New(agents *agent.Table, tools *tool.Catalog) *Views { panic("not there yet") }
func (v *Views) For(o *agent.Object) *View                { panic("not there yet") }

func (v *View) Agent() *agent.Object { panic("not there yet") }

// Gen differs when what the view shows may differ.
func (v *View) Gen() uint64 { panic("not there yet") }

// Tiers are the tool tiers of this agent's search path, in order ("tool", "home/1000/tool", "shared/x/tool").
func (v *View) Tiers() []string { panic("not there yet") }

// Tools lists the tools of the tier that pass rows 3-7 now, sorted by name.
func (v *View) Tools(tier string) []*tool.Tool { panic("not there yet") }

// Allowed decides rows 3-7 for one tool of one tier now.
func (v *View) Allowed(tier, name string) (*tool.Tool, bool) { panic("not there yet") }

// Decide is Allowed with the row that refuses.
func (v *View) Decide(tier, name string) (*tool.Tool, policy.Verdict, bool) { panic("not there yet") }

// Search is every hit of name on the search path, in order (`which -a`): the first is the one that counts.
func (v *View) Search(name string) []*tool.Tool { panic("not there yet") }

// Request are the facts of spec section 8 for policy.Authorize and Explain.
func (v *View) Request(name string, hosted bool) *policy.Request { panic("not there yet") }

// Explain is every row (`ctx agent why`); ok: all hold.
func (v *View) Explain(name string, hosted bool) (rows []policy.Verdict, ok bool) {
	panic("not there yet")
}

// Models are the references that the policy allows, as written.
func (v *View) Models() []string             { panic("not there yet") }
func (v *View) ModelAllowed(ref string) bool { panic("not there yet") }

// Spaces are the shared spaces with shared:<space> read.
func (v *View) Spaces() []string               { panic("not there yet") }
func (v *View) SpaceAllowed(space string) bool { panic("not there yet") }

// Agents are its children and the others with agent:<name> read, sorted; not itself.
func (v *View) Agents() []Peer                        { panic("not there yet") }
func (v *View) AgentVisible(k agent.Key) (Peer, bool) { panic("not there yet") }

// Control is the text of one of its own controls as the view shows it (host sources in mount read "-"; false: not shown).
func (v *View) Control(name string) (text []byte, ok bool) { panic("not there yet") }

// ToolControl is the text of a projected tool's control (policy reduced to this subject; no log).
func (v *View) ToolControl(t *tool.Tool, name string) (text []byte, ok bool) { panic("not there yet") }
