package stage

import "time"

// Kind says where the bytes of a row come from.
type Kind string

// The kinds of rows.
const (
	Host  Kind = "host"  // a path of the host, opened with the owner's or the caller's ids
	View  Kind = "view"  // the agent's own view, mounted on the skeleton's ctx; Source is /ctx or below
	Store Kind = "store" // a directory handed in as a descriptor
	Temp  Kind = "tmpfs" // a tmpfs of ours that the agent may write; Size bytes
	Empty Kind = "empty" // a small read-only directory of ours that carries the rows below it
)

// Row is one line of the mount table. nosuid and nodev are always set.
type Row struct {
	Line      int    `json:"line,omitempty"`   // line of the mount control; 0: not from it
	Origin    string `json:"origin,omitempty"` // for messages: "mount" (default), "--mount", "workspace", "root"
	Kind      Kind   `json:"kind"`
	Source    string `json:"source"`          // as written
	Store     string `json:"store,omitempty"` // key of the descriptor, kind Store
	Sub       string `json:"sub,omitempty"`   // one name below the descriptor, made 0700 when missing
	Target    string `json:"target"`
	Size      int64  `json:"size,omitempty"` // kind Temp
	RW        bool   `json:"rw,omitempty"`
	Recursive bool   `json:"recursive,omitempty"` // rbind
	NoExec    bool   `json:"noexec,omitempty"`
	Caller    bool   `json:"caller,omitempty"`   // opened with the caller's ids, not the owner's
	Handover  bool   `json:"handover,omitempty"` // /workspace, /home/agent: idmapped owner→agent where that applies
	Home      bool   `json:"home,omitempty"`     // the agent's own home: session, log, root inside are read-only; missing mount points may be made

	Within []Within `json:"within,omitempty"` // of a child, kind Host: what bounds it
}

// Control is the name under which messages show the row's origin.
func (r *Row) Control() string {
	if r.Origin == "" {
		return "mount"
	}
	return r.Origin
}

// Refusal is a directory that no source may be, contain or lie in.
type Refusal struct {
	Path   string `json:"path"`
	Reason string `json:"reason"` // "the store", "the runtime directory" …
}

// Effective is a row as it was mounted.
type Effective struct {
	Row
	Resolved string `json:"resolved,omitempty"` // the host path behind Source, symlinks followed
	Made     string `json:"made,omitempty"`     // why we added it: "git", "home", "base", "root", "mask"; empty for rows of the table
	IDMapped bool   `json:"idmapped,omitempty"`
	NoSuid   bool   `json:"nosuid"`
	NoDev    bool   `json:"nodev"`
}

// Account is a full set of ids.
type Account struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// Base is a path of the host that we vouch for: root's or the installation's,
// with no component that an agent's owner could change.
type Base struct {
	Source, Target string
	Optional       bool // no such path on this host: left out
}

// Request is what the stage helper is told, as JSON on descriptor FDRequest.
type Request struct {
	Agent     string            `json:"agent"`
	Root      bool              `json:"root"`  // the helper is root; else it is the owner in a user namespace
	Check     bool              `json:"check"` // end before the first mount
	Identity  Account           `json:"identity"`
	Owner     uint32            `json:"owner"`
	Caller    Account           `json:"caller"`
	IsoUID    bool              `json:"iso_uid"`
	Rows      []Row             `json:"rows"`
	RootDir   *Row              `json:"root_dir,omitempty"`
	Base      []Base            `json:"base"`
	Refuse    []Refusal         `json:"refuse"`
	AllowHome bool              `json:"allow_home,omitempty"`
	GitRW     bool              `json:"git_rw,omitempty"`
	Skeleton  Handed            `json:"skeleton"`
	Stores    map[string]Handed `json:"stores"`
	Wire      bool              `json:"wire"`
	Bwrap     string            `json:"bwrap"`
	Deadline  time.Duration     `json:"deadline,omitempty"` // of the opens of one helper; 0: 5 s
	Command   []string          `json:"command"`            // "--" and what follows; options are on FDArgs
}

// Handed is a directory that the daemon hands in. The stage helper of a user
// cannot clone a mount of the daemon's namespace, so it opens the path again and
// compares; root uses the descriptor.
type Handed struct {
	FD   int    `json:"fd"`
	Path string `json:"path"`
}

// Descriptors of the stage helper. Those from FDFirst on are named in the
// Request. Wire, status, seccomp and args keep their numbers in bwrap, and the
// wire also in the command.
const (
	FDWire    = 3 // without a wire: anything, and it is closed
	FDRequest = 4
	FDResult  = 5
	FDStatus  = 6
	FDSeccomp = 7
	FDArgs    = 8
	FDFirst   = 9
)

// Names of argv[0] under which the helpers run.
const (
	StageName = "cortexfs-stage"
	OpenName  = "cortexfs-open"
)

// StagedRoot is where the tree stands in the stage helper's mount namespace:
// below /tmp, which bubblewrap cannot do without either.
const StagedRoot = "/tmp/root"

// Result is what the stage helper says, one JSON document, before it becomes
// bwrap, and another one if it cannot.
type Result struct {
	Table    []Effective `json:"table,omitempty"`
	Warnings []string    `json:"warnings,omitempty"`
	Landlock int         `json:"landlock,omitempty"` // version of the domain that bwrap runs in; 0: the kernel has none
	Stuck    []int       `json:"stuck,omitempty"`    // pids of open helpers left behind
	Error    *StartError `json:"error,omitempty"`
}
