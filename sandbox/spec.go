package sandbox

import (
	"time"

	"cortexfs/sandbox/stage"
)

// Iso is the identity mode of an agent (spec 10.2).
type Iso string

// The modes. Private user namespaces (IsoUserNS) are refused by Plan with
// fault.Unavailable: they are not built yet, and nothing weaker takes their
// place.
const (
	IsoShared Iso = "shared"
	IsoUID    Iso = "uid"
	IsoUserNS Iso = "userns"
)

// Account is the full set of ids of somebody: the owner, or who asked for a
// start. Groups are the supplementary groups, in any order.
type Account struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Kind says where the bytes of a row come from.
type Kind = stage.Kind

// The kinds of rows.
const (
	// Host is a path of the host, opened by the open helper with the owner's
	// (or, with Row.Caller, the caller's) rights.
	Host = stage.Host
	// View is the agent's own view: the mount on the skeleton's ctx. Source is
	// /ctx or a path below it.
	View = stage.View
	// Store is a directory that the daemon hands in as a descriptor:
	// StartFiles.Store[Row.Store].
	Store = stage.Store
	// Empty is a small read-only directory of ours that only carries the rows
	// below it.
	Empty = stage.Empty
)

// Row is one line of the effective mount table. nosuid and nodev are always
// set, whatever a line says.
type Row = stage.Row

// Within is what bounds a row of a child.
type Within = stage.Within

// Refusal is a directory that is never handed over (spec 10.3): no source may
// be it, contain it or lie in it.
type Refusal = stage.Refusal

// Spec says what a sandbox is to be. It is plain data: nothing in it has been
// opened, and Plan opens nothing either.
type Spec struct {
	Agent   string // bare name: user name, host name
	Session string // for messages; the environment is in Env

	// Root says that the daemon is root: ids are changed, groups are exact.
	// False: everything runs as the daemon's user, in a user namespace.
	Root bool

	Iso    Iso
	Owner  uint32   // uid that owns the agent; its other ids are read from the account files at the start
	UID    uint32   // runtime ids, never 0
	GID    uint32   //
	Groups []uint32 // exact under root; under a user's daemon those it holds
	Caller Account  // who asked; sources marked Row.Caller are opened with these ids

	Rows      []Row     // the table, --mount rows and the workspace, in any order
	Refuse    []Refusal // store, runtime directory, mounts, secrets … beyond the fixed list of spec 10.3
	AllowHome bool      // ro lines may be or contain a home directory (--allow-home)
	GitRW     bool      // leave .git of rw sources writable (--git rw)

	// RootDir is the agent's root control as a row of kind Host or Store whose
	// target is ignored; nil means no entries of its own ("/").
	RootDir *Row

	Skeleton string   // host path of the directory that MakeSkeleton made; its ctx carries the view
	Term     string   // host path of the program bound at TermPath; empty: none
	Program  string   // host path of the agent's program, bound at ProgramPath; empty: none
	Cwd      string   // inside; must exist
	Env      []string // the whole environment, KEY=VALUE; see Environment
	Network  bool     // reserved: true is refused with fault.Unavailable
	Command  []string // empty: TermPath alone
	TmpSize  int64    // bytes of the private /tmp; 0: 25 % of memory, at most 1 GiB
	// OpenDeadline bounds all opens of one helper together; 0: 5 s (spec 24).
	OpenDeadline time.Duration
	Bwrap        string // absolute path of bubblewrap; empty: bwrap.Locate
}

// Fixed places inside.
const (
	HomePath = "/home/agent"
	RunPath  = "/run/cortexfs"
	TermPath = "/run/cortexfs/ctxterm"
	// ProgramPath is the agent's program (spec section 14).
	ProgramPath = "/run/cortexfs/agent-executable"
)
