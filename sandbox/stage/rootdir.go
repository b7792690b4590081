package stage

import (
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// baseNames are what the skeleton provides at the top of "/".
var baseNames = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "proc", "sys", "dev", "tmp", "run", "home", "ctx", "workspace"}

// usrNames are what an agent's own /usr brings along (spec 10.3).
var usrNames = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc"}

// openRootDir opens the entries of the root control's directory: they appear in
// "/" at their names, read-only, unless the base or the table provides the name.
func (s *stager) openRootDir() error {
	row := *s.req.RootDir
	row.Origin, row.Target = "root", "/"
	src, err := s.openRow(&row)
	if err != nil {
		if e, ok := err.(*StartError); ok {
			e.Step = StepRoot
		}
		return err
	}
	defer unix.Close(src.fd)
	if !src.dir {
		return Fail(StepRoot, "root", 0, fault.NotDir, "", "%s is not a directory", row.Source)
	}
	names, err := s.names(src)
	if err != nil {
		return err
	}
	s.ownUsr = slices.Contains(names, "usr")
	for _, name := range names {
		fromUsr := s.ownUsr && slices.Contains(usrNames, name)
		if s.provides(name) || slices.Contains(baseNames, name) && !fromUsr {
			continue
		}
		if err := s.openRootEntry(src, name); err != nil {
			return err
		}
		s.rootNames = append(s.rootNames, name)
	}
	return nil
}

func (s *stager) names(dir *source) ([]string, error) {
	a, err := s.ask(dir, ask{List: true}, dir.fd)
	if err != nil {
		return nil, Fail(StepRoot, "root", 0, fault.KindOf(err), "", "cannot list %s: %v", dir.Source, err)
	}
	if a.Cut {
		s.warn("root: %s has more than %d entries; the rest does not appear", dir.Source, maxNames)
	}
	slices.Sort(a.Names)
	return a.Names, nil
}

func (s *stager) openRootEntry(dir *source, name string) error {
	a, err := s.ask(dir, ask{Path: name, Last: true}, dir.fd)
	if err != nil {
		return Fail(StepRoot, "root", 0, fault.KindOf(err), "", "%s/%s: %v", dir.Source, name, err)
	}
	if a.isLink() {
		unix.Close(a.fd)
		s.links = append(s.links, [2]string{name, a.Link})
		return nil
	}
	if !a.isDir() && !a.isRegular() {
		unix.Close(a.fd)
		s.warn("root: %s/%s is neither a directory nor a file and does not appear", dir.Source, name)
		return nil
	}
	row := Row{Kind: dir.Kind, Store: dir.Store, Caller: dir.Caller, Source: join(dir.Source, name), Target: "/" + name, Recursive: true, Origin: "root"}
	src, err := s.made(row, "root", a)
	if err != nil {
		return err
	}
	if dir.Kind == Host { // it may be a mount of its own
		if err := s.judge(src); err != nil {
			return err
		}
	}
	s.sources = append(s.sources, src)
	return nil
}

// ask puts a question about a source's tree to whom it concerns: ourselves for
// the store, else the open helper with the rights of who named the source.
func (s *stager) ask(src *source, a ask, at int) (*answer, error) {
	if src.own() || src.Made == "base" {
		reply := a.serve(at)
		if reply.Errno != 0 {
			return reply, reply.Errno
		}
		return reply, nil
	}
	who, err := s.opener(src.Caller)
	if err != nil {
		return nil, err
	}
	return who.do(a, at)
}

// masks are start-up files that would set variables again (spec 10.3). The
// synthetic /etc has them empty; where something else stands at /etc they are
// mounted over.
var masks = []string{"/etc/profile", "/etc/bash.bashrc", "/etc/profile.d"}

// maskSpots looks for the masked files in whatever provides /etc.
func (s *stager) maskSpots() error {
	for _, name := range masks {
		src := s.parent(name)
		if src == nil {
			continue
		}
		rel, _ := below(name, src.Target)
		a, err := s.ask(src, ask{Path: rel, Beneath: true}, src.tree)
		if err == syscall.ENOENT {
			continue
		}
		if err != nil {
			return src.fail(fault.Perm, "it must be a plain file or directory, or absent", "cannot mask %s: %v", name, err)
		}
		src.spots = append(src.spots, spot{rel: rel, fd: a.fd, dir: a.isDir(), why: "mask"})
	}
	return nil
}

// gitdir is the path in a gitfile's text, or "".
func gitdir(text string) string {
	rest, ok := strings.CutPrefix(text, "gitdir: ")
	if !ok {
		return ""
	}
	return strings.TrimRight(rest, "\r\n")
}
