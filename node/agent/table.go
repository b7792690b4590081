package agent

import (
	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
)

// Defaults of Options.
const (
	PoolFirst = 1879048192 // first uid given to agents of owner 0
	PoolLast  = 1879113727
	PerUID    = 256 // agents of one owner
)

// Runtime says what lives. It is asked at every read of status and pid.
type Runtime interface {
	// Live is the state of the agent and the pid of its host process in one
	// snapshot; Dead and 0 when there is none.
	Live(k Key) (node.State, int)
}

// Subjects says who uses a policy subject on the tools' side.
type Subjects interface {
	// NamedElsewhere finds a tool whose policy names subject and whose file does
	// not belong to uid.
	NamedElsewhere(subject string, uid uint32) (path string, ok bool)
}

// Options of New.
type Options struct {
	Users UserDB // nil: SystemUsers
	// Root: the daemon runs as root. Without it everything is one user's.
	Root bool
	// DaemonUID, DaemonGID and DaemonGroups are the daemon's own ids.
	DaemonUID, DaemonGID uint32
	DaemonGroups         []uint32
	// PoolFirst, PoolLast, PerUID override the defaults when not 0.
	PoolFirst, PoolLast uint32
	PerUID              int
	Subjects            Subjects // nil: no tool names anybody
}

// Writer is who asks for a change: the ids of the OPEN, with the groups of that
// moment. Root is root as spec section 1 defines it.
type Writer struct {
	UID, GID uint32
	Groups   []uint32
	Root     bool
}

// CreateOptions of Create.
type CreateOptions struct {
	Writer Writer
	Owner  uint32            // a system agent's owner; in a home it is the path's uid
	Texts  map[string][]byte // texts beyond the defaults, judged like writes
}

type Table struct{}

func New(st *store.Store, o Options) (*Table, error) { panic("not there yet") }

func (t *Table) SetRuntime(r Runtime) { panic("not there yet") }

// NotExist
func (t *Table) Lookup(k Key) (*Object, error) { panic("not there yet") }

// of one tier, sorted
func (t *Table) List(home bool, uid uint32) []Key { panic("not there yet") }

// every agent of the store, sorted
func (t *Table) All() []Key { panic("not there yet") }

// uids with a home tier in the store
func (t *Table) Homes() []uint32 { panic("not there yet") }

// "NAME", "agent/NAME", "home/UID/agent/NAME"; NotExist
func (t *Table) ByBareName(caller uint32, ref string) (Key, error) { panic("not there yet") }

// Exist, Again, Perm, Access, Invalid
func (t *Table) Create(k Key, o CreateOptions) (*Object, error) { panic("not there yet") }

// Busy, NotExist
func (t *Table) Remove(k Key) error { panic("not there yet") }

func (t *Table) Children(k Key) []Key { panic("not there yet") }

// nearest first; Invalid on a cycle
func (t *Table) Ancestors(k Key) ([]Key, error) { panic("not there yet") }

func (t *Table) LabelOwner(typ string) (uid uint32, ok bool) { panic("not there yet") }

// root only (the caller checks)
func (t *Table) FreeLabel(typ string) error { panic("not there yet") }

func (t *Table) Close() error { panic("not there yet") }

type Object struct{}

func (o *Object) Key() Key { panic("not there yet") }

func (o *Object) Store() *store.Object { panic("not there yet") }

func (o *Object) Gone() bool { panic("not there yet") }

// of the newest text
func (o *Object) Gen() uint64 { panic("not there yet") }

// never nil
func (o *Object) Config() *Config { panic("not there yet") }

// effective; origin "durable" | "default"; err: not readable text on disk
func (o *Object) Text(name string) (text []byte, origin string, err error) { panic("not there yet") }

// what defaults depend on
func (o *Object) ControlObject() control.Object { panic("not there yet") }

// Access unless root or owner
func (o *Object) MayWrite(w Writer) error { panic("not there yet") }

// spec 4.8, whole text
func (o *Object) Check(e *control.Entry, text []byte, w Writer) error { panic("not there yet") }

// only the complete lines of text
func (o *Object) CheckPrefix(e *control.Entry, text []byte, w Writer) error { panic("not there yet") }

// `ctx reset`: may the control go back to its default
func (o *Object) CheckReset(e *control.Entry, w Writer) error { panic("not there yet") }

// Judge + Check + Put + event, all under the right lock
func (o *Object) Commit(e *control.Entry, text []byte, w Writer) (gen uint64, err error) {
	panic("not there yet")
}

func (o *Object) Reset(e *control.Entry, w Writer) error { panic("not there yet") }

// everything that ends a start, with the account database of now
func (o *Object) StartFaults() []*fault.Error { panic("not there yet") }

func (o *Object) Live() (node.State, int) { panic("not there yet") }

func (o *Object) Log() *Log { panic("not there yet") }

// Config is what the texts say. Immutable.
type Config struct {
	Key      Key
	Gen      uint64 // newest generation among the texts
	Owner    uint32
	OwnerOK  bool // false: the owner is unknown; only root may write, nothing is allowed
	UID, GID uint32
	Groups   []uint32
	Label    policy.Label
	Subject  string // Label.Type; "" when there is none
	Iso      string // shared | uid | userns
	// Parent control.Parent; Env []control.EnvVar; Mounts []control.MountLine come with package control
	Life     string
	Root     string
	Cwd      string
	Path     []string // the text of `path`
	Search   []string // Path, or the default search path
	Model    string
	Tools    []string
	Abi      string
	Approval string
	Policy   *policy.Set    // nil: nothing is allowed
	Faults   []*fault.Error // what ends a start: invalid and missing controls, with file and line
}

// in `tools`; tsh always is
func (c *Config) Declared(tool string) (line int, ok bool) { panic("not there yet") }

// /ctx/home/<owner>/agent/<name>
func (c *Config) StateDir() string { panic("not there yet") }

// Event is one line of the log.
type Event struct {
	Type, Session, Run, Object, Status, Reason string
	By                                         string // rule, human, timeout, uid…
}

type Log struct{}

func (l *Log) Add(e Event) { panic("not there yet") }

// the generation of now; NotExist is an empty reader
func (l *Log) Open() (*LogReader, error) { panic("not there yet") }

func (l *Log) Size() int64 { panic("not there yet") }

// closed at the next line
func (l *Log) Changed() <-chan struct{} { panic("not there yet") }

type LogReader struct{}

func (r *LogReader) ReadAt(p []byte, off int64) (int, error) { panic("not there yet") }

func (r *LogReader) Size() int64 { panic("not there yet") }

// another number after a rotation: an inode number
func (r *LogReader) Gen() uint64 { panic("not there yet") }

func (r *LogReader) Close() error { panic("not there yet") }
