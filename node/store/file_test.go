package store

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

func commit(t *testing.T, s *Store, path, text string, a FileAttr) *File {
	t.Helper()
	d, err := s.NewFile(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.WriteAt([]byte(text), 0); err != nil {
		t.Fatal(err)
	}
	f, err := d.Commit(path, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func content(t *testing.T, f *File) string {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, MaxFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func daemonAttr(mode uint32) FileAttr { return defaultAttr(mode) }

func TestExecutables(t *testing.T) {
	s := newStore(t)
	if err := s.MkdirAll("tool"); err != nil {
		t.Fatal(err)
	}
	one := commit(t, s, "tool/x", "one", daemonAttr(0o755))
	two := commit(t, s, "tool/x", "two!", FileAttr{1000, 1001, 0o4750})
	if content(t, one) != "one" || content(t, two) != "two!" {
		t.Error("a file does not keep its bytes")
	}
	if one.Info().Ino == two.Info().Ino || one.Info().Gen >= two.Info().Gen {
		t.Errorf("%+v then %+v", one.Info(), two.Info())
	}
	st, err := s.StatFile("tool/x")
	if err != nil || st != two.Info() {
		t.Errorf("StatFile %+v, %v, want %+v", st, err, two.Info())
	}
	if want := (FileAttr{1000, 1001, 0o750}); st.Attr != want {
		t.Errorf("attributes %+v, want %+v", st.Attr, want)
	}
	for _, a := range []FileAttr{{1, 2, 0o700}, {1, 2, 0o111}, daemonAttr(0), daemonAttr(0o755), {3, 4, 0}} {
		if err := s.SetAttr("tool/x", a); err != nil {
			t.Fatal(err)
		}
		now, err := s.StatFile("tool/x")
		if err != nil || now.Attr != a || now.Gen != st.Gen || now.Size != 4 {
			t.Errorf("after SetAttr(%+v): %+v, %v", a, now, err)
		}
	}
	if err := s.RenameFile("tool/x", "tool/y"); err != nil {
		t.Fatal(err)
	}
	if now, err := s.StatFile("tool/y"); err != nil || now.Gen != st.Gen || now.Attr != (FileAttr{3, 4, 0}) {
		t.Errorf("after the rename: %+v, %v", now, err)
	}
	_, err = s.StatFile("tool/x")
	wantKind(t, "the old name", err, fault.NotExist)
	if _, err := os.Stat(s.onDisk("tool/x.d/.attr")); !os.IsNotExist(err) {
		t.Errorf("attributes of the old name: %v", err)
	}
	if err := s.RemoveFile("tool/y"); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "removing twice", s.RemoveFile("tool/y"), fault.NotExist)
	if content(t, two) != "two!" {
		t.Error("a removed file loses its bytes")
	}
	// A new file under the name does not get the attributes of the old one.
	if f := commit(t, s, "tool/y", "", daemonAttr(0o755)); f.Info().Attr != daemonAttr(0o755) {
		t.Errorf("new file has %+v", f.Info().Attr)
	}
	if names := tmpNames(t, s); len(names) > 0 {
		t.Errorf("left in tmp/: %q", names)
	}
}

func TestExecAndHooks(t *testing.T) {
	s := newStore(t)
	o := mustCreate(t, s, "agent/a.d", map[string][]byte{"label": []byte("a_t\n")})
	if err := s.MkdirAll("agent/a.d/hooks/pre.d"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"agent/a.d/exec", "agent/a.d/hooks/pre.d/10-check"} {
		commit(t, s, p, "#!/bin/sh\n", FileAttr{1000, 1000, 0o700})
		f, err := s.OpenFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if f.Info().Attr != (FileAttr{1000, 1000, 0o700}) || content(t, f) != "#!/bin/sh\n" {
			t.Errorf("%s: %+v", p, f.Info())
		}
		f.Close()
	}
	list, err := s.List("agent/a.d/hooks/pre.d")
	if err != nil || len(list) != 1 || list[0].Name != "10-check" {
		t.Errorf("hooks: %v, %v", list, err)
	}
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	if v := o.Snapshot().Values; len(v) != 1 {
		t.Errorf("values: %v", v)
	}
}

func TestDraft(t *testing.T) {
	s := newStore(t)
	if err := s.MkdirAll("tool"); err != nil {
		t.Fatal(err)
	}
	commit(t, s, "tool/x", "old", daemonAttr(0o755))
	d, err := s.NewFile("tool")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, err := d.WriteAt(bytes.Repeat([]byte{'a' + byte(i)}, 1<<17), int64(i)<<17); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if d.Size() != 1<<20 {
		t.Errorf("size %d", d.Size())
	}
	_, err = d.WriteAt([]byte("x"), MaxFile)
	wantKind(t, "beyond 64 MiB", err, fault.TooBig)
	wantKind(t, "truncate beyond 64 MiB", d.Truncate(MaxFile+1), fault.TooBig)
	if err := d.Truncate(3); err != nil {
		t.Error(err)
	}
	_, err = d.Commit("tool/../x", daemonAttr(0o755))
	wantKind(t, "bad path", err, fault.Invalid)
	_, err = d.Commit("tool/x", daemonAttr(0o755))
	wantKind(t, "a used draft", err, fault.BadHandle)
	d.Discard()
	if f, err := s.OpenFile("tool/x"); err != nil || content(t, f) != "old" {
		t.Errorf("after a failed commit: %v", err)
	} else {
		f.Close()
	}
	_, err = s.NewFile("no/such")
	wantKind(t, "a draft for a missing directory", err, fault.NotExist)
	if names := tmpNames(t, s); len(names) > 0 {
		t.Errorf("left in tmp/: %q", names)
	}
}

func TestWhatIsNoExecutable(t *testing.T) {
	s := newStore(t)
	if err := s.MkdirAll("tool/dir"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/sh", s.onDisk("tool/link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(s.onDisk("tool/fifo"), 0o700); err != nil {
		t.Fatal(err)
	}
	for p, kind := range map[string]fault.Kind{
		"tool/dir": fault.IsDir, "tool/link": fault.Loop, "tool/fifo": fault.Invalid, "tool/none": fault.NotExist,
		"tool/link/x": fault.Loop, "../format": fault.Invalid,
	} {
		_, err := s.StatFile(p)
		if p == "tool/link/x" && fault.Is(err, fault.NotDir) {
			err = fault.E("", "", fault.Loop, nil)
		}
		wantKind(t, "StatFile "+p, err, kind)
		if _, err := s.OpenFile(p); err == nil {
			t.Errorf("OpenFile %s worked", p)
		}
	}
	// Attributes that cannot be read give no guess.
	commit(t, s, "tool/x", "x", FileAttr{1, 1, 0o755})
	for _, bad := range []string{"", "root root\n", "1\n", "1 2 3 4\n", "-1 0\n", strings.Repeat("1 ", 40000)} {
		if err := os.WriteFile(s.onDisk("tool/x.d/.attr"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if info, err := s.StatFile("tool/x"); err == nil {
			t.Errorf("attributes %.10q read as %+v", bad, info.Attr)
		}
	}
	if err := s.SetAttr("tool/x", FileAttr{5, 5, 0o700}); err != nil {
		t.Fatalf("repair: %v", err)
	}
	if info, err := s.StatFile("tool/x"); err != nil || info.Attr != (FileAttr{5, 5, 0o700}) {
		t.Errorf("after the repair: %+v, %v", info, err)
	}
}
