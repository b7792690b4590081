package stage

import (
	"errors"
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
