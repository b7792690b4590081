package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dir makes a directory of the owner with a file in it.
func (w *world) dir(name string) string {
	w.t.Helper()
	path := w.base + "/" + name
	check(w.t, os.MkdirAll(path, 0o755))
	check(w.t, os.WriteFile(path+"/file", []byte("text"), 0o644))
	check(w.t, os.WriteFile(path+"/run", []byte("#!/bin/sh\necho ran\n"), 0o755))
	if w.root {
		for _, p := range []string{path, path + "/file", path + "/run"} {
			check(w.t, os.Chown(p, ownerID, ownerID))
		}
	}
	return path
}

// tree is a listing of a directory with modes and owners: nothing may be created
// in a directory of a user's.
func tree(t testing.TB, dir string) string {
	t.Helper()
	out, err := exec.Command("find", dir, "-printf", "%P %y %m %U:%G %s\n").Output()
	check(t, err)
	return string(out)
}

// Flags are real: as mountinfo inside says them, and as the kernel enforces them.
func TestFlags(t *testing.T) {
	w := newWorld(t)
	src := w.dir("src")
	before := tree(t, src)
	s := w.spec()
	for target, row := range map[string]Row{
		"/m/rw":     {RW: true},
		"/m/ro":     {},
		"/m/noexec": {RW: true, NoExec: true},
		"/m/all":    {NoExec: true, Recursive: true},
	} {
		row.Line, row.Kind, row.Source, row.Target = len(s.Rows)+1, Host, src, target
		row.Recursive = row.Recursive || !w.root // a user cannot leave mounts out
		s.Rows = append(s.Rows, row)
	}
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want("rw write", b.do("write", "/m/rw/new"), "ok")
	check(t, os.Remove(src+"/new"))
	b.want("ro write", b.do("write", "/m/ro/new"), "EROFS")
	b.want("all write", b.do("write", "/m/all/new"), "EROFS")
	b.want("rw run", b.sh("/m/rw/run"), "ran\n")
	b.want("ro run", b.sh("/m/ro/run"), "ran\n")
	for _, m := range []string{"noexec", "all"} {
		if out := b.sh("/m/" + m + "/run"); !strings.Contains(out, "denied") {
			t.Errorf("exec on %s: %q", m, out)
		}
		b.want("a script read by its interpreter", b.sh("sh /m/"+m+"/run"), "ran\n")
	}
	info := b.do("read", "/proc/self/mountinfo")
	for point, flags := range map[string]string{"/m/rw": "rw,nosuid,nodev", "/m/ro": "ro,nosuid,nodev", "/m/noexec": "rw,nosuid,nodev,noexec", "/m/all": "ro,nosuid,nodev,noexec"} {
		if !strings.Contains(info, " "+point+" "+flags+",") && !strings.Contains(info, " "+point+" "+flags+" ") {
			t.Errorf("%s has not %s in\n%s", point, flags, info)
		}
	}
	b.want("root", b.do("write", "/new"), "EROFS")
	b.want("dev", b.do("write", "/dev/new"), "EROFS")
	b.want("shm", b.do("write", "/dev/shm/new"), "ok")
	b.want("tmp", b.do("write", "/tmp/new"), "ok")
	b.want("exec in tmp", b.sh("cp /m/rw/run /tmp/r && /tmp/r"), "ran\n")
	for _, name := range []string{"session", "log", "root"} {
		b.want(name, b.do("write", HomePath+"/"+name+"/new"), "EROFS")
	}
	if now := tree(t, src); now != before {
		t.Errorf("the source changed:\n%s", now)
	}
	// The read-back notices a flag that is not as the table has it.
	for i := range b.Table {
		if b.Table[i].Target == "/m/rw" {
			b.Table[i].NoExec = true
		}
	}
	if err := b.Verify(b.plan); err == nil || !strings.Contains(err.Error(), "/m/rw is not noexec") {
		t.Errorf("Verify of a flag that is not there: %v", err)
	}
}

func TestFlagsUser(t *testing.T) {
	if asUser(t) {
		TestFlags(t)
	}
}

// rbind carries what is mounted below with the same flags, bind leaves it out.
func TestRecursive(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	src := w.dir("src")
	check(t, os.Mkdir(src+"/sub", 0o755))
	check(t, unix.Mount("sub", src+"/sub", "tmpfs", 0, "mode=0777"))
	defer unix.Unmount(src+"/sub", unix.MNT_DETACH)
	check(t, os.WriteFile(src+"/sub/below", []byte("x"), 0o755))
	s := w.spec()
	s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: src, Target: "/r", Recursive: true, NoExec: true}, Row{Line: 4, Kind: Host, Source: src, Target: "/b"})
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want("below rbind", b.do("read", "/r/sub/below"), "x")
	b.want("write below rbind ro", b.do("write", "/r/sub/new"), "EROFS")
	b.want("below bind", b.do("read", "/b/sub/below"), "ENOENT")
	if info := b.do("read", "/proc/self/mountinfo"); !strings.Contains(info, " /r/sub ro,nosuid,nodev,noexec") {
		t.Errorf("mountinfo:\n%s", info)
	}
}

// A user cannot leave out what is mounted below: said with the cure.
func TestBindOfTreeAsUser(t *testing.T) {
	needMountsByRoot(t)
	name := "/with-a-mount"
	if !asUser(t, func(dir string) {
		check(t, os.MkdirAll(dir+name+"/sub", 0o755))
		check(t, unix.Mount("sub", dir+name+"/sub", "tmpfs", 0, ""))
		t.Cleanup(func() { os.RemoveAll(dir) })
		t.Cleanup(func() { unix.Unmount(dir+name+"/sub", unix.MNT_DETACH) })
	}) {
		return
	}
	w := newWorld(t)
	s := w.spec()
	src := os.Getenv("TMPDIR") + name
	s.Rows = append(s.Rows, Row{Line: 7, Kind: Host, Source: src, Target: "/b"})
	_, err := w.tryStart(s)
	wantFault(t, err, 69, "mount", "write rbind")
	s.Rows[2].Recursive = true
	b := w.start(s)
	check(t, b.Verify(b.plan))
}

// Parents come before children whatever the order of lines; mount points are made
// below the skeleton and the agent's home only.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	outer, inner := w.dir("outer"), w.dir("inner")
	check(t, os.Mkdir(outer+"/hole", 0o755))
	check(t, os.WriteFile(inner+"/file", []byte("inner"), 0o644))
	before := tree(t, outer)
	s := w.spec()
	s.Rows = append([]Row{
		{Line: 1, Kind: Host, Source: inner, Target: "/a/b/hole", Recursive: true},
		{Line: 2, Kind: Host, Source: inner + "/file", Target: HomePath + "/x/y/one", Recursive: true},
		{Line: 3, Kind: Host, Source: inner, Target: HomePath + "/cache/z", Recursive: true},
		{Line: 4, Kind: Host, Source: outer, Target: "/a/b", Recursive: true},
		{Line: 5, Kind: Empty, Source: "/ctx/shared/s", Target: "/space"},
		{Line: 5, Kind: Host, Source: inner, Target: "/space/data", RW: true, Recursive: true},
	}, s.Rows...)
	b := w.start(s)
	check(t, b.Verify(b.plan))
	for path, want := range map[string]string{
		"/a/b/file": "text", "/a/b/hole/file": "inner", HomePath + "/x/y/one": "inner", HomePath + "/cache/z/file": "inner", "/space/data/file": "inner"} {
		b.want(path, b.do("read", path), want)
	}
	b.want("the empty directory", b.do("readdir", "/space"), "data")
	b.want("a write to it", b.do("write", "/space/new"), "EROFS")
	b.want("a write to its data", b.do("write", "/space/data/new"), "ok")
	if now := tree(t, outer); now != before {
		t.Errorf("a user's directory changed:\n%s", now)
	}
	if got := ownerOf(t, w.home+"/x/y"); got != "2001:2001" {
		t.Errorf("a mount point in the home belongs to %s", got)
	}
	b.stop()
	s.Rows = append(s.Rows, Row{Line: 9, Kind: Host, Source: inner, Target: "/a/b/missing/more", Recursive: true})
	_, err := w.tryStart(s)
	wantFault(t, err, 1, "mount", "/a/b/missing/more does not exist")
	if now := tree(t, outer); now != before {
		t.Errorf("a user's directory changed:\n%s", now)
	}
}

func TestOrderUser(t *testing.T) {
	if asUser(t) {
		TestOrder(t)
	}
}

// A symlink on the way to a mount point is never followed.
func TestTargetThroughSymlink(t *testing.T) {
	w := newWorld(t)
	outer, inner, victim := w.dir("outer"), w.dir("inner"), w.dir("victim")
	check(t, os.Symlink(victim, outer+"/link"))
	check(t, os.Symlink(victim, w.home+"/link"))
	before := tree(t, victim)
	for _, target := range []string{"/a/link/x", "/a/link", HomePath + "/link/x", "/bin/x"} {
		s := w.spec()
		s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: outer, Target: "/a", Recursive: true}, Row{Line: 4, Kind: Host, Source: inner, Target: target, Recursive: true})
		b, err := w.tryStart(s)
		if err == nil {
			b.stop()
		}
		wantFault(t, err, 1, "mount", "symbolic link")
	}
	if now := tree(t, victim); now != before {
		t.Errorf("behind the symlink:\n%s", now)
	}
}

// /tmp: a private tmpfs; the home's own directory for the line "/tmp /tmp"; a
// tmpfs that carries lines below it.
func TestTmp(t *testing.T) {
	w := newWorld(t)
	host, err := os.MkdirTemp("/tmp", "marker")
	check(t, err)
	defer os.RemoveAll(host)
	inner := w.dir("inner")
	s := w.spec()
	s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: "/tmp", Target: "/tmp", RW: true, Recursive: true})
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want("the host's /tmp", b.do("readdir", "/tmp"), "")
	b.want("write", b.do("write", "/tmp/kept"), "ok")
	b.want("in the home", b.do("readdir", HomePath+"/tmp"), "kept")
	st, err := os.Stat(w.home + "/tmp")
	check(t, err)
	if st.Mode().Perm() != 0o700 || ownerOf(t, w.home+"/tmp") != "2001:2001" {
		t.Errorf("the private /tmp: %v %s", st.Mode(), ownerOf(t, w.home+"/tmp"))
	}
	b.stop()
	s = w.spec()
	s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: inner, Target: "/tmp/deep/er", Recursive: true})
	b = w.start(s)
	check(t, b.Verify(b.plan))
	b.want("below /tmp", b.do("read", "/tmp/deep/er/file"), "text")
	b.want("beside it", b.do("write", "/tmp/new"), "ok")
}

func TestTmpUser(t *testing.T) {
	if asUser(t) {
		TestTmp(t)
	}
}

// The top of a repository is read-only in every writable line, be .git a
// directory, or a file and the directory that it names.
func TestGit(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	w := newWorld(t)
	git := func(dir string, args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=o", "-c", "user.email=o@o", "-c", "safe.directory=*"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "HOME="+w.base)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
	}
	git(w.work, "init", "-q")
	git(w.work, "commit", "-q", "--allow-empty", "-m", "one")
	split := w.dir("split")
	git(split, "init", "-q", "--separate-git-dir", split+"/real")
	tree2 := w.base + "/worktree"
	git(w.work, "worktree", "add", "-q", tree2)
	if w.root {
		check(t, exec.Command("chown", "-R", "2001:2001", w.work, split, tree2).Run())
	}
	s := w.spec()
	s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: split, Target: "/split", RW: true, Recursive: true}, Row{Line: 4, Kind: Host, Source: tree2, Target: "/tree", RW: true, Recursive: true})
	b := w.start(s)
	check(t, b.Verify(b.plan))
	for _, path := range []string{"/workspace/.git/hooks/pre-commit", "/workspace/.git/config", "/split/.git", "/split/real/config", "/tree/.git"} {
		b.want(path, b.do("write", path), "EROFS")
	}
	b.want("beside it", b.do("write", "/workspace/file"), "ok")
	b.want("in the other", b.do("write", "/split/new"), "ok")
	if out := b.sh("cd /workspace && git -c safe.directory=* log --oneline"); !strings.Contains(out, "one") {
		t.Errorf("git log inside: %q", out)
	}
	if out := b.sh("mv /workspace/.git /workspace/g2"); !strings.Contains(out, "busy") {
		t.Errorf("moving .git away: %q", out)
	}
	b.stop()
	for name, change := range map[string]func(*Spec){
		"--git rw": func(s *Spec) { s.GitRW = true },
		"a line": func(s *Spec) {
			s.Rows = append(s.Rows, Row{Line: 9, Kind: Host, Source: w.work + "/.git", Target: "/workspace/.git", RW: true, Recursive: true})
		},
	} {
		s := w.spec()
		change(&s)
		b := w.start(s)
		b.want(name, b.do("write", "/workspace/.git/new"), "ok")
		b.stop()
	}
	check(t, os.Rename(w.work+"/.git", w.base+"/elsewhere"))
	check(t, os.Symlink(w.base+"/elsewhere", w.work+"/.git"))
	_, err := w.tryStart(w.spec())
	wantFault(t, err, 13, "workspace", "symlink")
	check(t, os.Remove(w.work+"/.git"))
	b = w.start(w.spec())
	b.want("without one", b.do("readdir", "/workspace"), "file")
	b.stop()
	if now, err := os.ReadDir(w.work); err != nil || len(now) != 1 {
		t.Errorf("the workspace on the host: %v %v", now, err)
	}
}

func TestGitUser(t *testing.T) {
	if asUser(t) {
		TestGit(t)
	}
}

// root's .git, idmapped: as read-only as anybody's.
func TestGitIDMapped(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	s := agentOfRoot(w, w.spec())
	check(t, os.MkdirAll(w.work+"/.git/hooks", 0o700))
	check(t, os.Chmod(w.work, 0o700)) // the owner's alone: looked into with the owner's rights
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want(".git", b.do("write", "/workspace/.git/hooks/x"), "EROFS")
	b.want("beside it", b.do("write", "/workspace/x"), "ok")
}

// Entries of the root control's directory appear in "/", read-only, unless the
// base or the table has the name.
func TestRootDir(t *testing.T) {
	w := newWorld(t)
	root := w.dir("rootdir")
	check(t, os.MkdirAll(root+"/opt/app", 0o755))
	check(t, os.WriteFile(root+"/opt/app/x", []byte("app"), 0o644))
	check(t, os.MkdirAll(root+"/etc", 0o755))
	check(t, os.WriteFile(root+"/etc/passwd", []byte("fake"), 0o644))
	check(t, os.MkdirAll(root+"/workspace", 0o755))
	check(t, os.Symlink("opt/app", root+"/link"))
	check(t, os.Symlink("/etc/shadow", root+"/shadow"))
	s := w.spec()
	s.RootDir = &Row{Kind: Host, Source: root}
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want("an entry", b.do("read", "/opt/app/x"), "app")
	b.want("a link", b.do("read", "/link/x"), "app")
	b.want("a link to what is not there", b.do("read", "/shadow"), "ENOENT")
	b.want("a file", b.do("read", "/file"), "text")
	b.want("a write", b.do("write", "/opt/app/x"), "EROFS")
	if p := b.do("read", "/etc/passwd"); !strings.HasPrefix(p, "coder:") {
		t.Errorf("the base's /etc was replaced: %q", p)
	}
	b.stop()
	if now := tree(t, root); strings.Contains(now, "skeleton") || strings.Count(now, "\n") != 11 {
		t.Errorf("the root directory:\n%s", now)
	}
}

// An agent's own /usr replaces the base, and start-up files in its /etc are
// masked.
func TestOwnUsr(t *testing.T) {
	w := newWorld(t)
	root := w.base + "/rootdir"
	for _, d := range []string{"usr/bin", "bin", "etc/profile.d", "lib64", "lib"} {
		check(t, os.MkdirAll(root+"/"+d, 0o755))
	}
	check(t, os.WriteFile(root+"/etc/profile", []byte("export LEAK=1\n"), 0o644))
	check(t, os.WriteFile(root+"/etc/profile.d/x.sh", []byte("export LEAK=2\n"), 0o644))
	check(t, os.WriteFile(root+"/etc/own", []byte("own"), 0o644))
	// A test binary that is not static (with -race) needs its libraries there.
	libs, _ := exec.Command("ldd", w.self).Output()
	for _, word := range strings.Fields(string(libs)) {
		if text, err := os.ReadFile(word); err == nil {
			check(t, os.MkdirAll(filepath.Dir(root+word), 0o755))
			check(t, os.WriteFile(root+word, text, 0o755))
		}
	}
	s := w.spec()
	s.RootDir = &Row{Kind: Host, Source: root}
	b := w.start(s)
	check(t, b.Verify(b.plan))
	b.want("/usr/bin", b.do("readdir", "/usr/bin"), "")
	b.want("/bin", b.do("readdir", "/bin"), "")
	b.want("/etc", b.do("read", "/etc/own"), "own")
	b.want("/etc/profile", b.do("read", "/etc/profile"), "")
	b.want("/etc/profile.d", b.do("readdir", "/etc/profile.d"), "")
	b.stop()
	// Without it the next start has the base again.
	b = w.start(w.spec())
	b.want("sh", b.sh("echo $HOME"), HomePath+"\n")
}

func TestSkeleton(t *testing.T) {
	w := newWorld(t)
	p, err := w.spec().Plan()
	check(t, err)
	old := unix.Umask(0o077)
	err = MakeSkeleton(w.skeleton, p)
	unix.Umask(old)
	check(t, err)
	check(t, filepath.Walk(w.skeleton, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode()&os.ModeSymlink == 0 && info.Mode().Perm()&0o444 != 0o444 {
			t.Errorf("%s is %v: the agent cannot read it", path, info.Mode())
		}
		return err
	}))
	first := tree(t, w.skeleton)
	check(t, os.WriteFile(w.skeleton+"/left", nil, 0o644))
	check(t, MakeSkeleton(w.skeleton, p))
	if again := tree(t, w.skeleton); again != first {
		t.Errorf("made again:\n%s", again)
	}
	check(t, RemoveSkeleton(w.skeleton))
	check(t, RemoveSkeleton(w.skeleton))
	if _, err := os.Lstat(w.skeleton); !os.IsNotExist(err) {
		t.Errorf("after removal: %v", err)
	}
	if w.root {
		check(t, MakeSkeleton(w.skeleton, p))
		w.mountView("one")
		if err := RemoveSkeleton(w.skeleton); err == nil {
			t.Error("removed below a mount")
		}
		if _, err := os.Stat(w.skeleton + "/ctx/status"); err != nil {
			t.Errorf("what is mounted there: %v", err)
		}
		w.unmountView()
	}
}
