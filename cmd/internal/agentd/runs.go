package agentd

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"cortexfs/node"
	nodeagent "cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/prompt"
	"cortexfs/node/run"
	"cortexfs/node/session"
	"cortexfs/policy"
)

// maxActive is how many runs of an agent may be under way at once.
const maxActive = 100

// runs are the sessions of the agent and the runs in them.
type runs struct {
	a      *agent
	store  *session.Store
	broker *run.Broker
	ctx    context.Context // ends with the agent
	cancel context.CancelFunc
	work   sync.WaitGroup

	// mu protects the fields below; it comes before agent.mu.
	mu     sync.Mutex
	active map[string]*active
	over   bool
}

// active is a run under way.
type active struct {
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has finished
	status  string        // then
	control *run.Control  // for the sandbox; runs.mu
	ctx     context.Context
}

// openRuns opens the sessions, and makes the one that the agent was started in.
func openRuns(a *agent, sessions, records *os.File) (*runs, error) {
	r := &runs{a: a, active: map[string]*active{}, broker: run.NewBroker(run.BrokerOptions{Agent: a.p.Agent})}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	r.store, err = session.Open(session.Options{Sessions: sessions, Records: records, Note: r.note})
	if err != nil {
		r.cancel()
		return nil, err
	}
	first, err := r.store.Get(session.Key{Scope: session.Private, Name: a.p.Session}, true)
	if err != nil {
		r.close()
		return nil, err
	}
	first.Release()
	return r, nil
}

// close ends every run and waits for them.
func (r *runs) close() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.cancel()
	r.work.Wait()
	_ = r.store.Close()
}

func (r *runs) note(n session.Note) {
	// Open calls it before there is a daemon to tell: not waited for.
	go r.event(nodeagent.Event{Type: n.Type, Session: n.Session, Run: n.Run, Object: n.Object, Status: n.Status, Reason: n.Reason})
}

// event puts a line into the agent's log.
func (r *runs) event(e nodeagent.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
	defer cancel()
	if err := r.a.ask(ctx, "event", e, nil); err != nil {
		r.a.log.Sugar().Warnw("an event was lost", "type", e.Type, "object", e.Object, "status", e.Status, "error", err.Error())
	}
}

// begin takes a message and starts its run. Of a message that was taken before
// replay is told only.
func (r *runs) begin(ctx context.Context, m session.Send) (*session.Run, *session.Replay, error) {
	var b Brief
	if err := r.a.ask(ctx, "brief", AskBrief{}, &b); err != nil {
		return nil, nil, err
	}
	m.Model = b.Model
	if m.Cwd == "" {
		m.Cwd = b.Cwd
	}
	r.mu.Lock()
	full := len(r.active) >= maxActive
	over := r.over
	r.mu.Unlock()
	switch s := r.a.state(); {
	case over || !s.Alive() || s == node.Start || s == node.Stopping:
		return nil, nil, fault.Newf(fault.Unavailable, "the agent is %s", s)
	case full:
		return nil, nil, fault.Newf(fault.Again, "%d runs are under way", maxActive)
	}
	one, replay, err := r.store.Begin(m)
	if err != nil || replay != nil {
		return nil, replay, err
	}
	again := one.Replay()
	act := &active{done: make(chan struct{})}
	act.ctx, act.cancel = context.WithCancel(r.ctx)
	r.mu.Lock()
	r.active[one.ID()] = act
	if !r.over {
		r.work.Add(1)
	}
	over = r.over
	r.mu.Unlock()
	if over {
		act.cancel()
		_ = one.Finish(session.Cancelled, "")
		again.Release()
		return nil, nil, fault.Newf(fault.Unavailable, "the agent ends")
	}
	r.busy()
	go r.do(act, one, m)
	return one, again, nil
}

// busy makes the state follow the runs.
func (r *runs) busy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	want := node.Idle
	if len(r.active) > 0 {
		want = node.Busy
	}
	r.a.change(func(e *Event) {
		if e.State != node.Start {
			e.State = want
		}
	})
}

// do works one run off.
func (r *runs) do(act *active, one *session.Run, m session.Send) {
	defer r.work.Done()
	id := one.ID()
	defer func() {
		act.cancel()
		r.mu.Lock()
		delete(r.active, id)
		r.mu.Unlock()
		close(act.done)
		r.busy()
	}()
	if err := one.Wait(act.ctx); err != nil {
		act.status = session.Cancelled
		_ = one.Finish(session.Cancelled, "")
		return
	}
	spawn := &spawner{a: r.a, session: m.Key.Name, cwd: m.Cwd}
	calls := &run.Caller{
		Agent: r.a.p.Agent, AgentDir: r.a.p.Dir, Session: m.Key.Name, Run: id,
		Gate: &gate{a: r.a, schemas: map[*policy.Request]string{}}, Spawn: spawn, Approver: r.broker, Record: one,
		Log: func(e nodeagent.Event) { r.event(e) }, Check: checkArguments,
	}
	calls.Hooks = &run.HookRunner{Spawn: spawn, Agent: r.a.p.Agent, Session: m.Key.Name, Log: calls.Log}
	t := &telling{r: r, one: one, m: m}
	r.mu.Lock()
	act.control = &run.Control{Calls: calls, Models: models{r.a}, Prompt: t.prompt}
	r.mu.Unlock()
	var b Brief
	steps := run.DefaultSteps
	if err := r.a.ask(act.ctx, "brief", AskBrief{Run: id}, &b); err == nil && b.Steps > 0 {
		steps = b.Steps
	}
	loop := &run.Loop{Calls: calls, Input: m.Input, Steps: steps, Prepare: t.prepare}
	act.status = loop.Do(act.ctx)
}

// cancelRun ends a run and waits for its end.
func (r *runs) cancelRun(ctx context.Context, id string) (status string, err error) {
	r.mu.Lock()
	act := r.active[id]
	r.mu.Unlock()
	if act == nil {
		return "", fault.E("cancel", "run "+id, fault.NotExist, nil)
	}
	act.cancel()
	select {
	case <-act.done:
		return act.status, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// telling is what a run is told.
type telling struct {
	r   *runs
	one *session.Run
	m   session.Send
}

// look asks for the texts of now.
func (t *telling) look(ctx context.Context) (b Brief, history string, err error) {
	if err = t.r.a.ask(ctx, "brief", AskBrief{Run: t.one.ID()}, &b); err != nil {
		return b, "", err
	}
	lines, err := t.one.Tail(4 * prompt.MaxHistory)
	if err != nil {
		return b, "", err
	}
	return b, prompt.History(lines, t.one.ID(), 0), nil
}

func toolTexts(b *Brief) []prompt.Tool {
	var tools []prompt.Tool
	for _, one := range b.Tools {
		tools = append(tools, prompt.Tool{Name: one.Name, Description: one.Description, Schema: []byte(one.Schema), Full: one.Declared})
	}
	return tools
}

// prepare implements run.Loop.Prepare.
func (t *telling) prepare(ctx context.Context) (history, tools string, err error) {
	b, history, err := t.look(ctx)
	if err != nil {
		return "", "", err
	}
	return history, prompt.Tools(toolTexts(&b), run.MaxContext), nil
}

// prompt renders the first system message.
func (t *telling) prompt(ctx context.Context) (string, error) {
	b, history, err := t.look(ctx)
	if err != nil {
		return "", err
	}
	files := t.r.files(ctx, &b, t.m.Cwd)
	text, unknown := prompt.Render(b.Template, &prompt.Values{
		Agent: t.r.a.p.Agent, Now: time.Now(), Instructions: b.System, Rules: files.Rules, Skills: files.Skills,
		Tools: prompt.Tools(toolTexts(&b), 0), History: history,
	})
	if len(unknown) > 0 {
		t.r.event(nodeagent.Event{Type: "prompt.warning", Session: t.m.Key.Name, Run: t.one.ID(), Object: "prompt.template.md", Status: "ok",
			Reason: "unknown variables stay as text: " + strings.Join(unknown, " ")})
	}
	for name, report := range map[string]string{"AGENTS.md": files.RulesReport, "SKILLS.md": files.SkillsReport} {
		if err := t.one.Snapshot(name, []byte(report)); err != nil {
			return "", err
		}
	}
	return text, nil
}
