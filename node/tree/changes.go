package tree

import (
	"slices"
	"strings"

	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/tool"
)

// What a change means for others. The decisions themselves need none of this:
// they are made from the published snapshots at each lookup and open. Here the
// kernels are told what to forget.
//
// Names are pushed to the agents' own connections only. On the main mount the
// kernel keeps a name for a second at most and is told of nothing but listings of
// executables: a push of a name there takes the directory's lock, which a stranger
// who lists it into a slow buffer can hold (notes-security X7).

// agentChanged is called after a commit of a control of an agent, or of what
// stands beside its controls; name "": of any. by says who changed it.
func (t *Tree) agentChanged(k agent.Key, name, by string) {
	if e := control.Agent.Lookup(name); e != nil && !e.Grants {
		return // no decision reads it
	}
	t.agents.Announce(k, by)
	t.mu.Lock()
	var own []*agentView
	for id, v := range t.views {
		if id.own {
			own = append(own, v)
		}
	}
	t.mu.Unlock()
	// What an agent loses, all below it lose.
	mine := slices.DeleteFunc(own, func(v *agentView) bool {
		f := v.id.obj.Family()
		return v.id.obj.Key() != k && !f.Includes(k) && f.Broken == nil
	})
	for _, v := range mine {
		v.refresh()
	}
}

// toolChanged is called after an executable or a control of a tool changed.
func (t *Tree) toolChanged(tier, name string) {
	all := t.notifiers.Load()
	if all == nil {
		return
	}
	for _, x := range *all {
		if x.view != nil {
			x.view.toolChanged(x.n, tier, name)
		}
	}
}

// StoreChanged is for the store's watcher: something below object/dir was changed
// by somebody else and is published already.
func (t *Tree) StoreChanged(dir string) {
	t.mu.Lock()
	d, x := t.dirs[dir], t.execs[dir]
	t.mu.Unlock()
	if d != nil {
		t.reread(d)
	}
	if x != nil {
		x.reread()
	}
	if k, ok := agent.ParseKey(dir); ok {
		t.agents.StoreChanged(dir)
		t.agentChanged(k, "", "the daemon or an edit of the store")
		return
	}
	// A tool's .d, or a tier that is not shown yet.
	if tier, name := splitObject(dir); tool.IsTier(tier) {
		t.mu.Lock()
		x := t.execs[tier]
		t.mu.Unlock()
		if x != nil {
			x.refresh(name + ".d")
		}
		t.tools.Changed(tier, name)
		t.toolChanged(tier, name)
	}
}

// splitObject takes "tool/fs.read.d" and what lies in it apart.
func splitObject(dir string) (tier, name string) {
	i := strings.Index(dir, ".d")
	for i >= 0 && i+2 < len(dir) && dir[i+2] != '/' {
		next := strings.Index(dir[i+2:], ".d")
		if next < 0 {
			return "", ""
		}
		i += 2 + next
	}
	if i < 0 {
		return "", ""
	}
	path := dir[:i]
	slash := strings.LastIndexByte(path, '/')
	if slash < 0 {
		return "", ""
	}
	return path[:slash], path[slash+1:]
}

// reread looks again at a directory whose texts are others, or that is gone. Texts
// need no push: the kernel keeps nothing of them.
func (t *Tree) reread(d *ctlDir) {
	if d.obj.Gone() {
		t.dropDir(d.dir)
		return
	}
	if d.exec != nil {
		d.exec.reread()
	}
}

// reread compares a directory of executables with the store.
func (x *execDir) reread() {
	x.mu.Lock()
	loaded := x.loaded
	x.seen = x.count.Load()
	names := map[string]bool{}
	for name := range x.slots {
		names[name] = true
	}
	for name := range x.dirs {
		names[name] = true
	}
	x.mu.Unlock()
	if !loaded {
		x.listed()
		return
	}
	entries, err := x.t.st.List(x.dir)
	if err == nil {
		for _, e := range entries {
			names[e.Name] = true
		}
	}
	for name := range names {
		if x.takes(name) || (x.rules.tier && strings.HasSuffix(name, ".d")) {
			if x.differs(name) {
				x.refresh(name)
			}
		}
	}
}

// differs says whether a name is another file than the mirror has.
func (x *execDir) differs(name string) bool {
	if strings.HasSuffix(name, ".d") {
		_, err := x.t.st.Object(x.dir + "/" + name)
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.dirs[name] != (err == nil)
	}
	info, err := x.t.st.StatFile(x.dir + "/" + name)
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.slots[name]
	switch {
	case s == nil:
		return err == nil
	case s.cur == nil:
		return false
	}
	return err != nil || s.cur.info.Gen != info.Gen || s.attr != info.Attr
}

// dropDir forgets the node of a removed object, and the directories in it.
func (t *Tree) dropDir(dir string) {
	t.mu.Lock()
	d := t.dirs[dir]
	delete(t.dirs, dir)
	for name := range t.execs {
		if strings.HasPrefix(name, dir+"/") {
			delete(t.execs, name)
		}
	}
	t.mu.Unlock()
	if d != nil {
		d.forget()
	}
}
