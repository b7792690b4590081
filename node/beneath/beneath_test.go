package beneath

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func openDir(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestOpenStaysBeneath(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"in/sub", "out"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"in/f", "in/sub/f", "out/secret"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"in/up": "../out", "in/abs": filepath.Join(dir, "out"), "in/flat": "f", "in/magic": "/proc/self/fd/0",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	root := openDir(t, filepath.Join(dir, "in"))
	for _, c := range []struct {
		path string
		want error
	}{
		{"f", nil},
		{"sub/f", nil},
		{"sub/../f", nil}, // stays inside
		{"absent", unix.ENOENT},
		{"f/x", unix.ENOTDIR},
		{"../out/secret", unix.EXDEV},
		{"sub/../../out/secret", unix.EXDEV},
		{"/etc/passwd", unix.EXDEV},
		{"up/secret", unix.ELOOP},
		{"abs/secret", unix.ELOOP},
		{"flat", unix.ELOOP},
		{"magic", unix.ELOOP},
	} {
		fd, err := Open(root, c.path, unix.O_RDONLY, 0)
		if err == nil {
			unix.Close(fd)
		}
		if err != c.want {
			t.Errorf("Open(%q) = %v, want %v", c.path, err, c.want)
		}
	}
}

func TestReopenAfterRename(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	if err := os.WriteFile(name, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := Open(openDir(t, dir), "a", unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(held)
	if err := os.Rename(name, name+"2"); err != nil {
		t.Fatal(err)
	}
	fd, err := Reopen(held, unix.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 8)
	if n, err := unix.Read(fd, buf); err != nil || string(buf[:n]) != "one" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for i := range 3000 {
		name := fmt.Sprintf("name-%04d", i)
		want = append(want, name)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "zz"), 0o700); err != nil {
		t.Fatal(err)
	}
	want = append(want, "zz")
	list, err := ReadDir(openDir(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range list {
		got = append(got, d.Name)
		if isDir := d.Type == unix.DT_DIR; isDir != (d.Name == "zz") || d.Ino == 0 {
			t.Errorf("%q has type %d, ino %d", d.Name, d.Type, d.Ino)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d names, want %d", len(got), len(want))
	}
}

func TestClean(t *testing.T) {
	for path, want := range map[string]bool{
		"a": true, "a/b.d/c": true, "": false, "/a": false, "a/": false, "a//b": false, ".": false,
		"a/../b": false, "a/./b": false, "a\x00b": false, "..a/b..": true,
	} {
		if Clean(path) != want {
			t.Errorf("Clean(%q) = %v", path, !want)
		}
	}
}
