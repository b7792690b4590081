package stage

import (
	"errors"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// hostOnly are the directories of an agent's home that only the host process
// writes.
var hostOnly = []string{"session", "log", "root"}

// homes looks up what is read-only inside the agent's own home. A missing
// directory is made: else the agent could make it, writable.
func (s *stager) homes() error {
	for _, src := range s.sources {
		if !src.Home {
			continue
		}
		for _, name := range hostOnly {
			if err := s.asOwner(func() error { return makePoint(src.fd, name, true) }); err != nil {
				return src.fail(fault.KindOf(fault.FromOS("", "", err)), "", "make %s in the agent's home: %v", name, err)
			}
			a := lookOwn(src.tree, name)
			if a.Errno != 0 || !a.isDir() {
				return src.fail(fault.Perm, "remove it; the daemon makes a directory", "%s in the agent's home is no directory", name)
			}
			p := spot{rel: name, fd: a.fd, dir: true, why: "home"}
			if name == "session" {
				// Its files are the host process's, who for root's agents has the agent's
				// uid: through the idmap of the home they would be nobody's.
				orig := lookOwn(src.fd, name)
				if orig.Errno != 0 || !orig.isDir() {
					return src.fail(fault.Perm, "remove it; the daemon makes a directory", "%s in the agent's home is no directory", name)
				}
				tree, err := unix.OpenTree(orig.fd, "", cloneFlags|unix.AT_RECURSIVE)
				unix.Close(orig.fd)
				if err != nil {
					return src.fail(fault.IO, "", "clone %s: %v", name, err)
				}
				p.own = tree
			}
			src.spots = append(src.spots, p)
		}
	}
	return nil
}

// git looks for a .git at the top of every writable source and has it covered,
// unless a line of the table names that place or --git rw was given: hooks and
// config of a repository run on the host, as the owner.
func (s *stager) git() error {
	if s.req.GitRW {
		return nil
	}
	dirs := map[*source]string{}
	for _, src := range s.sources {
		if !src.RW || !src.dir || src.ours() || src.Kind == View || src.Made != "" || s.named(join(src.Target, ".git")) {
			continue
		}
		a, err := s.ask(src, ask{Path: ".git", Last: true, Git: true}, src.tree)
		if errors.Is(err, syscall.ENOENT) {
			continue
		}
		if err != nil {
			return src.fail(fault.KindOf(err), "", "look for .git in %s: %v", src.Source, err)
		}
		if a.isLink() {
			return src.fail(fault.Perm, "put the repository itself there, or give --git rw", "%s/.git is a symlink and cannot be made read-only", src.Source)
		}
		src.spots = append(src.spots, spot{rel: ".git", fd: a.fd, dir: a.isDir(), why: "git"})
		if dir := gitdir(a.Text); dir != "" && a.isRegular() {
			dirs[src] = dir
		}
	}
	for _, src := range s.sources {
		if dir := dirs[src]; dir != "" {
			if err := s.gitDir(src, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// gitDirOfHome is gitDir for the agent's own home. The agent has written that
// gitfile: its path means something inside only, and nobody out here follows it,
// least of all with our rights.
func (s *stager) gitDirOfHome(src *source, name string) error {
	if !path.IsAbs(name) {
		name = join(src.Target, path.Clean(name))
	}
	rel, in := below(path.Clean(name), src.Target)
	if !in || rel == "" || rel == ".git" || path.Clean(rel) != rel {
		return nil
	}
	a := lookOwn(src.tree, rel)
	if a.Errno != 0 || !a.isDir() {
		if a.fd >= 0 {
			unix.Close(a.fd)
		}
		return nil
	}
	src.spots = append(src.spots, spot{rel: rel, fd: a.fd, dir: true, why: "git"})
	return nil
}

func (s *stager) named(target string) bool {
	return slices.ContainsFunc(s.req.Rows, func(r Row) bool { return path.Clean(r.Target) == target })
}

// gitDir covers the directory that a gitfile names, if it lies inside a writable
// line already. It never adds anything to what is visible.
func (s *stager) gitDir(src *source, name string) error {
	if src.own() {
		return s.gitDirOfHome(src, name)
	}
	if !path.IsAbs(name) {
		name = path.Join(src.loc.host, name)
	}
	a, err := s.ask(src, ask{Path: name}, -1)
	if err != nil {
		return nil // not there, or not for this owner: nothing to protect
	}
	defer unix.Close(a.fd)
	loc, err := s.table.locate(a.fd)
	if err != nil || !a.isDir() {
		return nil
	}
	for _, line := range s.sources {
		if !line.RW || line.loc.mount == nil || !loc.in(line.loc.place) {
			continue
		}
		rel, _ := below(loc.path, line.loc.path)
		if slices.ContainsFunc(line.spots, func(p spot) bool { _, in := below(rel, p.rel); return p.why == "git" && in }) {
			continue // covered with the .git that it lies in
		}
		if rel == "" {
			return line.fail(fault.Perm, "name the work tree, or give --git rw", "%s is the git directory of %s", line.Source, src.Source)
		}
		got, err := s.ask(line, ask{Path: rel, Beneath: true}, line.tree)
		if err != nil {
			return line.fail(fault.KindOf(err), "", "the git directory %s: %v", name, err)
		}
		line.spots = append(line.spots, spot{rel: rel, fd: got.fd, dir: true, why: "git"})
	}
	return nil
}

// idmaps turns handed-over directories of the owner into the agent's, where the
// ids differ and the file system can: on the host the files stay the owner's.
func (s *stager) idmaps() error {
	if !s.req.Root || !s.req.IsoUID || s.req.Owner == s.req.Identity.UID {
		return nil
	}
	userns := -1
	for _, src := range s.sources {
		if !src.Handover || src.ours() || src.Caller && s.req.Caller.UID != s.req.Owner {
			continue
		}
		if src.uid != s.req.Owner {
			s.warn("%s: %s is not the owner's, so plain permissions decide", src.Control(), src.Source)
			continue
		}
		if userns < 0 {
			fd, err := mapNamespace(s.owner, s.req.Identity)
			if err != nil {
				return src.fail(fault.Unavailable, "", "make the id map: %v", err)
			}
			userns = fd
			defer unix.Close(fd)
		}
		src.IDMapped = s.idmap(src, userns)
	}
	return nil
}

func (s *stager) idmap(src *source, userns int) bool {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns)}
	err := unix.MountSetattr(src.tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if err == nil {
		return true
	}
	if err := unix.MountSetattr(src.tree, "", unix.AT_EMPTY_PATH, &attr); err == nil {
		s.warn("%s: a mount below %s cannot be idmapped; plain permissions decide there", src.Control(), src.Source)
		return true
	}
	s.warn("%s: the file system of %s (%s) has no idmapped mounts (%v); plain permissions decide", src.Control(), src.Source, src.loc.mount.Type, err)
	return false
}

// mapNamespace makes a user namespace whose map says owner → agent, one uid and
// one gid, and returns it as a descriptor. The process that brings it into being
// is stopped at its first instruction and killed.
func mapNamespace(owner, agent Account) (int, error) {
	one := func(from, to uint32) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: int(from), HostID: int(to), Size: 1}}
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{OpenName}, &syscall.ProcAttr{Dir: "/", Env: []string{}, Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: one(owner.UID, agent.UID), GidMappings: one(owner.GID, agent.GID), Ptrace: true}})
	if err != nil {
		return -1, err
	}
	defer func() {
		unix.Kill(pid, unix.SIGKILL) // our child, not waited for: the pid is its own
		unix.Wait4(pid, nil, 0, nil)
	}()
	return unix.Open("/proc/"+utoa(uint32(pid))+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}
