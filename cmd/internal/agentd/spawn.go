package agentd

import (
	"context"
	"errors"
	"io"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/run"
	"cortexfs/policy"
	"cortexfs/sandbox/wire"
)

// stepTime bounds one step of an agent's program, which may wait for models.
const stepTime = 2 * time.Hour

// spawner starts processes of one run inside, over the wire.
type spawner struct {
	a       *agent
	session string // of the run: the agent's own may be another
	cwd     string
}

func (s *spawner) env(more []string) []string {
	return append([]string{"CTX_SESSION=" + s.session}, more...)
}

var (
	_ run.Spawner     = (*spawner)(nil)
	_ run.HookSpawner = (*spawner)(nil)
)

// Step implements run.Spawner.
func (s *spawner) Step(ctx context.Context, st *run.Step) (run.Process, error) {
	c, err := s.a.host.Begin(wire.RunMsg{
		Argv: []string{run.Program, run.LaunchFlag}, Cwd: s.cwd, Env: s.env(st.Env), Exact: true, Stdin: true,
		Timeout: stepTime.Milliseconds(), Limit: run.MaxOutput + 1,
	})
	if err != nil {
		return nil, err
	}
	_ = c.Feed(st.Stdin) // an error is the wire's end, which Wait tells
	_ = c.Feed(nil)
	return &stepProcess{ctx: ctx, c: c, Reader: c.Stdout(ctx)}, nil
}

type stepProcess struct {
	io.Reader
	ctx context.Context
	c   *wire.Command
}

// Wait implements run.Process.
func (p *stepProcess) Wait() (run.Exit, error) {
	res, err := p.c.Wait(p.ctx)
	switch {
	case err != nil:
		return run.Exit{}, err
	case res.Errno != 0:
		return run.Exit{}, fault.FromOS("execute", run.Program, unix.Errno(res.Errno))
	case res.TimedOut:
		return run.Exit{}, fault.Newf(fault.TimedOut, "a step took over %v", stepTime)
	}
	return run.Exit{Code: res.Code, Stderr: res.Stderr[:min(len(res.Stderr), 64<<10)]}, nil
}

// Open implements run.Spawner: row 8, inside.
func (s *spawner) Open(ctx context.Context, q *policy.Request) (run.Executable, policy.OpenFact, error) {
	// The digest is the daemon's: of the file that it serves, taken before and after
	// the open, so that what is held is that file.
	before, err := s.digest(ctx, q.Hit.Path)
	if err != nil {
		return nil, policy.OpenFact{}, err
	}
	c, fact, err := s.hold(ctx, q.Hit.Path)
	if err != nil || !fact.OK {
		return nil, fact, err
	}
	e := &executable{s: s, c: c, path: q.Hit.Path, digest: before}
	after, err := s.digest(ctx, q.Hit.Path)
	if err == nil && after != before {
		err = fault.Newf(fault.Again, "the tool was replaced while it was opened")
	}
	if err != nil {
		e.Close()
		return nil, policy.OpenFact{}, err
	}
	return e, fact, nil
}

func (s *spawner) digest(ctx context.Context, p string) (d Digest, err error) {
	err = s.a.ask(ctx, "digest", AskDigest{Path: p}, &d)
	return d, err
}

// hold opens a program inside and holds it.
func (s *spawner) hold(ctx context.Context, p string) (*wire.Command, policy.OpenFact, error) {
	c, err := s.a.host.Begin(wire.RunMsg{Argv: []string{p}, Cwd: s.cwd, Exact: true, Held: true})
	if err != nil {
		return nil, policy.OpenFact{}, err
	}
	open, err := c.Opened(ctx)
	if open {
		return c, policy.OpenFact{OK: true}, nil
	}
	res, werr := c.Wait(ctx)
	if err = errors.Join(err, werr); err != nil {
		return nil, policy.OpenFact{}, err
	}
	errno := unix.Errno(res.Errno)
	return nil, policy.OpenFact{Loop: errno == unix.ELOOP, Why: "inside: " + errno.Error()}, nil
}

// executable is a program that is held inside.
type executable struct {
	s      *spawner
	c      *wire.Command
	path   string
	digest Digest
	over   bool // it was executed, or let go
}

var _ run.Executable = (*executable)(nil)

func (e *executable) Digest() string { return e.digest.SHA256 }

// Same implements run.Executable: the path opens again, and the daemon serves the
// same bytes there.
func (e *executable) Same(ctx context.Context) (policy.OpenFact, error) {
	c, fact, err := e.s.hold(ctx, e.path)
	if err != nil || !fact.OK {
		return fact, err
	}
	c.Kill()
	_, _ = c.Wait(ctx)
	now, err := e.s.digest(ctx, e.path)
	if err == nil && now != e.digest {
		return policy.OpenFact{Why: "another file stands there now"}, nil
	}
	return fact, err
}

// Exec implements run.Executable.
func (e *executable) Exec(ctx context.Context, x *run.Exec) (*run.Output, error) {
	if e.over {
		return nil, fault.Newf(fault.Invalid, "the tool was executed already")
	}
	e.over = true
	err := e.c.Go(wire.GoMsg{Args: x.Words, Env: e.s.env(x.Env), Stdin: x.Stdin != nil, Timeout: x.Timeout.Milliseconds(), Limit: x.Limit})
	if err == nil && x.Stdin != nil {
		if err = e.c.Feed(x.Stdin); err == nil {
			err = e.c.Feed(nil)
		}
	}
	if err != nil {
		e.c.Kill()
		_, _ = e.c.Wait(ctx)
		return nil, err
	}
	res, err := e.c.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return outputOf(res), nil
}

// Close implements run.Executable.
func (e *executable) Close() {
	if e.over {
		return
	}
	e.over = true
	e.c.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), sendWait)
	defer cancel()
	_, _ = e.c.Wait(ctx)
}

func outputOf(res *wire.Result) *run.Output {
	o := &run.Output{Code: res.Code, Stdout: res.Stdout, Stderr: res.Stderr, Truncated: res.Truncated, TimedOut: res.TimedOut}
	if res.Errno != 0 {
		o.Errno = unix.ErrnoName(unix.Errno(res.Errno))
	}
	return o
}

// Names implements run.HookSpawner.
func (s *spawner) Names(ctx context.Context, o run.Object, phase string) ([]string, error) {
	var names []string
	err := s.a.ask(ctx, "hooks", AskHooks{Dir: o.Path, Phase: phase}, &names)
	return names, err
}

// Run implements run.HookSpawner.
func (s *spawner) Run(ctx context.Context, h *run.Hook) (*run.Output, error) {
	c, err := s.a.host.Begin(wire.RunMsg{
		Argv: []string{path.Join(h.Object.Path, "hooks", h.Phase, h.Name)}, Cwd: s.cwd, Env: h.Env, Bare: true, Exact: true, Stdin: true,
		Timeout: h.Timeout.Milliseconds(), Limit: h.Limit,
	})
	if err != nil {
		return nil, err
	}
	_ = c.Feed(h.Stdin)
	_ = c.Feed(nil)
	res, err := c.Wait(ctx)
	if err != nil {
		return nil, err
	}
	return outputOf(res), nil
}

// gate asks the daemon for facts. No answer allows nothing.
type gate struct {
	a *agent

	mu      sync.Mutex
	schemas map[*policy.Request]string // of the requests of this run
}

var _ run.Gate = (*gate)(nil)

func (g *gate) Request(tool string) *policy.Request {
	ctx, cancel := context.WithTimeout(context.Background(), askWait)
	defer cancel()
	var got Gate
	err := g.a.ask(ctx, "gate", AskGate{Tool: tool}, &got)
	if err == nil && got.Facts != nil {
		var q *policy.Request
		if q, err = got.Facts.Join(); err == nil {
			g.mu.Lock()
			g.schemas[q] = got.Schema
			g.mu.Unlock()
			return q
		}
	}
	g.a.log.Sugar().Warnw("no facts about a tool", "tool", tool, "error", err)
	return &policy.Request{Tool: tool, Hosted: true}
}

func (g *gate) Schema(q *policy.Request) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return []byte(g.schemas[q])
}
