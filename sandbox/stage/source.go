package stage

import (
	"errors"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// source is a row on its way to its place.
type source struct {
	Effective
	fd   int     // O_PATH of the source; -1 for Empty
	tree int     // a detached clone of it, later the mount itself
	dir  bool    // a directory
	uid  uint32  // owner of the inode
	loc  located // nowhere for View and Empty

	spots []spot // places inside the tree where something will be mounted
}

// spot is a mount point inside a source's tree, looked up while the tree is
// still detached and not idmapped, with the rights of whoever named the source.
type spot struct {
	rel string
	fd  int
	dir bool
	src *source // what goes there; nil: a read-only copy of the spot itself
	why string  // Made of that copy
	// own is a clone made already, not idmapped: of what the host process writes
	// with the agent's own uid; 0: cover clones the spot.
	own int
}

// own says whether the source's tree lies in the store: we look into it
// ourselves, nobody else's file system answers.
func (s *source) own() bool { return s.Kind == Store || s.ours() }

// ours says whether the tree is a tmpfs that we made ourselves.
func (s *source) ours() bool { return s.Kind == Empty || s.Kind == Temp }

func (s *source) fail(kind fault.Kind, cure, format string, args ...any) error {
	return Fail(StepMount, s.Control(), s.Line, kind, cure, format, args...)
}

// open opens every row, in mount order: parents before children.
func (s *stager) open() error {
	for i := range s.req.Rows { // early, so that it is up when it is needed
		if r := &s.req.Rows[i]; r.Kind == Host {
			if _, err := s.opener(r.Caller); err != nil {
				return err
			}
		}
	}
	rows := slices.Clone(s.req.Rows)
	slices.SortStableFunc(rows, func(a, b Row) int { return depth(a.Target) - depth(b.Target) })
	if s.req.RootDir != nil {
		if err := s.openRootDir(); err != nil {
			return err
		}
	}
	for _, b := range s.req.Base {
		if err := s.openBase(b); err != nil {
			return err
		}
	}
	for i := range rows {
		if rows[i].Target == "/ctx" {
			continue // the view stands on the skeleton already
		}
		src, err := s.openRow(&rows[i])
		if err != nil {
			return err
		}
		s.sources = append(s.sources, src)
	}
	slices.SortStableFunc(s.sources, func(a, b *source) int { return depth(a.Target) - depth(b.Target) })
	return nil
}

func depth(target string) int { return strings.Count(target, "/") }

// openBase opens a path that we vouch for, with our own rights.
func (s *stager) openBase(b Base) error {
	if s.replaced(b.Target) {
		return nil
	}
	row := Row{Kind: Host, Source: b.Source, Target: b.Target, Recursive: true, Origin: "base"}
	a := ask{Path: b.Source}.serve(unix.AT_FDCWD)
	if a.Errno != 0 {
		if b.Optional && a.Errno == syscall.ENOENT {
			return nil
		}
		return Fail(StepMount, "", 0, fault.Unavailable, "", "%s of the host cannot be opened: %v", b.Source, a.Errno)
	}
	src, err := s.made(row, "base", a)
	if err != nil {
		return err
	}
	s.sources = append(s.sources, src)
	return nil
}

// made is a source that no row asked for.
func (s *stager) made(row Row, why string, a *answer) (*source, error) {
	src := &source{Effective: Effective{Row: row, Made: why, NoSuid: true, NoDev: true}, fd: a.fd, tree: -1, dir: a.isDir(), uid: a.UID}
	loc, err := s.table.locate(a.fd)
	if err != nil {
		return nil, src.fail(fault.IO, "", "%s: %v", row.Source, err)
	}
	src.loc, src.Resolved = loc, loc.host
	return src, nil
}

// openRow opens one line of the table and judges it.
func (s *stager) openRow(row *Row) (*source, error) {
	src := &source{Effective: Effective{Row: *row, NoSuid: true, NoDev: true}, fd: -1, tree: -1, dir: true}
	switch row.Kind {
	case Empty, Temp:
		return src, nil
	case Store:
		return src, s.openStore(src)
	case Host, View:
		return src, s.openForeign(src)
	}
	return nil, src.fail(fault.Invalid, "", "unknown kind of row %q", row.Kind)
}

// openForeign opens a source with the rights of who named it.
func (s *stager) openForeign(src *source) error {
	who, err := s.opener(src.Caller)
	if err != nil {
		return err
	}
	a, at := ask{Path: src.Source}, -1
	if src.Kind == View {
		rel, ok := below(src.Source, "/ctx")
		if !ok || rel == "" {
			return src.fail(fault.Invalid, "", "%s is not below /ctx", src.Source)
		}
		a, at = ask{Path: rel, Beneath: true}, s.view
		if at < 0 {
			return src.fail(fault.Unavailable, "", "the agent's view is not mounted")
		}
	}
	got, err := who.do(a, at)
	if err != nil {
		return s.openFailed(src, who, err)
	}
	src.fd, src.dir, src.uid = got.fd, got.isDir(), got.UID
	switch got.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG, unix.S_IFSOCK, unix.S_IFIFO:
	default:
		return src.fail(fault.Invalid, "name a directory or a file", "%s is neither a directory nor a file", src.Source)
	}
	if got.Nlink == 0 {
		return src.fail(fault.NotExist, "", "%s was removed", src.Source)
	}
	if src.loc, err = s.table.locate(src.fd); err != nil {
		return src.fail(fault.IO, "", "%s: %v", src.Source, err)
	}
	src.Resolved = src.loc.host
	if src.Kind == View {
		return nil
	}
	if err := s.judge(src); err != nil {
		return err
	}
	if err := s.bounded(src, who); err != nil {
		return err
	}
	for _, path := range s.guard.below(src.loc.host) {
		s.warn("%s line %d: the listening socket %s lies below %s; the agent can talk to it", src.Control(), src.Line, path, src.Source)
	}
	return nil
}

// judge ends the start when a source must not be handed over.
func (s *stager) judge(src *source) error {
	if s.guard == nil {
		g, err := newGuard(s.table, s.req.Refuse, s.req.Owner, func(name string) (*answer, error) {
			who, err := s.opener(false)
			if err != nil {
				return nil, err
			}
			return who.do(ask{Path: name}, -1)
		})
		if err != nil {
			return src.fail(fault.KindOf(err), "", "find what is never handed over: %v", err)
		}
		s.guard = g
	}
	return s.guard.check(&src.Row, src.loc, s.req.AllowHome)
}

func (s *stager) openFailed(src *source, who *opener, err error) error {
	var num syscall.Errno
	if !errors.As(err, &num) {
		return src.fail(fault.KindOf(err), "", "%s: %v", src.Source, err)
	}
	kind := fault.KindOf(fault.FromOS("", "", num))
	cure := ""
	switch num {
	case syscall.ENOENT:
		cure = "make it, or change the line"
	case syscall.EACCES:
		kind = fault.Access
		cure = "it is opened with the rights of uid " + utoa(who.who.UID)
	case syscall.ELOOP:
		cure = "sources do not go through /proc links"
	}
	return src.fail(kind, cure, "%s: %v", src.Source, num)
}

// openStore takes a directory that the daemon handed in.
func (s *stager) openStore(src *source) error {
	fd, ok := s.stores[src.Store]
	if !ok {
		return src.fail(fault.Invalid, "", "%s: no directory %q was handed in", src.Source, src.Store)
	}
	if src.Sub != "" {
		if strings.ContainsAny(src.Sub, "/\x00") || src.Sub == "." || src.Sub == ".." {
			return src.fail(fault.Invalid, "", "bad name %q", src.Sub)
		}
		if err := s.asOwner(func() error { return ignore(unix.EEXIST, unix.Mkdirat(fd, src.Sub, 0o700)) }); err != nil {
			return src.fail(fault.IO, "", "make %s in the agent's home: %v", src.Sub, err)
		}
	}
	a := lookOwn(fd, src.Sub)
	if a.Errno != 0 {
		return src.fail(fault.KindOf(fault.FromOS("", "", a.Errno)), "", "%s: %v", src.Source, a.Errno)
	}
	src.fd, src.dir, src.uid = a.fd, a.isDir(), a.UID
	loc, err := s.table.locate(src.fd)
	if err != nil {
		return src.fail(fault.IO, "", "%s: %v", src.Source, err)
	}
	src.loc, src.Resolved = loc, loc.host
	return nil
}

// lookOwn opens a path below a descriptor of ours; rel "" is the descriptor
// itself.
func lookOwn(fd int, rel string) *answer {
	if rel == "" {
		rel = "."
	}
	return ask{Path: rel, Beneath: true}.serve(fd)
}

func ignore(num syscall.Errno, err error) error {
	if err == num {
		return nil
	}
	return err
}

// replaced says whether the agent's root directory provides what the base would
// put at target.
func (s *stager) replaced(target string) bool {
	if !s.ownUsr {
		return false
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(target, "/"), "/")
	return slices.Contains(s.rootNames, top)
}

// provides says whether the table has a line at or below /name.
func (s *stager) provides(name string) bool {
	return slices.ContainsFunc(s.req.Rows, func(r Row) bool {
		_, ok := below(path.Clean(r.Target), "/"+name)
		return ok
	})
}
