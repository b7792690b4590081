package daemon

import (
	"errors"
	"fmt"
	"strings"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/policy"
)

// create makes an agent for a person (spec section 17).
func (o *op) create(q *ctlproto.New) (any, error) {
	key, err := o.newKey(q)
	if err != nil {
		return nil, err
	}
	owner := o.by.UID
	if key.Home {
		owner = key.UID
	}
	if q.Owner != nil {
		owner = *q.Owner
	}
	if owner != o.by.UID && !o.by.Root {
		return nil, fault.E("new", key.String(), fault.Perm, errors.New("only root makes agents for others"))
	}
	texts, err := o.newTexts(q, key, owner)
	if err != nil {
		return nil, err
	}
	obj, err := o.w.agents.Create(key, agent.CreateOptions{Writer: o.by.writer(), Owner: owner, Texts: texts, Born: true})
	if err != nil {
		return nil, fault.At("new", key.String(), err)
	}
	cfg := obj.Config()
	if cfg.OwnerOK {
		if err := o.w.makeHomes(cfg); err != nil {
			return nil, err
		}
	}
	o.w.changed(key.StoreDir())
	o.tellMissing(obj, q.Tools)
	return o.named(key, cfg), nil
}

// tellMissing names the rules on the tools' side that the new agent still lacks.
func (o *op) tellMissing(obj *agent.Object, tools []string) {
	if len(tools) == 0 {
		return
	}
	for _, t := range append([]string{"tsh"}, tools...) {
		rows, _ := o.w.views.For(obj).Explain(t, false)
		for _, v := range rows {
			if v.Asked && !v.OK {
				o.note("%s is not allowed yet: row %d (%s): %s; missing in %s: %s", t, v.Row, v.Name, v.Why, v.File, v.Missing)
				break
			}
		}
	}
}

// newKey says where an agent of that name is made: in the caller's home, for
// host root among the system's; a full path says it exactly.
func (o *op) newKey(q *ctlproto.New) (agent.Key, error) {
	if strings.Contains(q.Agent, "/") {
		key, ok := agent.ParseKey(q.Agent)
		if !ok || strings.HasSuffix(q.Agent, ".d") {
			return key, fault.Newf(fault.Invalid, "%q names no agent: NAME, agent/NAME or home/UID/agent/NAME", q.Agent)
		}
		if !key.Home && !o.by.Root {
			return key, fault.E("new", key.String(), fault.Access, errors.New("system agents are made by root; yours go to your home"))
		}
		return key, nil
	}
	if err := node.CheckAgentName(q.Agent); err != nil {
		return agent.Key{}, err
	}
	if o.by.UID == 0 {
		return agent.System(q.Agent), nil
	}
	return agent.InHome(o.by.UID, q.Agent), nil
}

// newTexts collects the texts of a new agent: those of --like, those given, and
// what the words of the command stand for.
func (o *op) newTexts(q *ctlproto.New, key agent.Key, owner uint32) (map[string][]byte, error) {
	texts := map[string][]byte{}
	if q.Like != "" {
		if err := o.copyTexts(q, key, owner, texts); err != nil {
			return nil, err
		}
	}
	for name, text := range q.Texts {
		e := control.Agent.Lookup(name)
		if e == nil || !e.Writable() {
			return nil, fault.Newf(fault.Invalid, "%q is not a control that can be written", name)
		}
		texts[name] = []byte(text)
	}
	for name, text := range map[string]string{"label": q.Label, "model": q.Model} {
		if text != "" {
			texts[name] = []byte(text + "\n")
		}
	}
	if q.Temp {
		texts["life"] = []byte("temp\n")
	}
	if q.Parent != "" {
		p, _, err := o.own(q.Parent)
		if err != nil {
			return nil, err
		}
		texts["parent"] = []byte("agent:" + p.Key().Name + "\n")
	}
	if err := grants(q, key, texts); err != nil {
		return nil, err
	}
	return texts, mountTexts(q, key, owner, o.w, texts)
}

// copyTexts takes the controls of another agent of the caller's, save what names
// that very agent: owner, ids, label and parent stay away; rules about its subject
// become rules about the new one's, and its home in the mount table the new one's.
func (o *op) copyTexts(q *ctlproto.New, key agent.Key, owner uint32, texts map[string][]byte) error {
	obj, cfg, err := o.own(q.Like)
	if err != nil {
		return err
	}
	subject, err := subjectOf(q.Label, key)
	if err != nil {
		return err
	}
	for _, e := range control.Agent.Entries() {
		switch e.Name {
		case "owner", "uid", "gid", "label", "parent", "abi", "life", "root":
			continue
		}
		if e.Kind != control.Durable {
			continue
		}
		if text, origin, err := obj.Text(e.Name); err == nil && origin == agent.Durable {
			texts[e.Name] = text
		}
	}
	if text, ok := texts["policy"]; ok {
		texts["policy"] = rename(text, func(line string) string {
			f := strings.Fields(line)
			if len(f) != 4 || f[0] != "allow" || f[1] != cfg.Subject {
				return line
			}
			return "allow " + subject + " " + f[2] + " " + f[3]
		})
	}
	if text, ok := texts["mount"]; ok {
		home := fmt.Sprintf("%s/home/%d/agent/%s", node.Root, owner, key.Name)
		texts["mount"] = rename(text, func(line string) string {
			source, rest, _ := strings.Cut(line, "\t")
			if source == cfg.StateDir() || strings.HasPrefix(source, cfg.StateDir()+"/") {
				return home + strings.TrimPrefix(source, cfg.StateDir()) + "\t" + rest
			}
			return line
		})
	}
	return nil
}

// rename changes a text line by line.
func rename(text []byte, line func(string) string) []byte {
	lines := strings.Split(string(text), "\n")
	for i := range lines {
		lines[i] = line(lines[i])
	}
	return []byte(strings.Join(lines, "\n"))
}

// grants turns --tool and --shared into declarations and rules of the agent's
// own subject.
func grants(q *ctlproto.New, key agent.Key, texts map[string][]byte) error {
	if len(q.Tools)+len(q.Shared) == 0 {
		return nil
	}
	subject, err := subjectOf(q.Label, key)
	if err != nil {
		return err
	}
	var tools, rules strings.Builder
	tools.Write(texts["tools"])
	rules.Write(texts["policy"])
	if len(q.Tools) > 0 {
		// Without its shell no agent starts, and tsh runs nothing that the agent may
		// not run itself.
		fmt.Fprintf(&rules, "allow %s tool:tsh execute\n", subject)
	}
	for _, t := range q.Tools {
		if err := node.CheckName(t); err != nil {
			return err
		}
		if t == "tsh" {
			continue // never declared
		}
		tools.WriteString(t + "\n")
		fmt.Fprintf(&rules, "allow %s tool:%s execute\n", subject, t)
	}
	for _, s := range q.Shared {
		space, perm, _ := strings.Cut(s, ":")
		if node.CheckName(space) != nil || perm != "read" && perm != "write" {
			return fault.Newf(fault.Invalid, "shared %q: SPACE:read or SPACE:write", s)
		}
		fmt.Fprintf(&rules, "allow %s shared:%s read\n", subject, space)
		if perm == "write" {
			fmt.Fprintf(&rules, "allow %s shared:%s write\n", subject, space)
		}
	}
	texts["policy"] = []byte(rules.String())
	if tools.Len() > 0 {
		texts["tools"] = []byte(tools.String())
	}
	return nil
}

// subjectOf is the label type that the new agent will have.
func subjectOf(label string, key agent.Key) (string, error) {
	if label == "" {
		if key.Home {
			return fmt.Sprintf("u%d.%s_t", key.UID, key.Name), nil
		}
		return key.Name + "_t", nil
	}
	l, err := policy.ParseLabel(label)
	return l.Type, err
}

// mountTexts adds --mount lines behind the table that the agent would have.
func mountTexts(q *ctlproto.New, key agent.Key, owner uint32, w *world, texts map[string][]byte) error {
	if len(q.Mounts) == 0 {
		return nil
	}
	table := string(texts["mount"])
	if table == "" {
		table = control.Agent.Lookup("mount").DefaultText(control.Object{
			Name: key.Name, Home: key.Home, Owner: owner, OwnerGID: w.primary(owner), Root: w.root,
		})
	}
	var b strings.Builder
	b.WriteString(table)
	for _, m := range q.Mounts {
		if len(m) != 3 || m[2] != "ro" && m[2] != "rw" {
			return fault.Newf(fault.Invalid, "a mount is source, target and ro or rw")
		}
		fmt.Fprintf(&b, "%s\t%s\t%s\trbind,nosuid,nodev\n", m[0], m[1], m[2])
	}
	texts["mount"] = []byte(b.String())
	return nil
}

// remove takes a dead agent's object away.
func (o *op) remove(q *ctlproto.Rm) (any, error) {
	obj, cfg, err := o.own(q.Agent)
	if err != nil {
		return nil, err
	}
	key := obj.Key()
	if !key.Home && !o.by.Root {
		return nil, fault.E("rm", key.String(), fault.Access, errors.New("system agents are removed by root"))
	}
	u := o.m.unit(key)
	select {
	case u.turn <- struct{}{}:
		defer u.give()
	default:
		return nil, fault.E("rm", key.String(), fault.Busy, errors.New("it is being started or stopped"))
	}
	if state, _ := u.snapshot(); state != node.Dead {
		return nil, fault.E("rm", key.String(), fault.Busy, fmt.Errorf("it runs (%s); stop it first", state))
	}
	named := o.named(key, cfg)
	if err := o.w.agents.Remove(key); err != nil {
		return nil, fault.At("rm", key.String(), err)
	}
	o.w.changed(key.StoreDir())
	o.w.dropRecords(key.RuntimeKey())
	return named, nil
}
