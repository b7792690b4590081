package daemon

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/companion"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/beneath"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/policy"
	"cortexfs/sandbox"
)

// caller is who asks for a start.
type caller struct {
	UID, GID uint32
	Groups   []uint32
	Root     bool // root as spec section 1 defines it
}

// composed is the Spec of one start with the descriptors that go with it.
type composed struct {
	spec  sandbox.Spec
	store map[string]*os.File // O_PATH directories of the durable store
}

func (c *composed) close() {
	for _, f := range c.store {
		f.Close()
	}
}

// composer turns an agent's Config into a sandbox.Spec.
type composer struct {
	w    *world
	cfg  *agent.Config
	out  composed
	home string // durable path of the agent's own home: home/UID/agent/NAME

	above  map[string]bool             // durable paths of the homes of its ancestors
	within map[string][]sandbox.Within // by target: what bounds the line of a child
}

// compose says what the sandbox is to be: identity, environment, mount table.
// Nothing of the host is opened but directories of the store.
func (w *world) compose(cfg *agent.Config, p place, by caller) (_ *composed, err error) {
	term, err := companion.Find("ctxterm")
	if err != nil {
		return nil, err
	}
	key := cfg.Key
	program, err := w.program(key, term)
	if err != nil {
		return nil, err
	}
	c := &composer{w: w, cfg: cfg, home: fmt.Sprintf("home/%d/agent/%s", cfg.Owner, key.Name)}
	c.out.store = map[string]*os.File{}
	defer func() {
		if err != nil {
			c.out.close()
		}
	}()
	var env []string
	for _, v := range cfg.Env {
		env = append(env, v.Key+"="+v.Value)
	}
	c.out.spec = sandbox.Spec{
		Agent: key.Name, Session: p.Session, Root: w.root,
		Iso: sandbox.Iso(cfg.Iso), Owner: cfg.Owner, UID: cfg.UID, GID: cfg.GID, Groups: cfg.Groups,
		Caller: sandbox.Account{UID: by.UID, GID: by.GID, Groups: by.Groups},
		Refuse: w.refused(cfg.Owner), AllowHome: p.AllowHome, GitRW: p.GitRW,
		Skeleton: filepath.Join(w.run.agent(key.RuntimeKey()), "rootfs"), Term: term, Program: program, Cwd: cfg.Cwd,
		Env:          sandbox.Environment(key.Name, p.Session, cfg.Owner, cfg.Path, env),
		OpenDeadline: w.conf.OpenBound,
	}
	if !w.root {
		c.out.spec.Groups = w.groups
	}
	if err := c.bounds(); err != nil {
		return nil, err
	}
	for _, l := range cfg.Mounts {
		if err := c.line(l); err != nil {
			return nil, err
		}
	}
	if err := c.extra(p); err != nil {
		return nil, err
	}
	if err := c.rootDir(); err != nil {
		return nil, err
	}
	return &c.out, nil
}

func (c *composer) add(r sandbox.Row) { c.out.spec.Rows = append(c.out.spec.Rows, r) }

// bounds finds out what the lines of a child are held to when their sources are
// opened.
func (c *composer) bounds() error {
	o, err := c.w.agents.Lookup(c.cfg.Key)
	if err != nil {
		return err
	}
	lines, err := o.Origins()
	if err != nil {
		return err
	}
	c.above, c.within = map[string]bool{}, map[string][]sandbox.Within{}
	above := o.Family().Above
	for _, a := range above {
		c.above[strings.TrimPrefix(a.StateDir(), node.Root+"/")] = true
	}
	for _, from := range lines {
		for i, l := range from {
			if l.Own || l.Granted || i >= len(above) {
				continue
			}
			c.within[l.Line.Target] = append(c.within[l.Line.Target], sandbox.Within{
				Agent: above[i].Key.Name, Source: l.From.Source, Recursive: l.From.Recursive,
			})
		}
	}
	return nil
}

// line is one line of the mount table.
func (c *composer) line(l control.MountLine) error {
	row := sandbox.Row{
		Line: l.Line, Origin: "mount", Source: l.Source, Target: l.Target, RW: l.RW,
		Recursive: l.Recursive, NoExec: l.NoExec,
		Handover: l.Target == "/workspace" || l.Target == sandbox.HomePath,
	}
	switch {
	case l.Source == "/tmp" && l.Target == "/tmp":
		// Never the host's /tmp, which other people's sockets lie in.
		return c.private(row, "cache/tmp")
	case l.Source == node.Root:
		row.Kind = sandbox.View
		c.add(row)
		return nil
	case strings.HasPrefix(l.Source, node.Root+"/"):
		return c.treeLine(row, strings.TrimPrefix(l.Source, node.Root+"/"))
	}
	row.Kind, row.Within = sandbox.Host, c.within[row.Target]
	c.add(row)
	return nil
}

// treeLine is a line whose source lies in the tree: the agent's own home and
// shared data come from the store, everything else is the agent's view.
func (c *composer) treeLine(row sandbox.Row, rel string) error {
	parts := strings.Split(rel, "/")
	switch {
	case rel == c.home || strings.HasPrefix(rel, c.home+"/"):
		row.Home = rel == c.home
		return c.stored(row, rel)
	case len(parts) > 4 && c.above[strings.Join(parts[:4], "/")]:
		return c.stored(row, rel) // a part of a parent's home, handed on
	case parts[0] == "shared" && len(parts) >= 2:
		return c.sharedLine(row, parts)
	}
	row.Kind = sandbox.View
	c.add(row)
	return nil
}

// sharedLine hands a shared space over, if the policy says so: its data in the
// line's mode; for the whole space also the agent's own sessions there, read-only.
func (c *composer) sharedLine(row sandbox.Row, parts []string) error {
	space := parts[1]
	want := policy.Permission("read")
	if row.RW {
		want = "write"
	}
	for _, p := range []policy.Permission{"read", want} {
		// By the agent's own policy and by those of all above it.
		if o, err := c.w.agents.Lookup(c.cfg.Key); err != nil || !o.Allows("shared", space, p) {
			return c.lineError(row, fault.Newf(fault.Access, "shared space %s needs the rule: allow %s shared:%s %s", space, c.cfg.Subject, space, p))
		}
	}
	if len(parts) > 2 && parts[2] != "data" {
		row.Kind = sandbox.View
		c.add(row)
		return nil
	}
	if len(parts) > 2 {
		return c.stored(row, strings.Join(parts, "/"))
	}
	top := row
	top.Kind, top.RW, top.Handover = sandbox.Empty, false, false
	c.add(top)
	data := row
	data.Target = path.Join(row.Target, "data")
	if err := c.stored(data, "shared/"+space+"/data"); err != nil {
		return err
	}
	own := row
	own.Target, own.RW = path.Join(row.Target, "agent", c.cfg.Key.Name), false
	err := c.stored(own, "shared/"+space+"/agent/"+c.cfg.Key.Name)
	if fault.Is(err, fault.NotExist) {
		return nil // no sessions there yet
	}
	return err
}

// stored adds a row whose source is a directory of the durable store.
func (c *composer) stored(row sandbox.Row, rel string) error {
	if c.out.store[rel] == nil {
		f, err := c.w.openDurable(rel)
		if err != nil {
			return c.lineError(row, err)
		}
		c.out.store[rel] = f
	}
	row.Kind, row.Store = sandbox.Store, rel
	c.add(row)
	return nil
}

// lineError is a failure of one line of the table.
func (c *composer) lineError(row sandbox.Row, err error) error {
	return &fault.Error{Op: "start", Path: c.cfg.Key.TreeDir() + "/mount", Line: row.Line, Col: 1, Kind: fault.KindOf(err), Err: err}
}

// private adds a row served by a directory inside the agent's own home.
func (c *composer) private(row sandbox.Row, sub string) error {
	rel := c.home + "/" + sub
	if err := c.w.mkdirOwned(c.cfg.Owner, c.home, sub); err != nil {
		return c.lineError(row, err)
	}
	row.Handover = true
	return c.stored(row, rel)
}

// extra adds what the start itself says: --mount and the workspace.
func (c *composer) extra(p place) error {
	for _, m := range p.Mounts {
		c.add(sandbox.Row{Origin: "--mount", Kind: sandbox.Host, Source: m[0], Target: m[1], RW: m[2] == "rw",
			Recursive: true, Handover: m[1] == "/workspace"})
	}
	for _, r := range c.out.spec.Rows {
		if r.Target == "/workspace" {
			return nil // the table's own line wins
		}
	}
	if p.Workspace == "" {
		return nil // the skeleton's empty directory
	}
	c.add(sandbox.Row{Origin: "workspace", Kind: sandbox.Host, Source: p.Workspace, Target: "/workspace", RW: true,
		Recursive: true, Caller: true, Handover: true})
	return nil
}

// rootDir is the control `root`: entries that appear in the sandbox's /.
func (c *composer) rootDir() error {
	r := c.cfg.Root
	if r == "/" || r == "" {
		return nil
	}
	row := sandbox.Row{Origin: "root", Source: r, Target: "/", Recursive: true, Kind: sandbox.Host}
	rel, inTree := strings.CutPrefix(r, node.Root+"/")
	switch {
	case inTree && (rel == c.home || strings.HasPrefix(rel, c.home+"/")):
		f, err := c.w.openDurable(rel)
		if err != nil {
			return fault.At("start", c.cfg.Key.TreeDir()+"/root", err)
		}
		c.out.store["root:"+rel] = f
		row.Kind, row.Store = sandbox.Store, "root:"+rel
	case inTree || r == node.Root:
		return fault.E("start", c.cfg.Key.TreeDir()+"/root", fault.Perm, errors.New("a root in the tree must lie in the agent's own home"))
	}
	c.out.spec.RootDir = &row
	return nil
}

// openDurable opens a directory of the durable store as O_PATH: only beneath it,
// following no link that its owners may have put there.
func (w *world) openDurable(rel string) (*os.File, error) {
	fd, err := beneath.Open(int(w.st.DurableRoot().Fd()), rel, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.FromOS("open", node.Root+"/"+rel, err)
	}
	return os.NewFile(uintptr(fd), rel), nil
}

// refused is what no source may be, contain or lie in, beyond the fixed list of
// package sandbox.
func (w *world) refused(owner uint32) []sandbox.Refusal {
	list := []sandbox.Refusal{
		{Path: w.st.Path(), Reason: "the store"},
		{Path: filepath.Dir(w.run.path), Reason: "a runtime directory"},
		{Path: "/etc/cortexfs", Reason: "the configuration and its secrets"},
		{Path: w.mountpoint, Reason: "the mounted tree"},
	}
	if home := homeOf(owner); home != "" {
		list = append(list, sandbox.Refusal{Path: filepath.Join(home, ".config", "cortexfs"), Reason: "the configuration and its secrets"})
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); !w.root && filepath.IsAbs(dir) {
		list = append(list, sandbox.Refusal{Path: filepath.Join(dir, "cortexfs"), Reason: "the configuration and its secrets"})
	}
	if all, err := mounts(); err == nil {
		for _, m := range all {
			if m.Type == fsType && m.Point != w.mountpoint && !strings.HasPrefix(m.Point, w.run.path+"/") {
				list = append(list, sandbox.Refusal{Path: m.Point, Reason: "a CortexFS mount"})
			}
		}
	}
	return list
}
