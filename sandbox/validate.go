package sandbox

import (
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/sandbox/stage"
)

// maxRows bounds the table: each row costs a few descriptors of the stage helper
// and a mount.
const maxRows = 256

// reserved are targets that no row may have, nor anything below them (spec 5).
var reserved = []string{"/proc", "/dev", "/sys", "/usr", RunPath, "/etc/profile", "/etc/profile.d", "/etc/bash.bashrc"}

// hostOnly are places in the agent's home that only the host process writes.
var hostOnly = []string{HomePath + "/session", HomePath + "/log", HomePath + "/root"}

// Validate lists everything wrong with the Spec: errors.Join of *StartError.
func (s Spec) Validate() error {
	var all []error
	add := func(step int, control string, line int, kind fault.Kind, cure, format string, args ...any) {
		all = append(all, stage.Fail(step, control, line, kind, cure, format, args...))
	}
	if err := node.CheckAgentName(s.Agent); err != nil {
		add(1, "", 0, fault.Invalid, "", "%v", err)
	}
	s.checkIdentity(add)
	s.checkRows(add)
	for _, kv := range s.Env {
		key, _, ok := strings.Cut(kv, "=")
		if !ok || key == "" || strings.ContainsRune(kv, 0) {
			add(3, "env", 0, fault.Invalid, "", "%q is not KEY=VALUE", kv)
		}
	}
	if !clean(s.Cwd) {
		add(stage.StepCwd, "cwd", 0, fault.Invalid, "", "%q is not an absolute path without . and ..", s.Cwd)
	}
	if !path.IsAbs(s.Skeleton) {
		add(stage.StepRoot, "", 0, fault.Invalid, "", "the skeleton %q is not an absolute path", s.Skeleton)
	}
	if len(s.Command) == 0 && s.Term == "" || len(s.Command) > 0 && !path.IsAbs(s.Command[0]) {
		add(stage.StepExec, "", 0, fault.Invalid, "", "no command, or one that is no absolute path")
	}
	if s.Network {
		add(stage.StepNamespace, "policy", 0, fault.Unavailable, "take network:default connect away", "a network is not available in this version")
	}
	return errors.Join(all...)
}

type report func(step int, control string, line int, kind fault.Kind, cure, format string, args ...any)

func (s Spec) checkIdentity(add report) {
	const step = stage.StepIdentity
	switch s.Iso {
	case IsoShared:
		if s.UID != s.Owner {
			add(step, "uid", 0, fault.Perm, "write uid into iso", "uid %d is not the owner's (%d): it needs iso=uid", s.UID, s.Owner)
		}
	case IsoUID:
		if !s.Root {
			add(step, "iso", 0, fault.Perm, "start it from a root daemon, or write shared", "iso=uid needs a daemon that runs as root")
		}
	case IsoUserNS:
		add(step, "iso", 0, fault.Unavailable, "write shared or uid", "iso=userns is not available in this version")
	default:
		add(step, "iso", 0, fault.Invalid, "", "%q is no identity mode", s.Iso)
	}
	// The greatest number means "leave it" to setresuid(2): it names nobody.
	if s.UID == 0 || s.UID == math.MaxUint32 {
		add(step, "uid", 0, fault.Perm, "write another uid", "no agent runs with uid %d", s.UID)
	}
	if s.GID == 0 || s.GID == math.MaxUint32 {
		add(step, "gid", 0, fault.Perm, "write another gid", "no agent runs with gid %d", s.GID)
	}
	if s.Owner == math.MaxUint32 {
		add(step, "owner", 0, fault.Perm, "write the owner", "its owner is not known")
	}
	for i, g := range s.Groups {
		if g == 0 {
			add(step, "groups", i+1, fault.Perm, "take the line away", "no agent is in group 0")
		}
		if slices.Contains(s.Groups[:i], g) {
			add(step, "groups", i+1, fault.Invalid, "", "group %d is repeated", g)
		}
	}
}

func (s Spec) checkRows(add report) {
	if len(s.Rows) > maxRows {
		add(stage.StepMount, "mount", 0, fault.TooBig, "", "%d lines, at most %d are possible", len(s.Rows), maxRows)
		return
	}
	seen := map[string]bool{}
	for i := range s.Rows {
		r := &s.Rows[i]
		bad := func(kind fault.Kind, format string, args ...any) {
			add(stage.StepMount, r.Control(), r.Line, kind, "", format, args...)
		}
		switch {
		case !clean(r.Target) || r.Target == "/":
			bad(fault.Invalid, "target %q is not an absolute path without . and .., other than /", r.Target)
		case seen[r.Target]:
			bad(fault.Invalid, "target %s is repeated", r.Target)
		case r.Target == "/ctx" && (r.Kind != View || r.Source != "/ctx"):
			bad(fault.Invalid, "/ctx shows the agent's view and nothing else")
		case under(r.Target, "/ctx") && r.Target != "/ctx":
			bad(fault.Invalid, "target %s lies in the agent's view", r.Target)
		case underAny(r.Target, reserved):
			bad(fault.Invalid, "target %s is the runtime's own", r.Target)
		case underAny(r.Target, hostOnly):
			bad(fault.Invalid, "target %s lies where only the host process writes", r.Target)
		case r.Kind == Host && !clean(r.Source):
			bad(fault.Invalid, "source %q is not an absolute path without . and ..", r.Source)
		case r.RW && r.Kind == Store && underAny(r.Source, s.hostSources()):
			bad(fault.Perm, "%s is written by the host process only: the line must be ro", r.Source)
		case r.Caller && s.Caller.UID != s.Owner:
			bad(fault.Perm, "uid %d gives no directory to an agent of uid %d", s.Caller.UID, s.Owner)
		}
		seen[r.Target] = true
	}
	for i := range s.Rows { // what lies in a .git that will be covered would be hidden
		r := &s.Rows[i]
		if at := strings.Index(r.Target, "/.git/"); at > 0 && !s.GitRW {
			if repo := r.Target[:at]; seen[repo] && !seen[repo+"/.git"] {
				add(stage.StepMount, r.Control(), r.Line, fault.Invalid, "name "+repo+"/.git itself", "target %s lies in a .git that is read-only", r.Target)
			}
		}
	}
}

// hostSources are the same places as hostOnly, as sources in the tree.
func (s Spec) hostSources() []string {
	homes := []string{fmt.Sprintf("/ctx/home/%d/agent/%s", s.Owner, s.Agent)}
	for _, r := range s.Rows {
		if r.Home {
			homes = append(homes, r.Source)
		}
	}
	var list []string
	for _, h := range homes {
		list = append(list, h+"/session", h+"/log", h+"/root")
	}
	return list
}

func clean(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f })
}

func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func underAny(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return under(p, d) })
}
