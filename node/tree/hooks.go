package tree

import (
	"slices"

	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// hooksDir is hooks/ of an object: pre.d and post.d.
type hooksDir struct {
	d *ctlDir
	e *control.Entry
}

func (hooksDir) InMemory() {}

var phases = [...]string{"post.d", "pre.d"}

func (h hooksDir) path() string { return h.d.path(h.e.Name) }

func (h hooksDir) Attr(*vnode.Req) (vnode.Attr, error) {
	if h.d.obj.Gone() {
		return vnode.Attr{}, fault.E("stat", h.path(), fault.Stale, nil)
	}
	uid, gid := h.d.sub.owner()
	return dirAttr(h.path(), h.e.Mode, uid, gid, h.d.modTime(h.e.Name)), nil
}

// phase is the directory of one phase.
func (h hooksDir) phase(name string) *execDir {
	dir := h.d.dir + "/" + h.e.Name + "/" + name
	rules := execRules{max: maxHook, most: maxHooks, kind: h.d.kind.String() + ".hook", dir: h.e.Mode}
	return h.d.t.execDir(dir, rules, h.d.sub.owner, h.d.obj)
}

func (h hooksDir) Lookup(r *vnode.Req, name string) (vnode.Entry, error) {
	if !slices.Contains(phases[:], name) || h.d.obj.Gone() {
		return vnode.Entry{}, notExist(name)
	}
	if !h.d.ownerOrRoot(r) {
		return vnode.Entry{}, fault.E("lookup", h.path(), fault.Access, nil)
	}
	return vnode.Entry{Node: h.phase(name), Valid: dirValid}, nil
}

func (h hooksDir) ReadDir(r *vnode.Req) ([]vnode.Dirent, error) {
	var out []vnode.Dirent
	for _, p := range phases {
		out = append(out, vnode.Dirent{Name: p, Ino: inoOf("/" + h.d.dir + "/" + h.e.Name + "/" + p), Type: vnode.Directory})
	}
	return out, nil
}
