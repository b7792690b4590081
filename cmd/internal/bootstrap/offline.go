package bootstrap

import (
	"errors"
	"os"

	"cortexfs/node/agent"
	"cortexfs/node/fault"
	"cortexfs/node/ordinary"
	"cortexfs/node/store"
	"cortexfs/node/tool"
)

// Offline is a World over a store that no daemon serves. Close it.
type Offline struct {
	World
	ord   *ordinary.FS
	tools *tool.Catalog
}

// OpenStore takes a store for a bootstrap without a daemon. A store that is
// served is refused (Busy), with the word to go through its mount.
func OpenStore(path string, root bool) (*Offline, error) {
	uid, gid := uint32(os.Geteuid()), uint32(os.Getegid())
	if !root && uid == 0 {
		return nil, fault.Newf(fault.Invalid, "open store: root is a root daemon's uid")
	}
	st, err := store.Open(path, store.Options{Create: true})
	if err != nil {
		return nil, err
	}
	tools := tool.New(st)
	agents, err := agent.New(st, agent.Options{
		Root: root, DaemonUID: uid, DaemonGID: gid, DaemonGroups: groups(), Subjects: tools,
	})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	ord, err := ordinary.New(st.DurableRoot(), ordinary.Options{Root: root})
	if err != nil {
		return nil, errors.Join(err, agents.Close(), st.Close())
	}
	return &Offline{World: World{Store: st, Agents: agents, Ordinary: ord, UID: uid, GID: gid, Changed: tools.Changed}, ord: ord, tools: tools}, nil
}

// Close gives the store back.
func (o *Offline) Close() error {
	return errors.Join(o.ord.Close(), o.Agents.Close(), o.Store.Close())
}

func groups() []uint32 {
	ids, err := os.Getgroups()
	if err != nil {
		return nil
	}
	out := make([]uint32, 0, len(ids))
	for _, g := range ids {
		out = append(out, uint32(g))
	}
	return out
}
