package ordinary

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

const (
	alice = 2001
	bob   = 2002
)

// world is a durable directory in a temporary place, as the present user.
type world struct {
	t    *testing.T
	path string
	fs   *FS
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldMax(t, 0)
}

// newWorldMax bounds the descriptors of known files.
func newWorldMax(t *testing.T, maxOpen int) *world {
	t.Helper()
	// Not t.TempDir: its parents are 0700 of ours, which is as a store should be,
	// but the checks below also go in directly as other users.
	path, err := os.MkdirTemp("", "ordinary")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"home", "shared"} {
		if err := os.Mkdir(filepath.Join(path, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &world{t, path, openFS(t, path, maxOpen)}
}

func openFS(t *testing.T, path string, maxOpen int) *FS {
	t.Helper()
	root, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	fs, err := New(root, Options{Root: os.Geteuid() == 0, Log: func(m string) { t.Log(m) }, MaxOpen: maxOpen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		fs.mu.Lock()
		for id, n := range fs.nodes {
			if want := map[bool]int{true: 1}[n == fs.root]; n.refs != want {
				t.Errorf("node %v (%v) is left with %d references", id, n.typ, n.refs)
			}
		}
		fs.mu.Unlock()
		fs.Close()
	})
	return fs
}

// as is a request of uid, whose group has the same number.
func as(uid uint32) *vnode.Req {
	return &vnode.Req{Ctx: context.Background(), UID: uid, GID: uid}
}

// me is alice where ids can be taken, else the present user.
func me() *vnode.Req {
	if os.Geteuid() == 0 {
		return as(alice)
	}
	return &vnode.Req{Ctx: context.Background(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
}

// home makes the home of r's caller and returns its data directory.
func (w *world) home(r *vnode.Req) *dnode {
	w.t.Helper()
	if err := w.fs.MakeAgentHome(r.UID, r.GID, "coder"); err != nil {
		w.t.Fatal(err)
	}
	return w.node(r, AgentDir(r.UID, "coder")+"/data")
}

func (w *world) node(r *vnode.Req, path string) *dnode {
	w.t.Helper()
	n, err := w.fs.Node(r, path)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(n.(*dnode).Unref)
	return n.(*dnode)
}

func (w *world) direct(r *vnode.Req, name string) string {
	return filepath.Join(w.path, AgentDir(r.UID, "coder"), "data", name)
}

func put(t *testing.T, r *vnode.Req, dir *dnode, name, text string, mode uint32) *dnode {
	t.Helper()
	e, h, _, err := dir.Create(r, name, unix.O_RDWR, mode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.(vnode.Writer).Write(r, []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	h.Release(r)
	n := e.Node.(*dnode)
	t.Cleanup(n.Unref)
	return n
}

func slurp(r *vnode.Req, n vnode.Node) (string, error) {
	h, _, err := n.(vnode.Opener).Open(r, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer h.Release(r)
	buf := make([]byte, 1<<16)
	c, err := h.(vnode.Reader).Read(r, buf, 0)
	return string(buf[:c]), err
}

func drop(e vnode.Entry, err error) error {
	if err == nil {
		e.Node.(*dnode).Unref()
	}
	return err
}

func names(t *testing.T, r *vnode.Req, dir *dnode) string {
	t.Helper()
	list, err := dir.ReadDir(r)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range list {
		out = append(out, d.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func ptr[T any](v T) *T { return &v }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to act as several users")
	}
}

// TestOperations walks one directory through every operation, in order.
func TestOperations(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	file := put(t, r, dir, "file", "hello", 0o640)
	steps := []struct {
		name string
		do   func() error
		want fault.Kind // IO: none
	}{
		{"create again", func() error { _, _, _, err := dir.Create(r, "file", unix.O_RDWR|unix.O_EXCL, 0o600); return err }, fault.Exist},
		{"create what exists", func() error {
			e, h, _, err := dir.Create(r, "file", unix.O_RDONLY, 0o600)
			if err == nil {
				h.Release(r)
				if e.Node != vnode.Node(file) {
					return errors.New("another node")
				}
				file.Unref()
			}
			return err
		}, 0},
		{"mkdir", func() error { return drop(dir.Mkdir(r, "sub", 0o750)) }, 0},
		{"mkdir again", func() error { return drop(dir.Mkdir(r, "sub", 0o750)) }, fault.Exist},
		{"fifo", func() error { return drop(dir.Mknod(r, "fifo", vnode.FIFO, 0o600)) }, 0},
		{"socket", func() error { return drop(dir.Mknod(r, "sock", vnode.Socket, 0o755)) }, 0},
		{"mknod of a regular file", func() error { return drop(dir.Mknod(r, "plain", vnode.Regular, 0o600)) }, 0},
		{"mknod of a directory", func() error { return drop(dir.Mknod(r, "x", vnode.Directory, 0o600)) }, fault.Perm},
		{"symlink", func() error { return drop(dir.Symlink(r, "link", "/etc/passwd")) }, 0},
		{"open a symlink", func() error { return openIt(r, dir, "link") }, fault.Loop},
		{"open a fifo", func() error { return openIt(r, dir, "fifo") }, fault.NoDevice},
		{"open a socket", func() error { return openIt(r, dir, "sock") }, fault.NoDevice},
		{"open a directory", func() error { return openIt(r, dir, "sub") }, fault.IsDir},
		{"create over a symlink", func() error { _, _, _, err := dir.Create(r, "link", unix.O_WRONLY, 0o600); return err }, fault.Loop},
		{"hard link", func() error {
			e, err := dir.Link(r, file, "hard")
			if err == nil && e.Node != vnode.Node(file) {
				t.Error("a hard link is another node")
			}
			return drop(e, err)
		}, 0},
		{"link over a name", func() error { return drop(dir.Link(r, file, "sub")) }, fault.Exist},
		{"rename", func() error { return dir.Rename(r, "hard", dir, "moved") }, 0},
		{"rename a missing name", func() error { return dir.Rename(r, "hard", dir, "x") }, fault.NotExist},
		{"rename into itself", func() error {
			sub := w.node(r, AgentDir(r.UID, "coder")+"/data/sub")
			return dir.Rename(r, "sub", sub, "x")
		}, fault.Invalid},
		{"rmdir a file", func() error { return dir.Rmdir(r, "file") }, fault.NotDir},
		{"unlink a directory", func() error { return dir.Unlink(r, "sub") }, fault.IsDir},
		{"lookup below a file", func() error { return drop(file.Lookup(r, "x")) }, fault.NotDir},
		{"lookup ..", func() error { return drop(dir.Lookup(r, "..")) }, fault.Invalid},
		{"lookup a path", func() error { return drop(dir.Lookup(r, "sub/x")) }, fault.Invalid},
		{"lookup NUL", func() error { return drop(dir.Lookup(r, "a\x00b")) }, fault.Invalid},
		{"long name", func() error { return drop(dir.Mkdir(r, strings.Repeat("n", 256), 0o700)) }, fault.NameTooLong},
		{"255 bytes", func() error { return drop(dir.Mkdir(r, strings.Repeat("n", 255), 0o700)) }, 0},
		{"any bytes", func() error { return drop(dir.Mkdir(r, "\xff\n 项目", 0o700)) }, 0},
		{"fsyncdir", func() error { return dir.FsyncDir(r) }, 0},
		{"unlink", func() error { return dir.Unlink(r, "moved") }, 0},
		{"rmdir", func() error { return dir.Rmdir(r, strings.Repeat("n", 255)) }, 0},
		{"rmdir odd name", func() error { return dir.Rmdir(r, "\xff\n 项目") }, 0},
		{"rename to another kind of node", func() error { return dir.Rename(r, "file", alien{}, "file") }, fault.CrossDevice},
		{"link from another kind of node", func() error { return drop(dir.Link(r, alien{}, "x")) }, fault.CrossDevice},
	}
	for _, s := range steps {
		err := s.do()
		if s.want == 0 && err != nil || s.want != 0 && !fault.Is(err, s.want) {
			t.Errorf("%s: %v, want kind %v", s.name, err, s.want)
		}
	}
	if got, want := names(t, r, dir), "fifo file link plain sock sub"; got != want {
		t.Errorf("left %q, want %q", got, want)
	}
	for name, typ := range map[string]vnode.Type{
		"fifo": vnode.FIFO, "sock": vnode.Socket, "link": vnode.Symlink, "sub": vnode.Directory, "file": vnode.Regular,
	} {
		e, err := dir.Lookup(r, name)
		if err != nil {
			t.Fatal(err)
		}
		a, err := e.Node.Attr(r)
		if err != nil || a.Type != typ || a.UID != r.UID || a.GID != r.GID {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if name == "link" {
			if target, err := e.Node.(vnode.Readlinker).Readlink(r); err != nil || target != "/etc/passwd" {
				t.Errorf("readlink: %q, %v", target, err)
			}
		}
		e.Node.(*dnode).Unref()
	}
}

type alien struct{}

func (alien) Attr(*vnode.Req) (vnode.Attr, error) { return vnode.Attr{}, nil }

func openIt(r *vnode.Req, dir *dnode, name string) error {
	e, err := dir.Lookup(r, name)
	if err != nil {
		return err
	}
	defer e.Node.(*dnode).Unref()
	h, _, err := e.Node.(vnode.Opener).Open(r, unix.O_RDONLY)
	if err == nil {
		h.Release(r)
	}
	return err
}

func TestUnlinkAndRenameWhileOpen(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	n := put(t, r, dir, "a", "one", 0o600)
	h, _, err := n.Open(r, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Rename(r, "a", dir, "b"); err != nil {
		t.Fatal(err)
	}
	put(t, r, dir, "a", "two", 0o600)
	if err := dir.Unlink(r, "b"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.(vnode.Writer).Write(r, []byte("ONE"), 0); err != nil {
		t.Error(err)
	}
	if got, err := slurp(r, n); err != nil || got != "ONE" {
		t.Errorf("the unlinked file reads %q, %v", got, err)
	}
	if a, err := n.Attr(r); err != nil || a.Nlink != 0 {
		t.Errorf("nlink %d, %v", a.Nlink, err)
	}
	h.Release(r)
}

func TestAppend(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	n := put(t, r, dir, "log", "0", 0o600)
	h, _, err := n.Open(r, unix.O_WRONLY|unix.O_APPEND)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release(r)
	f, err := os.OpenFile(w.direct(r, "log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 3 {
		// The offset is what the kernel believes; the end is what counts.
		if _, err := h.(vnode.Writer).Write(r, []byte{'a' + byte(i)}, 1); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(string(rune('A' + i))); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := slurp(r, n); got != "0aAbBcC" {
		t.Errorf("file reads %q", got)
	}
}

func TestSetattr(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	n := put(t, r, dir, "f", "0123456789", 0o644)
	ro, _, err := n.Open(r, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Release(r)
	rw, _, err := n.Open(r, unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer rw.Release(r)
	then := time.Unix(1234567890, 123456789)
	check := func(what string, s vnode.SetAttr, ok func(vnode.Attr) bool) {
		t.Helper()
		a, err := n.Setattr(r, s)
		if err != nil || !ok(a) {
			t.Errorf("%s: %+v, %v", what, a, err)
		}
	}
	check("truncate by path", vnode.SetAttr{Size: ptr[uint64](5)}, func(a vnode.Attr) bool { return a.Size == 5 })
	check("grow", vnode.SetAttr{Size: ptr[uint64](1 << 20)}, func(a vnode.Attr) bool { return a.Size == 1<<20 })
	check("chmod", vnode.SetAttr{Mode: ptr[uint32](0o400)}, func(a vnode.Attr) bool { return a.Mode == 0o400 })
	if os.Geteuid() == 0 {
		_, err := n.Setattr(r, vnode.SetAttr{Size: ptr[uint64](1)})
		if !fault.Is(err, fault.Access) {
			t.Errorf("truncate of a read-only file: %v", err)
		}
	}
	check("truncate by handle", vnode.SetAttr{Size: ptr[uint64](3), Handle: rw}, func(a vnode.Attr) bool { return a.Size == 3 })
	if _, err := n.Setattr(r, vnode.SetAttr{Size: ptr[uint64](1), Handle: ro}); !fault.Is(err, fault.Invalid) {
		t.Errorf("truncate through a read-only handle: %v", err)
	}
	check("times", vnode.SetAttr{Mtime: &then, Atime: &then}, func(a vnode.Attr) bool { return a.Mtime.Equal(then) && a.Atime.Equal(then) })
	check("one time", vnode.SetAttr{Atime: ptr(then.Add(time.Hour))}, func(a vnode.Attr) bool { return a.Mtime.Equal(then) })
	check("now", vnode.SetAttr{Mtime: &time.Time{}}, func(a vnode.Attr) bool { return time.Since(a.Mtime) < time.Hour })
	check("chown to oneself", vnode.SetAttr{UID: ptr(r.UID)}, func(a vnode.Attr) bool { return a.UID == r.UID })
	if _, err := n.Setattr(r, vnode.SetAttr{Size: ptr[uint64](1 << 63)}); fault.KindOf(err) != fault.TooBig {
		t.Errorf("size 2^63: %v", err)
	}
	link, err := dir.Symlink(r, "l", "nowhere")
	if err != nil {
		t.Fatal(err)
	}
	defer link.Node.(*dnode).Unref()
	if a, err := link.Node.(vnode.Setattrer).Setattr(r, vnode.SetAttr{Mtime: &then}); err != nil || !a.Mtime.Equal(then) {
		t.Errorf("times of a symlink: %+v, %v", a, err)
	}
	hard, err := dir.Link(r, link.Node, "l2")
	if err != nil || hard.Node != link.Node {
		t.Errorf("hard link to a symlink: %v, %v", hard, err)
	}
	_ = drop(hard, err)
}

func TestXattr(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	n := put(t, r, dir, "f", "12345", 0o600)
	if err := n.Setxattr(r, "user.note", []byte("x"), 0); err != nil {
		if fault.Is(err, fault.NotSupported) {
			t.Skip("the temporary directory has no extended attributes")
		}
		t.Fatal(err)
	}
	// What somebody writes on the disk under our names is not believed.
	if err := unix.Setxattr(w.direct(r, "f"), "user.cortexfs.origin", []byte("lie"), 0); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"user.note": "x", "user.cortexfs.origin": "durable", "user.cortexfs.kind": "ordinary.file", "user.cortexfs.token_estimate": "2",
	} {
		if got, err := n.Getxattr(r, name); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"user.none", "user.cortexfs.none", "security.capability", "trusted.x"} {
		if _, err := n.Getxattr(r, name); !fault.Is(err, fault.NoData) {
			t.Errorf("%s: %v", name, err)
		}
	}
	list, err := n.Listxattr(r)
	slices.Sort(list)
	if want := "user.cortexfs.kind user.cortexfs.origin user.cortexfs.token_estimate user.note"; err != nil || strings.Join(list, " ") != want {
		t.Errorf("list: %v, %v", list, err)
	}
	for _, c := range []struct {
		name  string
		flags uint32
		want  fault.Kind
	}{
		{"user.cortexfs.kind", 0, fault.Perm}, {"system.posix_acl_access", 0, fault.NotSupported},
		{"trusted.x", 0, fault.NotSupported}, {"user.note", unix.XATTR_CREATE, fault.Exist}, {"user.none", unix.XATTR_REPLACE, fault.NoData},
	} {
		if err := n.Setxattr(r, c.name, []byte("v"), c.flags); !fault.Is(err, c.want) {
			t.Errorf("set %s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := n.Removexattr(r, "user.note"); err != nil {
		t.Error(err)
	}
	if err := n.Removexattr(r, "user.note"); !fault.Is(err, fault.NoData) {
		t.Errorf("removing twice: %v", err)
	}
}

func TestStatfs(t *testing.T) {
	w := newWorld(t)
	var st unix.Statfs_t
	if err := unix.Statfs(w.path, &st); err != nil {
		t.Fatal(err)
	}
	if got, err := w.fs.Statfs(); err != nil || got.Blocks != st.Blocks || got.Bsize == 0 || got.Namelen != 255 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBigFile(t *testing.T) {
	w, r := newWorld(t), me()
	dir := w.home(r)
	e, h, _, err := dir.Create(r, "big", unix.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Node.(*dnode).Unref()
	defer h.Release(r)
	const piece, pieces = 128 << 10, 800
	block := func(i int) []byte {
		b := bytes.Repeat([]byte{byte(i), byte(i >> 8), 0xa5, byte(i * 7)}, piece/4)
		return b
	}
	for i := range pieces {
		if n, err := h.(vnode.Writer).Write(r, block(i), int64(i)*piece); n != piece || err != nil {
			t.Fatal(n, err)
		}
	}
	if err := h.(vnode.Syncer).Fsync(r, false); err != nil {
		t.Error(err)
	}
	direct, err := os.Open(w.direct(r, "big"))
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	got, own := make([]byte, piece), make([]byte, piece)
	for i := range pieces {
		if _, err := direct.ReadAt(got, int64(i)*piece); err != nil {
			t.Fatal(err)
		}
		if n, err := h.(vnode.Reader).Read(r, own, int64(i)*piece); n != piece || err != nil {
			t.Fatal(n, err)
		}
		if !bytes.Equal(got, block(i)) || !bytes.Equal(own, got) {
			t.Fatalf("block %d differs", i)
		}
	}
	if n, err := h.(vnode.Reader).Read(r, own, piece*pieces); n != 0 || err != nil {
		t.Errorf("read at the end: %d, %v", n, err)
	}
}
