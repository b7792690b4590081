package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/fault"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "store"))
}

func openStore(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path, Options{Create: true, Mountpoint: "/ctx", Log: func(m string) { t.Log(m) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func mustCreate(t *testing.T, s *Store, dir string, texts map[string][]byte) *Object {
	t.Helper()
	o, err := s.Create(dir, texts)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func text(o *Object, name string) string { return string(o.Snapshot().Values[name].Text) }

func wantKind(t *testing.T, what string, err error, want fault.Kind) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Errorf("%s: %v, want kind %v", what, err, want)
	}
}

func (s *Store) onDisk(p string) string { return filepath.Join(s.path, "object", p) }

func tmpNames(t *testing.T, s *Store) []string {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(s.path, "tmp"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		if e.Name() != s.spare {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestObjectLife(t *testing.T) {
	s := newStore(t)
	if _, err := s.Object("agent/coder.d"); !fault.Is(err, fault.NotExist) {
		t.Errorf("missing object: %v", err)
	}
	o := mustCreate(t, s, "agent/coder.d", map[string][]byte{"owner": []byte("1000\n"), "tools": nil})
	if _, err := s.Create("agent/coder.d", nil); !fault.Is(err, fault.Exist) {
		t.Errorf("second create: %v", err)
	}
	if again, err := s.Object("agent/coder.d"); err != nil || again != o {
		t.Errorf("Object is %p, %v, not %p", again, err, o)
	}
	before := o.Snapshot()
	if err := o.Put("tools", []byte("fs.read\n")); err != nil {
		t.Fatal(err)
	}
	after := o.Snapshot()
	if after.Gen <= before.Gen || after.Values["tools"].Gen != after.Gen || after.Values["owner"].Gen != before.Values["owner"].Gen {
		t.Errorf("generations: before %+v after %+v", before, after)
	}
	if len(before.Values["tools"].Text) != 0 {
		t.Error("a published snapshot changed")
	}
	if got, err := os.ReadFile(s.onDisk("agent/coder.d/tools")); err != nil || string(got) != "fs.read\n" {
		t.Errorf("on disk: %q, %v", got, err)
	}
	if err := o.Delete("tools"); err != nil {
		t.Fatal(err)
	}
	if err := o.Delete("tools"); err != nil {
		t.Errorf("deleting twice: %v", err)
	}
	if _, there := o.Snapshot().Values["tools"]; there {
		t.Error("deleted value is still there")
	}
	list, err := s.List("agent")
	if err != nil || len(list) != 1 || list[0] != (Entry{"coder.d", fs.ModeDir}) {
		t.Errorf("List: %v, %v", list, err)
	}
	if err := s.Remove("agent/coder.d"); err != nil {
		t.Fatal(err)
	}
	if !o.Gone() || len(o.Snapshot().Values) != 0 {
		t.Error("removed object is not gone")
	}
	wantKind(t, "Put on a removed object", o.Put("tools", nil), fault.Stale)
	wantKind(t, "Remove twice", s.Remove("agent/coder.d"), fault.NotExist)
	if names := tmpNames(t, s); len(names) > 0 {
		t.Errorf("left in tmp/: %q", names)
	}
	fresh := mustCreate(t, s, "agent/coder.d", nil)
	if fresh == o || o.Put("tools", nil) == nil {
		t.Error("the old object acts on the new one")
	}
}

func TestSurvivesReopen(t *testing.T) {
	s := newStore(t)
	o := mustCreate(t, s, "home/1000/agent/a.d", map[string][]byte{"label": []byte("a_t\n")})
	if err := o.Put("policy", []byte("# none\n")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	wantKind(t, "Put after Close", o.Put("policy", nil), fault.BadHandle)
	s = openStore(t, s.path)
	o, err := s.Object("home/1000/agent/a.d")
	if err != nil {
		t.Fatal(err)
	}
	if text(o, "label") != "a_t\n" || text(o, "policy") != "# none\n" {
		t.Errorf("after reopening: %v", o.Snapshot())
	}
}

func TestConditionalChanges(t *testing.T) {
	s := newStore(t)
	o := mustCreate(t, s, "agent/a.d", nil)
	gen := func() uint64 { return o.Snapshot().Values["tools"].Gen }
	if err := o.PutIf("tools", []byte("one\n"), 0); err != nil {
		t.Fatal(err)
	}
	first := gen()
	wantKind(t, "PutIf absent", o.PutIf("tools", []byte("two\n"), 0), fault.Again)
	if err := o.PutIf("tools", []byte("two\n"), first); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "DeleteIf old", o.DeleteIf("tools", first), fault.Again)
	if text(o, "tools") != "two\n" {
		t.Errorf("value is %q", text(o, "tools"))
	}
	if err := o.DeleteIf("tools", gen()); err != nil || gen() != 0 {
		t.Errorf("DeleteIf: %v, generation %d", err, gen())
	}
}

func TestBadArguments(t *testing.T) {
	s := newStore(t)
	o := mustCreate(t, s, "agent/a.d", nil)
	for _, dir := range []string{"", "/agent", "agent/..", "../agent", "agent//b", "a/./b", "a\x00"} {
		if _, err := s.Object(dir); dir != "" && !fault.Is(err, fault.Invalid) {
			t.Errorf("Object(%q): %v", dir, err)
		}
		if _, err := s.Create(dir, nil); !fault.Is(err, fault.Invalid) {
			t.Errorf("Create(%q): %v", dir, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", ".attr", "exec", "hooks"} {
		if err := safePut(o, name); !fault.Is(err, fault.Invalid) {
			t.Errorf("Put(%q): %v", name, err)
		}
	}
	wantKind(t, "too big", o.Put("x", make([]byte, node.MaxText+1)), fault.TooBig)
	if err := o.Put("x", make([]byte, node.MaxText)); err != nil {
		t.Errorf("64 KiB: %v", err)
	}
	if _, err := s.Create("agent/b.d", map[string][]byte{"../x": nil}); !fault.Is(err, fault.Invalid) {
		t.Errorf("Create with a bad name: %v", err)
	}
	if names := tmpNames(t, s); len(names) > 0 {
		t.Errorf("left in tmp/: %q", names)
	}
}

func safePut(o *Object, name string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return o.Put(name, nil)
}

func TestWhatIsNoTextFailsClosed(t *testing.T) {
	s := newStore(t)
	mustCreate(t, s, "agent/a.d", map[string][]byte{"label": []byte("a_t\n")})
	s.Close()
	dir := s.onDisk("agent/a.d")
	secret := filepath.Join(t.TempDir(), "secret")
	for _, err := range []error{
		os.WriteFile(secret, []byte("secret"), 0o600),
		os.Symlink(secret, filepath.Join(dir, "policy")),
		unix.Mkfifo(filepath.Join(dir, "mount"), 0o600),
		os.Mkdir(filepath.Join(dir, "env"), 0o700),
		os.WriteFile(filepath.Join(dir, "tools"), make([]byte, node.MaxText+1), 0o600),
		os.WriteFile(filepath.Join(dir, "exec"), make([]byte, node.MaxText+1), 0o700),
		os.Mkdir(filepath.Join(dir, "hooks"), 0o700),
		os.WriteFile(filepath.Join(dir, ".attr.exec"), []byte("1 1\n"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]fault.Kind{"policy": fault.Loop, "mount": fault.Invalid, "env": fault.IsDir, "tools": fault.TooBig}
	if os.Geteuid() == 0 {
		if err := unix.Mknod(filepath.Join(dir, "root"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err == nil {
			want["root"] = fault.Invalid
		}
	}
	s = openStore(t, s.path)
	o, err := s.Object("agent/a.d") // must not block on the FIFO
	if err != nil {
		t.Fatal(err)
	}
	values := o.Snapshot().Values
	if len(values) != len(want)+1 || values["label"].Err != nil {
		t.Errorf("values: %v", values)
	}
	for name, kind := range want {
		if v := values[name]; !fault.Is(v.Err, kind) || v.Text != nil {
			t.Errorf("%s: %v, text %q, want kind %v", name, v.Err, v.Text, kind)
		}
	}
	// A commit repairs all of them but the directory.
	for name := range want {
		err := o.Put(name, []byte("x\n"))
		if name == "env" {
			wantKind(t, "Put over a directory", err, fault.IsDir)
		} else if err != nil || text(o, name) != "x\n" {
			t.Errorf("Put %s: %v, %q", name, err, text(o, name))
		}
	}
	if got, _ := os.ReadFile(secret); string(got) != "secret" {
		t.Errorf("written through a symlink: %q", got)
	}
	if names := tmpNames(t, s); len(names) > 0 {
		t.Errorf("left in tmp/: %q", names)
	}
}

func TestRefusedDirectories(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(dir string) error
		kind    fault.Kind
		say     string
	}{
		{"missing", os.Remove, fault.NotExist, ""},
		{"open to others", func(d string) error { return os.Chmod(d, 0o755) }, fault.Perm, "chmod 700 "},
		{"writable by group", func(d string) error { return os.Chmod(d, 0o770) }, fault.Perm, "chmod 700 "},
		{"another owner", func(d string) error { return os.Chown(d, os.Geteuid()+1, -1) }, fault.Perm, fmt.Sprintf("chown %d ", os.Geteuid())},
		{"not empty", func(d string) error { return os.WriteFile(d+"/thesis.tex", nil, 0o600) }, fault.Invalid, `"thesis.tex"`},
		{"newer", func(d string) error { return os.WriteFile(d+"/format", []byte("cortexfs-store 9\n"), 0o600) }, fault.Invalid, "newer cortexfs"},
		{"foreign format", func(d string) error { return os.WriteFile(d+"/format", []byte("ext4\n"), 0o600) }, fault.Invalid, "cortexfs-store"},
		{"format is a link", func(d string) error { return os.Symlink("/etc/hostname", d+"/format") }, fault.Loop, "symlink"},
		{"lock is a link", func(d string) error { return os.Symlink("/tmp/nothing", d+"/lock") }, fault.Loop, ""},
		{"object is a link", func(d string) error { return os.Symlink("/etc", d+"/object") }, fault.Loop, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "it's a store")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := c.prepare(dir); err != nil {
				if errors.Is(err, os.ErrPermission) {
					t.Skip("needs root: ", err)
				}
				t.Fatal(err)
			}
			s, err := Open(dir, Options{})
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			wantKind(t, "Open", err, c.kind)
			if !strings.Contains(err.Error(), c.say) || strings.Contains(c.say, "ch") && !strings.Contains(err.Error(), `it'\''s a store`) {
				t.Errorf("message %q lacks %q", err, c.say)
			}
		})
	}
}

func TestForeignFileSystems(t *testing.T) {
	// /proc is none of them, but the table is what decides.
	for _, magic := range []int64{0x6969, 0x517B, 0xFF534D42, 0xFE534D42, 0x01021997, 0x65735546} {
		if foreign[magic] == "" {
			t.Errorf("%#x is not refused", magic)
		}
	}
}

func TestSecondDaemon(t *testing.T) {
	s := newStore(t)
	_, err := Open(s.path, Options{Mountpoint: "/elsewhere"})
	wantKind(t, "second daemon", err, fault.Busy)
	for _, word := range []string{fmt.Sprint("pid ", os.Getpid()), `"/ctx"`} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("message %q lacks %q", err, word)
		}
	}
	mustCreate(t, s, "agent/a.d", map[string][]byte{"label": []byte("a_t\n")})
	ro, err := Open(s.path, Options{ReadOnly: true})
	if err != nil {
		t.Fatalf("a reader beside the daemon: %v", err)
	}
	defer ro.Close()
	o, err := ro.Object("agent/a.d")
	if err != nil || text(o, "label") != "a_t\n" {
		t.Errorf("reader sees %v, %v", o, err)
	}
	wantKind(t, "reader writes", o.Put("label", nil), fault.ReadOnly)
	_, err = ro.Create("agent/b.d", nil)
	wantKind(t, "reader creates", err, fault.ReadOnly)
	wantKind(t, "reader removes", ro.Remove("agent/a.d"), fault.ReadOnly)
	if st, err := os.Stat(filepath.Join(s.path, "lock")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("lock file: %v, %v", st.Mode(), err)
	}
	s.Close()
	openStore(t, s.path) // the lock is free again
}

func TestConcurrentPutsAndReads(t *testing.T) {
	s := newStore(t)
	o := mustCreate(t, s, "agent/a.d", nil)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			var last uint64
			for {
				select {
				case <-stop:
					return
				default:
				}
				snap := o.Snapshot()
				if snap.Gen < last {
					t.Errorf("generation went from %d to %d", last, snap.Gen)
					return
				}
				last = snap.Gen
				for name, v := range snap.Values {
					if !bytes.HasPrefix(v.Text, []byte(name+"=")) {
						t.Errorf("%s holds %q", name, v.Text)
						return
					}
				}
			}
		})
	}
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			name := fmt.Sprint("c", i)
			for n := range 25 {
				if err := o.Put(name, fmt.Appendf(nil, "%s=%d\n", name, n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	wg.Wait()
	for i := range 4 {
		if got, want := text(o, fmt.Sprint("c", i)), fmt.Sprintf("c%d=24\n", i); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestCreateRemoveRace(t *testing.T) {
	s := newStore(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 30 {
				o, err := s.Ensure("agent/x.d")
				if err != nil {
					t.Error(err)
					return
				}
				if err := o.Put("label", []byte("x_t\n")); err != nil && !fault.Is(err, fault.Stale) {
					t.Error(err)
				}
				if err := s.Remove("agent/x.d"); err != nil && !fault.Is(err, fault.NotExist) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := s.Object("agent/x.d"); !fault.Is(err, fault.NotExist) {
		t.Errorf("after all removals: %v", err)
	}
	if names := tmpNames(t, s); len(names) > 0 {
		t.Errorf("left in tmp/: %q", names)
	}
}

func TestSymlinks(t *testing.T) {
	s := newStore(t)
	if err := s.MkdirAll("model/debug"); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"debug/echo", "debug/script"} {
		if err := s.Symlink("model/main", target); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Readlink("model/main"); err != nil || got != target {
			t.Errorf("Readlink = %q, %v", got, err)
		}
	}
	_, err := s.Readlink("model/debug")
	wantKind(t, "Readlink of a directory", err, fault.Invalid)
	_, err = s.Object("model/main")
	if err == nil {
		t.Error("a symlink was followed")
	}
	if err := s.Remove("model/main"); err != nil {
		t.Fatal(err)
	}
}
