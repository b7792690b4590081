package tree

import (
	"strings"

	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// Unlink removes a file; its .d with the policy stays for whoever replaces it.
func (x *execDir) Unlink(r *vnode.Req, name string) error {
	return fault.At("unlink", "/"+x.dir+"/"+name, x.unlink(r, name))
}

func (x *execDir) unlink(r *vnode.Req, name string) error {
	if err := x.writer(r); err != nil {
		return err
	}
	s := x.slot(name)
	if s == nil {
		return notExist(name)
	}
	if err := s.remove(); err != nil {
		return err
	}
	x.dropDefaults(name)
	x.told(name)
	return nil
}

// dropDefaults removes the NAME.d of a file that is gone if nothing was ever
// written there: temporary names of compilers and editors leave nothing behind,
// and whoever replaces a tool by unlink and create finds its policy again.
func (x *execDir) dropDefaults(name string) {
	dir := x.dir + "/" + name + ".d"
	x.mu.Lock()
	there := x.dirs[name+".d"]
	x.mu.Unlock()
	if !there {
		return
	}
	entries, err := x.t.st.List(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name, ".") {
			return
		}
	}
	if err := x.t.st.Remove(dir); err != nil {
		return
	}
	x.mu.Lock()
	delete(x.dirs, name+".d")
	x.mu.Unlock()
	x.t.dropDir(dir)
}

// Rmdir removes the controls of a tool that has no executable any more.
func (x *execDir) Rmdir(r *vnode.Req, name string) error {
	return fault.At("rmdir", "/"+x.dir+"/"+name, x.rmdir(r, name))
}

func (x *execDir) rmdir(r *vnode.Req, name string) error {
	if err := x.writer(r); err != nil {
		return err
	}
	x.load()
	base := strings.TrimSuffix(name, ".d")
	x.mu.Lock()
	there, used := x.dirs[name], x.slots[base] != nil
	x.mu.Unlock()
	switch {
	case !there && x.slot(name) != nil:
		return fault.Newf(fault.NotDir, "no directory")
	case !there:
		return notExist(name)
	case used:
		return fault.Newf(fault.Busy, "%s is still there", base)
	}
	if err := x.t.st.Remove(x.dir + "/" + name); err != nil {
		return err
	}
	x.mu.Lock()
	delete(x.dirs, name)
	x.mu.Unlock()
	x.t.dropDir(x.dir + "/" + name)
	x.told(name)
	x.t.tools.Changed(x.dir, base)
	return nil
}

// Rename moves within the directory.
func (x *execDir) Rename(r *vnode.Req, oldName string, newDir vnode.Node, newName string) error {
	path := "/" + x.dir + "/" + oldName
	if to, ok := newDir.(*execDir); !ok || to != x {
		return fault.At("rename", path, fault.Newf(fault.CrossDevice, "executables do not leave their directory"))
	}
	return fault.At("rename", path, x.rename(r, oldName, newName))
}

func (x *execDir) rename(r *vnode.Req, oldName, newName string) error {
	if err := x.writer(r); err != nil {
		return err
	}
	s := x.slot(oldName)
	x.mu.Lock()
	isDir := x.dirs[oldName] || x.dirs[newName]
	x.mu.Unlock()
	switch {
	case isDir:
		return perm("the controls of a tool keep their name")
	case s == nil:
		return notExist(oldName)
	case oldName == newName:
		return nil
	}
	if !x.takes(newName) && x.slot(newName) == nil {
		if err := x.temporary(newName, false); err != nil {
			return err
		}
	}
	if x.takes(newName) && !x.takes(oldName) {
		if err := x.full(newName); err != nil {
			return err
		}
	}
	over, err := s.move(newName)
	if err != nil {
		return err
	}
	over.replacedBy(s)
	x.dropDefaults(oldName)
	x.told(oldName)
	x.told(newName)
	return nil
}
