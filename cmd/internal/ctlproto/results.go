package ctlproto

// Results of the operations, in the Data of a result frame. Lists (ps, why,
// view) come as "item" frames of one element each, so that no frame grows with
// the number of agents or tools.

// Agent names an agent in an answer.
type Agent struct {
	Ref   string `json:"ref"`  // agent/NAME or home/UID/agent/NAME
	Name  string `json:"name"` // NAME
	Owner uint32 `json:"owner"`
	State string `json:"state"`
}

// Started answers start and restart.
type Started struct {
	Agent
	Joined    bool     `json:"joined,omitempty"` // it ran already
	PID       int      `json:"pid"`
	UID       uint32   `json:"uid"`
	GID       uint32   `json:"gid"`
	Groups    []uint32 `json:"groups"`
	Label     string   `json:"label"`
	Model     string   `json:"model"`
	Life      string   `json:"life"`
	Session   string   `json:"session"`
	CWD       string   `json:"cwd"`                 // inside
	Workspace string   `json:"workspace,omitempty"` // on the host
	Socket    string   `json:"socket"`              // terminal
	Since     string   `json:"since,omitempty"`     // RFC 3339
	Plan      *DryRun  `json:"plan,omitempty"`
}

// DryRun is what a start would do.
type DryRun struct {
	Identity []string `json:"identity"`
	Env      []string `json:"env"`
	Mounts   []string `json:"mounts"`
	Argv     []string `json:"argv"`
	Text     string   `json:"text"` // all of it, for people
}

// Stopped answers stop.
type Stopped struct {
	Agent
	Was string `json:"was"` // state before
}

// Terminal answers attach and watch: where to connect and which mode line to
// send. The client checks the server before it sends a byte.
type Terminal struct {
	Agent
	Path    string `json:"path"`
	Session string `json:"session"`
	PID     int    `json:"pid"`    // the host process that answers there
	Server  uint32 `json:"server"` // uid of the process that made the socket: the daemon
}

// PSItem is one agent of ps. A caller who is neither owner nor root sees name
// and state only.
type PSItem struct {
	Agent
	Parent  string `json:"parent,omitempty"`
	Session string `json:"parent_session,omitempty"`
	Run     string `json:"parent_run,omitempty"`
	Model   string `json:"model,omitempty"`
	Life    string `json:"life,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Init    int    `json:"init,omitempty"`      // host pid of its pid namespace's init
	Orphan  string `json:"orphan_of,omitempty"` // the parent that it names is not there
	Hidden  bool   `json:"hidden,omitempty"`    // only name and state were told
}

// Described answers status.
type Described struct {
	Agent
	Model    string    `json:"model,omitempty"`
	Life     string    `json:"life,omitempty"`
	Parent   string    `json:"parent,omitempty"`
	Children []string  `json:"children,omitempty"`
	PID      int       `json:"pid,omitempty"`
	UID      uint32    `json:"uid"`
	GID      uint32    `json:"gid"`
	Groups   []string  `json:"groups,omitempty"` // "(kept)" marks those a user's daemon cannot drop
	Label    string    `json:"label,omitempty"`
	Root     string    `json:"root,omitempty"`
	CWD      string    `json:"cwd,omitempty"`
	Session  string    `json:"session,omitempty"`
	Restart  []string  `json:"restart,omitempty"` // controls changed since the start
	Pending  string    `json:"pending,omitempty"`
	Enforced []string  `json:"enforced,omitempty"`
	Grants   []Granted `json:"grants,omitempty"` // root's, beyond what its parents have
	Warnings []string  `json:"warnings,omitempty"`
	Faults   []string  `json:"faults,omitempty"` // why it cannot start
	Hidden   bool      `json:"hidden,omitempty"`
}

// WhyRow is one row of section 8 as `ctx agent why` prints it.
type WhyRow struct {
	Row     int    `json:"row"`
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Asked   bool   `json:"asked"` // false: not decided now (rows 8 and 9)
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Why     string `json:"why,omitempty"`
	Missing string `json:"missing,omitempty"`
	// Ancestor is the agent above that decided the row.
	Ancestor string `json:"ancestor,omitempty"`
}

// WhyVerdict is the verdict after its rows.
type WhyVerdict struct {
	Agent
	Tool    string   `json:"tool"`
	Allowed bool     `json:"allowed"`
	Notes   []string `json:"notes,omitempty"`
}

// ViewItem is one thing that an agent sees.
type ViewItem struct {
	Kind string `json:"kind"` // tool, mount
	Path string `json:"path"`
	Mode string `json:"mode,omitempty"`
	Text string `json:"text,omitempty"`
}

// EnvItem is one variable, in order.
type EnvItem struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Granted is one grant of root to a child.
type Granted struct {
	N      int    `json:"n"`
	Ref    string `json:"ref"`
	Parent string `json:"parent"`
	Kind   string `json:"kind"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
	By     string `json:"by"`
	At     string `json:"at"`             // RFC 3339
	Void   bool   `json:"void,omitempty"` // owner, label or parent is another by now
}

// Child is one child of an agent, and how far it is with what was handed to it.
type Child struct {
	Agent
	Channel string `json:"channel,omitempty"` // pending active done error cancelled; "": none
	Session string `json:"session,omitempty"` // the child's own
	Parent  string `json:"parent_session,omitempty"`
	Run     string `json:"parent_run,omitempty"`
	Model   string `json:"model,omitempty"`
	Life    string `json:"life,omitempty"`
	PPID    int    `json:"ppid,omitempty"`
	PID     int    `json:"pid,omitempty"`
}

// ChildResult answers a wait for a child.
type ChildResult struct {
	Child
	Result string `json:"result,omitempty"` // of result.md, at most 48 KiB
}

// Waited answers wait.
type Waited struct {
	Agent
	Reached bool `json:"reached"` // false: the time ran out
}

// Line is one line of bootstrap's report.
type Line struct {
	Text string `json:"text"`
}

// Bootstrapped answers bootstrap after its lines.
type Bootstrapped struct {
	Changed bool `json:"changed"` // something was, or would be, written
}

// Exited answers exec.
type Exited struct {
	Code      int    `json:"code"`
	Truncated bool   `json:"truncated,omitempty"` // more was written than was told
	TimedOut  bool   `json:"timed_out,omitempty"`
	Errno     string `json:"errno,omitempty"` // could not be started
}

// Item makes a frame of one list element.
func Item(v any) (*Frame, error) {
	f, err := Result(v)
	if err != nil {
		return nil, err
	}
	f.Type, f.Done = "item", false
	return f, nil
}
