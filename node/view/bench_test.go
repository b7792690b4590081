package view

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cortexfs/node/agent"
)

// installed is a world with many tools, put into the store before it is opened,
// and an agent that is granted the first 100.
func installed(b *testing.B, tools int) (*world, *View) {
	b.Helper()
	w := &world{TB: b, dir: filepath.Join(b.TempDir(), "store")}
	w.open()
	dir := filepath.Join(w.dir, "object/tool")
	var grants []string
	for i := range tools {
		name := fmt.Sprintf("t%05d", i)
		if i < 100 {
			grants = append(grants, name)
		}
		d := filepath.Join(dir, name+".d")
		if err := os.MkdirAll(d, 0o700); err != nil {
			b.Fatal(err)
		}
		for path, text := range map[string]string{filepath.Join(dir, name): "#!/bin/true\n", filepath.Join(d, "policy"): allow("x_t", name)} {
			if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
				b.Fatal(err)
			}
		}
	}
	v := w.agent(agent.System("x"), 1000, "policy", allow("x_t", grants...))
	if got := len(v.Tools("tool")); got != 100 {
		b.Fatalf("%d tools", got)
	}
	return w, v
}

// BenchmarkRebuild is the view after a policy change with 100 grants. The change
// itself (its fsyncs) is not counted.
func BenchmarkRebuild(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("tools=%d", n), func(b *testing.B) {
			w, v := installed(b, n)
			text, _, _ := v.Agent().Text("policy")
			for b.Loop() {
				b.StopTimer()
				if err := v.Agent().Store().Put("policy", append(text, []byte("#"+strings.Repeat("x", b.N%7)+"\n")...)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if got := len(v.Tools("tool")); got != 100 {
					b.Fatalf("%d tools", got)
				}
			}
			_ = w
		})
	}
}

// BenchmarkRebuildTier is the view after a tool came: every grant is looked at on
// the disk again.
func BenchmarkRebuildTier(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("tools=%d", n), func(b *testing.B) {
			w, v := installed(b, n)
			for b.Loop() {
				b.StopTimer()
				w.install("tool/new", open)
				b.StartTimer()
				if got := len(v.Tools("tool")); got != 100 {
					b.Fatalf("%d tools", got)
				}
			}
		})
	}
}

func BenchmarkAllowed(b *testing.B) {
	_, v := installed(b, 100)
	b.Run("yes", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := v.Allowed("tool", "t00042"); !ok {
				b.Fatal("refused")
			}
		}
	})
	b.Run("missing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := v.Allowed("tool", "nothing"); ok {
				b.Fatal("allowed")
			}
		}
	})
	b.Run("listing", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Tools("tool")
		}
	})
}
