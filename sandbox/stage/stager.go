package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/harden"
)

// stager is one start on its way from a Request to a composed tree.
type stager struct {
	req   *Request
	table *mountTable
	guard *guard

	owner     Account
	byOwner   *opener // started when first needed
	byCaller  *opener
	stores    map[string]int
	skeleton  int // detached clone of the skeleton, later the root mount
	view      int // the view's mount root on the skeleton; -1: none
	ctx       int // the same on the clone; -1: none
	maskFile  int
	maskDir   int
	sources   []*source
	links     [][2]string // symlinks of the root directory: name, text
	rootNames []string    // names that it provides
	ownUsr    bool        // it has a /usr of its own
	result    Result
}

// Main is the stage helper. It composes the tree and becomes bwrap; it returns
// only when it could not, having said why on the result descriptor.
func Main() int {
	// Namespace and ids belong to a thread. The one we are on stays ours until
	// exec.
	runtime.LockOSThread()
	out := os.NewFile(FDResult, "result")
	s := &stager{view: -1, ctx: -1, skeleton: -1}
	err := s.run(out)
	var e *StartError
	if !errors.As(err, &e) {
		e = Fail(StepMount, "", 0, fault.KindOf(err), "", "%v", err)
	}
	s.result.Error = e
	s.result.Table = nil
	s.close()
	json.NewEncoder(out).Encode(s.result)
	return 1
}

func (s *stager) run(out io.Writer) error {
	// What was inherited by accident ends here; limits come before the process
	// stops being dumpable, as its /proc files then are root's.
	if err := harden.CloseOnExec(3); err != nil {
		return err
	}
	if err := harden.Limits(); err != nil {
		return err
	}
	if err := harden.NoDump(); err != nil {
		return err
	}
	unix.Umask(0o022)
	if err := s.prepare(); err != nil {
		return err
	}
	if s.req.Check {
		s.close()
		for _, src := range s.sources {
			s.result.Table = append(s.result.Table, src.Effective)
		}
		if err := json.NewEncoder(out).Encode(s.result); err != nil {
			return err
		}
		os.Exit(0)
	}
	if err := s.idmaps(); err != nil {
		return err
	}
	if err := s.namespace(); err != nil {
		return Fail(StepNamespace, "", 0, fault.Unavailable, "", "%v", err)
	}
	if err := s.compose(); err != nil {
		return err
	}
	s.close()
	return s.become(out)
}

// prepare does all that needs names: opening, judging, cloning, looking up. It
// happens in the namespace that the names are meant in.
func (s *stager) prepare() error {
	if err := s.read(); err != nil {
		return err
	}
	steps := []func() error{s.open, s.clone, s.homes, s.git, s.points, s.maskSpots}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// read takes the request and the directories that came with it.
func (s *stager) read() error {
	s.req = &Request{}
	in := os.NewFile(FDRequest, "request")
	err := json.NewDecoder(in).Decode(s.req)
	in.Close()
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	if s.table, err = readTable(); err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	if s.owner, err = s.ownerAccount(); err != nil {
		return err
	}
	s.stores = map[string]int{}
	for key, h := range s.req.Stores {
		if s.stores[key], err = s.take(h); err != nil {
			return fmt.Errorf("the directory %q that was handed in: %w", key, err)
		}
	}
	return s.readSkeleton()
}

// ownerAccount is the owner's full set of ids. In a user's helper they are those
// that the process has.
func (s *stager) ownerAccount() (Account, error) {
	if !s.req.Root {
		return Account{UID: s.req.Owner, GID: uint32(os.Getgid())}, nil
	}
	a, ok, err := LookupAccount(s.req.Owner)
	if err != nil {
		return a, fmt.Errorf("read the account files: %w", err)
	}
	if !ok {
		if s.req.Caller.UID == s.req.Owner {
			return s.req.Caller, nil
		}
		return a, Fail(StepIdentity, "owner", 0, fault.NotExist, "", "uid %d is in no account file, so its groups are not known", s.req.Owner)
	}
	return a, nil
}

// take makes a handed-in directory usable in this process' mount namespace.
func (s *stager) take(h Handed) (int, error) {
	if s.req.Root {
		return h.FD, nil
	}
	fd, err := unix.Open(h.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var want, have unix.Stat_t
	if err := errors.Join(unix.Fstat(h.FD, &want), unix.Fstat(fd, &have)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if want.Dev != have.Dev || want.Ino != have.Ino {
		unix.Close(fd)
		return -1, fmt.Errorf("%s is another directory now", h.Path)
	}
	return fd, nil
}

// readSkeleton clones the skeleton with the view on it. It stays a slave, so that
// a later mount of the view arrives inside; all else of ours is private.
func (s *stager) readSkeleton() error {
	dir, err := s.take(s.req.Skeleton)
	if err != nil {
		return fmt.Errorf("the skeleton: %w", err)
	}
	if s.skeleton, err = unix.OpenTree(dir, "", cloneFlags|unix.AT_RECURSIVE); err != nil {
		return fmt.Errorf("clone the skeleton: %w", err)
	}
	if s.maskFile, err = openOwn(s.skeleton, MaskFile); err != nil {
		return err
	}
	if s.maskDir, err = openOwn(s.skeleton, MaskDir); err != nil {
		return err
	}
	row := Row{RW: true}
	var view *Row
	for i := range s.req.Rows {
		if s.req.Rows[i].Target == "/ctx" {
			view = &s.req.Rows[i]
		}
	}
	ctx, err := openOwn(s.skeleton, "ctx")
	if err != nil {
		return err
	}
	mounted, err := crosses(s.skeleton, ctx)
	if err != nil {
		return err
	}
	if view == nil {
		// No line shows the tree: nothing of it stands or arrives there.
		s.sources = append(s.sources, &source{Effective: Effective{Row: Row{Kind: Empty, Target: "/ctx"}, Made: "base", NoSuid: true, NoDev: true}, fd: -1, tree: -1, dir: true})
		return setFlags(s.skeleton, &row, unix.MS_PRIVATE)
	}
	if !mounted {
		return Fail(StepMount, view.Control(), view.Line, fault.Unavailable, "", "the agent's view is not mounted on the skeleton")
	}
	if s.view, err = openOwn(dir, "ctx"); err != nil {
		return err
	}
	if err := setFlags(s.skeleton, &row, unix.MS_SLAVE); err != nil {
		return fmt.Errorf("set the flags of the skeleton: %w", err)
	}
	s.ctx = ctx
	shown := *view
	shown.RW = false
	s.result.Table = append(s.result.Table, Effective{Row: shown, Resolved: "the agent's view", NoSuid: true, NoDev: true})
	return nil
}

func openOwn(at int, rel string) (int, error) {
	fd, err := unix.Openat(at, rel, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("the skeleton's %s: %w", rel, err)
	}
	return fd, nil
}

// crosses says whether two descriptors are on different mounts.
func crosses(a, b int) (bool, error) {
	var ids [2]uint64
	for i, fd := range []int{a, b} {
		text, err := os.ReadFile("/proc/thread-self/fdinfo/" + strconv.Itoa(fd))
		if err != nil {
			return false, err
		}
		ids[i], _ = field(string(text), "mnt_id:")
	}
	return ids[0] != ids[1], nil
}

// opener is the helper with the owner's or the caller's ids.
func (s *stager) opener(caller bool) (*opener, error) {
	who, at := s.owner, &s.byOwner
	if caller && s.req.Root && !sameIDs(s.req.Caller, s.owner) {
		who, at = s.req.Caller, &s.byCaller
	}
	if *at == nil {
		o, err := startOpener(who, s.req.Root, s.req.Deadline)
		if err != nil {
			return nil, Fail(StepMount, "", 0, fault.IO, "", "%v", err)
		}
		*at = o
	}
	return *at, nil
}

// sameIDs says whether two accounts are one and the same set of ids; a primary
// group among the others makes no difference.
func sameIDs(a, b Account) bool {
	sorted := func(x Account) []uint32 {
		list := append(slices.Clone(x.Groups), x.GID)
		slices.Sort(list)
		return slices.Compact(list)
	}
	return a.UID == b.UID && a.GID == b.GID && slices.Equal(sorted(a), sorted(b))
}

// close ends the open helpers and notes those that cannot be ended.
func (s *stager) close() {
	for _, o := range []**opener{&s.byOwner, &s.byCaller} {
		if *o == nil {
			continue
		}
		if pid := (*o).close(); pid != 0 {
			s.result.Stuck = append(s.result.Stuck, pid)
		}
		*o = nil
	}
}

func (s *stager) warn(format string, args ...any) {
	s.result.Warnings = append(s.result.Warnings, fmt.Sprintf(format, args...))
}

// asOwner runs f with the owner's file system ids, so that what it makes in the
// owner's directory is the owner's.
func (s *stager) asOwner(f func() error) error {
	if !s.req.Root || s.owner.UID == 0 {
		return f()
	}
	unix.Setfsgid(int(s.owner.GID))
	unix.Setfsuid(int(s.owner.UID))
	defer func() {
		unix.Setfsuid(0)
		unix.Setfsgid(0)
	}()
	return f()
}

func utoa(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
