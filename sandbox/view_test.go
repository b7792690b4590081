package sandbox

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mountView puts a stand-in for the view's FUSE connection on the skeleton. Like
// that one it is read-only as a whole before it appears there: a flag that is set
// afterwards does not travel.
func (w *world) mountView(text string) {
	w.t.Helper()
	if !w.root {
		askParent(w.t, "mount", w.skeleton+"/ctx", text)
		return
	}
	check(w.t, mountStandIn(w.base+"/aside", w.skeleton+"/ctx", text))
}

func mountStandIn(aside, ctx, text string) error {
	if err := os.MkdirAll(aside, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("view", aside, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=65536"); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(aside+"/status", []byte(text), 0o644),
		unix.Mount("", aside, "", unix.MS_PRIVATE, ""), // the child's directory is shared
		unix.Mount("", aside, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""),
		unix.Mount(aside, ctx, "", unix.MS_BIND, ""),
		unix.Unmount(aside, 0))
}

func (w *world) unmountView() {
	w.t.Helper()
	if !w.root {
		askParent(w.t, "unmount", w.skeleton+"/ctx", "")
		return
	}
	check(w.t, unix.Unmount(w.skeleton+"/ctx", unix.MNT_DETACH))
}

// shareRuntime makes the scratch runtime directory shared and undoes it before
// the world looks at the mount table.
func (w *world) shareRuntime() {
	w.t.Helper()
	check(w.t, ShareRuntime(w.base+"/rt"))
	check(w.t, ShareRuntime(w.base+"/rt"))
	w.t.Cleanup(func() { check(w.t, UnshareRuntime(w.base+"/rt")) })
	if ok, err := Propagates(w.base + "/rt"); err != nil || !ok {
		w.t.Errorf("Propagates: %v %v", ok, err)
	}
}

func viewRow() Row {
	return Row{Line: 1, Kind: View, Source: "/ctx", Target: "/ctx", Recursive: true}
}

// What a daemon does after a crash: the dead view goes, a new one comes, on the
// host's rootfs/ctx. Inside it is there by itself, and read-only.
func TestViewComesBack(t *testing.T) {
	needMountsByRoot(t)
	w := newWorld(t)
	kinds := []bool{false}
	if w.root {
		w.shareRuntime()
		kinds = append(kinds, true)
	}
	for _, uid := range kinds {
		s := w.spec()
		if uid {
			s = agentOfRoot(w, s)
		}
		s.Rows = append(s.Rows, viewRow())
		s.Command = []string{TermPath, "probe", "serve"}
		p := w.plan(s)
		w.mountView("one")
		b, err := w.run(p)
		check(t, err)
		check(t, b.Verify(p))
		b.want("the view", b.do("read", "/ctx/status"), "one")
		for _, text := range []string{"two", "three"} {
			w.unmountView()
			if got := b.do("read", "/ctx/status"); got == "one" {
				t.Error("a view that was unmounted is still there")
			}
			w.mountView(text)
			b.want("the new view", b.do("read", "/ctx/status"), text)
			b.want("a write to it", b.do("write", "/ctx/new"), "EROFS")
			b.want("a write beside it", b.do("write", "/new"), "EROFS")
			check(t, b.Verify(p))
		}
		if n := strings.Count(b.do("read", "/proc/self/mountinfo"), " /ctx "); n != 1 {
			t.Errorf("%d mounts at /ctx inside", n)
		}
		b.stop()
		w.unmountView()
	}
}

// The same under a user's daemon, where the runtime directory lies on a shared
// mount, as systemd's /run/user/N does.
func TestViewComesBackUser(t *testing.T) {
	if asUser(t, func(dir string) {
		check(t, ShareRuntime(dir))
		t.Cleanup(func() { check(t, UnshareRuntime(dir)) })
	}) {
		TestViewComesBack(t)
	}
}

// Only the view arrives: nothing that the host mounts later below a source, or
// elsewhere on the runtime directory's skeleton copies of others.
func TestNothingElseArrives(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	// The source lies on a shared mount, as on most hosts.
	check(t, unix.Mount(w.work, w.work, "", unix.MS_BIND, ""))
	defer unix.Unmount(w.work, unix.MNT_DETACH)
	check(t, unix.Mount("", w.work, "", unix.MS_SHARED, ""))
	check(t, os.Mkdir(w.work+"/late", 0o755))
	b := w.start(w.spec())
	check(t, b.Verify(b.plan))
	check(t, unix.Mount("late", w.work+"/late", "tmpfs", 0, ""))
	defer unix.Unmount(w.work+"/late", unix.MNT_DETACH)
	check(t, os.WriteFile(w.work+"/late/f", []byte("x"), 0o755))
	b.want("a later mount", b.do("read", "/workspace/late/f"), "ENOENT")
	if info := b.do("read", "/proc/self/mountinfo"); strings.Contains(info, "late") || strings.Contains(info, "shared:") {
		t.Errorf("inside:\n%s", info)
	}
}

// Without a line for /ctx nothing of the tree stands there, now or later.
func TestNoView(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	w.shareRuntime()
	s := w.spec()
	s.Command = []string{TermPath, "probe", "serve"}
	p := w.plan(s)
	w.mountView("one")
	b, err := w.run(p)
	check(t, err)
	b.want("/ctx", b.do("readdir", "/ctx"), "")
	w.unmountView()
	w.mountView("two")
	b.want("/ctx", b.do("readdir", "/ctx"), "")
	b.stop()
	w.unmountView()
}

// A line for /ctx with no view behind it ends the start, and noexec on it is
// real.
func TestViewLine(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	s := w.spec()
	row := viewRow()
	row.NoExec, row.RW = true, true
	s.Rows = append(s.Rows, row, Row{Line: 4, Kind: View, Source: "/ctx/sub", Target: "/part"})
	_, err := w.tryStart(s)
	wantFault(t, err, 69, "mount", "view is not mounted")
	s.Command = []string{TermPath, "probe", "serve"}
	p := w.plan(s)
	check(t, unix.Mount("view", w.skeleton+"/ctx", "tmpfs", 0, "mode=0755"))
	defer w.unmountView()
	check(t, os.Mkdir(w.skeleton+"/ctx/sub", 0o755))
	check(t, os.WriteFile(w.skeleton+"/ctx/sub/run", []byte("#!/bin/sh\necho ran\n"), 0o755))
	b, err := w.run(p)
	check(t, err)
	defer b.stop()
	check(t, b.Verify(p))
	if out := b.sh("/ctx/sub/run"); !strings.Contains(out, "denied") {
		t.Errorf("exec on a noexec view: %q", out)
	}
	b.want("write", b.do("write", "/ctx/sub/run"), "EROFS")
	b.want("a part of the view", b.sh("/part/run"), "ran\n")
}
