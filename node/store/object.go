package store

import (
	"bytes"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// Value is one text.
type Value struct {
	Text []byte // never changed; nil with Err
	Gen  uint64
	Mod  time.Time
	// Err is set where the store holds something under the name that is no
	// readable text: TooBig, Loop (a symlink), IsDir, Invalid (a device …), IO.
	Err error
}

// Snapshot is the state of an object at one generation. Immutable. What is no
// text by its name is not in Values: exec, hooks, and names that begin with a dot.
type Snapshot struct {
	Gen    uint64
	Values map[string]Value
}

// Object is the mirror of one directory.
type Object struct {
	store *Store
	dir   string
	snap  atomic.Pointer[Snapshot]

	mu     sync.Mutex  // held over the write of one file of this directory
	stamps stamps      // what the values were read from
	gone   atomic.Bool // set with mu held
}

// Snapshot is the newest published state, never nil; empty once the object is Gone.
func (o *Object) Snapshot() *Snapshot { return o.snap.Load() }

// Dir is the directory below object/.
func (o *Object) Dir() string { return o.dir }

// Gone says whether the directory was removed. Changes then are Stale.
func (o *Object) Gone() bool { return o.gone.Load() }

func isText(name string) bool {
	return name[0] != '.' && name != "exec" && name != "hooks"
}

// scan lists the texts of a directory with their present stamps.
func scan(fd int) (stamps, error) {
	list, err := beneath.ReadDir(fd)
	if err != nil {
		return nil, err
	}
	found := make(stamps, 0, len(list))
	for _, d := range list {
		var st unix.Stat_t
		if !isText(d.Name) || unix.Fstatat(fd, d.Name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
			continue // or gone since it was listed
		}
		found = append(found, namedStamp{d.Name, stampOf(&st)})
	}
	return found, nil
}

// read makes the snapshot of what lies in fd, taking over from old what has not
// changed. changed says whether anything differs; if not, next is old. With o.mu
// held, or before o is known.
func (o *Object) read(fd int, old *Snapshot) (next *Snapshot, changed bool, err error) {
	found, err := scan(fd)
	if err != nil {
		return nil, false, err
	}
	same := len(found) == len(o.stamps)
	for _, f := range found {
		same = same && o.stamps.equal(f.name, f.stamp)
	}
	if same {
		return old, false, nil
	}
	next = &Snapshot{Gen: o.store.gen.Add(1), Values: make(map[string]Value, len(found))}
	kept := make(stamps, 0, len(found))
	for _, f := range found {
		was, known := old.Values[f.name]
		if known && o.stamps.equal(f.name, f.stamp) {
			next.Values[f.name], kept = was, append(kept, f)
			continue
		}
		text, st, err := readText(fd, f.name)
		if fault.Is(err, fault.NotExist) {
			continue
		}
		kept = append(kept, namedStamp{f.name, settled(&st)})
		if known && was.Err == nil && err == nil && bytes.Equal(was.Text, text) {
			next.Values[f.name] = was
			continue
		}
		next.Values[f.name] = Value{Text: text, Gen: next.Gen, Mod: modTime(&st), Err: err}
		changed = true
	}
	o.stamps = kept
	if !changed && len(next.Values) == len(old.Values) {
		return old, false, nil
	}
	return next, true, nil
}

// refresh reads the directory again and publishes what others changed.
func (o *Object) refresh() (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone.Load() {
		return false
	}
	fd, err := o.store.openDir(o.dir)
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
		o.store.mu.Lock()
		if o.store.objects[o.dir] == o {
			delete(o.store.objects, o.dir)
		}
		o.store.mu.Unlock()
		o.goneLocked()
		return true
	}
	if err == nil {
		defer unix.Close(fd)
		var next *Snapshot
		if next, changed, err = o.read(fd, o.snap.Load()); err == nil && changed {
			o.snap.Store(next)
			o.store.counters.texts.Add(1)
		}
	}
	if err != nil {
		o.store.say("store: object %s: %v; the last state stays in force", o.dir, err)
	}
	return changed
}

func (o *Object) setGone() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.goneLocked()
}

func (o *Object) goneLocked() {
	o.gone.Store(true)
	o.stamps = nil
	o.snap.Store(&Snapshot{Gen: o.store.gen.Add(1)})
	o.store.counters.texts.Add(1)
}

// Put makes text durable under name and publishes it before it returns. At most
// node.MaxText bytes (TooBig). NoSpace and every other error leave the old value
// in force. Stale when the object is gone.
func (o *Object) Put(name string, text []byte) error { return o.change("put", name, text, true, nil) }

// PutIf is Put if the present value has generation gen (0: there is none); else
// Again.
func (o *Object) PutIf(name string, text []byte, gen uint64) error {
	return o.change("put", name, text, true, &gen)
}

// Delete removes name; no error when it is absent.
func (o *Object) Delete(name string) error { return o.change("delete", name, nil, false, nil) }

// DeleteIf is Delete if the present value has generation gen (0: there is none);
// else Again.
func (o *Object) DeleteIf(name string, gen uint64) error {
	return o.change("delete", name, nil, false, &gen)
}

func (o *Object) change(op, name string, text []byte, put bool, ifGen *uint64) error {
	p := o.dir + "/" + name
	if err := o.store.writable(op, p); err != nil {
		return err
	}
	switch {
	case !beneath.Name(name) || !isText(name):
		return fault.E(op, p, fault.Invalid, nil)
	case len(text) > node.MaxText:
		return fault.E(op, p, fault.TooBig, nil)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone.Load() {
		return fault.E(op, p, fault.Stale, nil)
	}
	old := o.snap.Load()
	if ifGen != nil && old.Values[name].Gen != *ifGen {
		return fault.E(op, p, fault.Again, nil)
	}
	dirfd, err := o.store.openDir(o.dir)
	if err == unix.ENOENT {
		return fault.E(op, p, fault.Stale, err)
	}
	if err != nil {
		return fault.FromOS(op, p, err)
	}
	defer unix.Close(dirfd)
	if !put {
		return fault.FromOS(op, p, o.delete(dirfd, name, p))
	}
	err = o.store.reserve.run(func() error { return o.put(dirfd, name, p, text) })
	o.store.fillSpare()
	if err == unix.ENOENT { // the directory was removed since it was opened
		return fault.E(op, p, fault.Stale, err)
	}
	return fault.FromOS(op, p, err)
}

// put writes, renames and publishes. When only the last fsync failed the new text
// is on the disk as far as anybody can see: it is published with the error.
func (o *Object) put(dirfd int, name, p string, text []byte) error {
	s := o.store
	fd, temp, err := s.createTemp(true)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = writeAll(fd, text)
	if err == nil {
		err = fsync(fd)
	}
	if err == nil {
		err = s.install(temp, dirfd, name, p)
	}
	if err != nil {
		s.dropTemp(temp)
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	err = fsync(dirfd)
	gen := s.gen.Add(1)
	o.stamps.set(name, settled(&st))
	// A copy: the caller's buffer is the caller's.
	v := Value{Text: append([]byte{}, text...), Gen: gen, Mod: modTime(&st)}
	o.publish(gen, func(m map[string]Value) { m[name] = v })
	return err
}

func (o *Object) delete(dirfd int, name, p string) error {
	s := o.store
	s.names.Lock()
	err := unix.Unlinkat(dirfd, name, 0)
	if err == nil {
		s.own(dirfd, p, name)
	}
	s.names.Unlock()
	if err != nil && err != unix.ENOENT {
		return err
	}
	if _, known := o.snap.Load().Values[name]; !known && err == unix.ENOENT {
		return nil
	}
	err = fsync(dirfd)
	o.stamps.drop(name)
	o.publish(s.gen.Add(1), func(m map[string]Value) { delete(m, name) })
	return err
}

// publish makes the next snapshot from the present one. With mu held.
func (o *Object) publish(gen uint64, edit func(map[string]Value)) {
	m := maps.Clone(o.snap.Load().Values)
	if m == nil {
		m = map[string]Value{}
	}
	edit(m)
	o.snap.Store(&Snapshot{Gen: gen, Values: m})
	o.store.counters.texts.Add(1)
}
