package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// lsEntry is one name of a listing.
type lsEntry struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	Mode string `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Size int64  `json:"size"`
}

func lsCmd(s *State) *cobra.Command {
	var long bool
	c := &cobra.Command{
		Use:     "ls [PATH]",
		Short:   "list a directory of the tree",
		Long:    "List a directory of the tree. PATH is relative to the tree's root.",
		Example: "  ctx ls\n  ctx ls -l agent/coder.d\n  ctx ls -o json tool",
		Args:    argsN(0, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}
			return s.ls(dir, long)
		},
	}
	c.Flags().BoolVarP(&long, "long", "l", false, "with kind, mode, owner and size")
	return c
}

func (s *State) ls(dir string, long bool) error {
	t, err := s.tree()
	if err != nil {
		return err
	}
	rel, err := t.rel(dir)
	if err != nil {
		return err
	}
	f, err := t.open(rel, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fault.FromOS("stat", rel, err)
	}
	var names []os.DirEntry
	if st.IsDir() {
		if names, err = f.ReadDir(-1); err != nil {
			return fault.FromOS("list", rel, err)
		}
	}
	list := make([]lsEntry, 0, len(names))
	for _, n := range names {
		e := lsEntry{Name: n.Name()}
		if long || s.json {
			e = t.describe(path.Join(rel, n.Name()), n.Name())
		}
		list = append(list, e)
	}
	if !st.IsDir() {
		list = append(list, t.describe(rel, path.Base(rel)))
	}
	return s.print(list, func(w io.Writer) {
		if !long {
			for _, e := range list {
				fmt.Fprintln(w, node.Escape(e.Name))
			}
			return
		}
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, e := range list {
			fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%s\n", e.Mode, e.UID, e.GID, e.Size, orDash(e.Kind), node.Escape(e.Name))
		}
		tw.Flush()
	})
}

func (t *tree) describe(rel, name string) lsEntry {
	e := lsEntry{Name: name, Mode: "?"}
	var st unix.Stat_t
	if unix.Lstat(t.path(rel), &st) != nil {
		return e
	}
	fi, err := os.Lstat(t.path(rel))
	if err == nil {
		e.Mode = fi.Mode().String()
	}
	e.UID, e.GID, e.Size = st.Uid, st.Gid, st.Size
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		e.Kind, _ = xattr(t.path(rel), xattrKind)
	}
	return e
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func catCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:   "cat PATH...",
		Short: "print files of the tree",
		Long: "Print files of the tree. On a terminal control bytes are escaped; into a pipe or a file the bytes go\n" +
			"as they are.",
		Example: "  ctx cat agent/coder.d/policy\n  ctx cat agent/coder.d/{status,pid}\n  ctx cat -o json agent/coder.d/mount",
		Args:    argsN(1, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := s.tree()
			if err != nil {
				return err
			}
			texts := map[string]string{}
			for _, a := range args {
				rel, text, err := t.read(a)
				if err != nil {
					return err
				}
				texts[rel] = string(text)
				if s.json {
					continue
				}
				out := string(text)
				if isTerminal(s.Out) {
					out = node.EscapeLines(out)
				}
				if _, err := io.WriteString(s.Out, out); err != nil {
					return err
				}
			}
			if s.json {
				return s.print(texts, nil)
			}
			return nil
		},
	}
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// read reads a file of the tree.
func (t *tree) read(p string) (rel string, text []byte, err error) {
	if rel, err = t.rel(p); err != nil {
		return "", nil, err
	}
	f, err := t.open(rel, unix.O_RDONLY)
	if err != nil {
		return rel, nil, err
	}
	defer f.Close()
	if text, err = io.ReadAll(f); err != nil {
		return rel, nil, fault.FromOS("read", rel, err)
	}
	return rel, text, nil
}

// write puts a text into a file of the tree: one open, one write, one close,
// each of which may carry the refusal.
func (t *tree) write(rel string, text []byte, flags int) error {
	if err := t.mayWrite(rel); err != nil {
		return err
	}
	f, err := t.open(rel, unix.O_WRONLY|flags)
	if err != nil {
		return err
	}
	if len(text) == 0 && flags&unix.O_TRUNC != 0 {
		// Nothing is written: only fsync commits the empty text and tells.
		err = f.Sync()
	} else {
		_, err = f.Write(text)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return t.refused(rel, err)
	}
	return nil
}

// mayWrite keeps root from writing people's own files by path: below home/ and
// shared/ root writes controls only (spec section 18).
func (t *tree) mayWrite(rel string) error {
	if os.Getuid() != 0 || !strings.HasPrefix(rel, "home/") && !strings.HasPrefix(rel, "shared/") {
		return nil
	}
	f, err := t.open(rel, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer f.Close()
	buf := make([]byte, 128)
	n, err := unix.Fgetxattr(int(f.Fd()), xattrKind, buf)
	if err != nil || !strings.HasSuffix(string(buf[:n]), ".control") {
		return fault.E("write", rel, fault.Perm, errors.New("root writes only controls below home/ and shared/; do it as the owner"))
	}
	return nil
}

func setCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "set PATH VALUE",
		Short:   "write a control file",
		Long:    "Write a control file and say why if it is refused. A final line feed is added. VALUE - reads standard input.",
		Example: "  ctx set agent/coder.d/approval ask\n  ctx set agent/coder.d/tools - < tools.txt",
		Args:    argsN(2, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := s.tree()
			if err != nil {
				return err
			}
			rel, err := t.rel(args[0])
			if err != nil {
				return err
			}
			text := []byte(args[1])
			if args[1] == "-" {
				if text, err = io.ReadAll(io.LimitReader(s.In, node.MaxText+1)); err != nil {
					return fault.FromOS("read", "standard input", err)
				}
			}
			if n := len(text); n > 0 && text[n-1] != '\n' {
				text = append(text, '\n')
			}
			return t.write(rel, text, unix.O_TRUNC)
		},
	}
}

func appendCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "append PATH LINE",
		Short:   "add a line to a control file",
		Long:    "Add a line to a control file; the whole text is judged with it, and nothing changes if it is refused.",
		Example: "  ctx append agent/coder.d/policy 'allow coder_t tool:fs.read execute'\n  ctx append agent/coder.d/tools fs.read",
		Args:    argsN(2, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			t, err := s.tree()
			if err != nil {
				return err
			}
			rel, err := t.rel(args[0])
			if err != nil {
				return err
			}
			if strings.Contains(strings.TrimSuffix(args[1], "\n"), "\n") {
				return usagef("append takes one line")
			}
			return t.write(rel, []byte(strings.TrimSuffix(args[1], "\n")+"\n"), unix.O_APPEND)
		},
	}
}
