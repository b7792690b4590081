package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

// The attributes of the tree that ctx reads.
const (
	xattrVersion = "user.cortexfs.version"
	xattrRuntime = "user.cortexfs.runtime"
	xattrKind    = "user.cortexfs.kind"
	xattrError   = "user.cortexfs.error"
)

// tree is the mounted tree that ctx works on.
type tree struct {
	root    string // mount point
	version string
	runtime string // "" inside a sandbox
	owner   uint32
}

// tree finds the tree: CTX_ROOT, else /ctx if it is ours, else ~/ctx.
// Unavailable when none answers.
func (s *State) tree() (*tree, error) {
	if r := s.Getenv("CTX_ROOT"); r != "" {
		if !filepath.IsAbs(r) {
			return nil, usagef("CTX_ROOT is not an absolute path")
		}
		return openTree(r)
	}
	t, err := openTree(node.Root)
	if err == nil {
		return t, nil
	}
	home := s.Getenv("HOME")
	if filepath.IsAbs(home) {
		if t, err := openTree(filepath.Join(home, "ctx")); err == nil {
			return t, nil
		}
	}
	return nil, unavailable("no tree is mounted at %s or ~/ctx; start one with `ctx up`, or name it in CTX_ROOT", node.Root)
}

func openTree(root string) (*tree, error) {
	version, err := xattr(root, xattrVersion)
	if errors.Is(err, unix.ENOTSUP) && isView(root) {
		// An agent's own connection has no attributes and no daemon to talk to.
		return &tree{root: filepath.Clean(root)}, nil
	}
	switch {
	case errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ECONNABORTED):
		return nil, unavailable("%s: its daemon is gone; mount it again", root)
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return nil, unavailable("%s: no CortexFS tree is mounted there", root)
	case err != nil:
		return nil, unavailable("%s: no CortexFS tree: %v", root, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(root, &st); err != nil {
		return nil, fault.FromOS("stat", root, err)
	}
	t := &tree{root: filepath.Clean(root), version: version, owner: st.Uid}
	t.runtime, _ = xattr(root, xattrRuntime)
	return t, nil
}

// isView says whether root looks like an agent's own /ctx.
func isView(root string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(root, &fs) != nil || fs.Type != unix.FUSE_SUPER_MAGIC {
		return false
	}
	b, err := os.ReadFile(filepath.Join(root, "status"))
	word := strings.TrimSuffix(string(b), "\n")
	return err == nil && (word == "ready" || word == "degraded")
}

func xattr(path, name string) (string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(path, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// dial connects to the tree's daemon.
func (t *tree) dial() (*ctlproto.Client, error) {
	if t.runtime == "" {
		return nil, unavailable("%s names no control socket: this is an agent's view, from which no daemon is reached", t.root)
	}
	return ctlproto.Dial(filepath.Join(t.runtime, "sock", "control.sock"), t.owner)
}

// rel is the path below the root of what a person wrote: relative to the root,
// absolute below it, or as control texts spell it (/ctx/…).
func (t *tree) rel(path string) (string, error) {
	p := path
	switch {
	case p == t.root || strings.HasPrefix(p, t.root+"/"):
		p = strings.TrimPrefix(p, t.root)
	case p == node.Root || strings.HasPrefix(p, node.Root+"/"):
		p = strings.TrimPrefix(p, node.Root)
	case filepath.IsAbs(p):
		return "", usagef("%s is not below %s", path, t.root)
	}
	p = strings.Trim(p, "/")
	for _, c := range strings.Split(p, "/") {
		if c == ".." {
			return "", usagef("%s: .. is not used below the tree", path)
		}
	}
	if p == "" {
		return ".", nil
	}
	return filepath.Clean(p), nil
}

func (t *tree) path(rel string) string { return filepath.Join(t.root, rel) }

// open opens a path of the tree without leaving it. Writers follow no links at
// all: what lies below home/ and shared/ is other people's.
func (t *tree) open(rel string, flags int) (*os.File, error) {
	dir, err := unix.Open(t.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.FromOS("open", t.root, err)
	}
	defer unix.Close(dir)
	resolve := uint64(unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS)
	if flags&unix.O_ACCMODE != unix.O_RDONLY {
		resolve |= unix.RESOLVE_NO_SYMLINKS
	}
	for {
		fd, err := unix.Openat2(dir, rel, &unix.OpenHow{
			Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve,
		})
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return nil, fault.FromOS("open", rel, err)
		}
		return os.NewFile(uintptr(fd), rel), nil
	}
}

// ask sends one request to the daemon and decodes its result into out.
func (s *State) ask(q ctlproto.Request, out any, each func(*ctlproto.Frame) error) (*tree, error) {
	t, err := s.tree()
	if err != nil {
		return nil, err
	}
	c, err := t.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	data, err := c.Do(q, func(f *ctlproto.Frame) error {
		if f.Type == "note" {
			s.note("%s", f.Text)
			return nil
		}
		if each != nil {
			return each(f)
		}
		return nil
	})
	if err != nil {
		return t, err
	}
	if out == nil || len(data) == 0 {
		return t, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return t, fault.Newf(fault.IO, "the daemon's answer to %s: %v", q.Op(), err)
	}
	return t, nil
}

// collect makes an each that gathers the item frames of a list.
func collect[T any](into *[]T) func(*ctlproto.Frame) error {
	return func(f *ctlproto.Frame) error {
		if f.Type != "item" {
			return nil
		}
		var v T
		if err := json.Unmarshal(f.Data, &v); err != nil {
			return fault.Newf(fault.IO, "the daemon's answer: %v", err)
		}
		*into = append(*into, v)
		return nil
	}
}

// refused adds the reason that the tree recorded to an error of a write.
func (t *tree) refused(rel string, err error) error {
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EFBIG) {
		return fault.FromOS("write", rel, err)
	}
	why, xerr := xattr(t.path(rel), xattrError)
	if xerr != nil || why == "" {
		return fault.FromOS("write", rel, err)
	}
	return fault.E("", "", fault.KindOf(fault.FromOS("", "", err)), fmt.Errorf("%s:%s", rel, why))
}
