package daemon

import (
	"strings"

	"cortexfs/cmd/internal/manual"
)

// Pages are the manual pages of the daemon: cortexfs(8) and cortexfs.conf(5).
func Pages() []*manual.Page {
	p := manual.New("cortexfs", 8, "serve a tree of agents and tools at a mount point")
	p.Head("SYNOPSIS")
	p.Para("cortexfs STORE MOUNTPOINT [-o OPTION[,OPTION...]] [-f]\n\n" +
		"mount.cortexfs STORE MOUNTPOINT [-sfnv] [-o OPTION[,OPTION...]]")
	p.Head("DESCRIPTION")
	p.Para("cortexfs serves the tree of STORE at MOUNTPOINT through FUSE. It returns 0 when MOUNTPOINT/status answers, and with the\n" +
		"reason on standard error and another code when that does not happen within 10 seconds. The daemon then runs in the\n" +
		"background; with -f it stays in the foreground.\n\n" +
		"STORE is a directory of the calling user with mode 0700 on a local file system; an empty one becomes a store. One daemon\n" +
		"serves a store: a second one is refused and names the first. A backup is a copy of the store.\n\n" +
		"Called as mount.cortexfs or mount.fuse.cortexfs, both absolute paths, it is a helper of mount(8), so that this line of\n" +
		"/etc/fstab works with and without mount.fuse3:\n\n" +
		"  /var/lib/cortexfs  /ctx  fuse.cortexfs  allow_other,nofail  0  0\n\n" +
		"Any user can run it on a store and a mount point of their own; ctx up does.")
	p.Head("OPTIONS")
	p.Item("-f", "stay in the foreground and log to standard error")
	p.Item("-h, --help", "print help")
	p.Item("-V, --version", "print the version")
	p.Sub("Mount options")
	var plain []string
	for _, o := range options {
		name := o.name
		if o.value {
			name += "=..."
		}
		if o.prefix {
			name += "*"
		}
		if o.help == "" {
			plain = append(plain, name)
			continue
		}
		p.Item(name, o.help)
	}
	p.Para("Accepted without effect, nosuid, nodev and default_permissions holding always:")
	p.Para(strings.Join(plain, " ") + ".")
	p.Para("Any other option is refused by name.")
	p.Head("SIGNALS")
	p.Item("SIGTERM, SIGINT", "stop all agents, children first, then unmount; umount(8) of the tree does the same")
	p.Item("SIGHUP", "end without stopping the agents: the next daemon on the store adopts them. cortexfs.service starts it at once.\nA crash is like SIGHUP.")
	p.Head("EXIT STATUS")
	p.Item("0", "mounted and answering; with -f: ended in good order")
	p.Item("2", "wrong usage")
	p.Item("32", "the mount failed")
	p.Item("75", "-f under a supervisor: SIGHUP, the next daemon is to be started")
	p.Head("FILES")
	p.Item("/etc/cortexfs/cortexfs.conf", "limits and times of a root daemon; a user's is ~/.config/cortexfs/cortexfs.conf")
	p.Item("STORE/state/cortexfs.log", "the log of a daemon in the background")
	p.Item("/run/cortexfs", "runtime directory of root daemons; a user's is $XDG_RUNTIME_DIR/cortexfs")
	p.Head("NOTES")
	p.Para("After a crash everything below the mount point fails with ENOTCONN. mount MOUNTPOINT, or the service by itself, clears the\n" +
		"dead mount and mounts again; mount -a does not, for it takes the mount point for mounted. Running agents are adopted.")
	p.See("ctx(1)", "cortexfs.conf(5)", "cortexfs-agent(5)", "mount(8)", "fstab(5)")

	c := manual.New("cortexfs.conf", 5, "limits and times of a CortexFS daemon")
	c.Head("DESCRIPTION")
	c.Para("A root daemon reads /etc/cortexfs/cortexfs.conf, a user's $XDG_CONFIG_HOME/cortexfs/cortexfs.conf, or\n" +
		"~/.config/cortexfs/cortexfs.conf, when it starts. The file must belong to that user or root and be writable by nobody\n" +
		"else. It has KEY=VALUE lines; blank lines and lines that begin with # are comments. An unknown key, a value out of range\n" +
		"and a key set twice end the start with the line: a limit that somebody believes to have set is never silently missing.")
	c.Head("KEYS")
	for _, s := range Settings() {
		c.Item(s.Key+"="+s.Default, s.Doc)
	}
	c.See("cortexfs(8)")
	return []*manual.Page{p, c}
}
