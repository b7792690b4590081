package daemon

import (
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"cortexfs/node/fault"
)

// MountOptions are the -o options that have an effect (spec section 21).
type MountOptions struct {
	ReadOnly   bool
	NoExec     bool
	AllowOther bool
	AgentGroup string // name or gid; empty: none
	ForeignNS  bool   // lift the namespace check of spec 4.8
	Debug      bool
}

// option is one row of the option table.
type option struct {
	name   string
	prefix bool // name stands for everything that begins with it
	value  bool // takes =VALUE, which is required
	help   string
	set    func(o *MountOptions, value string) error // nil: accepted without effect
}

// options is the whole list: what is not in it is refused by name.
var options = append([]option{
	{name: "ro", help: "the tree cannot be changed through this mount", set: flag(func(o *MountOptions) { o.ReadOnly = true })},
	{name: "rw", help: "the opposite of ro (default)", set: flag(func(o *MountOptions) { o.ReadOnly = false })},
	{name: "noexec", help: "no program of the tree can be executed on the host", set: flag(func(o *MountOptions) { o.NoExec = true })},
	{name: "exec", help: "the opposite of noexec (default)", set: flag(func(o *MountOptions) { o.NoExec = false })},
	{name: "allow_other", help: "other users may enter (root: always)", set: flag(func(o *MountOptions) { o.AllowOther = true })},
	{name: "agent_group", value: true, help: "members of this group may make system agents", set: setAgentGroup},
	{name: "foreign_ns", help: "processes of other namespaces may write too", set: flag(func(o *MountOptions) { o.ForeignNS = true })},
	{name: "debug", help: "log every request", set: flag(func(o *MountOptions) { o.Debug = true })},
}, accepted()...)

// accepted are the options that mount(8), fstab and systemd put in and that
// change nothing here: nosuid, nodev and default_permissions always hold.
func accepted() []option {
	var list []option
	for _, n := range strings.Fields("suid nosuid dev nodev default_permissions allow_root auto_unmount sync async " +
		"atime noatime relatime norelatime strictatime lazytime nolazytime diratime nodiratime dirsync silent " +
		"defaults auto noauto user users nouser owner group nofail _netdev") {
		list = append(list, option{name: n})
	}
	for _, n := range []string{"user", "fsname", "subtype", "max_read", "comment"} {
		list = append(list, option{name: n, value: true})
	}
	return append(list, option{name: "x-", prefix: true})
}

func flag(f func(*MountOptions)) func(*MountOptions, string) error {
	return func(o *MountOptions, _ string) error { f(o); return nil }
}

func setAgentGroup(o *MountOptions, v string) error {
	if v == "" {
		return fault.Newf(fault.Invalid, "mount option agent_group needs a group")
	}
	o.AgentGroup = v
	return nil
}

// ParseMountOptions reads -o texts in order; a later word wins over an earlier
// one. Within a text words are parted by commas, and \, is a comma. Invalid
// names the first word that is not in the table.
func ParseMountOptions(texts []string) (MountOptions, error) {
	var o MountOptions
	for _, text := range texts {
		for _, word := range splitOptions(text) {
			if word == "" {
				continue
			}
			if err := o.apply(word); err != nil {
				return o, err
			}
		}
	}
	return o, nil
}

func (o *MountOptions) apply(word string) error {
	name, value, has := strings.Cut(word, "=")
	for _, opt := range options {
		switch {
		case opt.prefix && strings.HasPrefix(word, opt.name) && len(word) > len(opt.name):
			return nil
		case opt.name != name || opt.prefix || opt.value != has:
			continue
		case opt.set == nil:
			return nil
		}
		return opt.set(o, value)
	}
	for _, opt := range options {
		if opt.name == name && !opt.prefix {
			if opt.value {
				return fault.Newf(fault.Invalid, "mount option %q needs a value", name)
			}
			return fault.Newf(fault.Invalid, "mount option %q takes no value", name)
		}
	}
	return fault.Newf(fault.Invalid, "unknown mount option %q", word)
}

func splitOptions(text string) []string {
	var words []string
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text) && (text[i+1] == ',' || text[i+1] == '\\'):
			i++
			b.WriteByte(text[i])
		case text[i] == ',':
			words = append(words, b.String())
			b.Reset()
		default:
			b.WriteByte(text[i])
		}
	}
	return append(words, b.String())
}

// gid resolves agent_group against the group database.
func (o *MountOptions) gid() (gid uint32, set bool, err error) {
	if o.AgentGroup == "" {
		return 0, false, nil
	}
	text := o.AgentGroup
	if g, err := user.LookupGroup(text); err == nil {
		text = g.Gid
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, false, fault.Newf(fault.Invalid, "mount option agent_group: no group %q", o.AgentGroup)
	}
	return uint32(n), true, nil
}

// Command is a parsed command line of cortexfs.
type Command struct {
	Store, Mountpoint string
	Mount             MountOptions
	Foreground        bool
	Help, Version     bool
	Raw               []string // the -o texts as given, for the daemon's own copy
	ready             int      // hidden: descriptor of the parent's pipe, or -1
	notify            *notifier
}

// ParseCommand reads `STORE MOUNTPOINT [-o OPTIONS]… [-f]`, options anywhere, as
// mount(8) and fstab helpers put them behind. Errors are Invalid.
func ParseCommand(args []string) (*Command, error) {
	c := &Command{ready: -1}
	var pos []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			pos = append(pos, args[i+1:]...)
			i = len(args)
		case a == "-f" || a == "--foreground":
			c.Foreground = true
		case a == "-h" || a == "--help":
			c.Help = true
		case a == "-V" || a == "--version":
			c.Version = true
		case a == "-o":
			if i++; i == len(args) {
				return nil, fault.Newf(fault.Invalid, "-o needs options")
			}
			c.Raw = append(c.Raw, args[i])
		case strings.HasPrefix(a, "-o"):
			c.Raw = append(c.Raw, a[2:])
		case strings.HasPrefix(a, readyFlag):
			n, err := strconv.Atoi(a[len(readyFlag):])
			if err != nil || n < 3 {
				return nil, fault.Newf(fault.Invalid, "bad %s", a)
			}
			c.ready = n
		case strings.HasPrefix(a, "-") && a != "-":
			return nil, fault.Newf(fault.Invalid, "unknown option %q", a)
		default:
			pos = append(pos, a)
		}
	}
	if c.Help || c.Version {
		return c, nil
	}
	if len(pos) != 2 {
		return nil, fault.Newf(fault.Invalid, "expected STORE and MOUNTPOINT, got %d arguments", len(pos))
	}
	c.Store, c.Mountpoint = pos[0], pos[1]
	for _, p := range pos {
		if p == "" || strings.ContainsRune(p, 0) {
			return nil, fault.Newf(fault.Invalid, "empty path")
		}
	}
	var err error
	c.Mount, err = ParseMountOptions(c.Raw)
	return c, err
}

// readyFlag passes the pipe of the waiting parent to the daemon process.
const readyFlag = "--ready-fd="

// Usage is the help text of cortexfs, its option part made from the table.
func Usage() string {
	var b strings.Builder
	b.WriteString(`usage: cortexfs STORE MOUNTPOINT [-o OPTION[,OPTION…]] [-f]

Serves the tree of STORE at MOUNTPOINT, and returns when it answers there.

  -f  stay in the foreground and log to stderr
  -o  mount options:
`)
	var plain []string
	for _, o := range options {
		name := o.name
		if o.value {
			name += "=…"
		}
		if o.prefix {
			name += "*"
		}
		if o.help == "" {
			plain = append(plain, name)
			continue
		}
		fmt.Fprintf(&b, "        %-14s %s\n", name, o.help)
	}
	b.WriteString("      accepted without effect:\n")
	line := "       "
	for _, n := range plain {
		if len(line)+len(n) > 78 {
			b.WriteString(line + "\n")
			line = "       "
		}
		line += " " + n
	}
	b.WriteString(line + `

examples:
  cortexfs /var/lib/cortexfs /ctx
  cortexfs ~/.local/share/cortexfs ~/ctx -o ro

As mount.cortexfs or mount.fuse.cortexfs it is a helper of mount(8).
Signals and files: man cortexfs

exit codes: 0 mounted and answering · 2 usage · 32 the mount failed
`)
	return b.String()
}
