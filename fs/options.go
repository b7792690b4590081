package fs

import (
	"time"

	"go.uber.org/zap"

	"cortexfs/node/vnode"
)

// Options say what to mount where.
type Options struct {
	// Mountpoint is an existing directory. It is resolved once; what is mounted
	// there already is covered (see ClearDead for our own dead mounts).
	Mountpoint string
	// FS is the tree.
	FS vnode.FS
	// AllowOther lets every user in; without it only the mounting user enters.
	AllowOther bool
	// DefaultPermissions makes the kernel check mode bits. Spec section 21 wants
	// it always; tests of the fallback leave it out.
	DefaultPermissions bool
	ReadOnly           bool
	NoExec             bool
	// FSName is the source shown in the mount table; default "cortexfs".
	FSName string
	// Subtype makes the type "fuse.<Subtype>"; default "cortexfs".
	Subtype string
	// View marks the connection of a running agent: extended attributes are
	// switched off for it (one request less per first write), and changes of names
	// are pushed without locks (EntryChanged).
	View bool
	// Readers is the number of goroutines that listen for requests; 0 means 1. Each
	// costs a thread, and the kernel wakes them in turn, which makes more than one
	// slower for a single client. Others start by themselves when these wait.
	Readers int
	// Log gets faults and panics; nil logs nothing.
	Log *zap.Logger
}

// Times of this package.
const (
	// PushBound is how long WaitPushed waits at most: any process can hold the
	// kernel lock that a push needs as long as it likes (spec 4.4).
	PushBound = 50 * time.Millisecond
	// unmountBound is how long Unmount asks politely before it detaches.
	unmountBound = 2 * time.Second
	// helperBound is how long fusermount3 may take.
	helperBound = 10 * time.Second
	// deadBound is how long a mountpoint may take to answer a stat.
	deadBound = 2 * time.Second
	// drainBound is how long the end of a connection waits for handlers.
	drainBound = 5 * time.Second
)

func (o *Options) fill() {
	if o.FSName == "" {
		o.FSName = "cortexfs"
	}
	if o.Subtype == "" {
		o.Subtype = "cortexfs"
	}
	if o.Readers <= 0 {
		o.Readers = 1
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
}
