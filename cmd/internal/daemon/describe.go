package daemon

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// ps lists the agents that the caller may know of: all system agents, its own
// home's; root with --all every home's.
func (o *op) ps(q *ctlproto.PS) error {
	for _, k := range o.w.agents.All() {
		if k.Home && k.UID != o.by.UID && !(o.by.Root && q.All) {
			continue
		}
		obj, err := o.w.agents.Lookup(k)
		if err != nil {
			continue // removed meanwhile
		}
		if err := o.item(o.psItem(obj)); err != nil {
			return err
		}
	}
	return nil
}

func (o *op) psItem(obj *agent.Object) ctlproto.PSItem {
	cfg := obj.Config()
	it := ctlproto.PSItem{Agent: o.named(obj.Key(), cfg)}
	if !o.mine(cfg) {
		it.Owner, it.Hidden = 0, true
		return it
	}
	if p, ok := o.w.agents.Parent(obj.Key()); ok {
		it.Parent = p.String()
	} else {
		it.Orphan = cfg.Parent.Agent
	}
	it.Session, it.Run = cfg.Parent.Session, cfg.Parent.Run
	it.Model, it.Life = cfg.Model.String(), cfg.Life
	_, it.PID = o.m.Live(obj.Key())
	if u := o.m.lookup(obj.Key()); u != nil && it.PID > 0 {
		if r := u.current(); r != nil && r.box != nil {
			it.Init = r.box.Init
		}
	}
	return it
}

func (o *op) status(q *ctlproto.Status) (any, error) {
	obj, err := o.find(q.Agent)
	if err != nil {
		return nil, err
	}
	k, cfg := obj.Key(), obj.Config()
	st := ctlproto.Described{Agent: o.named(k, cfg)}
	if !o.mine(cfg) {
		st.Owner, st.Hidden = 0, true
		return st, nil
	}
	_, st.PID = o.m.Live(k)
	st.Model, st.Life = cfg.Model.String(), cfg.Life
	st.Parent = cfg.Parent.Agent
	for _, c := range o.w.agents.Children(k) {
		if s, _ := o.m.Live(c); s.Alive() {
			st.Children = append(st.Children, c.Name)
		}
	}
	st.UID, st.GID, st.Groups = cfg.UID, cfg.GID, o.w.groupWords(cfg)
	st.Label, st.Root, st.CWD = cfg.Label.String(), cfg.Root, cfg.Cwd
	if u := o.m.lookup(k); u != nil {
		if r := u.current(); r != nil {
			st.UID, st.GID, st.CWD, st.Session = r.ids.UID, r.ids.GID, r.ids.Cwd, r.want.Session
			st.Restart = r.pendingRestart(obj)
			st.Warnings = append(st.Warnings, r.warn...)
			st.Warnings = append(st.Warnings, r.gitNotes()...)
			if text := r.noticeGiven(); text != "" {
				st.Warnings = append(st.Warnings, text)
			}
			st.Enforced = enforced(r.box.Init)
			if r.box.Landlock > 0 {
				st.Enforced = append(st.Enforced, fmt.Sprintf("landlock=%d", r.box.Landlock))
			}
		}
	}
	st.Grants = grantsOf(obj)
	st.Warnings = append(st.Warnings, askNote(cfg)...)
	st.Warnings = append(st.Warnings, o.w.lineageNotes(obj)...)
	for _, f := range obj.StartFaults() {
		st.Faults = append(st.Faults, f.Error())
	}
	return st, nil
}

// enforced reads from a running sandbox's init what the kernel holds it to.
func enforced(init int) []string {
	ours := func(ns string) bool {
		a, err1 := os.Readlink("/proc/self/ns/" + ns)
		b, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", init, ns))
		// A user's daemon may not look at a process that is not dumpable. The start
		// has compared them all (sandbox.Verify): nothing else comes this far.
		return err1 == nil && err2 == nil && a == b
	}
	var words []string
	for _, ns := range []string{"user", "pid", "mnt", "net", "ipc", "uts", "cgroup"} {
		if !ours(ns) {
			words = append(words, ns+"ns")
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", init))
	if err != nil {
		return words
	}
	for _, l := range strings.Split(string(status), "\n") {
		switch f := strings.Fields(l); {
		case len(f) != 2:
		case f[0] == "NoNewPrivs:" && f[1] == "1":
			words = append(words, "no_new_privs")
		case f[0] == "Seccomp:" && f[1] == "2":
			words = append(words, "seccomp")
		case f[0] == "CapBnd:" && strings.Trim(f[1], "0") == "":
			words = append(words, "no_capabilities")
		}
	}
	return words
}

// groupWords are the agent's supplementary groups; "(kept)" marks those that a
// user's daemon holds and cannot drop.
func (w *world) groupWords(cfg *agent.Config) []string {
	var words []string
	for _, g := range cfg.Groups {
		words = append(words, fmt.Sprint(g))
	}
	if !w.root {
		for _, g := range w.groups {
			if !slices.Contains(cfg.Groups, g) {
				words = append(words, fmt.Sprintf("%d(kept)", g))
			}
		}
	}
	return words
}

// askNote says where approval=ask does not cover everything (spec section 8).
func askNote(cfg *agent.Config) []string {
	if cfg.Approval != "ask" {
		return nil
	}
	var open []string
	for _, t := range []string{"bash", "shell.exec", "tsh"} {
		if _, ok := cfg.Policy.Allows(cfg.Subject, "tool", t, "execute"); ok {
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("approval=ask covers hosted calls only: with %s the agent starts allowed tools itself, unasked", strings.Join(open, ", "))}
}

func (o *op) why(q *ctlproto.Why) (any, error) {
	obj, cfg, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	rows, ok := o.w.views.For(obj).Explain(q.Tool, true)
	for _, v := range rows {
		r := ctlproto.WhyRow{Row: v.Row, Name: v.Name, OK: v.OK, Asked: v.Asked, File: v.File, Line: v.Line, Why: v.Why, Missing: v.Missing, Ancestor: v.Ancestor}
		if err := o.item(r); err != nil {
			return nil, err
		}
	}
	return ctlproto.WhyVerdict{Agent: o.named(obj.Key(), cfg), Tool: q.Tool, Allowed: ok, Notes: askNote(cfg)}, nil
}

// view lists the tools that the agent sees now and its mounts: the real ones of
// a running agent, else those that its table asks for.
func (o *op) view(q *ctlproto.View) error {
	obj, cfg, err := o.own(q.Agent)
	if err != nil {
		return err
	}
	v := o.w.views.For(obj)
	for _, tier := range v.Tiers() {
		for _, t := range v.Tools(tier) {
			text, _, _ := t.Text("description")
			first, _, _ := strings.Cut(string(text), "\n")
			if err := o.item(ctlproto.ViewItem{Kind: "tool", Path: t.TreePath(), Mode: "x", Text: first}); err != nil {
				return err
			}
		}
	}
	for _, m := range v.Models() {
		if err := o.item(ctlproto.ViewItem{Kind: "model", Path: node.Root + "/model/" + m, Mode: "x"}); err != nil {
			return err
		}
	}
	for _, s := range v.Spaces() {
		if err := o.item(ctlproto.ViewItem{Kind: "shared", Path: node.Root + "/shared/" + s}); err != nil {
			return err
		}
	}
	if u := o.m.lookup(obj.Key()); u != nil {
		if r := u.current(); r != nil && o.reach(obj.Key(), r) == nil {
			return o.mountItems(r.box.Table)
		}
	}
	for _, m := range cfg.Mounts {
		mode := "ro"
		if m.RW && m.Target != node.Root {
			mode = "rw"
		}
		if err := o.item(ctlproto.ViewItem{Kind: "mount", Path: m.Target, Mode: mode, Text: m.Source}); err != nil {
			return err
		}
	}
	return nil
}

func (o *op) mountItems(table []sandbox.Effective) error {
	for _, e := range table {
		mode := "ro"
		if e.RW {
			mode = "rw"
		}
		if e.NoExec {
			mode += ",noexec"
		}
		src := e.Resolved
		if src == "" || e.Kind == sandbox.Store {
			src = e.Source // where the store lies is not the agent's owner's business
		}
		if e.Made != "" {
			src += " (" + e.Made + ")"
		}
		if err := o.item(ctlproto.ViewItem{Kind: "mount", Path: e.Target, Mode: mode, Text: src}); err != nil {
			return err
		}
	}
	return nil
}

func (o *op) env(q *ctlproto.Env) error {
	obj, cfg, err := o.own(q.Agent)
	if err != nil {
		return err
	}
	session := q.Session
	if session == "" {
		session = "default"
		if u := o.m.lookup(obj.Key()); u != nil {
			if r := u.current(); r != nil {
				session = r.want.Session
			}
		}
	}
	if err := node.CheckName(session); err != nil {
		return fault.Newf(fault.Invalid, "%q is no session name", session)
	}
	var lines []string
	for _, v := range cfg.Env {
		lines = append(lines, v.Key+"="+v.Value)
	}
	for _, kv := range sandbox.Environment(obj.Key().Name, session, cfg.Owner, cfg.Path, lines) {
		key, value, _ := strings.Cut(kv, "=")
		if err := o.item(ctlproto.EnvItem{Key: key, Value: value}); err != nil {
			return err
		}
	}
	return nil
}
