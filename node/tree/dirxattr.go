package tree

import "cortexfs/node/vnode"

// The attributes of directories that hold objects: what they are, nothing more.

func (d agentsDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	return dirKind("agents").get(name)
}
func (d agentsDir) Listxattr(*vnode.Req) ([]string, error) { return dirKind("agents").list(), nil }

func (d binDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return dirKind("bin").get(name) }
func (d binDir) Listxattr(*vnode.Req) ([]string, error)             { return dirKind("bin").list(), nil }

func (d homesDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	return dirKind("homes").get(name)
}
func (d homesDir) Listxattr(*vnode.Req) ([]string, error) { return dirKind("homes").list(), nil }

func (d homeDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	return dirKind("home").get(name)
}
func (d homeDir) Listxattr(*vnode.Req) ([]string, error) { return dirKind("home").list(), nil }

func (d sharedDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	return dirKind("shared").get(name)
}
func (d sharedDir) Listxattr(*vnode.Req) ([]string, error) { return dirKind("shared").list(), nil }

func (d spaceDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	return dirKind("space").get(name)
}
func (d spaceDir) Listxattr(*vnode.Req) ([]string, error) { return dirKind("space").list(), nil }

func (d modelDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) {
	return dirKind("models").get(name)
}
func (d modelDir) Listxattr(*vnode.Req) ([]string, error) { return dirKind("models").list(), nil }

func (h hooksDir) Getxattr(_ *vnode.Req, name string) ([]byte, error) { return h.xattrs().get(name) }
func (h hooksDir) Listxattr(*vnode.Req) ([]string, error)             { return h.xattrs().list(), nil }

func (h hooksDir) xattrs() xattrs { return dirKind(h.d.kind.String() + ".hooks") }

func dirKind(kind string) xattrs { return xattrs{kind: kind, origin: "durable"} }
