package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/companion"
	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/sandbox/bwrap"
)

// finding is one line of doctor: ok, missing or invalid, what, and the cure.
type finding struct {
	State string `json:"state"`
	What  string `json:"what"`
	Note  string `json:"note,omitempty"`
	Cure  string `json:"cure,omitempty"`
}

func doctorCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "check what a mount and a start need",
		Long: "Try, one by one, what mounting and starting an agent need: /dev/fuse, fusermount3, user namespaces,\n" +
			"bubblewrap with every option that is used, the product's own programs; then the tree and its agents.\n" +
			"Lines are ok, missing or invalid with the cure. Exit 0, or 69 if anything is wrong.",
		Example: "  ctx doctor\n  ctx doctor -o json",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			list := append(s.checkHost(), s.checkTree()...)
			bad := false
			for _, f := range list {
				bad = bad || f.State != "ok"
			}
			err := s.print(list, func(w io.Writer) {
				for _, f := range list {
					fmt.Fprintf(w, "%s %s", f.State, node.Escape(f.What))
					if f.Note != "" {
						fmt.Fprintf(w, ": %s", node.Escape(f.Note))
					}
					if f.Cure != "" {
						fmt.Fprintf(w, " (%s)", node.Escape(f.Cure))
					}
					fmt.Fprintln(w)
				}
			})
			if err == nil && bad {
				return exitError(ctlproto.ExitUnavailable)
			}
			return err
		},
	}
}

func ok(what, note string) finding { return finding{State: "ok", What: what, Note: note} }

func missing(what string, err error, cure string) finding {
	return finding{State: "missing", What: what, Note: err.Error(), Cure: cure}
}

// checkHost tries the facilities of this machine.
func (s *State) checkHost() []finding {
	var list []finding
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		list = append(list, missing("/dev/fuse", err, "modprobe fuse; its mode must let you open it"))
	} else {
		f.Close()
		list = append(list, ok("/dev/fuse", ""))
	}
	if s.UID != 0 {
		if path := firstFile("/usr/bin/fusermount3", "/bin/fusermount3"); path == "" {
			list = append(list, missing("fusermount3", errors.New("not installed"), "apt-get install fuse3"))
		} else {
			list = append(list, ok("fusermount3", path))
		}
	}
	path, err := bwrap.Locate("")
	if err != nil {
		list = append(list, missing("bubblewrap", err, "apt-get install bubblewrap"))
	} else {
		list = append(list, s.probe(path))
	}
	for _, p := range []string{"cortexfs", "ctxagent", "ctxterm", "tsh"} {
		if at, err := companion.Find(p); err != nil {
			list = append(list, missing("program "+p, err, "install it beside ctx"))
		} else {
			list = append(list, ok("program "+p, at))
		}
	}
	return list
}

// probe makes a real sandbox as the ids that an agent would have.
func (s *State) probe(path string) finding {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	if uid == 0 {
		uid, gid = 65534, 65534 // an agent is never root: try as nobody
	}
	if err := bwrap.Probe(ctx, path, uid, gid); err != nil {
		cure := "user namespaces must be allowed: sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces"
		if b, rerr := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"); rerr == nil && strings.TrimSpace(string(b)) == "1" {
			cure = "AppArmor forbids user namespaces: give bwrap a profile that allows them"
		}
		return missing("sandbox", err, cure)
	}
	return ok("sandbox", path+" makes one here")
}

func firstFile(paths ...string) string {
	for _, p := range paths {
		if unix.Access(p, unix.X_OK) == nil {
			return p
		}
	}
	return ""
}

// checkTree looks at the mounted tree, if there is one.
func (s *State) checkTree() []finding {
	t, err := s.tree()
	if err != nil {
		return []finding{missing("tree", err, "ctx up")}
	}
	list := []finding{ok("root "+t.root, "version "+t.version)}
	if _, word, err := t.read("status"); err != nil {
		list = append(list, missing("status", err, "start the daemon again"))
	} else if w := strings.TrimSpace(string(word)); w == "ready" {
		list = append(list, ok("status", w))
	} else {
		list = append(list, finding{State: "invalid", What: "status", Note: w, Cure: "see the daemon's log"})
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
		var st ctlproto.Described
		if _, err := s.ask(&ctlproto.Status{Agent: a.Ref}, &st, nil); err != nil {
			list = append(list, finding{State: "invalid", What: a.Ref, Note: err.Error()})
			continue
		}
		if len(st.Faults) == 0 {
			list = append(list, ok(a.Ref, st.State))
		}
		for _, f := range st.Faults {
			list = append(list, finding{State: "invalid", What: a.Ref, Note: f, Cure: "ctx edit the control"})
		}
	}
	if st, err := os.Lstat(t.path(bootstrapState)); err != nil || !st.Mode().IsRegular() {
		list = append(list, missing("bootstrap", errors.New("the reference tree was not made"), "ctx bootstrap"))
	} else {
		list = append(list, ok("bootstrap", ""))
	}
	return list
}

const bootstrapState = "bin/cortexfs.bootstrap.json"
