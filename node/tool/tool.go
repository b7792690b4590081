package tool

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/beneath"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/policy"
)

// Tool is one hit, as its file was at Lookup. The fields are immutable; what the
// methods say of its controls is of the moment of the call.
type Tool struct {
	Tier, Name string
	Info       store.FileInfo

	st     *store.Store
	dir    *store.Counter // of NAME.d
	policy atomic.Pointer[parsed]
}

// parsed is a policy and what it was made from.
type parsed struct {
	n     uint64          // of the directory's counter
	obj   *store.Object   // nil: no directory
	snap  *store.Snapshot // of obj
	set   *policy.Set
	fault *fault.Error
}

// Path is the executable below the tree's root: "tool/fs.read".
func (t *Tool) Path() string { return t.Tier + "/" + t.Name }

// Dir is the directory of the controls: "tool/fs.read.d".
func (t *Tool) Dir() string { return t.Path() + ".d" }

// TreePath is the executable as texts and messages spell it.
func (t *Tool) TreePath() string { return node.Root + "/" + t.Path() }

// Owner is the uid that owns the tool: in a home the uid of the path, elsewhere
// that of the file.
func (t *Tool) Owner() uint32 {
	if uid, ok := HomeOf(t.Tier); ok {
		return uid
	}
	return t.Info.Attr.UID
}

// Object holds the stored controls; nil when there is no NAME.d in the store, and
// all of them are defaults.
func (t *Tool) Object() *store.Object { return t.load().obj }

// Policy is the tool's own policy; nil lets nobody execute it: it is missing or
// invalid, or another control that decides something is invalid (spec 4.10).
func (t *Tool) Policy() *policy.Set { return t.load().set }

// Fault is what makes the policy nil, or nil where it is only missing.
func (t *Tool) Fault() *fault.Error { return t.load().fault }

// load is the parsed policy of this moment. Unchanged it costs two loads.
func (t *Tool) load() *parsed {
	n := t.dir.Load()
	if p := t.policy.Load(); p != nil && p.n == n && (p.obj == nil || p.obj.Snapshot() == p.snap) {
		return p
	}
	p := t.parse(n)
	t.policy.Store(p)
	return p
}

func (t *Tool) parse(n uint64) *parsed {
	p := &parsed{n: n}
	obj, err := t.st.Object(t.Dir())
	if err != nil {
		if !fault.Is(err, fault.NotExist) {
			p.fault = fault.E("read", node.Root+"/"+t.Dir(), fault.KindOf(err), err)
		}
		return p
	}
	p.obj, p.snap = obj, obj.Snapshot()
	for _, e := range control.Tool.Entries() {
		v, stored := p.snap.Values[e.Name]
		if !stored || !e.Grants || e.Kind != control.Durable || e.Only != "" && e.Only != t.Name {
			continue
		}
		err := v.Err
		switch {
		case err != nil:
		case e.Name == "policy":
			p.set, err = policy.Parse(v.Text)
		default:
			err = e.JudgeFor(t.controlObject(), v.Text)
		}
		if err != nil && p.fault == nil {
			p.fault = fault.E("", node.Root+"/"+t.Dir()+"/"+e.Name, fault.KindOf(err), err)
		}
	}
	if p.fault != nil {
		p.set = nil
	}
	return p
}

func (t *Tool) controlObject() control.Object {
	_, home := HomeOf(t.Tier)
	return control.Object{Name: t.Name, Home: home, Owner: t.Info.Attr.UID, OwnerGID: t.Info.Attr.GID}
}

// ControlObject is what the defaults of this tool's controls depend on.
func (t *Tool) ControlObject() control.Object { return t.controlObject() }

// Text is the effective text of a durable control: what is in the store, or the
// default. origin is "durable" or "default". NotExist for a name that the tool
// has no control of; another error says that what the store holds is no readable
// text.
func (t *Tool) Text(name string) (text []byte, origin string, err error) {
	e := control.Tool.Lookup(name)
	if e == nil || e.Kind != control.Durable || e.Only != "" && e.Only != t.Name {
		return nil, "", fault.E("read", node.Root+"/"+t.Dir()+"/"+name, fault.NotExist, nil)
	}
	if obj := t.Object(); obj != nil {
		if v, ok := obj.Snapshot().Values[name]; ok {
			return v.Text, "durable", v.Err
		}
	}
	if e.Optional {
		return nil, "", fault.E("read", node.Root+"/"+t.Dir()+"/"+name, fault.NotExist, nil)
	}
	return control.Normalize([]byte(e.DefaultText(t.controlObject()))), "default", nil
}

// named is an answer of NamedElsewhere and what it was made from.
type named struct {
	subject string
	uid     uint32
	texts   uint64
	gens    []uint64
	path    string
}

// NamedElsewhere finds a tool that does not belong to uid and whose policy names
// subject (spec section 7: such a type is not free to take). It looks at every
// tool of the store, reading each policy that nobody has asked for yet.
func (c *Catalog) NamedElsewhere(subject string, uid uint32) (path string, ok bool) {
	now := &named{subject: subject, uid: uid, texts: c.st.TextChanges()}
	tiers := c.Tiers()
	for _, dir := range tiers {
		now.gens = append(now.gens, c.Gen(dir))
	}
	if p := c.named.Load(); p != nil && p.subject == subject && p.uid == uid && p.texts == now.texts && slices.Equal(p.gens, now.gens) {
		return p.path, p.path != ""
	}
	now.path = c.findNamed(tiers, subject, uid)
	c.named.Store(now)
	return now.path, now.path != ""
}

func (c *Catalog) findNamed(tiers []string, subject string, uid uint32) string {
	for _, dir := range tiers {
		for _, t := range c.List(dir) {
			if t.Owner() == uid {
				continue
			}
			if slices.Contains(t.peek(subject).Subjects(), subject) {
				return fmt.Sprintf("%s/%s/policy", node.Root, t.Dir())
			}
		}
	}
	return ""
}

// peek is the policy, where it may name subject. One that nobody has asked for
// yet is read past the store's mirror: to keep ten thousand of them for one
// question would cost more than to read them again.
func (t *Tool) peek(subject string) *policy.Set {
	if p := t.policy.Load(); p != nil && p.obj != nil {
		return t.Policy()
	}
	fd, err := beneath.Open(int(t.st.ObjectRoot().Fd()), t.Dir()+"/policy", unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), t.Dir()+"/policy")
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, node.MaxText+1))
	if err != nil || !bytes.Contains(text, []byte(subject)) {
		return nil
	}
	return t.Policy()
}
