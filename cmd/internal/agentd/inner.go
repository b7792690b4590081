package agentd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/cmd/internal/peer"
	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
	"cortexfs/node/run"

	"golang.org/x/sys/unix"
)

const maxInner = 256 // connections from inside at once

// acceptInner serves /run/cortexfs/control.sock of the sandbox (spec section 14).
// Who connects must be a process of this sandbox; that proves nothing else.
func (a *agent) acceptInner(l *net.UnixListener) {
	var clients sync.WaitGroup
	slots := make(chan struct{}, maxInner)
	defer clients.Wait()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if retry(err) {
				continue
			}
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		clients.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			if err := a.fromInside(conn); err != nil {
				a.log.Sugar().Warnw("a stranger at the control socket", "reason", err.Error())
				conn.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = conn.Write(append(errorFrame("", err), '\n'))
				return
			}
			a.serveInner(conn)
		})
	}
}

// fromInside says whether the peer descends from the sandbox's init.
func (a *agent) fromInside(conn *net.UnixConn) error {
	cred, err := ctlproto.PeerCred(conn)
	if err != nil {
		return fault.Newf(fault.Access, "peer credentials: %v", err)
	}
	fd, err := ctlproto.PeerPIDFD(conn)
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		fd = -1 // Linux before 6.5: the pid alone
	case err != nil:
		return fault.Newf(fault.Access, "the peer process is gone")
	default:
		defer unix.Close(fd)
	}
	a.mu.Lock()
	init := a.initPID
	a.mu.Unlock()
	pid := int(cred.Pid)
	for range 256 {
		if pid <= 1 || init == 0 {
			break
		}
		if pid == init {
			if fd >= 0 && !peer.Alive(fd) {
				break // the pid may be somebody else's by now
			}
			return nil
		}
		if pid, err = parentOf(pid); err != nil {
			break
		}
	}
	return fault.Newf(fault.Access, "the peer is no process of this sandbox")
}

func parentOf(pid int) (int, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 {
		return 0, fault.Newf(fault.IO, "short stat line")
	}
	return strconv.Atoi(string(f[1]))
}

// serveInner answers frames one after another.
func (a *agent) serveInner(conn *net.UnixConn) {
	ctx, cancel := context.WithCancel(a.runs.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	in := bufio.NewReaderSize(conn, 64<<10)
	emit := func(frame []byte) error {
		conn.SetWriteDeadline(time.Now().Add(writeTime))
		_, err := conn.Write(append(bytes.Clone(frame), '\n'))
		return err
	}
	for {
		line, err := readInner(in)
		if errors.Is(err, errFrame) {
			_ = emit(errorFrame("", err))
			return
		}
		if err != nil {
			return
		}
		if err := a.runs.inside(ctx, line, emit); err != nil {
			return
		}
	}
}

func readInner(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > run.MaxControlFrame+1 {
			return nil, errFrame
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return line[:len(line)-1], nil
	}
}

// inside gives a frame to the run that it names.
func (r *runs) inside(ctx context.Context, frame []byte, emit func([]byte) error) error {
	id := ""
	if o, err := jsonl.Parse(frame); err == nil {
		id, _ = o.String("run")
	}
	r.mu.Lock()
	act := r.active[id]
	var control *run.Control
	if act != nil {
		control = act.control
	}
	r.mu.Unlock()
	if control == nil {
		return emit(errorFrame("", fault.Newf(fault.Access, "no such run is under way")))
	}
	// It ends with the run, and with the connection.
	inner, cancel := context.WithCancel(act.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	return control.Serve(inner, frame, emit)
}
