package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/agentd"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/beneath"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/model"
	"cortexfs/node/run"
	"cortexfs/node/store"
	"cortexfs/node/tool"
	"cortexfs/policy"
)

// answer answers what a host process asks about its own agent: looks at the texts
// and policies of this moment, and lines for the log. It changes nothing else, so
// that a host process that lies has told its owner a lie and nobody else.
func (u *unit) answer(_ context.Context, op string, data json.RawMessage) (any, error) {
	o, err := u.m.w.agents.Lookup(u.key)
	if err != nil {
		return nil, err
	}
	a := &answering{w: u.m.w, o: o}
	switch op {
	case "brief":
		return a.brief()
	case "gate":
		return asked(data, a.gate)
	case "digest":
		return asked(data, a.digest)
	case "hooks":
		return asked(data, a.hooks)
	case "model":
		return asked(data, a.model)
	case "event":
		return asked(data, a.event)
	}
	return nil, fault.Newf(fault.Invalid, "nothing answers %.32q", op)
}

// asked decodes the question.
func asked[Q any](data json.RawMessage, do func(*Q) (any, error)) (any, error) {
	var q Q
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, fault.Newf(fault.Invalid, "question: %v", err)
	}
	return do(&q)
}

type answering struct {
	w *world
	o *agent.Object
}

func (a *answering) text(name string) (string, error) {
	b, _, err := a.o.Text(name)
	if fault.Is(err, fault.NotExist) {
		return "", nil
	}
	return string(b), err
}

func (a *answering) brief() (_ any, err error) {
	cfg := a.o.Config()
	b := agentd.Brief{Model: cfg.Model.String(), Steps: run.DefaultSteps, Cwd: cfg.Cwd}
	if b.System, err = a.text("system.md"); err != nil {
		return nil, err
	}
	if b.Template, err = a.text("prompt.template.md"); err != nil {
		return nil, err
	}
	for _, v := range cfg.Env {
		if n, err := strconv.Atoi(v.Value); v.Key == "CTX_AGENT_STEPS" && err == nil {
			b.Steps = n
		}
	}
	v := a.w.views.For(a.o)
	seen := map[string]bool{}
	for _, tier := range v.Tiers() {
		for _, t := range v.Tools(tier) {
			if seen[t.Name] || t.Name == "tsh" {
				continue
			}
			seen[t.Name] = true
			b.Tools = append(b.Tools, toolText(cfg, t))
		}
	}
	return b, nil
}

func toolText(cfg *agent.Config, t *tool.Tool) agentd.ToolText {
	one := agentd.ToolText{Name: t.Name}
	if text, _, err := t.Text("description"); err == nil {
		one.Description = string(text)
	}
	if _, one.Declared = cfg.Declared(t.Name); one.Declared {
		if text, _, err := t.Text("schema"); err == nil {
			one.Schema = string(text)
		}
	}
	return one
}

func (a *answering) gate(q *agentd.AskGate) (any, error) {
	req := a.w.views.For(a.o).Request(q.Tool, true)
	g := agentd.Gate{Facts: agentd.NewFacts(req)}
	if req.Hit == nil {
		return g, nil
	}
	if t, ok := a.tool(req.Hit.Path); ok {
		if text, _, err := t.Text("schema"); err == nil {
			g.Schema = string(text)
		}
	}
	return g, nil
}

// tool is the tool at a path of the tree.
func (a *answering) tool(p string) (*tool.Tool, bool) {
	rel, ok := strings.CutPrefix(p, node.Root+"/")
	if !ok {
		return nil, false
	}
	return a.w.tools.Lookup(path.Dir(rel), path.Base(rel))
}

// digests remembers the digest of every file of the store by what the file is.
type digests struct {
	mu  sync.Mutex
	all map[string]digested
}

type digested struct {
	info store.FileInfo
	sum  agentd.Digest
}

const maxDigests = 4096

func (a *answering) digest(q *agentd.AskDigest) (any, error) {
	t, ok := a.tool(q.Path)
	if !ok {
		return nil, fault.E("digest", q.Path, fault.NotExist, nil)
	}
	f, err := a.w.st.OpenFile(t.Path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info := f.Info()
	d := &a.w.digests
	d.mu.Lock()
	known, ok := d.all[t.Path()]
	d.mu.Unlock()
	if ok && known.info == info {
		return known.sum, nil
	}
	h := sha256.New()
	n, err := io.Copy(h, io.NewSectionReader(f, 0, info.Size))
	if err != nil {
		return nil, fault.FromOS("read", q.Path, err)
	}
	sum := agentd.Digest{SHA256: hex.EncodeToString(h.Sum(nil)), Size: n}
	d.mu.Lock()
	if d.all == nil || len(d.all) >= maxDigests {
		d.all = map[string]digested{}
	}
	d.all[t.Path()] = digested{info, sum}
	d.mu.Unlock()
	return sum, nil
}

// hooks lists the hooks of the agent itself, or of a tool that it may run.
func (a *answering) hooks(q *agentd.AskHooks) (any, error) {
	dir, ok := strings.CutPrefix(q.Dir, node.Root+"/")
	if !ok || q.Phase != "pre.d" && q.Phase != "post.d" {
		return nil, fault.Newf(fault.Invalid, "no hooks there")
	}
	if q.Dir != a.o.Key().TreeDir() {
		if _, ok := a.tool(strings.TrimSuffix(q.Dir, ".d")); !ok {
			return nil, fault.E("hooks", q.Dir, fault.NotExist, nil)
		}
	}
	entries, err := a.w.st.List(dir + "/hooks/" + q.Phase)
	names := []string{}
	if err != nil && !fault.Is(err, fault.NotExist) {
		return nil, err
	}
	for _, e := range entries {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names, nil
}

// model says who may answer a call: section 8's other objects, and section 19.
func (a *answering) model(q *agentd.AskModel) (any, error) {
	cfg := a.o.Config()
	ref := cfg.Model
	if q.Ref != "" {
		var err error
		if ref, err = control.ParseModelRef([]byte(q.Ref)); err != nil {
			return nil, err
		}
	}
	user := &model.User{Owner: cfg.Owner, Subject: cfg.Subject, Policy: cfg.Policy, File: a.o.Key().TreeDir() + "/policy"}
	use := func(m *model.Model, ref string) error {
		if err := m.Use(user, ref); err != nil {
			return err
		}
		if !a.o.Allows(policy.Model, ref, policy.Use) {
			return fault.E("use", "model "+ref, fault.Access, errors.New("an agent above it may not use it"))
		}
		return nil
	}
	plan, _, err := model.NewCatalog(a.w.st, a.w.uid).Plan(model.Tiers(cfg.Owner, true), ref, use)
	if err != nil {
		if fault.Is(err, fault.Access) {
			a.o.Log().Add(agent.Event{Type: "model.denied", Object: ref.String(), Status: "denied", Reason: err.Error()})
		}
		return nil, err
	}
	list := []agentd.Model{}
	for _, m := range plan {
		one := agentd.Model{Name: m.Name, Driver: m.Driver, Effort: m.Effort}
		if m.Driver == "debug" && m.Name == "debug/script" {
			one.Script = a.script(cfg)
		}
		list = append(list, one)
	}
	return list, nil
}

const maxScript = 1 << 20

// script is data/script.jsonl of the agent's own directory: what debug/script
// replays. Nil: there is none that is a plain file of its people.
func (a *answering) script(cfg *agent.Config) []byte {
	p := fmt.Sprintf("home/%d/agent/%s/data/script.jsonl", cfg.Owner, cfg.Key.Name)
	fd, err := beneath.Open(int(a.w.st.DurableRoot().Fd()), p, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), p)
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Uid != cfg.Owner && st.Uid != cfg.UID {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxScript))
	if err != nil {
		return nil
	}
	return b
}

// event adds a line to the agent's log, as long as it is of a kind that a run has.
func (a *answering) event(e *agent.Event) (any, error) {
	kind, _, _ := strings.Cut(e.Type, ".")
	if !slices.Contains([]string{"tool", "approval", "hook", "run", "session", "prompt"}, kind) {
		return nil, fault.Newf(fault.Invalid, "a host process writes no %.32q", e.Type)
	}
	a.o.Log().Add(*e)
	return struct{}{}, nil
}
