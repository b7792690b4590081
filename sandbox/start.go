package sandbox

import (
	"context"
	"os"

	"cortexfs/node/fault"
	"cortexfs/sandbox/stage"
)

// Effective is a row as it was mounted: resolved source, real flags.
type Effective = stage.Effective

// Plan is a Spec that was checked, with everything that will be done spelt out.
type Plan struct {
	Spec    Spec
	Argv    []string // the exact bwrap command; descriptors are spelt as the numbers they will have
	TmpSize int64
}

// StartFiles are the descriptors that go with a Plan. Start duplicates them;
// the caller keeps and closes its own.
type StartFiles struct {
	Wire  *os.File            // becomes fd 3 of the command; nil: none
	Store map[string]*os.File // O_PATH directories for rows of kind Store
	// Standard files of the command; nil: /dev/null, and for Stderr a small
	// sealed memory file whose text shows up in SetupError.
	Stdin, Stdout, Stderr *os.File
}

// Process names a process for good: pid and start time (ticks since boot, as in
// /proc/PID/stat field 22).
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// Record is what is needed to find a sandbox again after a daemon restart.
type Record struct {
	Bwrap Process `json:"bwrap"`
	Init  Process `json:"init"`
}

// Running is a started sandbox.
type Running struct {
	PID      int         // bwrap, a child of this process (unless adopted)
	Init     int         // host pid of the pid namespace's init
	Table    []Effective // what was mounted
	Warnings []string    // e.g. a listening socket below a source; no idmapped mounts
}

// Exit is how a sandbox ended.
type Exit struct {
	Code    int    // exit code of the command, 128+n for a signal; -1 unknown
	Started bool   // the command ran; false: bwrap failed to set up, see Message
	Message string // bwrap's own words
}

// StartError says why a start ended.
type StartError = stage.StartError

var errSoon = fault.Newf(fault.Unavailable, "not built yet")

// Plan checks the Spec and spells out what will be done; it opens nothing.
func (s Spec) Plan() (*Plan, error) { return nil, errSoon }

// Validate lists everything wrong with the Spec (errors.Join of *StartError).
func (s Spec) Validate() error { return errSoon }

// String is what --dry-run prints: identity, environment, mount table, command.
func (p *Plan) String() string { return "" }

// MakeSkeleton makes the directory that becomes the sandbox's "/" at dir,
// which may exist: mount points, usr-merge links, the synthetic /etc with the
// ids of the plan. It must be called before the view is mounted on dir/ctx.
func MakeSkeleton(dir string, p *Plan) error { return errSoon }

// RemoveSkeleton removes what MakeSkeleton and Start made at dir. It refuses to
// cross a mount (unmount the view first).
func RemoveSkeleton(dir string) error { return errSoon }

// ShareRuntime makes dir a mount point of its own with shared propagation, so
// that what is mounted below it later reaches the sandboxes that hold a slave
// of it. Root only. UnshareRuntime takes it away again.
func ShareRuntime(dir string) error   { return errSoon }
func UnshareRuntime(dir string) error { return errSoon }

// Check does everything of Start up to the mounts and returns the effective
// table (--dry-run: resolved sources, refused ones).
func Check(ctx context.Context, p *Plan, f StartFiles) (table []Effective, warnings []string, err error) {
	return nil, nil, errSoon
}

// Start runs the plan. It returns when bwrap has made the namespaces; the
// command may not have been executed yet: wait for its hello on the wire (or
// Done) and then call Verify. An error is a *StartError; nothing is left.
func Start(ctx context.Context, p *Plan, f StartFiles) (*Running, error) { return nil, errSoon }

// Adopt finds a sandbox again; fault.NoProcess when either process is gone or is
// somebody else now.
func Adopt(rec Record) (*Running, error) { return nil, errSoon }

// Record is what Adopt needs.
func (r *Running) Record() Record { return Record{} }

// Verify reads identity, namespaces and mount flags back from the running init
// and compares them with the plan. Call it after the command has said hello.
func (r *Running) Verify(p *Plan) error { return errSoon }

// Kill ends every process of the sandbox: SIGKILL of its init through a pidfd,
// then it waits until all are gone or ctx ends (fault.TimedOut: some process
// waits in a file system that is not ours).
func (r *Running) Kill(ctx context.Context) error { return errSoon }

// Done is closed when the sandbox is gone (bwrap has ended and so has init).
func (r *Running) Done() <-chan struct{} { return nil }

// Exit is valid after Done.
func (r *Running) Exit() Exit { return Exit{} }

// HelperMain must be the first call of main in every program that calls Start.
// Under the names cortexfs-stage and cortexfs-open (argv[0]) it does that
// helper's work and never returns; else it returns at once.
func HelperMain() {}

// Environment is spec 10.4: what the runtime sets, then the lines of the env
// control. path is the path control, joined; empty: no CTX_PATH. A line may
// replace a default in place.
func Environment(agent, session string, owner uint32, path []string, lines []string) []string {
	return nil
}
