package agent

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/store"
)

// accounts is a small account database: uid → its gids, the primary one first.
type accounts map[uint32][]uint32

func (a accounts) User(uid uint32) (uint32, bool) {
	g, ok := a[uid]
	if !ok {
		return 0, false
	}
	return g[0], true
}

func (a accounts) Group(gid uint32) bool {
	for _, g := range a {
		if slices.Contains(g, gid) {
			return true
		}
	}
	return false
}

func (a accounts) Groups(uid uint32) []uint32 { return a[uid] }

var people = accounts{0: {0}, 1000: {1000, 50, 60}, 1001: {1001, 60}}

func root() Writer { return Writer{Root: true} }

func person(uid uint32) Writer {
	gid, _ := people.User(uid)
	return Writer{UID: uid, GID: gid, Groups: people.Groups(uid)}
}

// namedTools is a Subjects: type → uid of the tool's owner.
type namedTools map[string]uint32

func (n namedTools) NamedElsewhere(subject string, uid uint32) (string, bool) {
	owner, ok := n[subject]
	return "/ctx/tool/x.d/policy", ok && owner != uid
}

// world is a store in a directory of its own.
type world struct {
	*testing.T
	dir   string
	st    *store.Store
	table *Table
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{T: t, dir: filepath.Join(t.TempDir(), "store")}
	w.open(o)
	t.Cleanup(func() { w.close() })
	return w
}

func (w *world) open(o Options) {
	w.Helper()
	st, err := store.Open(w.dir, store.Options{Create: true})
	if err != nil {
		w.Fatal(err)
	}
	if o.Users == nil {
		o.Users = people
	}
	table, err := New(st, o)
	if err != nil {
		w.Fatal(err)
	}
	w.st, w.table = st, table
}

func (w *world) close() {
	if w.table == nil {
		return
	}
	if err := w.table.Close(); err != nil {
		w.Error(err)
	}
	if err := w.st.Close(); err != nil {
		w.Error(err)
	}
	w.table = nil
}

// create makes an agent as root.
func (w *world) create(k Key, owner uint32, texts ...string) *Object {
	w.Helper()
	m := map[string][]byte{}
	for i := 0; i < len(texts); i += 2 {
		m[texts[i]] = []byte(texts[i+1])
	}
	o, err := w.table.Create(k, CreateOptions{Writer: root(), Owner: owner, Texts: m, Born: true})
	if err != nil {
		w.Fatal(err)
	}
	return o
}

// raw puts a text into the store unjudged, as an edit behind the daemon's back
// would.
func (w *world) raw(o *Object, name, text string) {
	w.Helper()
	if err := o.Store().Put(name, []byte(text)); err != nil {
		w.Fatal(err)
	}
}

func entry(t *testing.T, name string) *control.Entry {
	t.Helper()
	e := control.Agent.Lookup(name)
	if e == nil {
		t.Fatalf("no control %s", name)
	}
	return e
}

// slow makes every look at the clock a minute later, so that no family is born too
// fast.
func (w *world) slow() {
	at := time.Now()
	w.table.now = func() time.Time {
		at = at.Add(BirthTime)
		return at
	}
}

// lines is a Runtime that knows start lines only.
type lines map[Key][]control.MountLine

func (l lines) Live(Key) (node.State, int)           { return node.Dead, 0 }
func (l lines) StartLines(k Key) []control.MountLine { return l[k] }
