// Package bwrap is how we use bubblewrap: where it is, whether it works here,
// the command line of a sandbox, and what its status descriptor says.
//
// bubblewrap gets one source, the root tree that sandbox/stage composed, and
// makes the namespaces, /proc, /dev and /tmp. It is always run as the agent's own
// uid, never as root: run by root it gives the agent host root.
package bwrap

import (
	"strconv"
	"strings"
)

// Options are the variable parts of the command line.
type Options struct {
	Root     string   // the staged tree
	Hostname string   // name inside; the host's own is not told
	Env      []string // KEY=VALUE, the whole environment
	Cwd      string   // inside; must exist, else bwrap ends
	TmpSize  int64    // bytes of the private /tmp; 0: the staged tree brings its own
	ShmSize  int64    // bytes of /dev/shm
	Seccomp  int      // descriptor of the seccomp program
	Status   int      // descriptor for --json-status-fd
	Command  []string
}

// Args is the command line without argv[0]. Every namespace is new. bwrap has no
// --die-with-parent here: agents outlive the daemon, and the flag is bound to
// the starting thread.
//
// The command is pid 1 of its namespace, so its end is the end of all.
func (o Options) Args() []string {
	args := []string{
		"--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--as-pid-1",
		"--hostname", o.Hostname,
		"--clearenv",
	}
	for _, kv := range o.Env {
		key, value, _ := strings.Cut(kv, "=")
		args = append(args, "--setenv", key, value)
	}
	args = append(args,
		"--bind", o.Root, "/",
		"--proc", "/proc",
		// bwrap's /dev is a writable, executable tmpfs of half the memory: give shm
		// a size of its own and close the rest.
		"--dev", "/dev",
		"--size", strconv.FormatInt(o.ShmSize, 10), "--perms", "1777", "--tmpfs", "/dev/shm",
		"--remount-ro", "/dev")
	if o.TmpSize > 0 {
		args = append(args, "--size", strconv.FormatInt(o.TmpSize, 10), "--perms", "1777", "--tmpfs", "/tmp")
	}
	args = append(args,
		"--seccomp", strconv.Itoa(o.Seccomp),
		"--json-status-fd", strconv.Itoa(o.Status),
		"--chdir", o.Cwd, "--")
	return append(args, o.Command...)
}

// Split parts Args for --args FD: options go through the descriptor, NUL
// terminated, so that no host path shows in a command line; the "--" and the
// command stay.
func Split(args []string) (options []byte, command []string) {
	for i, a := range args {
		if a == "--" {
			return options, args[i:]
		}
		options = append(append(options, a...), 0)
	}
	return options, nil
}

// Quote prints an argument vector so that a shell reads it back.
func Quote(argv []string) string {
	var b strings.Builder
	for i, a := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		if a != "" && strings.Trim(a, safe) == "" {
			b.WriteString(a)
		} else {
			b.WriteString("'" + strings.ReplaceAll(a, "'", `'\''`) + "'")
		}
	}
	return b.String()
}

const safe = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=./:,@%"
