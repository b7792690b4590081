package policy

import "cortexfs/node/fault"

// Request is one question "may this agent execute this tool now", with every
// fact that the rows of spec section 8 look at. The caller finds the facts; the
// package only judges them.
type Request struct {
	Tool   string // the name asked for
	Model  bool   // the caller is a model: never a subject
	Hosted bool   // adds rows 1, 2, 8 and 9

	Declared     bool   // the tool is in the agent's `tools`; tsh always is
	DeclaredLine int    // where
	ToolsFile    string // path of `tools`, for people

	Searched  []string // directories of the search path, in order
	Hit       *Hit     // first regular executable of that name; nil: none
	UID, GID  uint32   // host ids of the agent
	Groups    []uint32
	Mount     *MountFact // the mount line that exposes the hit; nil: none does
	MountFile string     // path of `mount`, for people

	Subject         string // label type of the agent
	AgentPolicy     *Set   // nil: missing or invalid
	ToolPolicy      *Set   // of the tool that was found; nil: missing or invalid
	AgentPolicyFile string
	ToolPolicyFile  string

	Opened   *OpenFact     // row 8; nil: not opened yet
	Approval *ApprovalFact // row 9; nil: approval=auto, or not asked yet
	Ask      bool          // approval=ask: row 9 exists
}

// Hit is the file that the search found.
type Hit struct {
	Path      string
	Mode      uint32 // permission bits
	UID, GID  uint32
	Search    bool   // the search bits on the way hold for the agent
	SearchWhy string // directory that refuses
}

// MountFact is the line of the agent's mount table that exposes the hit.
type MountFact struct {
	Line   int
	Target string
	NoExec bool
}

// OpenFact is how the executable opened inside the sandbox.
type OpenFact struct {
	OK   bool
	Loop bool   // a link stood in the way: ELOOP
	Why  string // what else was wrong
}

// ApprovalFact is the answer to one approval request.
type ApprovalFact struct {
	Allowed bool
	Reason  string // word of spec section 15
}

// Verdict is one row.
type Verdict struct {
	Row     int
	Name    string
	OK      bool
	Asked   bool // false: not evaluated, shown as "-"
	Kind    fault.Kind
	File    string // what decided
	Line    int
	Why     string
	Missing string // exact rule text that would allow it
}

// Authorize answers whether every row holds; the verdict is the first that
// fails, or the zero Verdict. It does not allocate when the answer is yes.
func Authorize(q *Request) (Verdict, bool) { return Verdict{}, false }

// Explain answers every row, in order.
func Explain(q *Request) []Verdict { return nil }
