package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// inNamespace runs this test binary again as a child in a mount namespace of its
// own, with env set, and returns what it said.
func inNamespace(t *testing.T, env string) (string, error) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestFullDisk (cases E17): on a disk without a free byte a text is committed from
// the reserve or refused with the old one in force, never lost.
func TestFullDisk(t *testing.T) {
	for _, size := range []string{"1m", "40m"} {
		t.Run(size, func(t *testing.T) {
			out, err := inNamespace(t, "STORE_FULL_CHILD="+t.TempDir()+" "+size)
			var exit *exec.ExitError
			switch {
			case errors.As(err, &exit) && exit.ExitCode() == 77:
				t.Skip("no mount namespace or tmpfs here: ", out)
			case err != nil:
				t.Errorf("%v\n%s", err, out)
			case out != "":
				t.Log(out)
			}
		})
	}
}

// fullChild mounts a small tmpfs, fills it, and changes texts. 77: cannot mount.
func fullChild() int {
	dir, size, _ := strings.Cut(os.Getenv("STORE_FULL_CHILD"), " ")
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Println(err)
		return 77
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size="+size); err != nil {
		fmt.Println(err)
		return 77
	}
	if err := fillAndChange(dir, size); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func fillAndChange(dir, size string) error {
	path := filepath.Join(dir, "store")
	s, err := Open(path, Options{Create: true})
	if err != nil {
		return err
	}
	defer s.Close()
	o, err := s.Create("agent/a.d", map[string][]byte{"policy": []byte("allow a_t tool:x execute\n")})
	if err != nil {
		return err
	}
	small := size == "1m"
	held := s.reserve.size
	if !small && held < 4<<20 {
		return fmt.Errorf("the reserve has only %d bytes", held)
	}
	if err := fill(filepath.Join(dir, "filler")); err != nil {
		return err
	}
	// Revocations, far more than one slice of the reserve holds.
	big := bytes.Repeat([]byte("# comment\n"), node.MaxText/10)
	done := 0
	for i := range 40 {
		want := fmt.Appendf(nil, "%d\n%s", i, big[:len(big)-8])
		old := o.Snapshot().Values["policy"].Text
		err := o.Put("policy", want)
		now := o.Snapshot().Values["policy"].Text
		disk, readErr := os.ReadFile(filepath.Join(path, "object/agent/a.d/policy"))
		switch {
		case readErr != nil || !bytes.Equal(disk, now):
			return fmt.Errorf("put %d: mirror and disk differ: %d and %d bytes, %v", i, len(now), len(disk), readErr)
		case err == nil && bytes.Equal(now, want):
			done++
		case fault.Is(err, fault.NoSpace) && bytes.Equal(now, old):
		default:
			return fmt.Errorf("put %d: %v, text of %d bytes", i, err, len(now))
		}
	}
	if !small && done != 40 {
		return fmt.Errorf("%d of 40 revocations on a full disk", done)
	}
	if err := o.Delete("policy"); err != nil {
		return fmt.Errorf("delete on a full disk: %w", err)
	}
	if err := o.Put("policy", nil); err != nil && !small {
		return fmt.Errorf("empty text on a full disk: %w", err)
	}
	// A big draft must not eat the reserve.
	before := s.reserve.size
	d, err := s.NewFile("agent/a.d")
	if err == nil {
		for off := int64(0); err == nil && off < 40<<20; off += 1 << 20 {
			_, err = d.WriteAt(make([]byte, 1<<20), off)
		}
		d.Discard()
	}
	if !fault.Is(err, fault.NoSpace) || s.reserve.size != before {
		return fmt.Errorf("a draft of 40 MiB: %w; reserve %d, before %d", err, s.reserve.size, before)
	}
	if left, _ := os.ReadDir(filepath.Join(path, "tmp")); len(left) > 1 {
		return fmt.Errorf("%d files left in tmp/", len(left))
	}
	// Space returns, and with it the reserve.
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		return err
	}
	if err := o.Put("policy", []byte("# none\n")); err != nil {
		return err
	}
	if s.reserve.size != held {
		return fmt.Errorf("the reserve has %d bytes, %d before the disk was full", s.reserve.size, held)
	}
	s.Close()
	s, err = Open(path, Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	if o, err = s.Object("agent/a.d"); err != nil || string(o.Snapshot().Values["policy"].Text) != "# none\n" {
		return fmt.Errorf("after reopening: %v", err)
	}
	return nil
}

// fill writes until nothing fits any more.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}
