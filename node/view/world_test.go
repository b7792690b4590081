package view

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/store"
	"cortexfs/node/tool"
)

// accounts is a small account database: uid → its gids, the primary one first.
type accounts map[uint32][]uint32

func (a accounts) User(uid uint32) (uint32, bool) {
	if g, ok := a[uid]; ok {
		return g[0], true
	}
	return 0, false
}
func (a accounts) Group(gid uint32) bool      { return false }
func (a accounts) Groups(uid uint32) []uint32 { return a[uid] }

// world is a store with agents, tools and views over it.
type world struct {
	testing.TB
	dir    string
	st     *store.Store
	agents *agent.Table
	tools  *tool.Catalog
	views  *Views
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, dir: filepath.Join(t.TempDir(), "store")}
	w.open()
	return w
}

func (w *world) open() {
	w.Helper()
	st, err := store.Open(w.dir, store.Options{Create: true})
	if err != nil {
		w.Fatal(err)
	}
	w.st, w.tools = st, tool.New(st)
	w.agents, err = agent.New(st, agent.Options{
		Root: true, Users: accounts{0: {0}, 1000: {1000, 50}, 1001: {1001}, 1002: {1002, 50}}, Subjects: w.tools,
	})
	if err != nil {
		w.Fatal(err)
	}
	w.views = New(w.agents, w.tools)
	w.Cleanup(func() {
		w.agents.Close()
		st.Close()
	})
}

func (w *world) agent(k agent.Key, owner uint32, texts ...string) *View {
	w.Helper()
	m := map[string][]byte{}
	for i := 0; i < len(texts); i += 2 {
		m[texts[i]] = []byte(texts[i+1])
	}
	o, err := w.agents.Create(k, agent.CreateOptions{Writer: agent.Writer{Root: true}, Owner: owner, Texts: m, Born: true})
	if err != nil {
		w.Fatal(err)
	}
	return w.views.For(o)
}

// set commits a control of an agent as root.
func (w *world) set(v *View, name, text string) {
	w.Helper()
	if _, err := v.Agent().Commit(control.Agent.Lookup(name), []byte(text), agent.Writer{Root: true}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) install(path string, a store.FileAttr) {
	w.Helper()
	tier := filepath.Dir(path)
	if err := w.st.MkdirAll(tier); err != nil {
		w.Fatal(err)
	}
	d, err := w.st.NewFile(tier)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := d.WriteAt([]byte("#!/bin/true\n"), 0); err != nil {
		w.Fatal(err)
	}
	f, err := d.Commit(path, a)
	if err != nil {
		w.Fatal(err)
	}
	f.Close()
}

func (w *world) toolControl(path, name, text string) {
	w.Helper()
	o, err := w.st.Ensure(path + ".d")
	if err == nil {
		err = o.Put(name, []byte(text))
	}
	if err != nil {
		w.Fatal(err)
	}
}

func allow(subject string, tools ...string) string {
	var b strings.Builder
	for _, t := range tools {
		fmt.Fprintf(&b, "allow %s tool:%s execute\n", subject, t)
	}
	return b.String()
}

func names(tools []*tool.Tool) string {
	var all []string
	for _, t := range tools {
		all = append(all, t.Path())
	}
	return strings.Join(all, " ")
}

// digest is a hash over every name, mode and byte of a directory.
func digest(t testing.TB, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(h, path, fi.Mode(), fi.Size(), fi.ModTime().UnixNano())
		if fi.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			h.Write(b)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func equal(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func sorted(s ...string) string {
	slices.Sort(s)
	return strings.Join(s, " ")
}
