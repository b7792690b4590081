package ordinary

import (
	"bytes"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
	"cortexfs/node/vnode"
)

// The attributes that are served: what users set, and our own read-only ones
// (spec section 2), which a user cannot set and which are never on the disk's word.
const (
	userSpace = "user."
	ours      = "user.cortexfs."
)

// own is an attribute of ours.
func (n *dnode) own(name string) ([]byte, bool) {
	if n.typ != vnode.Regular && n.typ != vnode.Directory {
		return nil, false
	}
	switch name {
	case ours + "kind":
		if n.typ == vnode.Directory {
			return []byte("ordinary.dir"), true
		}
		return []byte("ordinary.file"), true
	case ours + "origin":
		return []byte("durable"), true
	case ours + "token_estimate":
		a, err := n.Attr(nil)
		if err != nil || n.typ != vnode.Regular {
			return nil, false
		}
		return strconv.AppendUint(nil, (a.Size+3)/4, 10), true
	}
	return nil, false
}

// Getxattr answers user.* and ours. All else is NoData: security.capability is
// asked at every write.
func (n *dnode) Getxattr(r *vnode.Req, name string) ([]byte, error) {
	const op = "getxattr"
	if strings.HasPrefix(name, ours) {
		if v, ok := n.own(name); ok {
			return v, nil
		}
		return nil, fault.E(op, name, fault.NoData, nil)
	}
	if !strings.HasPrefix(name, userSpace) || n.typ == vnode.Symlink {
		return nil, fault.E(op, name, fault.NoData, nil)
	}
	var out []byte
	err := n.do(r, op, name, func() (err error) {
		out, err = sized(func(buf []byte) (int, error) {
			return unix.Getxattr(beneath.FDPath(n.fd), name, buf)
		})
		return err
	})
	return out, err
}

// Listxattr lists what Getxattr answers.
func (n *dnode) Listxattr(r *vnode.Req) ([]string, error) {
	var names []string
	for _, name := range []string{"kind", "origin", "token_estimate"} {
		if _, ok := n.own(ours + name); ok {
			names = append(names, ours+name)
		}
	}
	if n.typ == vnode.Symlink {
		return names, nil
	}
	var list []byte
	err := n.do(r, "listxattr", "", func() (err error) {
		list, err = sized(func(buf []byte) (int, error) {
			return unix.Listxattr(beneath.FDPath(n.fd), buf)
		})
		return err
	})
	if fault.Is(err, fault.NotSupported) {
		return names, nil
	}
	for name := range bytes.SplitSeq(list, []byte{0}) {
		s := string(name)
		if strings.HasPrefix(s, userSpace) && !strings.HasPrefix(s, ours) {
			names = append(names, s)
		}
	}
	return names, err
}

// Setxattr sets user.* (not ours: Perm). Others, ACLs among them, are
// NotSupported.
func (n *dnode) Setxattr(r *vnode.Req, name string, value []byte, flags uint32) error {
	return n.changeXattr(r, "setxattr", name, func(path string) error {
		return unix.Setxattr(path, name, value, int(flags))
	})
}

// Removexattr removes what Setxattr sets.
func (n *dnode) Removexattr(r *vnode.Req, name string) error {
	return n.changeXattr(r, "removexattr", name, func(path string) error {
		return unix.Removexattr(path, name)
	})
}

func (n *dnode) changeXattr(r *vnode.Req, op, name string, call func(path string) error) error {
	switch {
	case strings.HasPrefix(name, ours):
		return fault.E(op, name, fault.Perm, nil)
	case !strings.HasPrefix(name, userSpace):
		return fault.E(op, name, fault.NotSupported, nil)
	case n.typ == vnode.Symlink:
		return fault.E(op, name, fault.Perm, nil)
	}
	return n.do(r, op, name, func() error { return call(beneath.FDPath(n.fd)) })
}

// sized asks for the size, then for the bytes, until both agree.
func sized(call func([]byte) (int, error)) ([]byte, error) {
	for {
		size, err := call(nil)
		if err != nil || size == 0 {
			return nil, err
		}
		buf := make([]byte, size)
		size, err = call(buf)
		if err == unix.ERANGE {
			continue
		}
		if err != nil {
			return nil, err
		}
		return buf[:size], nil
	}
}
