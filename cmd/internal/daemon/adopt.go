package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/agentd"
	cfs "cortexfs/fs"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/sandbox"
)

// record is state.json: what a later daemon needs to know a running agent again.
// Each field is compared with the processes that there are; nothing is believed
// that does not fit.
type record struct {
	Schema  int               `json:"schema"`
	Key     string            `json:"key"` // runtime key
	Ref     string            `json:"ref"` // agent/NAME or home/UID/agent/NAME
	Boot    string            `json:"boot"`
	Owner   uint32            `json:"owner"`
	Host    sandbox.Process   `json:"host"`     // ctxagent
	HostUID uint32            `json:"host_uid"` // its real uid
	HostExe fileID            `json:"host_exe"` // the inode that it executes
	Box     sandbox.Record    `json:"box"`
	Place   place             `json:"place"`
	IDs     ids               `json:"ids"`
	Socket  string            `json:"socket"`
	Runs    bool              `json:"runs,omitempty"` // it has an agent socket
	Since   time.Time         `json:"since"`
	Texts   map[string]string `json:"texts"`
	// Table is what was mounted, for people; nothing is decided by it.
	Table []sandbox.Effective `json:"table"`
	// Landlock is what status says; as little is decided by it.
	Landlock int `json:"landlock,omitempty"`
}

const recordSchema = 1

// record writes state.json, 0600, whole or not at all.
func (r *running) record() error {
	u := r.unit
	boot, err := bootID()
	if err != nil {
		return fault.FromOS("read the boot id", "", err)
	}
	uid, err := realUID(r.host.PID)
	if err != nil {
		return fault.FromOS("look at the host process", "", err)
	}
	rec := record{
		Schema: recordSchema, Key: u.key.RuntimeKey(), Ref: u.key.String(), Boot: boot, Owner: r.owner,
		Host: sandbox.Process{PID: r.host.PID, Start: r.host.Start}, HostUID: uid, HostExe: r.exe,
		Box: r.box.Record(), Place: r.want, IDs: r.ids, Socket: r.socket, Runs: r.runs, Since: r.since, Texts: r.texts, Table: r.box.Table, Landlock: r.box.Landlock,
	}
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	path := filepath.Join(u.m.w.run.agent(rec.Key), "state.json")
	tmp := path + ".new"
	if err := os.WriteFile(tmp, append(text, '\n'), 0o600); err != nil {
		return fault.FromOS("write", tmp, err)
	}
	return fault.FromOS("write", path, os.Rename(tmp, path))
}

// readRecord reads state.json strictly; it must be ours alone.
func readRecord(dir string) (*record, error) {
	f, err := os.OpenFile(filepath.Join(dir, "state.json"), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		return nil, errors.New("state.json is not a 0600 file of ours")
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var rec record
	if err := d.Decode(&rec); err != nil {
		return nil, fmt.Errorf("state.json: %w", err)
	}
	if rec.Schema != recordSchema {
		return nil, fmt.Errorf("state.json has schema %d, not %d", rec.Schema, recordSchema)
	}
	return &rec, nil
}

// adoptAll takes over what an earlier daemon left running, or ends it and says
// so. Nothing is left undecided: afterwards the runtime directory holds adopted
// agents only.
func (m *manager) adoptAll() {
	entries, err := os.ReadDir(m.w.run.agentsDir())
	if err != nil {
		m.w.log.Error("read the runtime directory", zap.Error(err))
		return
	}
	var ended []agent.Key
	for _, e := range entries {
		key := e.Name()
		log := m.w.log.With(zap.String("key", key))
		rec, err := readRecord(m.w.run.agent(key))
		if err == nil && rec.Key != key {
			err = errors.New("state.json belongs to another agent")
		}
		if err != nil {
			// It never came up, or somebody meddled: nothing is signalled on the word
			// of such a file. A host process whose daemon died in a start ends itself.
			log.Info("not adopted", zap.Error(err))
			m.discard(key)
			continue
		}
		if err := m.adopt(rec); err != nil {
			log.Warn("not adopted, ended", zap.String("agent", rec.Ref), zap.Error(err), zap.String("host", m.w.run.hostSaid(key)))
			m.end(rec, err)
			if k, ok := agent.ParseKey(rec.Ref); ok {
				ended = append(ended, k)
			}
			continue
		}
		log.Info("adopted", zap.String("agent", rec.Ref), zap.Int("pid", rec.Host.PID))
	}
	for _, r := range m.running() { // when all are known: parents bound their children
		r.reviewed("a change while no daemon ran")
	}
	// Who has died meanwhile takes its children along, those that were adopted too.
	for _, k := range ended {
		m.bereave(k, "it did not outlive its daemon")
	}
}

// verified holds the recorded host process if everything about it fits.
func (m *manager) verified(rec *record) (*process, error) {
	boot, err := bootID()
	if err != nil || boot != rec.Boot {
		return nil, errors.New("it ran before the last boot")
	}
	host, err := holdProcess(rec.Host.PID, rec.Host.Start)
	if err != nil {
		return nil, fmt.Errorf("host process: %w", err)
	}
	uid, uerr := realUID(rec.Host.PID)
	exe, xerr := exeID(fmt.Sprintf("/proc/%d/exe", rec.Host.PID))
	switch {
	case uerr != nil || uid != rec.HostUID:
		err = errors.New("host process: another uid")
	case xerr != nil && m.w.root, xerr == nil && exe != rec.HostExe:
		// A user's daemon cannot look at the executable of a process that is not
		// dumpable, as a host process is; pid, start time, uid and the lock, which
		// only it can hold, are its proof.
		err = errors.New("host process: another executable")
	case !m.w.run.locked(rec.Key):
		err = errors.New("host process: nobody holds its lock")
	case !host.alive():
		err = errors.New("host process: gone")
	default:
		return host, nil
	}
	host.close()
	return nil, err
}

// adopt makes a recorded agent a running one again: verified, reconnected, with
// its view mounted anew.
func (m *manager) adopt(rec *record) (err error) {
	key, ok := agent.ParseKey(rec.Ref)
	if !ok || key.RuntimeKey() != rec.Key {
		return errors.New("state.json names no agent")
	}
	o, err := m.w.agents.Lookup(key)
	if err != nil {
		return fmt.Errorf("its object: %w", err)
	}
	if cfg := o.Config(); !cfg.OwnerOK || cfg.Owner != rec.Owner {
		return errors.New("it has another owner now")
	}
	if !m.w.run.shared {
		return errors.New("a view mounted now would not arrive inside: the runtime directory lies on a private mount")
	}
	host, err := m.verified(rec)
	if err != nil {
		return err
	}
	u := m.unit(key)
	r := &running{
		unit: u, owner: rec.Owner, want: rec.Place, ids: rec.IDs, since: rec.Since, socket: rec.Socket, runs: rec.Runs, texts: rec.Texts,
		host: host, exe: rec.HostExe, done: make(chan struct{}), stopped: make(chan struct{}),
	}
	l := &attempt{u: u, cfg: o.Config()}
	defer func() {
		if err != nil {
			l.rollBack()
			host.close()
		}
	}()
	if r.box, err = sandbox.Adopt(rec.Box); err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	r.box.Table, r.box.Landlock = rec.Table, rec.Landlock
	if err := l.remount(r); err != nil {
		return err
	}
	if err := l.reconnect(r); err != nil {
		return err
	}
	state := r.client.Last().State
	if !state.Alive() {
		state = node.Stopping
	}
	o.Log().Add(agent.Event{Type: "agent.adopt", Session: r.want.Session, Status: string(state)})
	u.set(state, r, "")
	go r.follow()
	return nil
}

// remount clears the dead view and mounts a new one in its place; it arrives in
// the sandbox by propagation.
func (l *attempt) remount(r *running) error {
	skeleton := filepath.Join(l.u.m.w.run.agent(l.u.key.RuntimeKey()), "rootfs")
	for range 16 {
		if more, err := cfs.ClearDead(filepath.Join(skeleton, "ctx"), "cortexfs"); err != nil {
			return fmt.Errorf("clear the dead view: %w", err)
		} else if !more {
			break
		}
	}
	return l.mountView(r, skeleton)
}

// reconnect dials the host process and sees that it is the verified one.
func (l *attempt) reconnect(r *running) error {
	dir, err := os.Open(l.u.m.w.run.agent(l.u.key.RuntimeKey()))
	if err != nil {
		return err
	}
	defer dir.Close()
	ctx, cancel := context.WithTimeout(context.Background(), killBound)
	defer cancel()
	r.client, err = agentd.DialWith(ctx, fmt.Sprintf("/proc/self/fd/%d/ctl.sock", dir.Fd()), l.u.answer)
	if err != nil {
		return fmt.Errorf("reach the host process: %w", err)
	}
	l.later(func() { r.client.Close() })
	if got := r.client.Last().Pid; got != 0 && got != r.host.PID {
		return fmt.Errorf("another process (%d) answers in its place", got)
	}
	return nil
}

// end ends what could not be adopted, as far as it can be proven to be ours, and
// says that it is dead.
func (m *manager) end(rec *record, why error) {
	if host, err := m.verified(rec); err == nil {
		_ = host.signal(unix.SIGKILL)
		ctx, cancel := context.WithTimeout(context.Background(), killBound)
		_ = host.wait(ctx)
		cancel()
		host.close()
	}
	if boot, err := bootID(); err == nil && boot == rec.Boot {
		ctx, cancel := context.WithTimeout(context.Background(), killBound)
		if err := sandbox.KillRecord(ctx, rec.Box); err != nil && !fault.Is(err, fault.NoProcess) {
			m.w.log.Error("processes of the sandbox are left", zap.String("agent", rec.Ref), zap.Error(err))
		}
		cancel()
	}
	if key, ok := agent.ParseKey(rec.Ref); ok {
		m.event(key, agent.Event{Type: "agent.exit", Session: rec.Place.Session, Status: "dead", Reason: "after a daemon's end: " + why.Error()})
		m.unlink(key, rec.Owner, rec.Place.Session)
	}
	m.discard(rec.Key)
}

// discard clears the runtime directory of one agent.
func (m *manager) discard(key string) {
	if err := m.w.run.clear(key); err != nil {
		m.w.log.Warn("clear the runtime directory", zap.String("key", key), zap.Error(err))
	}
}
