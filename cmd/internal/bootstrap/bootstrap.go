// Package bootstrap makes the reference tree (spec section 18): the agents
// architect, coder and reviewer and the core tools, each with its policies.
//
// It only ever adds what is missing. What exists, edited or not, stays; so the
// second run changes nothing, and a crash in the middle is repaired by running
// it again. The state file bin/cortexfs.bootstrap.json is written last and only
// when it differs.
//
// The same code runs inside a daemon, which asks for it over the control socket,
// and on a store that nobody serves (OpenStore).
package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"cortexfs/cmd/internal/companion"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/ordinary"
	"cortexfs/node/store"
)

// The state file and the version of the tree that this program makes.
const (
	StateFile   = "bin/cortexfs.bootstrap.json"
	stateSchema = 1
	TreeVersion = 1
)

// state is the text of the state file.
type state struct {
	Schema            int      `json:"schema"`
	TreeVersion       int      `json:"tree_version"`
	ManagedAgents     []string `json:"managed_agents"`
	AppliedMigrations []string `json:"applied_migrations"`
}

// Options of one run.
type Options struct {
	Owner  uint32 // owner of the reference agents
	DryRun bool   // say what would be done, change nothing
}

// World is what bootstrap works on.
type World struct {
	Store    *store.Store
	Agents   *agent.Table
	Ordinary *ordinary.FS // nil: homes are made at the first start
	Users    agent.UserDB // nil: agent.SystemUsers
	UID, GID uint32       // of the daemon: owner of the tools
	// Find is the host path of a program of ours; nil: companion.Find.
	Find func(name string) (string, error)
	// Changed is told of every tool that was installed; may be nil.
	Changed func(tier, name string)
}

// session is one run.
type session struct {
	*World
	o       Options
	lines   []string
	changed bool
}

// Run makes what is missing and returns the report, in the form of spec section
// 18, and whether anything was or would be changed. On an error the report says
// how far it came.
func (w *World) Run(o Options) (lines []string, changed bool, err error) {
	if w.Find == nil {
		w.Find = companion.Find
	}
	if w.Users == nil {
		w.Users = agent.SystemUsers()
	}
	r := &session{World: w, o: o}
	err = r.all()
	return r.lines, r.changed, err
}

func (r *session) say(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

// did reports a change: "would_ensure x" in a dry run, "ensured x" else.
func (r *session) did(would, done, what string) {
	r.changed = true
	if r.o.DryRun {
		r.say("would_%s %s", would, what)
		return
	}
	r.say("%s %s", done, what)
}

// skip reports what is left alone. The word is the same in a dry run and in a real
// one: it is a person who would have to do something.
func (r *session) skip(what, reason string) { r.say("would_skip %s (%s)", what, reason) }

func (r *session) all() error {
	old, oldText, err := r.readState()
	if err != nil {
		return err
	}
	from := "none"
	if old != nil {
		from = fmt.Sprint(old.TreeVersion)
		if old.TreeVersion > TreeVersion {
			r.say("reject tree_version=%d newer_than_target=%d", old.TreeVersion, TreeVersion)
			return fault.E("bootstrap", StateFile, fault.Unavailable,
				fmt.Errorf("the tree was made by a newer program (tree version %d, this one makes %d)", old.TreeVersion, TreeVersion))
		}
	}
	r.say("tree_version=%s->%d", from, TreeVersion)
	r.say("migrations=none") // version 1 is the first: nothing to migrate from
	r.retired()
	for _, t := range referenceTools() {
		if err := r.ensureTool(t); err != nil {
			return err
		}
	}
	if err := r.ensureModels(); err != nil {
		return err
	}
	next := state{Schema: stateSchema, TreeVersion: TreeVersion, AppliedMigrations: []string{}}
	for _, a := range referenceAgents() {
		if err := r.ensureAgent(a); err != nil {
			return err
		}
		next.ManagedAgents = append(next.ManagedAgents, a.name)
	}
	slices.Sort(next.ManagedAgents)
	return r.writeState(next, oldText)
}

// retired reports what earlier trees had under the name base. It carries no
// proof of who made it, so a person decides.
func (r *session) retired() {
	entries, err := r.Store.List("agent")
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name == "base" || e.Name == "base.d" || e.Name == "base.sock" {
			r.skip("agent/base", "retired; nothing proves who made it: review it and remove it by hand")
			return
		}
	}
}

func (r *session) readState() (*state, []byte, error) {
	f, err := r.Store.OpenFile(StateFile)
	if fault.Is(err, fault.NotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fault.At("read", StateFile, err)
	}
	defer f.Close()
	text := make([]byte, min(f.Info().Size, 64<<10))
	if n, err := f.ReadAt(text, 0); err != nil && err != io.EOF {
		return nil, nil, fault.At("read", StateFile, err)
	} else {
		text = text[:n]
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil || s.Schema != stateSchema {
		return nil, nil, fault.E("read", StateFile, fault.Invalid,
			fmt.Errorf("not a state file of schema %d; move it away to start anew", stateSchema))
	}
	return &s, text, nil
}

func (r *session) writeState(s state, old []byte) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if bytes.Equal(text, old) {
		return nil
	}
	r.did("write", "wrote", StateFile)
	if r.o.DryRun {
		return nil
	}
	return r.putFile(StateFile, bytes.NewReader(text), store.FileAttr{UID: r.UID, GID: r.GID, Mode: 0o644})
}

// putFile streams bytes into an executable or plain file of the store.
func (r *session) putFile(p string, from io.Reader, attr store.FileAttr) error {
	dir := p[:strings.LastIndexByte(p, '/')]
	if err := r.Store.MkdirAll(dir); err != nil {
		return fault.At("make", dir, err)
	}
	d, err := r.Store.NewFile(dir)
	if err != nil {
		return fault.At("write", p, err)
	}
	buf := make([]byte, 256<<10)
	for off := int64(0); ; {
		n, rerr := from.Read(buf)
		if n > 0 {
			if _, err := d.WriteAt(buf[:n], off); err != nil {
				d.Discard()
				return fault.At("write", p, err)
			}
			off += int64(n)
		}
		if rerr == io.EOF {
			break
		}
		if rerr != nil {
			d.Discard()
			return fault.FromOS("read the source of", p, rerr)
		}
	}
	f, err := d.Commit(p, attr)
	if err != nil {
		return fault.At("write", p, err)
	}
	return f.Close()
}

// putProgram copies a program of the host.
func (r *session) putProgram(p, host string, attr store.FileAttr) error {
	f, err := os.Open(host)
	if err != nil {
		return fault.FromOS("open", host, err)
	}
	defer f.Close()
	return r.putFile(p, f, attr)
}
