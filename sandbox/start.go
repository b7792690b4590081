package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"cortexfs/node/fault"
	"cortexfs/sandbox/bwrap"
	"cortexfs/sandbox/stage"
)

// Effective is a row as it was mounted: resolved source, real flags.
type Effective = stage.Effective

// StartError says why a start ended: step, control and line, cure, exit code.
type StartError = stage.StartError

// StartFiles are the descriptors that go with a Plan. Start duplicates them; the
// caller keeps and closes its own.
type StartFiles struct {
	Wire  *os.File            // becomes fd 3 of the command; nil: none
	Store map[string]*os.File // O_PATH directories for rows of kind Store
	// Standard files of the command; nil: /dev/null, and for Stderr a small memory
	// file whose text shows up in Exit.Message.
	Stdin, Stdout, Stderr *os.File
}

const (
	startLimit = 30 * time.Second       // one start, all in all
	killGrace  = 300 * time.Millisecond // until a killed open helper counts as stuck
	maxStuck   = 4                      // open helpers of one uid left behind in hanging file systems
	stderrSize = 16 << 10
)

// HelperMain must be the first call of main in every program that calls Start or
// Check. Under the names cortexfs-stage and cortexfs-open (argv[0]) it does that
// helper's work and never returns; else it returns at once.
func HelperMain() {
	if len(os.Args) == 0 {
		return
	}
	switch filepath.Base(os.Args[0]) {
	case stage.StageName:
		os.Exit(stage.Main())
	case stage.OpenName:
		os.Exit(stage.OpenMain(os.Args))
	}
}

// Check does everything of Start up to the mounts and returns the table with
// resolved sources, and warnings (--dry-run).
func Check(ctx context.Context, p *Plan, f StartFiles) ([]Effective, []string, error) {
	l, err := launch(ctx, p, f, true)
	if err != nil {
		return nil, nil, err
	}
	defer l.close()
	res, err := l.result(ctx)
	if err != nil {
		return nil, nil, err
	}
	return res.Table, res.Warnings, nil
}

// Start runs the plan. It returns when bwrap has made the namespaces; the command
// may not have been executed yet: wait for its hello on the wire (or Done) and
// then call Verify. An error is a *StartError and nothing is left then.
func Start(ctx context.Context, p *Plan, f StartFiles) (*Running, error) {
	ctx, stop := context.WithTimeout(ctx, startLimit)
	defer stop()
	path := p.Argv[0]
	if err := bwrap.Probe(ctx, path, p.Spec.UID, p.Spec.GID); err != nil {
		return nil, stage.Fail(stage.StepNamespace, "", 0, fault.KindOf(err), "", "%v", err)
	}
	l, err := launch(ctx, p, f, false)
	if err != nil {
		return nil, err
	}
	res, err := l.result(ctx)
	if err != nil {
		l.close()
		return nil, err
	}
	r, err := l.running(ctx)
	if err != nil {
		l.close()
		return nil, err
	}
	r.Table, r.Warnings, r.Landlock = res.Table, res.Warnings, res.Landlock
	return r, nil
}

// ready checks what only the running daemon can know.
func (p *Plan) ready() error {
	s := &p.Spec
	fail := func(control string, line int, kind fault.Kind, cure, format string, args ...any) error {
		return stage.Fail(stage.StepIdentity, control, line, kind, cure, format, args...)
	}
	if root := os.Geteuid() == 0; root != s.Root {
		return fail("", 0, fault.Invalid, "", "the plan is for a daemon with root=%v, this one has %v", s.Root, root)
	}
	if n := stuck.count(s.Owner); n >= maxStuck {
		return fail("", 0, fault.Again, "end the hanging file systems", "%d earlier opens for uid %d still hang", n, s.Owner)
	}
	if s.Root {
		return nil
	}
	if s.UID != uint32(os.Geteuid()) || s.GID != uint32(os.Getegid()) {
		return fail("uid", 0, fault.Perm, "", "a user's daemon starts agents with its own uid and gid (%d, %d) only", os.Geteuid(), os.Getegid())
	}
	held, err := os.Getgroups()
	if err != nil {
		return fail("groups", 0, fault.IO, "", "%v", err)
	}
	for _, g := range held {
		if g != os.Getegid() && !slices.Contains(s.Groups, uint32(g)) {
			return fail("groups", 0, fault.Unavailable, "list it, or start from a root daemon", "group %d cannot be dropped by a user's daemon", g)
		}
	}
	for i, g := range s.Groups {
		if !slices.Contains(held, int(g)) && int(g) != os.Getegid() {
			return fail("groups", i+1, fault.Perm, "", "the daemon's user is not in group %d", g)
		}
	}
	return nil
}

// request spells the plan out for the stage helper, and lists the directories
// that go with it in the order of their descriptors.
func (p *Plan) request(f StartFiles, command []string, check bool) (*stage.Request, []*os.File) {
	s := &p.Spec
	req := &stage.Request{
		Agent: s.Agent, Root: s.Root, Check: check, Owner: s.Owner, IsoUID: s.Iso == IsoUID,
		Identity: stage.Account{UID: s.UID, GID: s.GID, Groups: s.Groups},
		Caller:   stage.Account{UID: s.Caller.UID, GID: s.Caller.GID, Groups: s.Caller.Groups},
		Rows:     p.Rows, RootDir: s.RootDir, Refuse: append(slices.Clone(s.Refuse), stage.Refusal{Path: filepath.Dir(s.Skeleton), Reason: "the agent's runtime directory"}),
		AllowHome: s.AllowHome, GitRW: s.GitRW, Wire: f.Wire != nil, Bwrap: p.Argv[0], Command: command, Deadline: s.OpenDeadline,
		Skeleton: stage.Handed{FD: stage.FDFirst, Path: s.Skeleton},
		Stores:   map[string]stage.Handed{},
	}
	req.Base = append(req.Base, stage.Base{Source: "/usr", Target: "/usr"}, stage.Base{Source: "/etc/alternatives", Target: "/etc/alternatives", Optional: true})
	for _, name := range merged {
		if st, err := os.Lstat("/" + name); err == nil && st.IsDir() {
			req.Base = append(req.Base, stage.Base{Source: "/" + name, Target: "/" + name})
		}
	}
	if s.Term != "" {
		req.Base = append(req.Base, stage.Base{Source: s.Term, Target: TermPath})
	}
	if s.Program != "" {
		req.Base = append(req.Base, stage.Base{Source: s.Program, Target: ProgramPath})
	}
	var files []*os.File
	for key, file := range f.Store {
		path, err := os.Readlink("/proc/self/fd/" + itoa(int(file.Fd())))
		if err != nil {
			path = file.Name()
		}
		req.Stores[key] = stage.Handed{FD: stage.FDFirst + 1 + len(files), Path: path}
		files = append(files, file)
	}
	return req, files
}

// stuckTable counts open helpers that were left behind, by the uid whose file
// system they wait in.
type stuckTable struct {
	mu  sync.Mutex
	all map[uint32][]*handle
}

var stuck = stuckTable{all: map[uint32][]*handle{}}

func (t *stuckTable) add(uid uint32, pids []int) {
	var list []*handle
	for _, pid := range pids {
		if h, err := hold(pid); err == nil {
			list = append(list, h)
		}
	}
	t.keep(uid, list)
}

// keep notes processes that may or may not end; count tells.
func (t *stuckTable) keep(uid uint32, list []*handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range list {
		if !slices.ContainsFunc(t.all[uid], func(o *handle) bool { return o.Process == h.Process }) {
			t.all[uid] = append(t.all[uid], h)
		}
	}
}

func (t *stuckTable) count(uid uint32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[uid] = slices.DeleteFunc(t.all[uid], func(h *handle) bool {
		select {
		case <-h.gone:
			return true
		default:
			return false
		}
	})
	return len(t.all[uid])
}
