package bootstrap

import (
	"fmt"
	"path"
	"strings"

	"cortexfs/cmd/internal/toolkit"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/store"
)

// refAgent is one reference agent. Its policy is "allow <name>_t …" for tsh, for
// every tool and for the model.
type refAgent struct {
	name   string
	parent string
	tools  []string
	prompt string
}

// refTool is one core tool: who may execute it, and what its controls say.
type refTool struct {
	name        string
	program     string // companion that is copied
	subjects    []string
	description string
	schema      string
}

var (
	readTools  = []string{"fs.read", "fs.list", "fs.stat"}
	writeTools = []string{"fs.write", "fs.replace", "shell.exec", "bash"}
	// agentTools are made by children's own machinery; the architect's rules name
	// them already, so that it never has less than what it may hand on.
	agentTools = []string{"agent.create", "agent.start", "agent.stop", "agent.update"}
)

// referenceAgents in order of creation: a parent before its children.
func referenceAgents() []refAgent {
	coder := append(append([]string{}, readTools...), writeTools...)
	return []refAgent{
		// A child never has more than its parent, so the architect has all that the
		// others have.
		{name: "architect", tools: append(append([]string{}, coder...), agentTools...),
			prompt: "You plan work, split it, and hand the parts to other agents.\n"},
		{name: "coder", parent: "architect", tools: coder,
			prompt: "You write and change code in /workspace.\n"},
		{name: "reviewer", parent: "architect", tools: append([]string{}, readTools...),
			prompt: "You read code in /workspace and say what is wrong with it. You change nothing.\n"},
	}
}

// referenceTools are tsh and the tools of package toolkit.
func referenceTools() []refTool {
	list := []refTool{{
		name: "tsh", program: "tsh",
		description: "the agent's shell: runs the tools that the agent may run, and nothing else\n",
		schema:      `{"type":"object"}` + "\n",
	}}
	for _, t := range toolkit.Tools() {
		list = append(list, refTool{
			name: t.Name, program: path.Join("tool", t.Name),
			description: strings.TrimRight(t.Description, "\n") + "\n", schema: strings.TrimRight(t.Schema(), "\n") + "\n",
		})
	}
	for i := range list {
		for _, a := range referenceAgents() {
			if list[i].name == "tsh" || contains(a.tools, list[i].name) {
				list[i].subjects = append(list[i].subjects, subject(a.name))
			}
		}
	}
	return list
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func subject(name string) string { return name + "_t" }

// policyText is the reference policy of an agent.
func (a refAgent) policyText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "allow %s tool:tsh execute\n", subject(a.name))
	for _, t := range a.tools {
		fmt.Fprintf(&b, "allow %s tool:%s execute\n", subject(a.name), t)
	}
	fmt.Fprintf(&b, "allow %s model:main use\n", subject(a.name))
	return b.String()
}

func (t refTool) policyText() string {
	var b strings.Builder
	for _, s := range t.subjects {
		fmt.Fprintf(&b, "allow %s tool:%s execute\n", s, t.name)
	}
	return b.String()
}

// ensureAgent makes an agent that is not there. One that is, is left alone.
func (r *session) ensureAgent(a refAgent) error {
	what := "agent/" + a.name
	key := agent.System(a.name)
	if o, err := r.Agents.Lookup(key); err == nil {
		if c := o.Config(); c.OwnerOK && c.Owner != r.o.Owner {
			r.skip(what, fmt.Sprintf("it belongs to uid %d", c.Owner))
		}
		return nil
	} else if !fault.Is(err, fault.NotExist) {
		return fault.At("look up", what, err)
	}
	r.did("ensure", "ensured", what)
	if r.o.DryRun {
		return nil
	}
	texts := map[string][]byte{
		"tools":     []byte(strings.Join(a.tools, "\n") + "\n"),
		"policy":    []byte(a.policyText()),
		"system.md": []byte(a.prompt),
	}
	if a.parent != "" {
		texts["parent"] = []byte("agent:" + a.parent + "\n")
	}
	// An owner without an account has no primary group that could be a default.
	if _, known := r.Users.User(r.o.Owner); !known && r.o.Owner != 0 && r.Agents.Options().Root {
		texts["gid"] = fmt.Appendf(nil, "%d\n", r.o.Owner)
	}
	o, err := r.Agents.Create(key, agent.CreateOptions{Writer: agent.Writer{Root: true}, Owner: r.o.Owner, Texts: texts})
	if err != nil {
		return fault.At("make", what, err)
	}
	c := o.Config()
	if r.Ordinary != nil && c.OwnerOK {
		return r.makeHome(c.Owner, a.name)
	}
	return nil
}

// makeHome makes the owner's and the agent's directories.
func (r *session) makeHome(owner uint32, name string) error {
	gid, ok := r.Users.User(owner)
	if !ok {
		gid = owner
	}
	if err := r.Ordinary.MakeHome(owner, gid); err != nil {
		return fault.At("make the home of", fmt.Sprintf("uid %d", owner), err)
	}
	return fault.At("make the home of", "agent/"+name, r.Ordinary.MakeAgentHome(owner, gid, name))
}

// ensureTool installs a tool that is not there, and the controls that it lacks
// whole: a `.d` that exists is never touched.
func (r *session) ensureTool(t refTool) error {
	p, dir := "tool/"+t.name, "tool/"+t.name+".d"
	_, ferr := r.Store.StatFile(p)
	_, derr := r.Store.Object(dir)
	for _, err := range []error{ferr, derr} {
		if err != nil && !fault.Is(err, fault.NotExist) {
			return fault.At("look up", p, err)
		}
	}
	if ferr == nil && derr == nil {
		return nil
	}
	host, err := r.Find(t.program)
	if err != nil {
		return fault.At("install", p, err)
	}
	r.did("ensure", "ensured", p)
	if r.o.DryRun {
		return nil
	}
	// The controls first: a tool without its policy is refused to everybody, and
	// one without its executable is no hit.
	if derr != nil {
		_, err := r.Store.Create(dir, map[string][]byte{
			"description": []byte(t.description),
			"schema":      []byte(t.schema),
			"policy":      []byte(t.policyText()),
		})
		if err != nil {
			return fault.At("make", dir, err)
		}
	}
	if ferr != nil {
		if err := r.putProgram(p, host, store.FileAttr{UID: r.UID, GID: r.GID, Mode: 0o755}); err != nil {
			return err
		}
	}
	if r.Changed != nil {
		r.Changed("tool", t.name)
	}
	return nil
}
