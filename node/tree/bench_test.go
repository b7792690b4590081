package tree_test

import (
	"fmt"
	"os"
	"testing"

	"cortexfs/node/nodetest"
	"cortexfs/node/vnode"
)

// benchNode finds a node and the request of its owner.
func benchNode(b *testing.B, path ...string) (vnode.Node, vnode.Node, *vnode.Req) {
	w := nodetest.New(b)
	c := root(w)
	must(b, c.Mkdir("/agent/a.d", 0o755))
	must(b, save(c, "/agent/a.d/policy", ruleRead))
	must(b, save(c, "/agent/a.d/label", "coder_t\n"))
	for i := range 100 {
		must(b, save(c, fmt.Sprintf("/tool/t%d", i), "#!/bin/sh\n"))
	}
	must(b, save(c, "/tool/fs.read", "#!/bin/sh\n"))
	must(b, save(c, "/tool/fs.read.d/policy", ruleRead))
	r := &vnode.Req{Ctx: b.Context(), UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), TID: uint32(os.Getpid())}
	dir, n := w.Tree.Root(), w.Tree.Root()
	for _, name := range path {
		dir = n
		e, err := n.(vnode.Lookuper).Lookup(r, name)
		must(b, err)
		n = e.Node
	}
	return dir, n, r
}

func BenchmarkStatControl(b *testing.B) {
	_, n, r := benchNode(b, "agent", "a.d", "policy")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := n.Attr(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookupControl(b *testing.B) {
	dir, _, r := benchNode(b, "agent", "a.d", "policy")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := dir.(vnode.Lookuper).Lookup(r, "policy"); err != nil {
			b.Fatal(err)
		}
	}
}

func benchRead(b *testing.B, path ...string) {
	_, n, r := benchNode(b, path...)
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		h, _, err := n.(vnode.Opener).Open(r, 0)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := h.(vnode.Reader).Read(r, buf, 0); err != nil {
			b.Fatal(err)
		}
		h.Release(r)
	}
}

func BenchmarkReadControl(b *testing.B) { benchRead(b, "agent", "a.d", "policy") }
func BenchmarkReadStatus(b *testing.B)  { benchRead(b, "agent", "a.d", "status") }
func BenchmarkReadTool(b *testing.B)    { benchRead(b, "tool", "fs.read") }

func BenchmarkOpenWriteControl(b *testing.B) {
	_, n, r := benchNode(b, "agent", "a.d", "policy")
	b.ReportAllocs()
	for b.Loop() { // without the durable commit: the draft is refused at its end
		h, _, err := n.(vnode.Opener).Open(r, 1)
		if err != nil {
			b.Fatal(err)
		}
		zero := uint64(0)
		if _, err := n.(vnode.Setattrer).Setattr(r, vnode.SetAttr{Size: &zero, Handle: h}); err != nil {
			b.Fatal(err)
		}
		if _, err := h.(vnode.Writer).Write(r, []byte("allow x"), 0); err != nil {
			b.Fatal(err)
		}
		h.Release(r)
	}
}

func BenchmarkViewMissing(b *testing.B) {
	_, n, r := benchNode(b, "agent", "a.d", "view", "tool")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = n.(vnode.Lookuper).Lookup(r, "nothing")
	}
}

func BenchmarkViewLookup(b *testing.B) {
	_, n, r := benchNode(b, "agent", "a.d", "view", "tool")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = n.(vnode.Lookuper).Lookup(r, "fs.read")
	}
}
