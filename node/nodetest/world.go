package nodetest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/ordinary"
	"cortexfs/node/store"
	"cortexfs/node/tool"
	"cortexfs/node/tree"
	"cortexfs/node/view"
	"cortexfs/node/vnode"
)

// Users are the accounts of a World: uid → primary gid, and members of groups.
type Users struct {
	Primary map[uint32]uint32
	Member  map[uint32][]uint32 // uid → supplementary gids
}

// User implements agent.UserDB.
func (u Users) User(uid uint32) (uint32, bool) { gid, ok := u.Primary[uid]; return gid, ok }

// Group implements agent.UserDB.
func (u Users) Group(gid uint32) bool {
	for _, g := range u.Primary {
		if g == gid {
			return true
		}
	}
	for _, gs := range u.Member {
		for _, g := range gs {
			if g == gid {
				return true
			}
		}
	}
	return false
}

// Groups implements agent.UserDB.
func (u Users) Groups(uid uint32) []uint32 {
	gid, ok := u.Primary[uid]
	if !ok {
		return nil
	}
	return append([]uint32{gid}, u.Member[uid]...)
}

// The accounts of every World beside root.
const (
	Alice   = 2001
	Bob     = 2002
	Carol   = 2003
	Project = 4999 // a group of Alice and Bob
)

// World is a whole tree over a temporary store.
type World struct {
	TB       testing.TB
	Dir      string // holds the store
	Store    *store.Store
	Agents   *agent.Table
	Tools    *tool.Catalog
	Views    *view.Views
	Ordinary *ordinary.FS
	Tree     *tree.Tree
	Users    Users
	Root     bool // the daemon is root; else everything is the test's user

	mu   sync.Mutex
	live map[agent.Key]Life
}

// Life is a made-up state of an agent.
type Life struct {
	State node.State
	PID   int
}

// Live implements agent.Runtime.
func (w *World) Live(k agent.Key) (node.State, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l, ok := w.live[k]; ok {
		return l.State, l.PID
	}
	return node.Dead, 0
}

// SetLive says that an agent lives; Dead that it does not.
func (w *World) SetLive(k agent.Key, state node.State, pid int) {
	w.mu.Lock()
	w.live[k] = Life{state, pid}
	w.mu.Unlock()
	w.Tree.StateChanged(k)
}

// New makes a world; everything is closed and removed with the test. change may
// edit the tree's options.
func New(tb testing.TB, change ...func(*tree.Options)) *World {
	tb.Helper()
	w := &World{TB: tb, Dir: tb.TempDir(), Root: os.Geteuid() == 0, live: map[agent.Key]Life{}}
	w.Users = Users{
		Primary: map[uint32]uint32{0: 0, Alice: Alice, Bob: Bob, Carol: Carol},
		Member:  map[uint32][]uint32{Alice: {Project}, Bob: {Project}},
	}
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if !w.Root {
		w.Users.Primary[uid] = gid
	}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	var err error
	w.Store, err = store.Open(filepath.Join(w.Dir, "store"), store.Options{Create: true, Log: func(m string) { tb.Log("store: ", m) }})
	must(err)
	tb.Cleanup(func() { w.Store.Close() })
	w.Ordinary, err = ordinary.New(w.Store.DurableRoot(), ordinary.Options{Root: w.Root})
	must(err)
	tb.Cleanup(func() { w.Ordinary.Close() })
	w.Tools = tool.New(w.Store)
	w.Agents, err = agent.New(w.Store, agent.Options{
		Users: w.Users, Root: w.Root, DaemonUID: uid, DaemonGID: gid, Subjects: w.Tools, PerUID: 10000,
	})
	must(err)
	tb.Cleanup(func() { w.Agents.Close() })
	w.Agents.SetRuntime(w)
	w.Views = view.New(w.Agents, w.Tools)
	o := tree.Options{
		Store: w.Store, Agents: w.Agents, Tools: w.Tools, Views: w.Views, Ordinary: w.Ordinary, Users: w.Users,
		Root: w.Root, DaemonUID: uid, DaemonGID: gid, Runtime: "/run/cortexfs/test", Version: "test",
		Bin:       map[string]tree.File{"ctx": {Data: []byte("#!/bin/sh\n")}},
		AgentExec: tree.File{Data: []byte("#!/bin/sh\nexit 69\n")},
		Socket: func(k agent.Key) (string, bool) {
			state, _ := w.Live(k)
			return "/run/cortexfs/test/agent/" + k.RuntimeKey() + "/main.sock", state.Alive()
		},
		HideFor: 50 * time.Millisecond,
		Groups:  func(r *vnode.Req) []uint32 { return w.Users.Member[r.UID] },
	}
	for _, f := range change {
		f(&o)
	}
	w.Tree, err = tree.New(o)
	must(err)
	tb.Cleanup(w.Tree.Close)
	return w
}

// Client is a process on the main tree; its descriptors are closed with the test.
func (w *World) Client(uid, gid uint32, groups ...uint32) *Proc {
	p := NewProc(w.Tree, uid, gid, groups...)
	w.TB.Cleanup(p.CloseAll)
	return p
}

// Env is the world for RunTree.
func (w *World) Env() Env {
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	e := Env{Root: w.Client(uid, gid), UID: uid, GID: gid}
	e.Other = func() Client { return w.Client(uid, gid) }
	if w.Root {
		e.As = func(uid, gid uint32, groups ...uint32) Client { return w.Client(uid, gid, groups...) }
	}
	return e
}
