package sandbox

import (
	"context"
	"strconv"

	"cortexfs/node/fault"
	"cortexfs/sandbox/bwrap"
)

// Record is what is needed to find a sandbox again after a daemon restart.
type Record struct {
	Bwrap Process `json:"bwrap"`
	Init  Process `json:"init"`
}

// Running is a started sandbox. All methods are safe for concurrent use.
type Running struct {
	PID      int         // bwrap, a child of this process unless adopted
	Init     int         // host pid of the pid namespace's init, which is the command
	Table    []Effective // what was mounted; empty when adopted
	Warnings []string    // e.g. a listening socket below a source; no idmapped mounts
	Landlock int         // version of the Landlock domain around it; 0: none

	outer, init *handle
	status      *bwrap.Reader
	launched    *launched // nil when adopted
	done        chan struct{}
	exit        Exit // valid after done
}

// Exit is how a sandbox ended.
type Exit struct {
	Code    int    // exit code of the command, 128+n for a signal; -1 unknown
	Started bool   // the command ran; false: bwrap failed to set up, see Err
	Message string // bwrap's own words
}

// Err is the *StartError of a sandbox that ended before its command ran, else
// nil.
func (e Exit) Err() error {
	if e.Started {
		return nil
	}
	return setupFailed(e.Message, "exit code "+strconv.Itoa(e.Code))
}

// watch sees to it that neither bwrap nor init outlives the other, and notes how
// it ended.
func (r *Running) watch() {
	defer close(r.done)
	select {
	case <-r.outer.gone:
		r.init.kill()
		<-r.init.gone
	case <-r.init.gone:
		<-r.outer.gone
	}
	l := r.launched
	if l == nil {
		r.exit = Exit{Code: -1, Started: true}
		return
	}
	l.cmd.Wait()
	l.waited = true
	r.exit = Exit{Code: -1, Message: l.words()}
	if last, err := r.status.Next(); err == nil && last.ExitCode != nil {
		r.exit.Code, r.exit.Started = *last.ExitCode, true
	} else if code := l.cmd.ProcessState.ExitCode(); code >= 0 {
		r.exit.Code = code
	} else {
		r.exit.Started = r.exit.Message == "" // bwrap was killed
	}
	l.close()
}

// Record is what Adopt needs.
func (r *Running) Record() Record { return Record{Bwrap: r.outer.Process, Init: r.init.Process} }

// Adopt finds a sandbox again; fault.NoProcess when either process is gone or is
// somebody else now. KillRecord ends what is left then.
func Adopt(rec Record) (*Running, error) {
	outer, err := holdExactly(rec.Bwrap)
	if err != nil {
		return nil, err
	}
	init, err := holdExactly(rec.Init)
	if err != nil {
		return nil, err
	}
	r := &Running{PID: outer.PID, Init: init.PID, outer: outer, init: init, done: make(chan struct{})}
	go r.watch()
	return r, nil
}

func holdExactly(p Process) (*handle, error) {
	h, err := hold(p.PID)
	if err != nil {
		return nil, err
	}
	if h.Start != p.Start {
		return nil, fault.Newf(fault.NoProcess, "process %d is another one now", p.PID)
	}
	return h, nil
}

// KillRecord ends what is left of a recorded sandbox, be it one of its two
// processes only. What is gone, or is somebody else now, is left alone.
func KillRecord(ctx context.Context, rec Record) error {
	for _, p := range []Process{rec.Init, rec.Bwrap} {
		h, err := holdExactly(p)
		if err != nil {
			continue
		}
		if err := end(ctx, h); err != nil {
			return err
		}
	}
	return nil
}

// Kill ends every process of the sandbox: SIGKILL of its init through a pidfd,
// which takes the whole pid namespace with it, then it waits until all are gone
// or ctx ends (fault.TimedOut: some process waits in a file system that is not
// ours).
func (r *Running) Kill(ctx context.Context) error {
	if err := end(ctx, r.init); err != nil {
		return err
	}
	return end(ctx, r.outer)
}

func end(ctx context.Context, h *handle) error {
	if err := h.kill(); err != nil {
		return fault.FromOS("kill", strconv.Itoa(h.PID), err)
	}
	select {
	case <-h.gone:
		return nil
	case <-ctx.Done():
		return fault.Newf(fault.TimedOut, "process %d was killed and has not ended: some process of the sandbox waits in a file system", h.PID)
	}
}

// Done is closed when the sandbox is gone: bwrap and init have ended.
func (r *Running) Done() <-chan struct{} { return r.done }

// Exit is how it ended; valid after Done.
func (r *Running) Exit() Exit { return r.exit }

func itoa(n int) string { return strconv.Itoa(n) }
