package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/fault"
)

// place says where a start is to run, and checks what the caller said.
func (o *op) place(q *ctlproto.Start, cfg *agent.Config) (place, error) {
	p := place{Session: q.Session, Workspace: q.CWD, NoWorkspace: q.NoWorkspace, Mounts: q.Mounts,
		GitRW: q.Git == "rw", AllowHome: q.AllowHome, CallerUID: o.by.UID}
	if p.Session == "" {
		p.Session = "default"
	}
	if err := node.CheckName(p.Session); err != nil || p.Session == "index" {
		return p, fault.Newf(fault.Invalid, "%q is no session name", p.Session)
	}
	if q.Git != "" && q.Git != "rw" {
		return p, fault.Newf(fault.Invalid, "git is rw or nothing")
	}
	for _, m := range q.Mounts {
		if len(m) != 3 || m[2] != "ro" && m[2] != "rw" {
			return p, fault.Newf(fault.Invalid, "a mount is source, target and ro or rw")
		}
		if !cleanAbs(m[0]) || !cleanAbs(m[1]) {
			return p, fault.Newf(fault.Invalid, "mount %s %s: both are absolute paths without . and ..", m[0], m[1])
		}
	}
	if p.NoWorkspace {
		p.Workspace = ""
	}
	if p.Workspace != "" && !cleanAbs(p.Workspace) {
		return p, fault.Newf(fault.Invalid, "cwd %s: an absolute path without . and ..", p.Workspace)
	}
	if o.by.UID != cfg.Owner && p.Workspace != "" {
		o.note("%s belongs to uid %d: it gets an empty /workspace", cfg.Key, cfg.Owner)
		p.Workspace = ""
	}
	if p.Workspace != "" {
		if err := o.sameMounts(); err != nil {
			return p, err
		}
	}
	return p, nil
}

func cleanAbs(p string) bool {
	return strings.HasPrefix(p, "/") && filepath.Clean(p) == p && !strings.ContainsAny(p, "\x00\n\t")
}

// sameMounts refuses a workspace of a caller in another mount namespace: its
// path means something else there.
func (o *op) sameMounts() error {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return fault.FromOS("own namespace", "mnt", err)
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", o.peer.PID))
	if err != nil || !o.peer.Alive() {
		return fault.Newf(fault.Access, "the caller's mount namespace cannot be read")
	}
	if ours != theirs {
		return fault.Newf(fault.CrossDevice, "you are in another mount namespace than the daemon; use --no-default-workspace")
	}
	return nil
}
