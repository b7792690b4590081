package toolkit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"cortexfs/node"
)

// maxReplace bounds the file that fs.replace holds in memory.
const maxReplace = 64 << 20

func fsRead(c *call) error {
	f, _, err := openRegular(c.args.str("path"))
	if err != nil {
		return err
	}
	defer f.Close()
	first, count := c.args.num("line", 1), c.args.num("lines", -1)
	if first == 1 && count < 0 {
		_, err := io.Copy(c.stdout, f)
		return err
	}
	r := bufio.NewReader(f)
	w := bufio.NewWriter(c.stdout)
	for n := int64(1); count != 0; n++ {
		// ReadSlice and not ReadString: a line of any length costs no memory.
		for {
			part, err := r.ReadSlice('\n')
			if n >= first {
				if _, werr := w.Write(part); werr != nil {
					return werr
				}
			}
			if err == nil {
				break
			}
			if errors.Is(err, io.EOF) {
				return w.Flush()
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return err
			}
		}
		if n >= first && count > 0 {
			count--
		}
	}
	return w.Flush()
}

func fsList(c *call) error {
	dir := c.args.str("path")
	if dir == "" {
		dir = "."
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
	w := bufio.NewWriter(c.stdout)
	for _, e := range entries {
		fmt.Fprintln(w, node.Escape(e.Name())+suffix(e.Type()))
	}
	return w.Flush()
}

func suffix(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "@"
	case m.IsDir():
		return "/"
	case m&fs.ModeSocket != 0:
		return "="
	case m&fs.ModeNamedPipe != 0:
		return "|"
	}
	return ""
}

func fsStat(c *call) error {
	path := c.args.str("path")
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: no stat of this system", path)
	}
	fmt.Fprintf(c.stdout, "path=%s\ntype=%s\nsize=%d\nmode=%04o\nuid=%d\ngid=%d\nmtime=%s\n", node.Escape(path),
		typeWord(info.Mode()), info.Size(), st.Mode&0o7777, st.Uid, st.Gid, info.ModTime().UTC().Format(time.RFC3339Nano))
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.stdout, "target=%s\n", node.Escape(target))
	}
	return nil
}

func typeWord(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "directory"
	case m&fs.ModeSymlink != 0:
		return "symlink"
	case m&fs.ModeSocket != 0:
		return "socket"
	case m&fs.ModeNamedPipe != 0:
		return "fifo"
	}
	return "device"
}

func fsWrite(c *call) error {
	path, text := c.args.str("path"), c.args.str("content")
	if err := writeWhole(path, []byte(text)); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "wrote %d bytes to %s\n", len(text), node.Escape(path))
	return nil
}

func fsReplace(c *call) error {
	path, old := c.args.str("path"), c.args.str("old")
	if old == "" {
		return usagef("OLD is empty")
	}
	f, info, err := openRegular(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info.Size() > maxReplace {
		return fmt.Errorf("%s has %d bytes, at most %d can be edited", path, info.Size(), maxReplace)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	switch n := strings.Count(string(text), old); n {
	case 1:
	case 0:
		return fmt.Errorf("%s: the old text does not occur", path)
	default:
		return fmt.Errorf("%s: the old text occurs %d times; give more of its surroundings", path, n)
	}
	if err := writeWhole(path, []byte(strings.Replace(string(text), old, c.args.str("new"), 1))); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "replaced 1 occurrence in %s\n", node.Escape(path))
	return nil
}

// writeWhole replaces a file by rename, so that a reader and a full disk see
// the old text or the new one. Where a rename would change what the name is (a
// hard-linked file, a mount point, a directory that takes no new file) it
// writes in place. A symlink is followed: its target is replaced, not the link.
func writeWhole(path string, text []byte) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	mode := fs.FileMode(0o666)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return writeInPlace(path, text, os.O_EXCL)
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "write", Path: path, Err: syscall.EISDIR}
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	}
	mode = info.Mode().Perm()
	if syscall.Access(path, 2) != nil {
		return &fs.PathError{Op: "write", Path: path, Err: syscall.EACCES}
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && (st.Nlink > 1 || int(st.Uid) != os.Geteuid()) {
		return writeInPlace(path, text, os.O_TRUNC)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".fs.write-*")
	if err != nil {
		return writeInPlace(path, text, os.O_TRUNC)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if _, err := tmp.Write(text); err != nil {
		return err
	}
	if err := errors.Join(tmp.Chmod(mode), tmp.Sync()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) {
		return writeInPlace(path, text, os.O_TRUNC)
	} else if err != nil {
		return err
	}
	return nil
}

func writeInPlace(path string, text []byte, flag int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|syscall.O_NONBLOCK|syscall.O_NOCTTY|flag, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}
