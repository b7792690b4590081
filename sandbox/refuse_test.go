package sandbox

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A source that is never handed over ends the start whatever name it comes by:
// its own, a symlink, a parent, a bind elsewhere, something inside.
func TestRefusedSources(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	secret := w.base + "/vault/store"
	check(t, os.MkdirAll(secret+"/object/agent", 0o755))
	check(t, os.MkdirAll(w.base+"/views/part", 0o755))
	check(t, os.MkdirAll(w.base+"/views/other", 0o755))
	check(t, os.MkdirAll(w.base+"/kernel/proc", 0o755))
	bind := func(from, to string) {
		t.Helper()
		check(t, os.MkdirAll(to, 0o755))
		check(t, unix.Mount(from, to, "", unix.MS_BIND, ""))
		t.Cleanup(func() { unix.Unmount(to, unix.MNT_DETACH) })
	}
	link := func(from, to string) string {
		t.Helper()
		check(t, os.Symlink(from, w.base+"/"+to))
		return w.base + "/" + to
	}
	bind(secret, w.base+"/views/bound")
	bind(secret+"/object", w.base+"/views/part")
	bind(w.base+"/vault", w.base+"/views/whole")
	check(t, unix.Mount("proc", w.base+"/kernel/proc", "proc", 0, ""))
	t.Cleanup(func() { unix.Unmount(w.base+"/kernel/proc", unix.MNT_DETACH) })
	// A mount that calls itself ours: what mount(8) of a FUSE shows.
	fuse := w.base + "/cortex/ctx"
	check(t, os.MkdirAll(fuse, 0o755))
	mountFuse(t, fuse, "fuse.cortexfs", ownerID)
	shm := "/dev/shm/" + filepath.Base(w.base)
	check(t, os.Mkdir(shm, 0o755))
	t.Cleanup(func() { os.RemoveAll(shm) })
	sock, err := net.Listen("unix", shm+"/sock")
	check(t, err)
	defer sock.Close()

	s := w.spec()
	s.Refuse = []Refusal{{Path: secret, Reason: "the store"}}
	for name, c := range map[string]struct{ source, words string }{
		"itself":               {secret, "is the store"},
		"inside":               {secret + "/object/agent", "lies in the store"},
		"parent":               {w.base + "/vault", "contains the store"},
		"symlink":              {link(secret, "l1"), "is the store"},
		"symlink inside":       {link(secret+"/object", "l2"), "lies in the store"},
		"bind":                 {w.base + "/views/bound", "is the store"},
		"bind of a part":       {w.base + "/views/part", "lies in the store"},
		"inside a bind":        {w.base + "/views/bound/object", "lies in the store"},
		"bind of a parent":     {w.base + "/views/whole", "contains the store"},
		"below that":           {w.base + "/views/whole/store/object", "lies in the store"},
		"a parent of binds":    {w.base + "/views", "contains the store"},
		"runtime directory":    {w.base + "/rt", "runtime directory"},
		"skeleton":             {w.skeleton, "runtime directory"},
		"root":                 {"/", ""},
		"tmp":                  {"/tmp", "is /tmp itself"},
		"tmp by a link":        {link("/tmp", "l3"), "is /tmp itself"},
		"run":                  {"/run", ""},
		"shm":                  {"/dev/shm", "is /dev/shm itself"},
		"root's home":          {"/root", "home directory of root"},
		"proc":                 {"/proc", "kernel file system"},
		"proc by a link":       {link("/proc/self", "l4"), "kernel file system"},
		"a part of sys":        {"/sys/kernel", "kernel file system"},
		"dev":                  {"/dev", "kernel file system"},
		"around proc":          {w.base + "/kernel", "contains a kernel file system"},
		"a mount of ours":      {fuse, "mount of CortexFS"},
		"around one of ours":   {w.base + "/cortex", "contains a mount of CortexFS"},
		"a directory of socks": {shm, "listening socket"},
		"missing":              {w.base + "/none", "no such file"},
		"not the owner's":      {"/root/x", "permission denied"},
		"a device":             {"/dev/null", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := s
			s.Rows = append(s.Rows[:2:2], Row{Line: 5, Kind: Host, Source: c.source, Target: "/x", Recursive: true})
			_, _, err := w.checkOnly(s)
			exit := 13
			switch name {
			case "missing":
				exit = 1
			case "a device":
				exit = 2
			}
			wantFault(t, err, exit, "mount", c.words)
			if e := faults(err); len(e) == 1 && e[0].Line != 5 {
				t.Errorf("line %d", e[0].Line)
			}
		})
	}
	// The same for the workspace and for the root control.
	s.Rows[1].Source = secret
	_, err = w.tryStart(s)
	wantFault(t, err, 13, "workspace", "is the store")
	s = w.spec()
	s.Refuse = []Refusal{{Path: secret, Reason: "the store"}}
	s.RootDir = &Row{Kind: Host, Source: w.base + "/vault"}
	_, err = w.tryStart(s)
	wantFault(t, err, 13, "root", "contains the store")
}

// checkOnly is --dry-run.
func (w *world) checkOnly(s Spec) ([]Effective, []string, error) {
	w.t.Helper()
	p, err := s.Plan()
	check(w.t, err)
	if _, err := os.Lstat(w.skeleton); err != nil {
		check(w.t, MakeSkeleton(w.skeleton, p))
	}
	f, done := w.files()
	defer done()
	return Check(context.Background(), p, f)
}

// What is near a refused directory, and no more, is fine.
func TestAllowedSources(t *testing.T) {
	w := newWorld(t)
	plain := w.dir("plain")
	check(t, os.Symlink(plain, w.base+"/link"))
	sock, err := net.Listen("unix", plain+"/sock")
	check(t, err)
	defer sock.Close()
	s := w.spec()
	s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: w.base + "/link", Target: "/x", Recursive: true},
		Row{Line: 4, Kind: Host, Source: plain + "/file", Target: "/y/file", RW: true, Recursive: true})
	table, warnings, err := w.checkOnly(s)
	check(t, err)
	found := false
	for _, e := range table {
		if e.Target == "/x" {
			found = e.Resolved == plain
		}
	}
	if !found {
		t.Errorf("the resolved source: %+v", table)
	}
	if len(warnings) == 0 || !strings.Contains(warnings[0], plain+"/sock") {
		t.Errorf("warnings: %q", warnings)
	}
	text := w.plan(s).Print(table, warnings)
	for _, part := range []string{"iso=shared uid=2001", "CTX_ROOT=/ctx", plain, "ro    rbind,nosuid,nodev", "/usr/bin/bwrap --unshare-all", "warning: "} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want("a file", b.do("write", "/y/file"), "ok")
	b.want("through the link", b.do("read", "/x/file"), "x")
}

func TestAllowedSourcesUser(t *testing.T) {
	if asUser(t) {
		TestAllowedSources(t)
	}
}

// A home directory is handed over read-only, when asked for.
func TestAllowHome(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	s := agentOfRoot(w, w.spec())
	row := Row{Line: 3, Kind: Host, Source: "/root", Target: "/x", Recursive: true}
	s.Rows = append(s.Rows, row)
	s.AllowHome = true
	_, _, err := w.checkOnly(s)
	check(t, err)
	s.Rows[2].RW = true
	_, _, err = w.checkOnly(s)
	wantFault(t, err, 13, "mount", "home directory of root")
}
