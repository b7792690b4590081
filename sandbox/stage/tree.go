package stage

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

const (
	cloneFlags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH
	moveFlags  = unix.MOVE_MOUNT_F_EMPTY_PATH | unix.MOVE_MOUNT_T_EMPTY_PATH
)

// clone makes a detached copy of each source with its flags, still in the mount
// namespace that the source was opened in: a descriptor of another one cannot be
// cloned. A mount call on an O_PATH descriptor never asks the file system's
// server.
func (s *stager) clone() error {
	for _, src := range s.sources {
		if src.ours() {
			tree, err := s.newTree(src)
			if err != nil {
				return src.fail(fault.IO, "", "make a tmpfs: %v", err)
			}
			src.tree = tree
			continue
		}
		flags := uint(cloneFlags)
		if src.Recursive {
			flags |= unix.AT_RECURSIVE
		}
		tree, err := unix.OpenTree(src.fd, "", flags)
		if err == unix.EINVAL && !src.Recursive {
			return src.fail(fault.Unavailable, "write rbind", "%s has mounts below it that the kernel does not let a user leave out", src.Source)
		}
		if err != nil {
			return src.fail(fault.KindOf(fault.FromOS("", "", err)), "", "clone %s: %v", src.Source, err)
		}
		src.tree = tree
		if err := setFlags(tree, &src.Row, unix.MS_PRIVATE); err != nil {
			return src.fail(fault.Unavailable, "", "cannot set the flags of %s: %v", src.Source, err)
		}
	}
	return nil
}

// setFlags gives a tree the flags of a row, recursively.
func setFlags(tree int, row *Row, propagation uint64) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: propagation}
	if !row.RW {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if row.NoExec {
		attr.Attr_set |= unix.MOUNT_ATTR_NOEXEC
	}
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
}

// newTree is a detached tmpfs of ours. An Empty one becomes read-only when the
// mount points in it are made.
func (s *stager) newTree(src *source) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	options := [][2]string{{"source", "tmpfs"}, {"mode", "0755"}, {"size", "65536"}}
	if src.Kind == Temp {
		options = [][2]string{{"source", "tmpfs"}, {"mode", "1777"}, {"size", strconv.FormatInt(src.Size, 10)}}
	}
	for _, kv := range options {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return -1, err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
}

// parent is the deepest source whose target holds target; nil: the skeleton.
func (s *stager) parent(target string) *source {
	var best *source
	for _, src := range s.sources {
		if rel, ok := below(target, src.Target); ok && rel != "" && (best == nil || len(src.Target) > len(best.Target)) {
			best = src
		}
	}
	return best
}

// points looks up every mount point that lies inside a source. It happens now,
// because a tree that is idmapped already would be looked into with the wrong
// rights.
func (s *stager) points() error {
	for _, src := range s.sources {
		up := s.parent(src.Target)
		if up == nil || up.ours() {
			continue
		}
		rel, _ := below(src.Target, up.Target)
		if up.Home {
			if err := s.asOwner(func() error { return makePoint(up.fd, rel, src.dir) }); err != nil {
				return src.fail(fault.KindOf(fault.FromOS("", "", err)), "", "make the mount point %s: %v", src.Target, err)
			}
		}
		a, err := s.ask(up, ask{Path: rel, Beneath: true}, up.tree)
		if errors.Is(err, syscall.ENOENT) {
			return src.fail(fault.NotExist, "make it there, nothing is created in a directory of yours", "the mount point %s does not exist in %s", src.Target, up.Source)
		}
		if err != nil {
			return src.fail(fault.KindOf(fault.FromOS("", "", err)), "", "the mount point %s in %s: %v", src.Target, up.Source, err)
		}
		up.spots = append(up.spots, spot{rel: rel, fd: a.fd, dir: a.isDir(), src: src})
	}
	return nil
}

// makePoint makes a mount point below at, with the directories on the way. No
// symlink is followed and no mount crossed.
func makePoint(at int, rel string, dir bool) error {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV}
	parent := path.Dir(rel)
	fd, err := unix.Openat2(at, parent, &how)
	if err == unix.ENOENT {
		if err = makePoint(at, parent, true); err == nil {
			fd, err = unix.Openat2(at, parent, &how)
		}
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	name := path.Base(rel)
	if dir {
		return ignore(unix.EEXIST, unix.Mkdirat(fd, name, 0o755))
	}
	file, err := unix.Openat(fd, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err == unix.EEXIST {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Close(file)
}

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
	mounts, err := ReadMounts("/proc/thread-self/mountinfo")
	if err != nil {
		return
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if isCortex(&mounts[i]) {
			unix.Unmount(mounts[i].Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
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
	at, err := s.targetOf(src)
	if err != nil {
		return src.fail(fault.KindOf(fault.FromOS("", "", err)), "", "the mount point %s: %v", src.Target, err)
	}
	defer unix.Close(at)
	if err := unix.MoveMount(src.tree, "", at, "", moveFlags); err != nil {
		return src.fail(fault.KindOf(fault.FromOS("", "", err)), "a directory goes on a directory, a file on a file", "mount %s at %s: %v", src.Source, src.Target, err)
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

// targetOf is a descriptor of the row's mount point: a spot in another source's
// tree, or a directory of ours, which is made when it is missing.
func (s *stager) targetOf(src *source) (int, error) {
	up := s.parent(src.Target)
	base, rel := s.skeleton, src.Target[1:]
	if up != nil && !up.ours() {
		for _, p := range up.spots {
			if p.src == src {
				return unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
			}
		}
		return -1, unix.ENOENT
	}
	if up != nil {
		base = up.tree
		rel, _ = below(src.Target, up.Target)
	} else if src.Made == "root" {
		// The skeleton has a link of the base where the agent's root has a directory.
		if err := unix.Unlinkat(base, rel, 0); err != nil && err != unix.ENOENT && err != unix.EISDIR {
			return -1, err
		}
	}
	if err := makePoint(base, rel, src.dir); err != nil {
		return -1, err
	}
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	return unix.Openat2(base, rel, &how)
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
	tree, err := unix.OpenTree(from, "", cloneFlags|unix.AT_RECURSIVE)
	if err != nil {
		return src.fail(fault.IO, "", "clone %s: %v", row.Target, err)
	}
	defer unix.Close(tree)
	if err := setFlags(tree, &row, unix.MS_PRIVATE); err != nil {
		return src.fail(fault.Unavailable, "", "cannot make %s read-only: %v", row.Target, err)
	}
	if err := unix.MoveMount(tree, "", p.fd, "", moveFlags); err != nil {
		return src.fail(fault.IO, "", "cover %s: %v", row.Target, err)
	}
	s.result.Table = append(s.result.Table, Effective{Row: row, Made: p.why, NoSuid: true, NoDev: true, IDMapped: src.IDMapped, Resolved: row.Source})
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
