package cli

import (
	"fmt"
	"io"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

func statusCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "state of the tree and its daemon",
		Long:    "Print the tree's state (ready or degraded), then where it is and who serves it.",
		Example: "  ctx status\n  ctx status -o json",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			t, err := s.tree()
			if err != nil {
				return err
			}
			_, word, err := t.read("status")
			if err != nil {
				return err
			}
			info := struct {
				Status  string `json:"status"`
				Root    string `json:"root"`
				Version string `json:"version"`
				Runtime string `json:"runtime,omitempty"`
				Daemon  int    `json:"daemon_pid,omitempty"`
				UID     uint32 `json:"daemon_uid"`
			}{Status: strings.TrimSuffix(string(word), "\n"), Root: t.root, Version: t.version, Runtime: t.runtime, UID: t.owner}
			if c, err := t.dial(); err == nil {
				info.Daemon, info.UID = int(c.Server.Pid), c.Server.Uid
				c.Close()
			}
			return s.print(info, func(w io.Writer) {
				fmt.Fprintf(w, "%s\nroot=%s\nversion=%s\nruntime=%s\n", node.Escape(info.Status), node.Escape(info.Root),
					orDash(node.Escape(info.Version)), orDash(node.Escape(info.Runtime)))
				if info.Daemon != 0 {
					fmt.Fprintf(w, "daemon_pid=%d\ndaemon_uid=%d\n", info.Daemon, info.UID)
				}
			})
		},
	}
}

func versionCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "version of ctx and of the tree's daemon",
		Long:    "Print the version of this program and, where a tree is mounted, of the daemon that serves it.",
		Example: "  ctx version",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			v := map[string]string{"ctx": node.Version}
			if t, err := s.tree(); err == nil {
				v["daemon"] = t.version
			}
			return s.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "ctx %s\n", v["ctx"])
				if d, ok := v["daemon"]; ok {
					fmt.Fprintf(w, "daemon %s\n", node.Escape(d))
				}
			})
		},
	}
}

func envCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:     "env",
		Short:   "shell lines that point at the tree",
		Long:    "Print export lines for CTX_ROOT, CTX_HOME and CTX_PATH, for eval in a shell.",
		Example: "  eval \"$(ctx env)\"",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			t, err := s.tree()
			if err != nil {
				return err
			}
			home := t.path("home/" + strconv.FormatUint(uint64(s.UID), 10))
			vars := []ctlproto.EnvItem{
				{Key: "CTX_ROOT", Value: t.root},
				{Key: "CTX_HOME", Value: home},
				{Key: "CTX_PATH", Value: t.path("tool") + ":" + path.Join(home, "tool")},
			}
			return s.print(vars, func(w io.Writer) {
				for _, v := range vars {
					fmt.Fprintf(w, "export %s=%s\n", v.Key, shellQuote(v.Value))
				}
			})
		},
	}
}

// shellQuote makes one word of s for a POSIX shell.
func shellQuote(s string) string {
	plain := s != ""
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-:+=,", r) {
			plain = false
		}
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func whichCmd(s *State) *cobra.Command {
	return group("which", "find the object that a bare name means",
		"Print the path that a bare name means for you: your own home first for agents, the search path for tools.",
		"  ctx which agent coder\n  ctx which tool fs.read",
		&cobra.Command{
			Use: "agent NAME", Short: "path of an agent", Long: "Print the directory of the agent that NAME means for you.",
			Example: "  ctx which agent coder", Args: argsN(1, 1),
			RunE: func(_ *cobra.Command, args []string) error {
				return s.which(args[0], []string{fmt.Sprintf("home/%d/agent/%s.d", s.UID, args[0]), "agent/" + args[0] + ".d"}, unix.S_IFDIR)
			},
		},
		&cobra.Command{
			Use: "tool NAME", Short: "path of a tool",
			Long:    "Print the first tool of that name on CTX_PATH, or in the default places when it is not set.",
			Example: "  ctx which tool fs.read", Args: argsN(1, 1),
			RunE: func(_ *cobra.Command, args []string) error { return s.whichTool(args[0]) },
		})
}

func (s *State) which(name string, candidates []string, typ uint32) error {
	if err := node.CheckName(name); err != nil {
		return usageError{err}
	}
	t, err := s.tree()
	if err != nil {
		return err
	}
	for _, c := range candidates {
		var st unix.Stat_t
		if unix.Lstat(t.path(c), &st) != nil || st.Mode&unix.S_IFMT != typ || typ == unix.S_IFREG && st.Mode&0o111 == 0 {
			continue
		}
		return s.print(map[string]string{"path": t.path(c)}, func(w io.Writer) {
			fmt.Fprintln(w, node.Escape(t.path(c)))
		})
	}
	return fault.Newf(fault.NotExist, "no such object: %s", name)
}

func (s *State) whichTool(name string) error {
	t, err := s.tree()
	if err != nil {
		return err
	}
	dirs := []string{"tool", fmt.Sprintf("home/%d/tool", s.UID)}
	if p := s.Getenv("CTX_PATH"); p != "" {
		dirs = nil
		for _, d := range strings.Split(p, ":") {
			if rel, err := t.rel(d); err == nil && d != "" {
				dirs = append(dirs, rel)
			}
		}
	}
	var candidates []string
	for _, d := range dirs {
		candidates = append(candidates, path.Join(d, name))
	}
	return s.which(name, candidates, unix.S_IFREG)
}

// primaryGID asks the account database; a uid it does not know has the same gid.
func primaryGID(uid uint32) uint32 {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return uid
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return uid
	}
	return uint32(gid)
}

// homeDir is the person's home directory: HOME, else the account database.
func (s *State) homeDir() (string, error) {
	if h := s.Getenv("HOME"); strings.HasPrefix(h, "/") {
		return h, nil
	}
	u, err := user.LookupId(strconv.Itoa(os.Getuid()))
	if err != nil || u.HomeDir == "" {
		return "", unavailable("no home directory: HOME is not set")
	}
	return u.HomeDir, nil
}
