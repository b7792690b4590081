package stage

import (
	"fmt"
	"path"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// namespace takes a mount namespace of our own. Host mounts stay slaves, so that
// an unmount on the host is not held up by us; nothing goes back.
func (s *stager) namespace() error {
	if s.req.Root { // a user's helper was started in one
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare the mount namespace: %w", err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make / a slave: %w", err)
	}
	s.dropViews()
	if err := unix.Mount("tmpfs", path.Dir(StagedRoot), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=65536"); err != nil {
		return fmt.Errorf("mount the staging directory: %w", err)
	}
	if err := unix.Mkdir(StagedRoot, 0o755); err != nil {
		return fmt.Errorf("make the staging directory: %w", err)
	}
	return nil
}

// dropViews takes CortexFS mounts out of this namespace's copy of the host's:
// bwrap keeps the namespace as long as the agent lives, and would keep their
// connections. In a user's namespace they are locked and stay.
func (s *stager) dropViews() {
	t, err := readTable()
	if err != nil {
		return
	}
	for i := len(t.all) - 1; i >= 0; i-- {
		m := &t.all[i]
		if isCortex(m) && !t.served(path.Dir(m.Point)) {
			unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
}

// compose moves every tree to its place.
func (s *stager) compose() error {
	fd, err := unix.Open(StagedRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Fail(StepMount, "", 0, fault.IO, "", "open the staging directory: %v", err)
	}
	defer unix.Close(fd)
	if err := unix.MoveMount(s.skeleton, "", fd, "", moveFlags); err != nil {
		return Fail(StepMount, "", 0, fault.IO, "", "place the skeleton: %v", err)
	}
	for _, l := range s.links {
		if err := s.link(l[0], l[1]); err != nil {
			return Fail(StepRoot, "root", 0, fault.IO, "", "link %s: %v", l[0], err)
		}
	}
	for _, src := range s.sources {
		if err := s.attach(src); err != nil {
			return err
		}
	}
	return s.seal()
}

// link makes a symlink of the agent's root directory at the top of the skeleton.
func (s *stager) link(name, text string) error {
	if err := ignore(unix.ENOENT, unix.Unlinkat(s.skeleton, name, 0)); err != nil {
		return err
	}
	return unix.Symlinkat(text, s.skeleton, name)
}

// attach moves one tree to its target and then fills the spots in it that are no
// rows of their own.
func (s *stager) attach(src *source) error {
	at, dir, err := s.targetOf(src)
	if err != nil {
		return src.fail(fault.KindOf(fault.FromOS("", "", err)), "", "the mount point %s: %v", src.Target, err)
	}
	defer unix.Close(at)
	if dir != src.dir {
		return src.fail(fault.NotDir, "", "a directory goes on a directory and a file goes on a file: %s at %s", src.Source, src.Target)
	}
	if err := unix.MoveMount(src.tree, "", at, "", moveFlags); err != nil {
		return src.fail(fault.KindOf(fault.FromOS("", "", err)), "", "mount %s at %s: %v", src.Source, src.Target, err)
	}
	s.result.Table = append(s.result.Table, src.Effective)
	for _, p := range src.spots {
		if p.src != nil {
			continue
		}
		if err := s.cover(src, p); err != nil {
			return err
		}
	}
	return nil
}

// targetOf is a descriptor of the row's mount point, and whether that is a
// directory: a spot in another source's tree, or a place in a tree of ours, which
// is made when it is missing.
func (s *stager) targetOf(src *source) (fd int, dir bool, err error) {
	up := s.parent(src.Target)
	base, rel := s.skeleton, src.Target[1:]
	if up != nil && !up.ours() {
		for _, p := range up.spots {
			if p.src == src {
				fd, err = unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
				return fd, p.dir, err
			}
		}
		return -1, false, unix.ENOENT
	}
	if up != nil {
		base = up.tree
		rel, _ = below(src.Target, up.Target)
	} else if src.Made == "root" {
		// The skeleton has a link of the base where the agent's root has a directory.
		if err := unix.Unlinkat(base, rel, 0); err != nil && err != unix.ENOENT && err != unix.EISDIR {
			return -1, false, err
		}
	}
	if err := makePoint(base, rel, src.dir); err != nil {
		return -1, false, err
	}
	a := lookOwn(base, rel)
	if a.Errno != 0 {
		return -1, false, a.Errno
	}
	return a.fd, a.isDir(), nil
}

// cover mounts a read-only copy of a spot over itself, or a mask. The copy comes
// from the mounted tree and so has its flags and its idmap.
func (s *stager) cover(src *source, p spot) error {
	from, row := p.fd, Row{Kind: src.Kind, Origin: src.Origin, Line: src.Line, Source: join(src.Source, p.rel), Target: join(src.Target, p.rel), Recursive: true, NoExec: src.NoExec}
	if p.why == "mask" {
		from = s.maskFile
		if p.dir {
			from = s.maskDir
		}
		row = Row{Kind: Empty, Target: row.Target}
	}
	tree, err := p.own, error(nil)
	if tree == 0 {
		if tree, err = unix.OpenTree(from, "", cloneFlags|unix.AT_RECURSIVE); err != nil {
			return src.fail(fault.IO, "", "clone %s: %v", row.Target, err)
		}
	}
	defer unix.Close(tree)
	if err := setFlags(tree, &row, unix.MS_PRIVATE); err != nil {
		return src.fail(fault.Unavailable, "", "cannot make %s read-only: %v", row.Target, err)
	}
	if err := unix.MoveMount(tree, "", p.fd, "", moveFlags); err != nil {
		return src.fail(fault.IO, "", "cover %s: %v", row.Target, err)
	}
	s.result.Table = append(s.result.Table, Effective{Row: row, Made: p.why, NoSuid: true, NoDev: true, IDMapped: src.IDMapped && p.own == 0, Resolved: row.Source})
	return nil
}

// seal makes what is ours read-only, now that every mount point stands.
func (s *stager) seal() error {
	ro := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	for _, src := range s.sources {
		if src.Kind == Empty {
			if err := unix.MountSetattr(src.tree, "", unix.AT_EMPTY_PATH, &ro); err != nil {
				return src.fail(fault.IO, "", "make %s read-only: %v", src.Target, err)
			}
		}
	}
	if s.ctx >= 0 {
		own := Row{NoExec: s.result.Table[0].NoExec} // read-only, whatever the line says
		if err := setFlags(s.ctx, &own, 0); err != nil {
			return Fail(StepMount, "", 0, fault.IO, "", "set the flags of the view: %v", err)
		}
	}
	if err := unix.MountSetattr(s.skeleton, "", unix.AT_EMPTY_PATH, &ro); err != nil {
		return Fail(StepMount, "", 0, fault.IO, "", "make / read-only: %v", err)
	}
	return nil
}
