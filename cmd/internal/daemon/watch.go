package daemon

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// killBound is how long the processes of a killed sandbox may take to go.
const killBound = 2 * time.Second

// follow keeps the unit's state true from the moment the agent runs until it is
// gone: it hears the host process's own words, but believes the pidfd.
func (r *running) follow() {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = r.host.wait(context.Background())
	}()
	events := r.client.Events()
	for {
		select {
		case ev, ok := <-events:
			if !ok {
				events = nil
				if r.unit.m.abandoned() {
					return
				}
				continue
			}
			r.found(ev.Git)
			if ev.State.Alive() {
				r.unit.set(ev.State, r, "")
			} else {
				r.unit.set(node.Stopping, r, ev.Reason)
			}
		case <-r.box.Done():
			// The host process notices by itself; it gets a moment to say so.
			select {
			case <-gone:
			case <-time.After(killBound):
				_ = r.host.signal(9)
				<-gone
			}
			r.finish()
			return
		case <-gone:
			r.finish()
			return
		}
	}
}

// found notes repositories that appeared in directories that were handed over
// without one (spec 10.3): git on the host would run what their config says.
func (r *running) found(paths []string) {
	u := r.unit
	for _, path := range paths {
		u.mu.Lock()
		known := slices.Contains(r.git, path)
		if !known {
			r.git = append(slices.Clip(r.git), path)
		}
		u.mu.Unlock()
		if known {
			continue
		}
		u.m.event(u.key, agent.Event{Type: "workspace.git", Session: r.want.Session, Status: "warning", Reason: gitNote(path)})
		u.m.w.log.Warn("a repository appeared", zap.String("agent", u.key.String()), zap.String("path", path))
	}
}

func gitNote(path string) string {
	return path + " appeared while the agent runs: look at its config and hooks before git runs there"
}

// gitNotes are the same as warnings.
func (r *running) gitNotes() []string {
	r.unit.mu.Lock()
	defer r.unit.mu.Unlock()
	var notes []string
	for _, path := range r.git {
		notes = append(notes, gitNote(path))
	}
	return notes
}

// finish puts an ended agent away: whatever of it is left is killed first.
func (r *running) finish() {
	r.once.Do(func() {
		u := r.unit
		expected := false
		select {
		case <-r.stopped:
			expected = true
		default:
		}
		reason := r.reason()
		ctx, cancel := context.WithTimeout(context.Background(), killBound)
		defer cancel()
		if err := r.box.Kill(ctx); err != nil {
			// Something waits in a file system that is not ours; nobody can end it.
			u.set(node.Stopping, r, err.Error())
			u.m.w.log.Error("processes of the sandbox are left", zap.String("agent", u.key.String()), zap.Error(err))
			u.m.event(u.key, agent.Event{Type: "agent.exit", Session: r.want.Session, Status: "stuck", Reason: err.Error()})
			<-r.box.Done()
		}
		said := u.m.w.run.hostSaid(u.key.RuntimeKey())
		r.putAway()
		typ := "agent.exit"
		if expected {
			typ = "agent.stop"
		}
		u.m.event(u.key, agent.Event{Type: typ, Session: r.want.Session, Status: "dead", Reason: reason})
		fields := []zap.Field{zap.String("agent", u.key.String()), zap.String("reason", reason)}
		if !expected {
			fields = append(fields, zap.String("host", said))
		}
		u.m.w.log.Info(typ, fields...)
		u.set(node.Dead, nil, reason)
		u.m.bereave(u.key, reason)
		close(r.done)
	})
}

// reason is why the agent ended, in the host process's own words where it had
// the time for any.
func (r *running) reason() string {
	if text := r.client.Last().Reason; text != "" {
		return text
	}
	select {
	case <-r.box.Done():
		if e := r.box.Exit(); e.Message != "" {
			return e.Message
		}
		return "the sandbox's processes died"
	default:
		return "the host process died"
	}
}

// putAway releases what the agent had: connections, the view, the runtime
// directory, the links in its session.
func (r *running) putAway() {
	m := r.unit.m
	r.client.Close()
	if r.unview != nil {
		r.unview()
	}
	if r.view != nil {
		_ = r.view.Abort()
		select {
		case <-r.view.Done():
		case <-time.After(killBound):
		}
	}
	r.host.close()
	m.unlink(r.unit.key, r.owner, r.want.Session)
	if err := m.w.run.clear(r.unit.key.RuntimeKey()); err != nil {
		m.w.log.Warn("clear the runtime directory", zap.String("agent", r.unit.key.String()), zap.Error(err))
	}
}

// stop ends the agent: SIGTERM to every process inside, grace, SIGKILL. It
// returns when everything is gone; ctx bounds the wait, not the end.
func (r *running) stop(ctx context.Context, grace time.Duration, why string) error {
	u := r.unit
	select {
	case <-r.stopped:
	default:
		u.mu.Lock()
		select {
		case <-r.stopped:
		default:
			close(r.stopped)
		}
		u.mu.Unlock()
	}
	u.set(node.Stopping, r, why)
	ask, cancel := context.WithTimeout(ctx, grace+killBound/2)
	err := r.client.Stop(ask, grace)
	cancel()
	select {
	case <-r.done:
		return nil
	default:
	}
	if err != nil {
		u.m.w.log.Warn("the host process does not stop its agent, killing", zap.String("agent", u.key.String()), zap.Error(err))
		kill, cancel := context.WithTimeout(context.Background(), killBound)
		_ = r.box.Kill(kill)
		cancel()
		_ = r.host.signal(9)
	}
	select {
	case <-r.done:
		return nil
	case <-time.After(2 * killBound):
	case <-ctx.Done():
	}
	select {
	case <-r.done:
		return nil
	default:
		return fault.E("stop", u.key.String(), fault.TimedOut, errStuck)
	}
}
