package agent

import (
	"fmt"
	"strconv"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
)

// NoID stands for a uid or gid that is not known: no file has it and no process
// runs with it.
const NoID = 1<<32 - 1

// Isolation words of the control iso (spec section 10.2).
const (
	IsoShared = "shared"
	IsoUID    = "uid"
	IsoUserns = "userns"
)

// Config is what an agent's texts say, defaults filled in (spec section 5). It
// is immutable, slices included. A field whose text is a fault is empty.
type Config struct {
	Key Key
	Gen uint64 // of the newest text that it was made from

	Owner   uint32 // NoID when unknown
	OwnerOK bool   // false: only root may write, and nothing is allowed
	UID     uint32 // NoID when unknown
	GID     uint32 // NoID when unknown
	Groups  []uint32
	Label   policy.Label
	Subject string // Label.Type; "" allows nothing
	Iso     string

	Parent   control.Parent // zero: none
	ParentOK bool           // false: the text is a fault; treated as a parent nobody has
	Life     string

	Root, Cwd string
	Env       []control.EnvVar
	Path      []string // the text of `path`: the grant of CTX_PATH
	Search    []string // Path, or the default search path where it is empty
	Mounts    []control.MountLine

	Model    control.ModelRef
	Tools    control.Tools
	Approval string
	ABI      string

	// Policy is the agent's own policy; nil allows nothing. It is nil too when
	// any other text that can decide something is invalid: such an object fails
	// closed (spec 4.10).
	Policy *policy.Set
	// Faults are all invalid and missing controls, each with its file and, where
	// one is known, its line. Any of them ends a start.
	Faults []*fault.Error

	object control.Object
	snap   *store.Snapshot
}

// Declared says whether a tool is in `tools`, and on which line. The reserved
// tsh counts as declared, on no line (spec section 8, row 2).
func (c *Config) Declared(tool string) (line int, ok bool) {
	if tool == "tsh" {
		return 0, true
	}
	line = c.Tools.Line(tool)
	return line, line > 0
}

// StateDir is the agent's state directory in the tree:
// /ctx/home/<owner>/agent/<name>.
func (c *Config) StateDir() string {
	return fmt.Sprintf("%s/home/%d/agent/%s", node.Root, c.Owner, c.Key.Name)
}

// builder makes one Config.
type builder struct {
	t      *Table
	c      *Config
	voided bool // something that decides is invalid
}

// build makes the Config of a snapshot. Its order matters only for owner, on
// which the other defaults depend.
func (t *Table) build(k Key, snap *store.Snapshot) *Config {
	c := &Config{Key: k, Gen: snap.Gen, snap: snap, Owner: NoID, UID: NoID, GID: NoID}
	b := &builder{t: t, c: c}
	b.owner()
	b.identity()
	b.label()
	b.lineage()
	b.surroundings()
	b.run()
	b.rest()
	if b.voided {
		c.Policy = nil
	}
	return c
}

// fault records what is wrong with a control.
func (b *builder) fault(name string, kind fault.Kind, err error) {
	f := *asFault(b.c.Key.TreeDir()+"/"+name, fault.At("", "", err))
	f.Path = b.c.Key.TreeDir() + "/" + name
	if kind != fault.IO {
		f.Kind = kind
	}
	b.c.Faults = append(b.c.Faults, &f)
}

// invalid records a text that cannot be used; the object fails closed.
func (b *builder) invalid(e *control.Entry, err error) {
	b.fault(e.Name, fault.IO, err)
	if e.Grants {
		b.voided = true
	}
}

// text is the effective text of a control, if it is a valid one.
func (b *builder) text(name string) ([]byte, bool) {
	e := control.Agent.Lookup(name)
	v, stored := b.c.snap.Values[name]
	switch {
	case stored && v.Err != nil:
		b.invalid(e, v.Err)
		return nil, false
	case stored && name == "policy":
		return v.Text, true // the parser judges it, once
	case stored:
		if err := e.JudgeFor(b.c.object, v.Text); err != nil {
			b.invalid(e, err)
			return nil, false
		}
		return v.Text, true
	case e.Required && !(name == "owner" && b.c.Key.Home):
		b.fault(name, fault.NotExist, fmt.Errorf("missing; nothing else can say what it would"))
		return nil, false
	}
	return []byte(e.DefaultText(b.c.object)), true
}

// value parses the effective text of a control.
func value[T any](b *builder, name string, parse func([]byte) (T, error)) (T, bool) {
	var none T
	text, ok := b.text(name)
	if !ok {
		return none, false
	}
	v, err := parse(text)
	if err != nil {
		b.invalid(control.Agent.Lookup(name), err)
		return none, false
	}
	return v, true
}

// owner is the uid of the path for an agent in a home, whatever its file says.
func (b *builder) owner() {
	c := b.c
	c.object = control.Object{Name: c.Key.Name, Home: c.Key.Home, Owner: NoID, OwnerGID: NoID, Root: b.t.o.Root}
	if c.Key.Home {
		c.object.Owner = c.Key.UID
	}
	owner, ok := value(b, "owner", control.ParseUint32)
	if c.Key.Home {
		owner, ok = c.Key.UID, true
	}
	if !ok {
		return
	}
	c.Owner, c.OwnerOK = owner, true
	c.object.Owner = owner
	if gid, ok := b.t.primaryGID(owner); ok {
		c.object.OwnerGID = gid
	}
	if !b.t.o.Root {
		c.object.Groups = b.t.o.DaemonGroups
	}
}

// primaryGID asks the account database; what the daemon itself runs with it
// knows without.
func (t *Table) primaryGID(uid uint32) (uint32, bool) {
	if !t.o.Root && uid == t.o.DaemonUID {
		return t.o.DaemonGID, true
	}
	return t.o.Users.User(uid)
}

// identity reads what the agent runs as. Host uid 0 and gid 0 are refused
// whoever wrote them (spec 10.2).
func (b *builder) identity() {
	c := b.c
	c.Iso, _ = value(b, "iso", control.ParseWord)
	if c.OwnerOK {
		if uid, ok := value(b, "uid", control.ParseUint32); ok && b.notZero("uid", 1, uid) {
			c.UID = uid
		}
		if _, written := c.snap.Values["gid"]; !written && c.object.OwnerGID == NoID {
			b.fault("gid", fault.NotExist, fmt.Errorf("no account has the owner's uid %d, so there is no primary group to take; write gid", c.Owner))
		} else if gid, ok := value(b, "gid", control.ParseUint32); ok && b.notZero("gid", 1, gid) {
			c.GID = gid
		}
	}
	groups, _ := value(b, "groups", control.ParseGroups)
	for i, g := range groups {
		if !b.notZero("groups", i+1, g) {
			groups = nil
			break
		}
	}
	c.Groups = groups
	switch {
	case c.Iso == IsoShared && c.UID != NoID && c.UID != c.Owner:
		b.fault("iso", fault.Perm, fmt.Errorf("uid %d is not the owner's (%d): needs iso=uid", c.UID, c.Owner))
	case c.Iso == IsoUID && !b.t.o.Root:
		b.fault("iso", fault.Perm, fmt.Errorf("iso=uid needs a daemon that runs as root"))
	}
}

func (b *builder) notZero(name string, line int, id uint32) bool {
	if id != 0 {
		return true
	}
	b.fault(name, fault.Perm, &fault.Error{Line: line, Col: 1, Kind: fault.Perm, Err: fmt.Errorf("no agent runs with host id 0")})
	b.voided = true
	return false
}

func (b *builder) label() {
	if label, ok := value(b, "label", control.ParseLabel); ok {
		b.c.Label, b.c.Subject = label, label.Type
	}
}

func (b *builder) lineage() {
	b.c.Parent, b.c.ParentOK = value(b, "parent", control.ParseParent)
	b.c.Life, _ = value(b, "life", control.ParseWord)
}

// surroundings reads what the agent finds around it: files, environment, tools'
// directories.
func (b *builder) surroundings() {
	c := b.c
	c.Root, _ = value(b, "root", control.ParseWord)
	c.Cwd, _ = value(b, "cwd", control.ParseWord)
	c.Env, _ = value(b, "env", func(text []byte) ([]control.EnvVar, error) {
		return control.ParseEnv(text, control.Repeats(c.object)...)
	})
	c.Mounts, _ = value(b, "mount", control.ParseMount)
	path, ok := value(b, "path", control.ParsePath)
	c.Path = path
	switch {
	case len(path) > 0:
		c.Search = path
	case ok && c.OwnerOK:
		c.Search = defaultSearch(c.Owner)
	}
}

// defaultSearch is the search path where path is empty (spec section 8, row 3).
func defaultSearch(owner uint32) []string {
	return []string{node.Root + "/tool", node.Root + "/home/" + strconv.FormatUint(uint64(owner), 10) + "/tool"}
}

func (b *builder) run() {
	c := b.c
	c.Model, _ = value(b, "model", control.ParseModelRef)
	c.Tools, _ = value(b, "tools", control.ParseTools)
	c.ABI, _ = value(b, "abi", control.ParseWord)
	c.Approval, _ = value(b, "approval", control.ParseWord)
	c.Policy, _ = value(b, "policy", policy.Parse)
}

// rest judges the texts that no field is made of.
func (b *builder) rest() {
	for _, e := range control.Agent.Entries() {
		switch e.Name {
		case "system.md", "prompt.template.md", "meta.json":
			b.text(e.Name)
		}
	}
}
