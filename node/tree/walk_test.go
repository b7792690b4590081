package tree_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"cortexfs/node"
	"cortexfs/node/agent"
	"cortexfs/node/nodetest"
	"cortexfs/node/vnode"
)

// Every node is canonical and comparable, sizes are true, listings agree with
// lookups.
func TestWalk(t *testing.T) {
	w := nodetest.New(t)
	c := root(w)
	uid := uint32(os.Geteuid())
	must(t, c.Mkdir("/agent/a.d", 0o755))
	home := fmt.Sprintf("/home/%d", uid)
	must(t, c.Mkdir(home+"/agent/b.d", 0o755))
	must(t, save(c, "/tool/fs.read", "#!/bin/sh\n"))
	must(t, save(c, "/tool/fs.read.d/policy", ruleRead))
	must(t, save(c, "/agent/a.d/label", "coder_t\n"))
	must(t, save(c, "/agent/a.d/policy", ruleRead+"allow coder_t model:m use\nallow coder_t shared:s read\n"))
	must(t, save(c, "/agent/a.d/exec", "#!/bin/sh\n"))
	must(t, save(c, "/agent/a.d/hooks/pre.d/10-x", "#!/bin/sh\n"))
	must(t, save(c, home+"/.tshrc", "CTX_PATH=/ctx/tool\n"))
	must(t, c.Mkdir("/shared/s", 0o755))
	must(t, c.Mkdir("/model/p", 0o755))
	must(t, c.Mkdir("/model/p/m.d", 0o755))
	must(t, c.Symlink("p/m", "/model/m"))
	fd, err := c.Open("/agent/a.d/mount~", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	must(t, c.Close(fd))
	w.SetLive(agent.System("a"), node.Idle, 77)
	r := &vnode.Req{Ctx: t.Context(), UID: uid, GID: uint32(os.Getegid()), TID: uint32(os.Getpid())}
	seen := 0
	var walk func(dir vnode.Node, path string, depth int)
	walk = func(dir vnode.Node, path string, depth int) {
		names, err := dir.(vnode.Lister).ReadDir(r)
		must(t, err)
		if depth == 2 && strings.HasSuffix(path, ".d") && strings.Contains(path, "/agent/") {
			names = append(names, vnode.Dirent{Name: "view", Type: vnode.Directory})
		}
		for _, d := range names {
			seen++
			sub := path + "/" + d.Name
			e, err := dir.(vnode.Lookuper).Lookup(r, d.Name)
			if err != nil {
				t.Errorf("%s is listed: %v", sub, err)
				continue
			}
			again, err := dir.(vnode.Lookuper).Lookup(r, d.Name)
			must(t, err)
			if e.Node != again.Node {
				t.Errorf("%s: two lookups give two nodes", sub)
			}
			a, err := e.Node.Attr(r)
			if err != nil {
				t.Errorf("stat %s: %v", sub, err)
				continue
			}
			if a.Type != d.Type || (d.Ino != 0 && d.Ino != a.Ino) {
				t.Errorf("%s: listed as type %d number %x, is %d %x", sub, d.Type, d.Ino, a.Type, a.Ino)
			}
			if x, ok := e.Node.(vnode.Xattrer); ok && a.Type == vnode.Directory && !strings.Contains(sub, "/view") {
				if kind, err := x.Getxattr(r, "user.cortexfs.kind"); d.Ino != 0 && !strings.HasPrefix(sub, home+"/agent/a") && (err != nil || len(kind) == 0) {
					t.Errorf("%s has no kind: %v", sub, err)
				}
			}
			switch a.Type {
			case vnode.Directory:
				if depth < 9 && !strings.HasSuffix(path, "/view/agent") { // a view does not contain itself
					walk(e.Node, sub, depth+1)
				}
			case vnode.Symlink:
				target, err := e.Node.(vnode.Readlinker).Readlink(r)
				must(t, err)
				if uint64(len(target)) != a.Size {
					t.Errorf("%s: size %d, text %q", sub, a.Size, target)
				}
			case vnode.Regular:
				h, _, err := e.Node.(vnode.Opener).Open(r, 0)
				if err != nil {
					t.Errorf("open %s: %v", sub, err)
					continue
				}
				buf := make([]byte, 1<<20)
				n, err := h.(vnode.Reader).Read(r, buf, 0)
				if err != nil || uint64(n) != a.Size {
					t.Errorf("%s: size %d, %d bytes read, %v", sub, a.Size, n, err)
				}
				h.Release(r)
				if x, ok := e.Node.(vnode.Xattrer); ok {
					_, err := x.Listxattr(r)
					must(t, err)
				}
			}
		}
	}
	walk(w.Tree.Root(), "", 0)
	if seen < 130 {
		t.Errorf("only %d nodes walked", seen)
	}
	w.SetLive(agent.System("a"), node.Dead, 0)
}
