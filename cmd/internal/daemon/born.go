package daemon

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"go.uber.org/zap"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/policy"
	"cortexfs/policy/attenuate"
)

// What an agent asks for its children (spec section 17). The caller is known from
// the socket that its request came by and never from what it says; each of these is
// a call of the tool of the same name, decided by rows 1–7 here, and by rows 8 and
// 9 and the hooks where the run is.

// claim is who a request says that it comes from. It has to be true.
type claim struct{ Agent, Session, Run string }

// birthRequest is what agent.create is asked. Paths are those of the parent's
// sandbox.
type birthRequest struct {
	Name    string
	Life    string // owned or temp; "": owned
	Label   string // "": its own; only the parent's may be asked for instead
	Tools   []string
	Rules   []string // CLASS:NAME PERMISSION, for the child's own subject
	Groups  []uint32
	Mounts  [][]string // [source, target, ro|rw]
	Model   string
	Prompt  string // system.md
	Handoff string // handed over in the channel
}

// asks checks the claim against what is known about the caller and gives its
// object, which has to run.
func (m *manager) asks(caller agent.Key, session, run string, say claim) (*agent.Object, error) {
	for _, c := range [][2]string{{say.Agent, caller.Name}, {say.Session, session}, {say.Run, run}} {
		if c[0] != "" && c[0] != c[1] {
			return nil, fault.E("ask", caller.String(), fault.Access, errors.New("a request speaks for its own agent, session and run only"))
		}
	}
	o, err := m.w.agents.Lookup(caller)
	if err != nil {
		return nil, err
	}
	if state, _ := m.Live(caller); !state.Alive() || state == node.Stopping {
		return nil, fault.E("ask", caller.String(), fault.NoProcess, errors.New("it does not run"))
	}
	return o, nil
}

// mayCall is rows 1–7 of a tool for a hosted call.
func (m *manager) mayCall(o *agent.Object, tool string) error {
	rows, _ := m.w.views.For(o).Explain(tool, true)
	if v, denied := policy.Denied(rows); denied {
		return fault.E("call", tool, v.Kind, fmt.Errorf("row %d (%s): %s", v.Row, v.Name, v.Why))
	}
	return nil
}

// mayDo is a rule about another agent, the caller's ancestors' too.
func mayDo(o *agent.Object, name string, p policy.Permission) error {
	if o.Allows(policy.Agent, name, p) {
		return nil
	}
	r := policy.Rule{Subject: o.Config().Subject, Class: policy.Agent, Name: name, Perm: p}
	return fault.E(string(p), name, fault.Access, fmt.Errorf("its policy, or that of one above it, lacks `%s`", r))
}

// createChild makes a child for an agent that runs, in the session and run that its
// request came from, and opens the channel to it.
func (m *manager) createChild(caller agent.Key, session, run string, say claim, q *birthRequest) (*agent.Object, error) {
	o, err := m.asks(caller, session, run, say)
	if err != nil {
		return nil, err
	}
	if err := m.mayCall(o, "agent.create"); err != nil {
		return nil, err
	}
	if err := node.CheckAgentName(q.Name); err != nil {
		return nil, err
	}
	if err := mayDo(o, q.Name, policy.Create); err != nil {
		return nil, err
	}
	texts, err := m.birthTexts(o, session, run, q)
	if err != nil {
		return nil, err
	}
	key := agent.System(q.Name)
	if caller.Home {
		key = agent.InHome(caller.UID, q.Name)
	}
	kid, err := m.bear(o, key, texts, session, q.Handoff)
	if err != nil {
		m.event(caller, agent.Event{Type: "child.create", Session: session, Run: run, Object: q.Name, Status: "error", Reason: err.Error(), By: caller.String()})
		return nil, err
	}
	for _, k := range []agent.Key{caller, key} {
		m.event(k, agent.Event{Type: "child.create", Session: session, Run: run, Object: q.Name, Status: "ok", By: caller.String()})
	}
	if err := m.w.makeHomes(kid.Config()); err != nil {
		// A start makes them again.
		m.w.log.Warn("homes of a child", zap.String("agent", key.String()), zap.Error(err))
	}
	m.w.changed(key.StoreDir())
	return kid, nil
}

// bear makes the object and its channel while nothing above it can begin to stop.
func (m *manager) bear(parent *agent.Object, key agent.Key, texts map[string][]byte, session, handoff string) (*agent.Object, error) {
	m.birth.RLock()
	defer m.birth.RUnlock()
	above, err := m.w.agents.Ancestors(parent.Key())
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	err = m.haltedLocked(append(above, parent.Key()))
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	// The parent may have died since it was looked at; whoever sees its end waits
	// for this birth and takes the child along.
	if state, _ := m.Live(parent.Key()); !state.Alive() {
		return nil, fault.E("create", key.String(), fault.NoProcess, errors.New("its parent does not run any more"))
	}
	cfg := parent.Config()
	gid, _ := m.w.users.User(cfg.Owner)
	// An agent makes what its owner could make, root's too, and never more.
	by := agent.Writer{UID: cfg.Owner, GID: gid, Groups: m.w.users.Groups(cfg.Owner)}
	kid, err := m.w.agents.Create(key, agent.CreateOptions{Writer: by, Owner: cfg.Owner, Texts: texts, Born: true})
	if err != nil {
		return nil, err
	}
	c := channel{m.w, cfg.Owner, parent.Key().Name, session, key.Name}
	if err := c.open(key.String(), "default", handoff); err != nil {
		if rerr := m.w.tree.RemoveAgent(key); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return nil, err
	}
	return kid, nil
}

// birthTexts are the controls that a request stands for.
func (m *manager) birthTexts(o *agent.Object, session, run string, q *birthRequest) (map[string][]byte, error) {
	caller := o.Key()
	parent := control.Parent{Agent: caller.Name, Session: session, Run: run}
	texts := map[string][]byte{"parent": []byte(parent.String() + "\n")}
	switch q.Life {
	case "", "owned", "temp":
		if q.Life != "" {
			texts["life"] = []byte(q.Life + "\n")
		}
	default:
		return nil, fault.Newf(fault.Invalid, "life is owned or temp")
	}
	subject, err := subjectOf("", agent.Key{Home: caller.Home, UID: caller.UID, Name: q.Name})
	if err != nil {
		return nil, err
	}
	if q.Label != "" {
		l, err := policy.ParseLabel(q.Label)
		if err != nil {
			return nil, err
		}
		if l.Type != o.Config().Subject && l.Type != subject {
			return nil, fault.E("", "label", fault.Perm, fmt.Errorf("a child has a label of its own, %s, or asks for its parent's", subject))
		}
		texts["label"], subject = []byte(q.Label+"\n"), l.Type
	}
	if q.Model != "" {
		texts["model"] = []byte(q.Model + "\n")
	}
	if q.Prompt != "" {
		texts["system.md"] = []byte(q.Prompt)
	}
	var groups strings.Builder
	for _, g := range q.Groups {
		fmt.Fprintf(&groups, "%d\n", g)
	}
	if groups.Len() > 0 {
		texts["groups"] = []byte(groups.String())
	}
	if err := birthRules(o, subject, q, texts); err != nil {
		return nil, err
	}
	return texts, m.birthMounts(o, q, texts)
}

// birthRules are the declared tools and the rules. Its shell, without which no
// agent starts, the child gets where the parent may use it.
func birthRules(o *agent.Object, subject string, q *birthRequest, texts map[string][]byte) error {
	var tools, rules strings.Builder
	if o.Allows(policy.Tool, "tsh", policy.Execute) {
		fmt.Fprintf(&rules, "allow %s tool:tsh execute\n", subject)
	}
	for _, t := range q.Tools {
		if err := node.CheckName(t); err != nil {
			return err
		}
		if t == control.Reserved {
			continue
		}
		fmt.Fprintf(&tools, "%s\n", t)
		fmt.Fprintf(&rules, "allow %s tool:%s execute\n", subject, t)
	}
	for _, r := range q.Rules {
		text := fmt.Sprintf("allow %s %s\n", subject, r)
		if _, err := policy.Parse([]byte(text)); err != nil || strings.ContainsRune(r, '\n') {
			return fault.Newf(fault.Invalid, "a rule is CLASS:NAME PERMISSION, one each")
		}
		rules.WriteString(text)
	}
	texts["policy"] = []byte(rules.String())
	if tools.Len() > 0 {
		texts["tools"] = []byte(tools.String())
	}
	return nil
}

// birthMounts adds lines, named by the parent's own paths, behind the default
// table. For each the parent needs a rule about the mount (spec section 7).
func (m *manager) birthMounts(o *agent.Object, q *birthRequest, texts map[string][]byte) error {
	if len(q.Mounts) == 0 {
		return nil
	}
	cfg := o.Config()
	var lines []attenuate.Mount
	for i, w := range q.Mounts {
		if len(w) != 3 || w[2] != "ro" && w[2] != "rw" {
			return fault.Newf(fault.Invalid, "a mount is source, target and ro or rw")
		}
		perm := policy.Read
		if w[2] == "rw" {
			perm = policy.Write
		}
		name := path.Base(w[1])
		for _, p := range []policy.Permission{policy.Read, perm} {
			if !o.Allows(policy.Mount, name, p) {
				return fault.E("mount", w[1], fault.Access, fmt.Errorf("its policy, or that of one above it, lacks `allow %s mount:%s %s`", cfg.Subject, name, p))
			}
		}
		lines = append(lines, attenuate.Mount{
			Source: w[0], Target: w[1], RW: w[2] == "rw", Recursive: true, NoSuid: true, NoDev: true, Line: i + 1,
		})
	}
	got, off := attenuate.Translate(m.w.agents.Bound(cfg), lines)
	if off != nil {
		return off.Fault("mount")
	}
	var b strings.Builder
	b.WriteString(control.Agent.Lookup("mount").DefaultText(control.Object{
		Name: q.Name, Home: o.Key().Home, Owner: cfg.Owner, OwnerGID: m.w.primary(cfg.Owner), Root: m.w.root,
	}))
	for _, l := range got {
		b.WriteString(control.MountLine{
			Source: l.Source, Target: l.Target, RW: l.RW, Recursive: l.Recursive, Bind: !l.Recursive, NoSuid: l.NoSuid, NoDev: l.NoDev, NoExec: l.NoExec,
		}.String() + "\n")
	}
	texts["mount"] = []byte(b.String())
	return nil
}

// startChild starts a descendant of the caller. It gets no workspace (spec 10.3).
func (m *manager) startChild(ctx context.Context, caller agent.Key, session, run string, say claim, name string) (*running, error) {
	kid, err := m.below(caller, session, run, say, name, "agent.start", policy.Start)
	if err != nil {
		return nil, err
	}
	cfg := kid.Config()
	gid, _ := m.w.users.User(cfg.Owner)
	by := ownerOf(cfg.Owner, gid, m.w.users.Groups(cfg.Owner))
	r, _, err := m.unit(kid.Key()).start(ctx, kid, place{Session: "default", NoWorkspace: true, CallerUID: cfg.Owner}, by)
	if err != nil {
		return nil, err
	}
	c := channel{m.w, cfg.Owner, caller.Name, session, name}
	if s, err := c.status(); err == nil && s == chanPending && c.belongs(cfg) {
		if err := c.put("status", []byte(chanActive+"\n")); err != nil {
			return r, err
		}
	}
	return r, nil
}

// ownerOf is the owner of an agent that asks for itself.
func ownerOf(uid, gid uint32, groups []uint32) caller {
	return caller{UID: uid, GID: gid, Groups: groups}
}

// stopChild stops a descendant of the caller, with all below it.
func (m *manager) stopChild(ctx context.Context, caller agent.Key, session, run string, say claim, name string) error {
	kid, err := m.below(caller, session, run, say, name, "agent.stop", policy.Stop)
	if err != nil {
		return err
	}
	return m.stopTree(ctx, kid.Key(), m.w.conf.StopGrace, "stopped by "+caller.String())
}

// below finds a descendant by name and checks what a call about it needs.
func (m *manager) below(caller agent.Key, session, run string, say claim, name, tool string, p policy.Permission) (*agent.Object, error) {
	o, err := m.asks(caller, session, run, say)
	if err != nil {
		return nil, err
	}
	if err := m.mayCall(o, tool); err != nil {
		return nil, err
	}
	if err := mayDo(o, name, p); err != nil {
		return nil, err
	}
	for _, d := range m.w.agents.Descendants(caller) {
		if d.Name == name {
			return m.w.agents.Lookup(d)
		}
	}
	return nil, fault.E(string(p), name, fault.Access, errors.New("it is none of the caller's descendants"))
}
