package stage

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestParseMounts(t *testing.T) {
	const text = `26 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
45 26 254:0 /a\040b /mnt/with\040space\011and\134more ro,nosuid,nodev shared:1 master:2 - fuse.cortexfs cortexfs rw,user_id=0
46 26 0:40 / /odd rw - tmpfs  rw
`
	all, err := parseMounts([]byte(text))
	check(t, err)
	if len(all) != 3 {
		t.Fatalf("%d mounts", len(all))
	}
	m := all[1]
	if m.ID != 45 || m.Parent != 26 || m.Root != "/a b" || m.Point != "/mnt/with space\tand\\more" || !m.Options["ro"] || !m.Options["nodev"] || m.Options["noexec"] ||
		!slices.Equal(m.Tags, []string{"shared:1", "master:2"}) || m.Type != "fuse.cortexfs" || m.Source != "cortexfs" || !isCortex(&m) {
		t.Errorf("%+v", m)
	}
	if all[2].Source != "" || all[2].Type != "tmpfs" || len(all[0].Tags) != 0 {
		t.Errorf("%+v %+v", all[0], all[2])
	}
	for _, bad := range []string{"x", "1 2 3 / / rw", "a 1 0:1 / / rw - t s o", "1 2 0:1 / / rw - t"} {
		if _, err := parseMounts([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if _, err := ReadMounts("/proc/self/mountinfo"); err != nil {
		t.Error(err)
	}
}

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		path, dir, rel string
		ok             bool
	}{
		{"/a/b", "/a", "b", true}, {"/a", "/a", "", true}, {"/ab", "/a", "", false}, {"/a", "/", "a", true}, {"/", "/", "", true}, {"/a", "/a/b", "", false},
	} {
		rel, ok := below(c.path, c.dir)
		if ok != c.ok || ok && rel != c.rel {
			t.Errorf("below(%q, %q) = %q %v", c.path, c.dir, rel, ok)
		}
		if ok && join(c.dir, rel) != c.path {
			t.Errorf("join(%q, %q) = %q", c.dir, rel, join(c.dir, rel))
		}
	}
}

// accounts puts account files of the test's in place.
func accounts(t *testing.T, passwd, group string) string {
	t.Helper()
	dir := t.TempDir()
	files := map[*string]string{&passwdFile: passwd, &groupFile: group, &loginDefs: "# UID_MIN 5\nUID_MIN\t\t 500\n"}
	for at, text := range files {
		old := *at
		name := filepath.Join(dir, filepath.Base(old))
		check(t, os.WriteFile(name, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o644))
		*at = name
		t.Cleanup(func() { *at = old })
	}
	return dir
}

func TestLookupAccount(t *testing.T) {
	accounts(t, "root:x:0:0:root:/root:/bin/sh\n# no:x:1:1::/:\nbad line\nann:x:600:601:Ann,,,:/home/ann:/bin/sh\nneg:x:-1:1::/:/\n",
		"root:x:0:\nann:x:601:ann\naudio:x:29:bob,ann\nvideo:x:44:annex\nbad\nlab:x:4711:ann\n")
	a, ok, err := LookupAccount(600)
	if err != nil || !ok || a.GID != 601 || !slices.Equal(a.Groups, []uint32{29, 4711}) {
		t.Errorf("%+v %v %v", a, ok, err)
	}
	if _, ok, err := LookupAccount(7); ok || err != nil {
		t.Errorf("a uid that is not there: %v %v", ok, err)
	}
	if uidMin() != 500 {
		t.Errorf("UID_MIN is %d", uidMin())
	}
}

// Homes are guarded by place; what lies in the owner's home is asked for with the
// owner's rights and never opened otherwise.
func TestGuardHomes(t *testing.T) {
	dir := accounts(t, "root:x:0:0::/root:/\nann:x:600:600::DIR/home/ann:/\nbob:x:700:700::DIR/home/bob:/\nsys:x:100:100::DIR/sys:/\n", "")
	config := dir + "/home/ann/.config/cortexfs"
	for _, d := range []string{config, dir + "/home/ann/work", dir + "/home/bob/work", dir + "/sys"} {
		check(t, os.MkdirAll(d, 0o755))
	}
	check(t, os.Symlink(dir+"/home/ann", dir+"/link"))
	table, err := readTable()
	check(t, err)
	var asked []string
	g, err := newGuard(table, []Refusal{{dir + "/home/ann/private", "private"}, {dir + "/home/bob/private", "bob's"}}, 600, func(name string) (*answer, error) {
		asked = append(asked, name)
		a := ask{Path: name}.serve(unix.AT_FDCWD)
		if a.Errno != 0 {
			return a, a.Errno
		}
		return a, nil
	})
	check(t, err)
	slices.Sort(asked)
	if !slices.Equal(asked, []string{config, dir + "/home/ann/.local/share/cortexfs", dir + "/home/ann/private"}) {
		t.Errorf("asked for %q", asked)
	}
	for name, words := range map[string]string{
		dir + "/home/ann":         "home directory of ann",
		dir + "/link":             "home directory of ann",
		dir + "/home":             "home directory of",
		dir + "/home/bob":         "home directory of bob",
		dir + "/home/ann/.config": "contains the configuration",
		config:                    "is the configuration",
		dir + "/home/ann/work":    "",
		dir + "/sys":              "",
		dir + "/home/bob/work":    "",
		"/":                       "is / itself",
		"/dev/shm":                "is /dev/shm itself",
		"/etc":                    "",
		"/proc/self":              "kernel file system",
	} {
		fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
		check(t, err)
		l, err := table.locate(fd)
		check(t, err)
		err = g.check(&Row{Kind: Host, Source: name, RW: true}, l, false)
		unix.Close(fd)
		if words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words) || !fault.Is(err, fault.Perm)) {
			t.Errorf("%s: %v, want %q", name, err, words)
		}
	}
}

func TestByName(t *testing.T) {
	all, err := parseMounts([]byte("1 1 8:1 / / rw - ext4 d rw\n2 1 0:5 / /home rw - autofs a rw\n3 2 0:6 / /home/ann rw - nfs s rw\n4 1 0:7 / /u rw - fuse.x x rw\n5 1 8:1 /srv /bound rw - ext4 d rw\n6 5 0:9 / /bound/in rw - tmpfs t rw\n"))
	check(t, err)
	table := &mountTable{all: all, byID: map[int]*Mount{}}
	for i := range all {
		table.byID[all[i].ID] = &all[i]
	}
	for name, want := range map[string]struct {
		dev, path string
		served    bool
	}{
		"/etc/x":      {"8:1", "/etc/x", false},
		"/home/ann/x": {"0:6", "/x", true},
		"/home":       {"0:5", "/", true},
		"/u/a":        {"0:7", "/a", true},
		"/bound/x":    {"8:1", "/srv/x", false},
		"/bound/in":   {"0:9", "/", false},
		"/bounded":    {"8:1", "/bounded", false},
	} {
		l, ok := table.byName(name)
		if !ok || l.dev != want.dev || l.path != want.path || table.served(name) != want.served {
			t.Errorf("%s: %+v %v", name, l.place, table.served(name))
		}
	}
	l, _ := table.byName("/bound")
	if in := table.inside(l); len(in) != 1 || in[0].ID != 6 {
		t.Errorf("inside /bound: %+v", in)
	}
	if c := table.chain(place{dev: "0:9", path: "/x"}, table.byID[6]); len(c) != 3 || c[1].path != "/srv/in" || c[2].path != "/bound" {
		t.Errorf("chain: %+v", c)
	}
}

// An ask opens what it says and follows links only where it may.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	check(t, os.MkdirAll(dir+"/a/b", 0o755))
	check(t, os.Symlink("a", dir+"/link"))
	check(t, os.Symlink("/etc", dir+"/out"))
	check(t, os.WriteFile(dir+"/.git", []byte("gitdir: /x/y\n"), 0o600))
	at, err := unix.Open(dir, unix.O_PATH, 0)
	check(t, err)
	defer unix.Close(at)
	for _, c := range []struct {
		ask  ask
		want error
	}{
		{ask{Path: dir + "/link/b"}, nil},
		{ask{Path: "/proc/self/root"}, unix.ELOOP},
		{ask{Path: "a/b", Beneath: true}, nil},
		{ask{Path: ".", Beneath: true}, nil},
		{ask{Path: "link", Beneath: true}, unix.ELOOP},
		{ask{Path: "link/b", Beneath: true}, unix.ELOOP},
		{ask{Path: "../x", Beneath: true}, unix.EXDEV},
		{ask{Path: "/etc", Beneath: true}, unix.EXDEV},
		{ask{Path: "out", Last: true}, nil},
		{ask{Path: "none", Last: true}, unix.ENOENT},
	} {
		a := c.ask.serve(at)
		if a.fd >= 0 {
			if mode, err := unix.FcntlInt(uintptr(a.fd), unix.F_GETFL, 0); err != nil || mode&unix.O_PATH == 0 {
				t.Errorf("%+v: not O_PATH", c.ask)
			}
			unix.Close(a.fd)
		}
		if c.want == nil && a.Errno != 0 || c.want != nil && a.Errno != c.want {
			t.Errorf("%+v: %v, want %v", c.ask, a.Errno, c.want)
		}
	}
	a := ask{Path: "out", Last: true}.serve(at)
	unix.Close(a.fd)
	if !a.isLink() || a.Link != "/etc" {
		t.Errorf("a link: %+v", a)
	}
	a = ask{Path: ".git", Last: true, Git: true}.serve(at)
	unix.Close(a.fd)
	if gitdir(a.Text) != "/x/y" {
		t.Errorf("gitfile: %+v", a)
	}
	a = ask{List: true}.serve(at)
	slices.Sort(a.Names)
	if !slices.Equal(a.Names, []string{".git", "a", "link", "out"}) {
		t.Errorf("names: %+v", a)
	}
}

func TestList(t *testing.T) {
	dir := t.TempDir()
	for i := range maxNames + 10 {
		check(t, os.WriteFile(filepath.Join(dir, strings.Repeat("n", 200)+strconv.Itoa(i)), nil, 0o644))
	}
	check(t, os.WriteFile(filepath.Join(dir, "bad\xff"), nil, 0o644))
	check(t, os.WriteFile(filepath.Join(dir, "bad\n"), nil, 0o644))
	at, err := unix.Open(dir, unix.O_PATH, 0)
	check(t, err)
	defer unix.Close(at)
	a := ask{List: true}.serve(at)
	text, err := json.Marshal(a)
	check(t, err)
	if a.Errno != 0 || !a.Cut || len(a.Names) == 0 || len(text) > maxAnswer {
		t.Errorf("%d names, cut %v, %d bytes, %v", len(a.Names), a.Cut, len(text), a.Errno)
	}
	if slices.ContainsFunc(a.Names, func(n string) bool { return strings.HasPrefix(n, "bad") }) {
		t.Error("a name that does not survive JSON")
	}
	file, err := unix.Open(filepath.Join(dir, a.Names[0]), unix.O_PATH, 0)
	check(t, err)
	defer unix.Close(file)
	if a := (ask{List: true}).serve(file); a.Errno != unix.ENOTDIR {
		t.Errorf("a file: %v", a.Errno)
	}
}

func TestMakePoint(t *testing.T) {
	dir := t.TempDir()
	check(t, os.Symlink("/etc", dir+"/out"))
	at, err := unix.Open(dir, unix.O_PATH, 0)
	check(t, err)
	defer unix.Close(at)
	check(t, makePoint(at, "a/b/c", true))
	check(t, makePoint(at, "a/b/c", true))
	check(t, makePoint(at, "a/file", false))
	check(t, makePoint(at, "a/file", false))
	if st, err := os.Stat(dir + "/a/file"); err != nil || !st.Mode().IsRegular() {
		t.Errorf("%v %v", st, err)
	}
	for _, bad := range []string{"out/x", "../x", "a/file/x"} {
		if err := makePoint(at, bad, true); err == nil {
			t.Errorf("%s was made", bad)
		}
	}
}

func TestStartError(t *testing.T) {
	e := Fail(StepMount, "mount", 3, fault.Perm, "do this", "no %s", "way")
	if e.Exit != 13 || !fault.Is(e, fault.Perm) || e.Error() != "start, step 6: mount:3: no way (do this)" {
		t.Errorf("%v %d", e, e.Exit)
	}
	var f *fault.Error
	if !errors.As(e, &f) || f.Line != 3 {
		t.Errorf("%+v", f)
	}
	for kind, exit := range map[fault.Kind]int{fault.Access: 13, fault.Unavailable: 69, fault.Invalid: 2, fault.IO: 1} {
		if ExitCode(kind) != exit {
			t.Errorf("%v: %d", kind, ExitCode(kind))
		}
	}
}

func TestSameIDs(t *testing.T) {
	a := Account{UID: 1, GID: 2, Groups: []uint32{4, 3}}
	for _, c := range []struct {
		b    Account
		want bool
	}{
		{Account{UID: 1, GID: 2, Groups: []uint32{3, 4}}, true},
		{Account{UID: 1, GID: 2, Groups: []uint32{2, 3, 4}}, true},
		{Account{UID: 1, GID: 2, Groups: []uint32{3}}, false},
		{Account{UID: 1, GID: 3, Groups: []uint32{2, 4}}, false},
		{Account{UID: 2, GID: 2, Groups: []uint32{3, 4}}, false},
	} {
		if sameIDs(a, c.b) != c.want {
			t.Errorf("%+v: %v", c.b, !c.want)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add([]byte("26 1 254:0 / / rw,relatime - ext4 /dev/vda rw"))
	f.Add([]byte(`45 26 254:0 /a\040b /m rw shared:1 - t s o`))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := parseMounts(text)
		for _, m := range all {
			if err == nil && m.Type == "" && m.Dev == "" {
				t.Errorf("%+v", m)
			}
		}
	})
}
