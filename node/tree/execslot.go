package tree

import (
	"sync"
	"syscall"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/vnode"
)

// slot is one name of a directory of executables: what is in force, and the draft
// of whoever writes. All writers of a name share one draft, as they would share a
// file; it is committed when the only one left closes.
type slot struct {
	x *execDir

	// mu serialises the draft and the store's files; it may be held over I/O.
	mu    sync.Mutex
	draft *store.Draft
	dirty bool
	claim claim // of a file that is not in force
	disk  onDisk

	// x.mu protects the fields below.
	name    string
	attr    store.FileAttr
	cur     *execFile // in force; nil: nothing yet
	fresh   *newFile  // node of a file that never was in force
	size    int64     // of the draft
	mtime   time.Time // of the draft
	drafted bool      // there is a draft
	era     *era      // of the draft and who writes it now; nil: nobody has
	gone    bool
}

// era is the time between two owners of a directory. A handle from an earlier one
// commits nothing (spec section 4.8), counts for nothing and sees no draft of the
// new owner's.
type era struct {
	owner   uint32
	writers int // slot.x.mu protects it
}

// eraLocked is the present one; a draft from before it is dropped. With mu held.
func (s *slot) eraLocked() *era {
	owner, _ := s.x.owner()
	s.x.mu.Lock()
	old := s.era
	if old == nil || old.owner != owner {
		s.era = &era{owner: owner}
	}
	now := s.era
	s.x.mu.Unlock()
	if old != now && s.draft != nil {
		s.discardLocked()
		s.dirty = false
		s.sized()
	}
	return now
}

// writersLocked are those who write now. With x.mu held.
func (s *slot) writersLocked() int {
	if s.era == nil {
		return 0
	}
	return s.era.writers
}

// open starts or joins the draft.
func (s *slot) open(r *vnode.Req, flags vnode.OpenFlags) (vnode.Handle, error) {
	if err := s.x.writer(r); err != nil {
		return nil, err
	}
	c, err := s.x.t.count(r)
	if err != nil {
		return nil, err
	}
	h := &execHandle{s: s, c: c, write: flags.Write(), append: flags&syscall.O_APPEND != 0}
	s.mu.Lock()
	h.era = s.eraLocked()
	if flags&syscall.O_TRUNC != 0 {
		h.wrote = true
		err = s.truncateLocked(0)
	}
	s.mu.Unlock()
	if err != nil {
		c.done()
		return nil, err
	}
	s.x.mu.Lock()
	h.era.writers++
	s.x.mu.Unlock()
	return h, nil
}

// beginLocked makes sure that there is a draft; load: with the bytes in force.
func (s *slot) beginLocked(load bool) error {
	if s.eraLocked(); s.draft != nil {
		return nil
	}
	if err := s.x.t.st.MkdirAll(s.x.dir); err != nil {
		return err
	}
	d, err := s.x.t.st.NewFile(s.x.dir)
	if err != nil {
		return err
	}
	s.x.mu.Lock()
	cur, owner := s.cur, s.era.owner
	s.x.mu.Unlock()
	s.disk = onDisk{u: &s.x.t.use, uid: owner}
	if load && cur != nil {
		err := s.disk.resize(cur.info.Size)
		if err == nil {
			err = s.copyInto(d, cur)
		}
		if err != nil {
			d.Discard()
			s.disk.drop()
			return err
		}
	}
	s.draft = d
	s.sized()
	return nil
}

func (s *slot) copyInto(d *store.Draft, cur *execFile) error {
	h, err := s.x.t.openBytes(s.path(), cur.info.Gen, nil)
	if err != nil {
		return err
	}
	defer h.Release(nil)
	buf := make([]byte, 256<<10)
	for off := int64(0); off < cur.info.Size; {
		n, err := h.Read(nil, buf, off)
		if err != nil {
			return err
		}
		if n == 0 {
			return fault.Newf(fault.IO, "the file is shorter than it was")
		}
		if _, err := d.WriteAt(buf[:n], off); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// sized shows the draft's size.
func (s *slot) sized() {
	size := int64(0)
	if s.draft != nil {
		size = s.draft.Size()
	}
	s.x.mu.Lock()
	s.drafted, s.size, s.mtime = s.draft != nil, size, time.Now()
	s.x.mu.Unlock()
}

func (s *slot) truncateLocked(size uint64) error {
	if size > uint64(s.x.rules.max) {
		return fault.Newf(fault.TooBig, "an executable here is at most %d bytes", s.x.rules.max)
	}
	if err := s.beginLocked(size > 0); err != nil {
		return err
	}
	if err := s.disk.resize(int64(size)); err != nil {
		return err
	}
	if err := s.draft.Truncate(int64(size)); err != nil {
		return err
	}
	s.dirty = true
	s.sized()
	return nil
}

// commitLocked puts the draft in force. A temporary name keeps it as a draft.
func (s *slot) commitLocked() error {
	s.x.mu.Lock()
	name, attr, gone := s.name, s.attr, s.gone
	s.x.mu.Unlock()
	if gone || !s.x.takes(name) {
		return nil
	}
	return s.commitAsLocked(name, attr)
}

func (s *slot) commitAsLocked(name string, attr store.FileAttr) error {
	if err := s.beginLocked(true); err != nil {
		return err
	}
	if s.x.rules.mode != 0 {
		attr.Mode = s.x.rules.mode
	}
	d := s.draft
	s.draft, s.dirty = nil, false
	f, err := d.Commit(s.x.dir+"/"+name, attr)
	s.disk.drop()
	if err != nil {
		s.sized()
		return err
	}
	info := f.Info()
	f.Close()
	if s.x.rules.tier {
		if _, err := s.x.t.st.Ensure(s.x.dir + "/" + name + ".d"); err != nil {
			return err
		}
	}
	s.x.mu.Lock()
	s.cur = &execFile{s: s, info: info}
	s.drafted = false
	if s.x.rules.tier {
		s.x.dirs[name+".d"] = true
	}
	s.x.mu.Unlock()
	s.claim.drop()
	return nil
}

// remove is unlink.
func (s *slot) remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.x.mu.Lock()
	name, cur, writers := s.name, s.cur, s.writersLocked()
	s.x.mu.Unlock()
	if cur != nil {
		if err := s.x.t.st.RemoveFile(s.x.dir + "/" + name); err != nil && !fault.Is(err, fault.NotExist) {
			return err
		}
	}
	s.x.mu.Lock()
	if s.x.slots[name] == s {
		delete(s.x.slots, name)
	}
	s.gone = true
	s.x.mu.Unlock()
	if writers == 0 {
		s.dropLocked()
	}
	return nil
}

// discardLocked throws the draft away.
func (s *slot) discardLocked() {
	if s.draft != nil {
		s.draft.Discard()
		s.draft = nil
	}
	s.disk.drop()
}

// writeLocked writes into the draft, as far as its owner has room for it.
func (s *slot) writeLocked(p []byte, off int64) (int, error) {
	if err := s.disk.resize(max(s.draft.Size(), off+int64(len(p)))); err != nil {
		return 0, err
	}
	return s.draft.WriteAt(p, off)
}

func (s *slot) dropLocked() {
	s.discardLocked()
	s.claim.drop()
}

// move is rename within the directory. What becomes an object name is put in
// force; what gets a temporary name is in force no more. over is what had the new
// name.
func (s *slot) move(newName string) (over *slot, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.x
	x.mu.Lock()
	oldName, attr, cur := s.name, s.attr, s.cur
	x.mu.Unlock()
	goal := x.takes(newName)
	switch {
	case goal && cur != nil && s.draft == nil:
		if err := x.t.st.RenameFile(x.dir+"/"+oldName, x.dir+"/"+newName); err != nil {
			return nil, err
		}
		if _, err := x.t.st.Ensure(x.dir + "/" + newName + ".d"); x.rules.tier && err != nil {
			return nil, err
		}
	case goal:
		if err := s.commitAsLocked(newName, attr); err != nil {
			return nil, err
		}
		if cur != nil {
			if err := x.t.st.RemoveFile(x.dir + "/" + oldName); err != nil {
				return nil, err
			}
		}
	default:
		if err := s.beginLocked(true); err != nil {
			return nil, err
		}
		s.dirty = true
		if cur != nil {
			if err := x.t.st.RemoveFile(x.dir + "/" + oldName); err != nil {
				return nil, err
			}
		}
	}
	x.mu.Lock()
	over = x.slots[newName]
	if over != nil {
		over.gone = true
	}
	if x.slots[oldName] == s {
		delete(x.slots, oldName)
	}
	x.slots[newName] = s
	s.name = newName
	if !goal {
		s.cur = nil
		s.fresh = &newFile{s: s, ino: inoOf("/"+x.dir+"/"+newName) ^ uint64(time.Now().UnixNano())}
	} else if x.rules.tier {
		x.dirs[newName+".d"] = true
	}
	x.mu.Unlock()
	return over, nil
}

// replacedBy lets go of what was written to a file whose name another one got.
func (s *slot) replacedBy(other *slot) {
	if s == nil || s == other {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.x.mu.Lock()
	writers := s.writersLocked()
	s.x.mu.Unlock()
	if writers == 0 {
		s.dropLocked()
	}
}

func (s *slot) setattr(r *vnode.Req, a vnode.SetAttr) error {
	if err := s.x.writer(r); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.x.mu.Lock()
	was, name, cur, writers := s.attr, s.name, s.cur, s.writersLocked()
	s.x.mu.Unlock()
	next := was
	if a.UID != nil {
		next.UID = *a.UID
	}
	if a.GID != nil {
		next.GID = *a.GID
	}
	if (next.UID != was.UID || next.GID != was.GID) && !s.x.t.isRoot(r.UID) {
		return perm("only root changes the owner")
	}
	if a.Mode != nil {
		next.Mode = *a.Mode & 0o777
	}
	if a.Size != nil {
		if err := s.truncateLocked(*a.Size); err != nil {
			return err
		}
		if writers == 0 {
			if err := s.commitLocked(); err != nil {
				return err
			}
			defer s.x.told(name)
			s.x.mu.Lock()
			cur = s.cur
			s.x.mu.Unlock()
		}
	}
	if next == was {
		return nil
	}
	if cur != nil && s.x.takes(name) && s.x.rules.mode == 0 {
		if err := s.x.t.st.SetAttr(s.x.dir+"/"+name, next); err != nil {
			return err
		}
	}
	s.x.mu.Lock()
	s.attr = next
	s.x.mu.Unlock()
	if cur != nil {
		s.x.told(name)
	}
	return nil
}

// bytes reads a whole file in force.
func (x *execDir) bytes(name string, limit int64) ([]byte, error) {
	s := x.slot(name)
	if s == nil {
		return nil, notExist(name)
	}
	x.mu.Lock()
	cur := s.cur
	x.mu.Unlock()
	if cur == nil {
		return nil, notExist(name)
	}
	if cur.info.Size > limit {
		return nil, fault.Newf(fault.TooBig, "%s is over %d bytes", name, limit)
	}
	h, err := x.t.openBytes(s.path(), cur.info.Gen, nil)
	if err != nil {
		return nil, err
	}
	defer h.Release(nil)
	text := make([]byte, cur.info.Size)
	n, err := h.Read(nil, text, 0)
	return text[:n], err
}

// replace puts bytes in force under a name, as a rename does.
func (x *execDir) replace(r *vnode.Req, name string, text []byte) error {
	if err := x.writer(r); err != nil {
		return err
	}
	s := x.slot(name)
	if s == nil {
		made, err := x.add(r, name, true, 0o755)
		if err != nil {
			return err
		}
		s = made
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.truncateLocked(0); err != nil {
		return err
	}
	if _, err := s.writeLocked(text, 0); err != nil {
		return err
	}
	if err := s.commitLocked(); err != nil {
		return err
	}
	x.told(name)
	return nil
}
