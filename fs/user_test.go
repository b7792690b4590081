package fs_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/fs"
	"cortexfs/fs/fstest"
	"cortexfs/fs/fstest/toy"
)

const plainUID = 41711

// A plain user mounts through fusermount3, with nothing in the environment, and
// everything works and goes away. The box may keep /dev/fuse for root, and
// fusermount3 refuses a uid without a name, so this runs in a mount namespace
// where both are as on an ordinary machine.
func TestPlainUser(t *testing.T) {
	fstest.Require(t)
	if os.Geteuid() != 0 {
		t.Skip("the other tests run as a plain user already")
	}
	if _, err := os.Stat("/usr/bin/fusermount3"); err != nil {
		if strings.Contains(os.Getenv("CTX_REQUIRE"), "fuse") {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	fstest.Open(t, dir)
	if _, err := stageUser.Run(t, dir, struct{}{}, fstest.OwnMounts()); err != nil {
		t.Error(err)
	}
}

// stageUser is root in its own mount namespace: it prepares it and starts the
// daemon's part as the user.
var stageUser = fstest.Client("stage user", func(dir string, _ struct{}) (struct{}, error) {
	var s steps
	s.do("private mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") })
	s.do("tmpfs", func() error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755") })
	s.do("node", func() error {
		if err := unix.Mknod(dir+"/fuse", unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))); err != nil {
			return err
		}
		if err := os.Chmod(dir+"/fuse", 0o666); err != nil {
			return err
		}
		return unix.Mount(dir+"/fuse", "/dev/fuse", "", unix.MS_BIND, "")
	})
	s.do("passwd", func() error {
		text, err := os.ReadFile("/etc/passwd")
		if err != nil {
			return err
		}
		line := fmt.Sprintf("ctxplain:x:%d:%d::/:/bin/sh\n", plainUID, plainUID)
		if err := os.WriteFile(dir+"/passwd", append(text, line...), 0o644); err != nil {
			return err
		}
		return unix.Mount(dir+"/passwd", "/etc/passwd", "", unix.MS_BIND, "")
	})
	s.do("mountpoint", func() error {
		if err := os.Mkdir(dir+"/mnt", 0o700); err != nil {
			return err
		}
		return os.Chown(dir+"/mnt", plainUID, plainUID)
	})
	s.do("program", func() error { return copyFile("/proc/self/exe", dir+"/program") })
	s.do("as the user", func() error {
		_, err := serveAsUser.Call(dir+"/mnt", struct{}{}, fstest.Program(dir+"/program"), fstest.As(plainUID, plainUID))
		return err
	})
	return struct{}{}, s.err
})

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}

// serveAsUser is the daemon of a plain user.
var serveAsUser = fstest.Client("serve as user", func(dir string, _ struct{}) (struct{}, error) {
	os.Clearenv()
	var s steps
	mount := func() (*fs.Server, error) {
		return fs.Mount(fs.Options{Mountpoint: dir, FS: toy.New(), DefaultPermissions: true, NoExec: true})
	}
	use := func(srv *fs.Server) error {
		if _, err := writeFile.Call(dir, "file"); err != nil {
			return err
		}
		text, err := readFile.Call(dir, "file")
		if err != nil {
			return err
		}
		if fi, err := os.Stat(filepath.Dir(dir)); err != nil || !fi.IsDir() {
			return fmt.Errorf("%v %v", fi, err)
		}
		return same(text, "text")
	}
	for name, end := range map[string]func(*fs.Server) error{"unmount": (*fs.Server).Unmount, "abort": (*fs.Server).Abort} {
		s.do(name, func() error {
			srv, err := mount()
			if err != nil {
				return err
			}
			if err := use(srv); err != nil {
				_ = srv.Abort()
				return err
			}
			table, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				return err
			}
			if !strings.Contains(string(table), dir+" rw,nosuid,nodev,noexec,relatime - fuse.cortexfs cortexfs ") {
				return fmt.Errorf("mount table:\n%s", table)
			}
			if err := end(srv); err != nil {
				return err
			}
			if err := srv.Wait(); err != nil {
				return err
			}
			table, err = os.ReadFile("/proc/self/mountinfo")
			if err == nil && strings.Contains(string(table), " "+dir+" ") {
				err = fmt.Errorf("still mounted:\n%s", table)
			}
			return err
		})
	}
	return struct{}{}, s.err
})
