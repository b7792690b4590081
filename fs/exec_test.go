package fs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/fs"
	"cortexfs/fs/fstest"
	"cortexfs/fs/fstest/toy"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

var execFile = fstest.Client("exec", func(dir, name string) (string, error) {
	out, err := exec.Command(filepath.Join(dir, name), "hello").Output()
	return string(out), err
})

// A tool is page cached with KeepCache: the second exec reads nothing. Refusing
// in Open takes effect at the next exec although name, attributes and pages are
// cached, and what runs goes on.
func TestExecCachedAndRevoked(t *testing.T) {
	echo, err := os.ReadFile("/bin/echo")
	if err != nil {
		t.Skip(err)
	}
	tree := toy.New()
	tree.Counting = true
	f := tree.Dir().AddFile("tool", string(echo), 0o755)
	f.Mode = vnode.Mode{KeepCache: true, NoFlush: true}
	f.AttrValid, f.EntryValid = 1<<40, 1<<40
	refuse := make(chan struct{})
	f.OnOpen = func(*vnode.Req, vnode.OpenFlags) error {
		select {
		case <-refuse:
			return fault.E("open", "tool", fault.Access, nil)
		default:
			return nil
		}
	}
	m := fstest.Mount(t, tree, fs.Options{})
	if out := execFile.Must(t, m.Dir, "tool"); out != "hello\n" {
		t.Fatalf("output %q", out)
	}
	before := tree.Count("read")
	execFile.Must(t, m.Dir, "tool")
	if n := tree.Count("read") - before; n != 0 {
		t.Errorf("second exec made %d reads", n)
	}
	held := holdMapped.Start(t, m.Dir, "tool")
	held.Ready()
	close(refuse)
	if _, err := execFile.Run(t, m.Dir, "tool"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("exec after the revocation: %v", err)
	}
	held.Go()
	if _, err := held.Wait(); err != nil {
		t.Errorf("what was running: %v", err)
	}
}

// mmap of a page-cached file, shared and written, is seen by the tree and by
// read.
func TestMmap(t *testing.T) {
	tree := toy.New()
	f := tree.Dir().AddFile("f", strings.Repeat("a", 10000), 0o666)
	m := fstest.Mount(t, tree, fs.Options{})
	mmapWrite.Must(t, m.Dir, "f")
	if got := f.Text()[5000:5005]; got != "hello" {
		t.Errorf("tree has %q", got)
	}
}

var mmapWrite = fstest.Client("mmap", func(dir, name string) (struct{}, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	if err != nil {
		return struct{}{}, err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 10000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return struct{}{}, err
	}
	copy(b[5000:], "hello")
	if err := unix.Msync(b, unix.MS_SYNC); err != nil {
		return struct{}{}, err
	}
	got := make([]byte, 5)
	if _, err := f.ReadAt(got, 5000); err != nil || string(got) != "hello" {
		return struct{}{}, fmt.Errorf("read %q, %v", got, err)
	}
	return struct{}{}, unix.Munmap(b)
})

// holdMapped starts the tool's bytes by a descriptor and a mapping and uses both
// after the test has refused new opens.
var holdMapped = fstest.Client("hold", func(dir, name string) (struct{}, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return struct{}{}, err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return struct{}{}, err
	}
	if err := fstest.Sync(); err != nil {
		return struct{}{}, err
	}
	got := make([]byte, 4)
	if _, err := f.ReadAt(got, 0); err != nil {
		return struct{}{}, err
	}
	if string(got) != "\x7fELF" || string(b[:4]) != "\x7fELF" {
		return struct{}{}, fmt.Errorf("read %q, mapped %q", got, b[:4])
	}
	// A new open through the held descriptor is an OPEN like any other.
	if _, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd())); !errors.Is(err, syscall.EACCES) {
		return struct{}{}, fmt.Errorf("reopen: %v", err)
	}
	return struct{}{}, nil
})
