package tree

import (
	"io/fs"
	"strings"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

// modelDir is model/ (aliases and providers) or model/<provider>/ (models).
type modelDir struct {
	noACL
	t        *Tree
	dir      string // of the tier in the store
	provider string // "": the tier itself
	home     bool
	uid      uint32
}

func (d modelDir) path() string {
	if d.provider == "" {
		return d.dir
	}
	return d.dir + "/" + d.provider
}

func (d modelDir) ids() (uid, gid uint32) {
	if d.home {
		return d.uid, d.t.primaryGID(d.uid)
	}
	return d.t.daemonIDs()
}

func (d modelDir) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := d.ids()
	return dirAttr("/"+d.path(), 0o755, uid, gid, d.t.born), nil
}

// Lookup finds a provider or alias, or a model's NAME and NAME.d.
func (d modelDir) Lookup(_ *vnode.Req, name string) (vnode.Entry, error) {
	n, err := d.find(name)
	if err != nil {
		return vnode.Entry{}, err
	}
	return vnode.Entry{Node: n, Valid: dirValid}, nil
}

func (d modelDir) find(name string) (vnode.Node, error) {
	base := strings.TrimSuffix(name, ".d")
	if !node.IsName(base) {
		return nil, notExist(name)
	}
	if d.provider == "" {
		if target, err := d.t.st.Readlink(d.dir + "/" + name); err == nil {
			return aliasLink{d, name, target}, nil
		}
		if _, err := d.t.st.List(d.dir + "/" + name); err != nil || base != name {
			return nil, notExist(name)
		}
		return modelDir{t: d.t, dir: d.dir, provider: name, home: d.home, uid: d.uid}, nil
	}
	obj, err := d.t.modelObject(d, base)
	if err != nil {
		return nil, notExist(name)
	}
	if base != name {
		return obj, nil
	}
	if f := d.t.o.ModelExec; f.Path == "" && f.Data == nil {
		return nil, notExist(name)
	}
	uid, gid := d.ids()
	return hostNode{t: d.t, path: "/" + d.path() + "/" + name, bin: modelExec, kind: "model.exec", uid: uid, gid: gid}, nil
}

// modelExec is how a hostNode names Options.ModelExec.
const modelExec = "\x00model"

func (t *Tree) modelObject(d modelDir, name string) (*ctlDir, error) {
	dir := d.path() + "/" + name + ".d"
	return t.object(dir, func(obj *store.Object) *ctlDir {
		c := newCtlDir(t, modelObject, dir, name, control.Model, obj)
		c.sub = &plainSubject{t: t, dir: dir, name: name, set: control.Model, ids: d.ids, obj: obj, onChg: func() {}}
		return c
	})
}

func (d modelDir) ReadDir(*vnode.Req) ([]vnode.Dirent, error) {
	names, err := d.t.st.List(d.path())
	if err != nil && !fault.Is(err, fault.NotExist) {
		return nil, err
	}
	var out []vnode.Dirent
	add := func(name string, typ vnode.Type) {
		out = append(out, vnode.Dirent{Name: name, Ino: inoOf("/" + d.path() + "/" + name), Type: typ})
	}
	for _, e := range names {
		base, isObject := strings.CutSuffix(e.Name, ".d")
		switch {
		case e.Type&fs.ModeSymlink != 0 && d.provider == "":
			add(e.Name, vnode.Symlink)
		case !e.Type.IsDir() || !node.IsName(base):
		case d.provider == "" && !isObject:
			add(e.Name, vnode.Directory)
		case d.provider != "" && isObject:
			add(e.Name, vnode.Directory)
			if _, err := d.find(base); err == nil {
				add(base, vnode.Regular)
			}
		}
	}
	return out, nil
}

func (d modelDir) mayWrite(r *vnode.Req) error {
	if err := d.t.foreign(r); err != nil {
		return err
	}
	if uid, _ := d.ids(); r.UID != uid && !d.t.isRoot(r.UID) {
		return fault.Newf(fault.Access, "only uid %d and root write here", uid)
	}
	return nil
}

// Mkdir makes a provider, or a model as NAME.d with every default in place.
func (d modelDir) Mkdir(r *vnode.Req, name string, _ uint32) (vnode.Entry, error) {
	ent, err := d.mkdir(r, name)
	return ent, fault.At("mkdir", "/"+d.path()+"/"+name, err)
}

func (d modelDir) mkdir(r *vnode.Req, name string) (vnode.Entry, error) {
	if err := d.mayWrite(r); err != nil {
		return vnode.Entry{}, err
	}
	base, isObject := strings.CutSuffix(name, ".d")
	if err := node.CheckName(base); err != nil {
		return vnode.Entry{}, err
	}
	if isObject != (d.provider != "") {
		return vnode.Entry{}, perm("models are PROVIDER/MODEL.d")
	}
	if _, err := d.find(name); err == nil {
		return vnode.Entry{}, fault.Newf(fault.Exist, "%s is there", name)
	}
	var err error
	if isObject {
		_, err = d.t.st.Create(d.path()+"/"+name, nil)
	} else {
		err = d.t.st.MkdirAll(d.path() + "/" + name)
	}
	if err != nil {
		return vnode.Entry{}, err
	}
	return d.Lookup(r, name)
}

// Rmdir removes a model, or an empty provider.
func (d modelDir) Rmdir(r *vnode.Req, name string) error {
	return fault.At("rmdir", "/"+d.path()+"/"+name, d.rmdir(r, name))
}

func (d modelDir) rmdir(r *vnode.Req, name string) error {
	if err := d.mayWrite(r); err != nil {
		return err
	}
	if _, err := d.find(name); err != nil {
		return err
	}
	path := d.path() + "/" + name
	if d.provider == "" {
		if names, err := d.t.st.List(path); err != nil || len(names) > 0 {
			return fault.Newf(fault.NotEmpty, "the provider has models")
		}
	}
	if err := d.t.st.Remove(path); err != nil {
		return err
	}
	d.t.dropDir(path)
	return nil
}

// Symlink makes an alias of a model.
func (d modelDir) Symlink(r *vnode.Req, name, target string) (vnode.Entry, error) {
	err := d.mayWrite(r)
	provider, model, ok := strings.Cut(target, "/")
	switch {
	case err != nil:
	case d.provider != "" || !ok || !node.IsName(provider) || !node.IsName(model):
		err = perm("an alias is a symlink to PROVIDER/MODEL")
	case !node.IsName(name):
		err = node.CheckName(name)
	default:
		if _, there := d.find(name); there == nil {
			err = fault.Newf(fault.Exist, "%s is there", name)
			break
		}
		err = d.t.st.Symlink(d.dir+"/"+name, target)
	}
	if err != nil {
		return vnode.Entry{}, fault.At("symlink", "/"+d.path()+"/"+name, err)
	}
	return d.Lookup(r, name)
}

// Unlink removes an alias.
func (d modelDir) Unlink(r *vnode.Req, name string) error {
	err := d.mayWrite(r)
	if err == nil {
		var n vnode.Node
		n, err = d.find(name)
		if _, alias := n.(aliasLink); err == nil && !alias {
			err = perm("%s is made by the daemon", name)
		}
	}
	if err == nil {
		err = d.t.st.RemoveFile(d.dir + "/" + name)
	}
	return fault.At("unlink", "/"+d.path()+"/"+name, err)
}

func (d modelDir) Rename(_ *vnode.Req, oldName string, newDir vnode.Node, _ string) error {
	k := fault.CrossDevice
	if to, ok := newDir.(modelDir); ok && to == d {
		k = fault.Perm
	}
	return fault.At("rename", "/"+d.path()+"/"+oldName, fault.Newf(k, "models keep their name"))
}

func (d modelDir) FsyncDir(*vnode.Req) error { return nil }

// aliasLink is model/<alias>.
type aliasLink struct {
	d      modelDir
	name   string
	target string
}

func (l aliasLink) Attr(*vnode.Req) (vnode.Attr, error) {
	uid, gid := l.d.ids()
	at := l.d.t.born
	return vnode.Attr{
		Type: vnode.Symlink, Ino: inoOf("/" + l.d.path() + "/" + l.name), Size: uint64(len(l.target)), Mode: 0o777,
		UID: uid, GID: gid, Atime: at, Mtime: at, Ctime: at, Valid: dirValid,
	}, nil
}

func (l aliasLink) Readlink(*vnode.Req) (string, error) { return l.target, nil }
