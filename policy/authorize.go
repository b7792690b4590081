package policy

import (
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/node/text"
)

// Request is one question "may this agent execute this tool now", with every
// fact that the rows of spec section 8 look at. The caller finds the facts, all
// of them for this one call; the package only judges them.
type Request struct {
	Tool   string // the name asked for
	Model  bool   // the caller is a model: never a subject
	Hosted bool   // adds rows 1, 2, 8 and 9

	Declared     bool // the tool is in the agent's `tools`, or is tsh
	DeclaredLine int  // where, from 1
	ToolsFile    string

	Searched   []string // directories of the search path, in order
	SearchFile string   // path of `path`, where that is not empty
	Hit        *Hit     // first regular executable of that name; nil: none

	UID, GID uint32 // host ids of the agent
	Groups   []uint32

	Mount     *MountFact // the mount line that exposes the hit; nil: none does
	MountFile string

	Subject         string // label type of the agent
	AgentPolicy     *Set   // nil: missing or invalid
	ToolPolicy      *Set   // of the tool that was found; nil: missing or invalid
	AgentPolicyFile string
	ToolPolicyFile  string

	Opened   *OpenFact     // row 8; nil: not opened yet
	Approval *ApprovalFact // row 9; nil: not asked yet

	// Above are the agent's ancestors, nearest first: rows 2, 3, 5 and 6 have to
	// hold for each of them too, with its own subject (spec section 17).
	Above []Ancestor
	// Lineage says why the ancestors are not known; then row 6 refuses.
	Lineage     string
	LineageFile string
	HitDir      string // directory of the hit, as search paths spell it; for Above
	// GrantedRule and GrantedTool: root has granted the rule, or the declaration,
	// to this agent beyond its ancestors.
	GrantedRule, GrantedTool bool
}

// Ancestor is one agent above the caller.
type Ancestor struct {
	Name       string // for messages: agent/architect
	Subject    string
	Policy     *Set
	PolicyFile string
	Declares   func(tool string) (line int, ok bool)
	ToolsFile  string
	Searched   []string
	SearchFile string
	Mount      *MountFact
	MountFile  string
	// Born: the agent before it in Above, for the first one the caller, was created
	// by it; so row 7 holds for that agent where it holds for this one.
	Born bool
}

// Hit is the file that the search found.
type Hit struct {
	Path      string
	Mode      uint32 // permission bits
	UID, GID  uint32
	Search    bool   // the search bits on the way hold for the agent
	SearchWhy string // the directory that refuses
}

// MountFact is the line of the agent's mount table that exposes the hit.
type MountFact struct {
	Line   int
	Target string
	NoExec bool
}

// OpenFact is how the executable opened inside the sandbox.
type OpenFact struct {
	OK   bool   // it opened without following links and is a regular executable
	Loop bool   // not: a link stood in the way
	Why  string // not: what else was wrong
}

// ApprovalFact is the answer of row 9.
type ApprovalFact struct {
	Auto    bool   // approval=auto: nobody is asked
	Allowed bool   // one approval for this one call
	Reason  string // word of spec section 15
}

// Verdict is the answer of one row.
type Verdict struct {
	Row     int
	Name    string
	OK      bool
	Asked   bool       // false: there was nothing to judge (yet), shown as "-"
	Kind    fault.Kind // of the refusal
	File    string     // the file that decided, where one did
	Line    int        // its line, from 1
	Why     string     // reason of a refusal, or what was found
	Missing string     // the exact line that File would need
	// Ancestor is the agent above that decided: that refuses, or by whose right row
	// 7 holds; "": the caller itself.
	Ancestor string
}

// The rows of spec section 8.
const (
	rowName = iota + 1
	rowDeclared
	rowSearch
	rowLinux
	rowMount
	rowAgent
	rowTool
	rowOpen
	rowApproval
	rowsEnd
)

var rowNames = [rowsEnd]string{
	rowName: "name", rowDeclared: "declared", rowSearch: "search path", rowLinux: "linux", rowMount: "mount",
	rowAgent: "agent policy", rowTool: "tool policy", rowOpen: "open", rowApproval: "approval",
}

// RowName is the name of a row, 1–9.
func RowName(row int) string {
	if row < 1 || row >= rowsEnd {
		return ""
	}
	return rowNames[row]
}

// rows are those that hold for the request: 3–7 always, the others for hosted
// calls.
func (q *Request) rows() (from, end int) {
	if q.Hosted {
		return rowName, rowsEnd
	}
	return rowSearch, rowTool + 1
}

// Authorize says whether every row holds; if not, the verdict is the first that
// does not. A hosted call whose row 8 or 9 has no fact yet is not allowed: that
// verdict has Asked false, and the caller opens or asks and calls again. It does
// not allocate when the answer is yes.
func Authorize(q *Request) (Verdict, bool) {
	from, end := q.rows()
	for n := from; n < end; n++ {
		if v := q.row(n); !v.OK {
			return v, false
		}
	}
	return Verdict{OK: true}, true
}

// Explain answers every row that the request has, in order, also those after a
// refusal. Rows that cannot be judged (no hit, not opened, not asked) have Asked
// false.
func Explain(q *Request) []Verdict {
	from, end := q.rows()
	all := make([]Verdict, 0, end-from)
	for n := from; n < end; n++ {
		all = append(all, q.row(n))
	}
	return all
}

// Denied is the first row that was judged and refused. Without one, what is
// still open (rows 8 and 9 before a call) decides at the call.
func Denied(rows []Verdict) (Verdict, bool) {
	for _, v := range rows {
		if v.Asked && !v.OK {
			return v, true
		}
	}
	return Verdict{}, false
}

// row judges one row. On a yes it only fills in constants and fields of the
// request, so that nothing is allocated.
func (q *Request) row(n int) Verdict {
	v := Verdict{Row: n, Name: rowNames[n], Asked: true, Kind: fault.Access}
	switch n {
	case rowName:
		q.judgeName(&v)
	case rowDeclared:
		v.OK, v.File, v.Line = q.Declared, q.ToolsFile, q.DeclaredLine
		if !v.OK {
			v.Why, v.Missing = "not declared", q.Tool
			break
		}
		q.declaredAbove(&v)
	case rowSearch:
		if q.judgeSearch(&v); v.OK {
			q.searchedAbove(&v)
		}
	case rowLinux:
		q.judgeLinux(&v)
	case rowMount:
		if q.judgeMount(&v); v.OK {
			q.mountedAbove(&v)
		}
	case rowAgent:
		if q.judgePolicy(&v, q.AgentPolicy, q.AgentPolicyFile); v.OK {
			q.allowedAbove(&v)
		}
	case rowTool:
		if q.Hit == nil {
			return q.unknown(v)
		}
		if _, own := q.ToolPolicy.Allows(q.Subject, Tool, q.Tool, Execute); own || !q.bornOf(&v) {
			q.judgePolicy(&v, q.ToolPolicy, q.ToolPolicyFile)
		}
	case rowOpen:
		q.judgeOpen(&v)
	case rowApproval:
		q.judgeApproval(&v)
	}
	return v
}

// unknown is the verdict of a row that looks at the hit when there is none.
func (q *Request) unknown(v Verdict) Verdict {
	v.Asked, v.Why = false, "nothing was found"
	return v
}

func (q *Request) judgeName(v *Verdict) {
	switch _, why := text.BadName(q.Tool, node.MaxName); {
	case why != "":
		v.Kind, v.Why = fault.Invalid, why
	case q.Model:
		v.Why = "a model executes nothing"
	default:
		v.OK = true
	}
}

func (q *Request) judgeSearch(v *Verdict) {
	v.Kind, v.File = fault.NotExist, q.SearchFile
	if q.Hit == nil {
		v.Why = "no executable of that name in " + strings.Join(q.Searched, ":")
		return
	}
	v.OK, v.Why = true, q.Hit.Path
}

func (q *Request) judgeLinux(v *Verdict) {
	if q.Hit == nil {
		*v = q.unknown(*v)
		return
	}
	v.File = q.Hit.Path
	switch {
	case !q.Hit.Search:
		v.Why = "no search permission on the way"
		if q.Hit.SearchWhy != "" {
			v.Why = "no search permission: " + q.Hit.SearchWhy
		}
	case !q.executable():
		v.Why = "no execute permission for the agent's ids"
	default:
		v.OK = true
	}
}

// executable is the kernel's rule for an ordinary user: the bits of the first
// class that fits decide, also when a later class has more. No capability helps,
// because an agent has none.
func (q *Request) executable() bool {
	bit := uint32(0o001)
	switch {
	case q.Hit.UID == q.UID:
		bit = 0o100
	case q.Hit.GID == q.GID || slices.Contains(q.Groups, q.Hit.GID):
		bit = 0o010
	}
	return q.Hit.Mode&bit != 0
}

func (q *Request) judgeMount(v *Verdict) {
	if q.Hit == nil {
		*v = q.unknown(*v)
		return
	}
	v.File = q.MountFile
	switch {
	case q.Mount == nil:
		v.Why = "no line exposes " + q.Hit.Path
	case q.Mount.NoExec:
		v.Line, v.Why = q.Mount.Line, "mounted noexec at "+q.Mount.Target
	default:
		v.OK, v.Line, v.Why = true, q.Mount.Line, q.Mount.Target
	}
}

func (q *Request) judgePolicy(v *Verdict, s *Set, file string) {
	v.File = file
	if v.Line, v.OK = s.Allows(q.Subject, Tool, q.Tool, Execute); v.OK {
		return
	}
	v.Why = "no rule allows it"
	if s == nil {
		v.Why = "the policy is missing or invalid"
	}
	if q.Subject == "" {
		v.Why = "the agent has no label type"
	} else if node.IsName(q.Tool) {
		v.Missing = Rule{Subject: q.Subject, Class: Tool, Name: q.Tool, Perm: Execute}.String()
	}
}

func (q *Request) judgeOpen(v *Verdict) {
	switch o := q.Opened; {
	case o == nil:
		v.Asked, v.Why = false, "opened at the call"
	case o.Loop:
		v.Kind, v.Why = fault.Loop, "a link stands where the executable was"
	case !o.OK:
		v.Why = "no regular executable any more"
		if o.Why != "" {
			v.Why = o.Why
		}
	default:
		v.OK = true
	}
}

func (q *Request) judgeApproval(v *Verdict) {
	switch a := q.Approval; {
	case a == nil:
		v.Asked, v.Why = false, "asked at the call"
	case a.Auto:
		v.OK, v.Asked, v.Why = true, false, "approval=auto"
	case !a.Allowed:
		v.Why = "not approved"
		if a.Reason != "" {
			v.Why = "not approved: " + a.Reason
		}
	default:
		v.OK, v.Why = true, a.Reason
	}
}
