package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
)

// finding is one line of doctor: ok, missing or invalid, what, and the cure.
type finding struct {
	State string `json:"state"` // ok, missing, invalid
	What  string `json:"what"`
	Note  string `json:"note,omitempty"`
	Cure  string `json:"cure,omitempty"` // one command, or what to do
}

func ok(what, note string) finding { return finding{State: "ok", What: what, Note: note} }

func missing(what string, err error, cure string) finding {
	return finding{State: "missing", What: what, Note: err.Error(), Cure: cure}
}

func invalid(what, note, cure string) finding {
	return finding{State: "invalid", What: what, Note: note, Cure: cure}
}

func doctorCmd(s *State) *cobra.Command {
	var store string
	var quick, asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "check what a mount and a start need",
		Long: "Try, one by one, what mounting and starting an agent need: the FUSE device, fusermount3, helpers of mount(8),\n" +
			"user namespaces, bubblewrap with every option that is used, terminals, limits, the product's own programs. Then do it:\n" +
			"a scratch store is mounted, an agent in it is started, looked into and stopped. Then the mounted tree and its\n" +
			"agents, and the store, entry by entry; nothing in it is changed.\n" +
			"Lines are ok, missing or invalid, with the one command that cures it on this system. Exit 0, or 69 if anything is wrong.",
		Example: "  ctx doctor\n  ctx doctor -o json\n  ctx doctor --quick --store /var/lib/cortexfs",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			s.json = s.json || asJSON
			list := s.checkHost()
			if !quick && !bad(slices.DeleteFunc(slices.Clone(list), func(f finding) bool { return f.What == mountHelper })) {
				list = append(list, s.tryIt()...)
			}
			list = append(append(list, s.checkTree()...), s.checkStore(store)...)
			return s.verdict(list)
		},
	}
	c.Flags().StringVar(&store, "store", "", "the store's `DIR` (default: the usual one, if there is one)")
	c.Flags().BoolVar(&quick, "quick", false, "mount and start nothing")
	c.Flags().BoolVar(&asJSON, "json", false, "the same as -o json")
	return c
}

func bad(list []finding) bool {
	for _, f := range list {
		if f.State != "ok" {
			return true
		}
	}
	return false
}

func (s *State) verdict(list []finding) error {
	err := s.print(list, func(w io.Writer) {
		for _, f := range list {
			fmt.Fprintf(w, "%s %s", f.State, node.Escape(f.What))
			if f.Note != "" {
				fmt.Fprintf(w, ": %s", node.Escape(f.Note))
			}
			fmt.Fprintln(w)
			if f.Cure != "" {
				fmt.Fprintf(w, "    cure: %s\n", node.Escape(f.Cure))
			}
		}
	})
	if err == nil && bad(list) {
		return exitError(ctlproto.ExitUnavailable)
	}
	return err
}

// checkTree looks at the mounted tree, if there is one.
func (s *State) checkTree() []finding {
	t, err := s.tree()
	if err != nil {
		return s.noTree(err)
	}
	list := []finding{ok("tree "+t.root, "version "+t.version)}
	if _, word, err := t.read("status"); err != nil {
		list = append(list, missing("status", err, "start the daemon again"))
	} else if w := strings.TrimSpace(string(word)); w == "ready" {
		list = append(list, ok("status", w))
	} else {
		list = append(list, invalid("status", w, "see the daemon's log"))
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(t.root, &fsys); err == nil {
		list = append(list, spaceOf("the tree's store", &fsys))
	}
	var agents []ctlproto.PSItem
	if _, err := s.ask(&ctlproto.PS{}, nil, collect(&agents)); err != nil {
		return append(list, missing("control socket", err, "start the daemon again"))
	}
	list = append(list, ok("control socket", ""))
	for _, a := range agents {
		if a.Hidden {
			continue
		}
		list = append(list, s.checkAgent(a.Ref)...)
	}
	if st, err := os.Lstat(t.path(bootstrapState)); err != nil || !st.Mode().IsRegular() {
		list = append(list, missing("bootstrap", errors.New("the reference tree was not made"), "ctx bootstrap"))
	} else {
		list = append(list, ok("bootstrap", ""))
	}
	return list
}

func (s *State) checkAgent(ref string) []finding {
	var st ctlproto.Described
	if _, err := s.ask(&ctlproto.Status{Agent: ref}, &st, nil); err != nil {
		return []finding{invalid(ref, err.Error(), "")}
	}
	if len(st.Faults) == 0 {
		return []finding{ok(ref, st.State)}
	}
	var list []finding
	for _, f := range st.Faults {
		list = append(list, invalid(ref, f, "ctx edit the control"))
	}
	return list
}

// noTree says why there is no tree: a mount point whose daemon died looks
// different from one that was never mounted.
func (s *State) noTree(err error) []finding {
	places := []string{node.Root}
	if home, herr := s.homeDir(); herr == nil {
		places = append(places, filepath.Join(home, "ctx"))
	}
	if r := s.Getenv("CTX_ROOT"); r != "" {
		places = []string{r}
	}
	for _, p := range places {
		var st unix.Stat_t
		if e := unix.Stat(p, &st); errors.Is(e, unix.ENOTCONN) || errors.Is(e, unix.ECONNABORTED) {
			return []finding{invalid("tree "+p, "mounted, but its daemon is dead", s.remount(p))}
		}
	}
	cure := "ctx up"
	if s.UID == 0 {
		cure = "mount /ctx (with a line in /etc/fstab), or: systemctl start cortexfs"
	}
	return []finding{missing("tree", err, cure)}
}

// remount is what brings a dead tree back.
func (s *State) remount(p string) string {
	if p != node.Root {
		return "ctx up"
	}
	text, _ := os.ReadFile("/etc/fstab")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 2 && f[0][0] != '#' && f[1] == p {
			return "mount " + p
		}
	}
	return "systemctl restart cortexfs"
}

const bootstrapState = "bin/cortexfs.bootstrap.json"

// lowSpace is what a store should have left: below it writes of people and
// agents soon fail, while the daemon's own reserve keeps revocations working.
const lowSpace = 64 << 20

func spaceOf(what string, fsys *unix.Statfs_t) finding {
	left := fsys.Bavail * uint64(fsys.Bsize)
	note := fmt.Sprintf("%d MiB left", left>>20)
	switch {
	case left < lowSpace:
		return invalid("space of "+what, note, "free some space there")
	case fsys.Files > 0 && fsys.Ffree < 1024:
		return invalid("space of "+what, fmt.Sprintf("%d inodes left", fsys.Ffree), "remove some files there")
	}
	return ok("space of "+what, note)
}
