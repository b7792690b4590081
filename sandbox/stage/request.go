package stage

// Kind says where the bytes of a row come from.
type Kind string

// The kinds; see package sandbox for their meaning.
const (
	Host  Kind = "host"
	View  Kind = "view"
	Store Kind = "store"
	Empty Kind = "empty"
)

// Row is one line of the mount table.
type Row struct {
	Line      int    `json:"line,omitempty"`   // line of the mount control; 0: not from it
	Origin    string `json:"origin,omitempty"` // for messages: "mount" (default), "--mount", "workspace", "root"
	Kind      Kind   `json:"kind"`
	Source    string `json:"source"`          // as written
	Store     string `json:"store,omitempty"` // key of the descriptor, kind Store
	Target    string `json:"target"`
	RW        bool   `json:"rw,omitempty"`
	Recursive bool   `json:"recursive,omitempty"` // rbind
	NoExec    bool   `json:"noexec,omitempty"`
	Caller    bool   `json:"caller,omitempty"`   // opened with the caller's ids, not the owner's
	Handover  bool   `json:"handover,omitempty"` // /workspace, /home/agent: idmapped owner→agent where that applies
	Home      bool   `json:"home,omitempty"`     // the agent's own home: session, log, root inside are read-only; missing mount points may be made
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
	Made     string `json:"made,omitempty"`     // why we added it: "git", "home", "base", "root"; empty for rows of the table
	IDMapped bool   `json:"idmapped,omitempty"`
	NoSuid   bool   `json:"nosuid"`
	NoDev    bool   `json:"nodev"`
}
