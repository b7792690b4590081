package wire

import (
	"context"
	"encoding/binary"

	"cortexfs/node/fault"
)

// running is one command that the guest works on. Host.mu protects the output.
type running struct {
	limit       int
	out, errOut []byte
	done        chan DoneMsg
}

// Result is what came of a command.
type Result struct {
	DoneMsg
	Stdout, Stderr []byte
}

// Run executes a command inside and collects its output. When ctx ends, the
// command is killed and what it wrote so far is returned with ctx's error. EAGAIN
// when too many run.
func (h *Host) Run(ctx context.Context, m RunMsg) (*Result, error) {
	r := &running{limit: m.Limit, done: make(chan DoneMsg, 1)}
	h.mu.Lock()
	if !h.live {
		h.mu.Unlock()
		return nil, fault.Newf(fault.Unavailable, "the session has not begun")
	}
	if len(h.runs) >= maxRuns {
		h.mu.Unlock()
		return nil, fault.Newf(fault.Again, "%d commands run inside already", maxRuns)
	}
	h.nextRun++
	m.ID = h.nextRun
	b := frameJSON(Run, m)
	if len(b) > MaxControl {
		h.mu.Unlock()
		return nil, fault.Newf(fault.TooBig, "command of %d bytes", len(b))
	}
	if err := h.sendLocked(b); err != nil {
		h.mu.Unlock()
		return nil, err
	}
	h.runs[m.ID] = r
	h.mu.Unlock()

	var done DoneMsg
	var err error
	select {
	case done = <-r.done:
	case <-h.over:
		err = fault.Newf(fault.Unavailable, "the sandbox ended")
	case <-ctx.Done():
		h.send(frame(Kill, u32(m.ID)))
		err = ctx.Err()
		select { // the guest needs its own grace for the process group
		case done = <-r.done:
		case <-h.over:
		}
	}
	h.mu.Lock()
	delete(h.runs, m.ID)
	h.mu.Unlock()
	return &Result{DoneMsg: done, Stdout: r.out, Stderr: r.errOut}, err
}

func (h *Host) runData(data []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[binary.BigEndian.Uint32(data)]
	if r == nil {
		return violation("output of no command")
	}
	into := &r.out
	switch data[4] {
	case 1:
	case 2:
		into = &r.errOut
	default:
		return violation("output stream %d", data[4])
	}
	if len(*into)+len(data)-5 > r.limit {
		return violation("more output than asked for")
	}
	*into = append(*into, data[5:]...)
	return nil
}

func (h *Host) runDone(m DoneMsg) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.runs[m.ID]
	if r == nil || len(r.done) > 0 {
		return violation("end of no command")
	}
	if m.Code < -1 || m.Code > 255 || m.Errno < 0 || m.Errno > 4095 {
		return violation("end of a command with code %d", m.Code)
	}
	r.done <- m
	return nil
}
