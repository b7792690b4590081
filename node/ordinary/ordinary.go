// Package ordinary serves the users' own files below STORE/durable as vnode nodes.
package ordinary

import (
	"os"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// Options of New.
type Options struct {
	// Root: the daemon is root; every operation takes the caller's fsuid, fsgid and groups.
	Root bool
	// Log hears faults of the store; may be nil.
	Log func(msg string)
}

// FS serves one durable directory.
type FS struct{}

// New serves the directory root (O_PATH is enough), e.g. store.DurableRoot().
func New(root *os.File, o Options) (*FS, error) {
	return nil, fault.Newf(fault.Unavailable, "not there yet")
}

// Node is the node at path below the root, e.g. "home/1000/agent/coder", walked with the rights of r's caller (r nil: the daemon's own). It holds one reference: Unref it.
func (f *FS) Node(r *vnode.Req, path string) (vnode.Node, error) { return nil, nil }

// Is says whether n is a node of this FS (for CrossDevice decisions).
func (f *FS) Is(n vnode.Node) bool { return false }

// Statfs is statfs(2) of the store's file system.
func (f *FS) Statfs() (vnode.Statfs, error) { return vnode.Statfs{}, nil }

// MakeHome makes home/<uid> (0700, uid:gid) and home/<uid>/agent; existing ones stay.
func (f *FS) MakeHome(uid, gid uint32) error { return nil }

// MakeAgentHome makes home/<uid>/agent/<name>/{root,session,data,cache,log}; existing ones stay.
func (f *FS) MakeAgentHome(uid, gid uint32, name string) error { return nil }

// MakeShared makes shared/<space>/{data,agent}: data uid:gid with mode (07777).
func (f *FS) MakeShared(space string, uid, gid uint32, mode uint32) error { return nil }

// Close drops all descriptors.
func (f *FS) Close() error { return nil }
