package session

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"sync"

	"cortexfs/node"
	"cortexfs/node/fault"
)

const indexDir = "index"

// maxIndex bounds what is read of index/list.
const maxIndex = 16 << 20

// index is session/index/: list (names, the one used last first), current (the
// first of them) and by-cwd/<sha256 of the workspace's host path> (the name of
// the session last used there). It decides nothing; a damaged one is made anew.
type index struct {
	top, byCwd *dir

	// mu protects the fields below.
	mu      sync.Mutex
	list    []string // the one used last is last: the cheap end of a slice
	dirty   bool
	writing bool
	idle    *sync.Cond // writing has ended
}

func openIndex(own *dir) (*index, error) {
	x := &index{}
	x.idle = sync.NewCond(&x.mu)
	var err error
	if x.top, err = own.sub(indexDir, true); err != nil {
		return nil, err
	}
	if x.byCwd, err = x.top.sub("by-cwd", true); err != nil {
		x.top.close()
		return nil, err
	}
	x.top.sweep()
	x.byCwd.sweep()
	have, err := sessionNames(own)
	if err != nil {
		x.close()
		return nil, err
	}
	slices.Sort(have)
	exists := map[string]bool{} // false: has its place already
	for _, name := range have {
		exists[name] = true
	}
	if old, err := x.top.get("list", maxIndex); err == nil {
		for _, name := range strings.Split(string(old), "\n") {
			if exists[name] {
				x.list = append(x.list, name)
				exists[name] = false
			}
		}
	}
	for _, name := range have { // made, and the list not written any more
		if exists[name] {
			x.list = append(x.list, name)
		}
	}
	slices.Reverse(x.list)
	return x, nil
}

func (x *index) close() {
	x.top.close()
	x.byCwd.close()
}

func (x *index) names() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := slices.Clone(x.list)
	slices.Reverse(out)
	return out
}

// touch makes name the current session, and that of a workspace where one is
// given. Several callers share one writing of the list.
func (x *index) touch(name, workspace string) error {
	if workspace != "" {
		sum := sha256.Sum256([]byte(workspace))
		if err := x.byCwd.put(hex.EncodeToString(sum[:]), []byte(name+"\n")); err != nil {
			return err
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.list); n > 0 && x.list[n-1] == name && !x.dirty && !x.writing {
		return nil
	}
	if i := slices.Index(x.list, name); i >= 0 {
		x.list = slices.Delete(x.list, i, i+1)
	}
	x.list = append(x.list, name)
	x.dirty = true
	for x.writing {
		x.idle.Wait()
	}
	if !x.dirty { // who wrote meanwhile wrote this too
		return nil
	}
	x.writing, x.dirty = true, false
	list := slices.Clone(x.list)
	x.mu.Unlock()
	slices.Reverse(list)
	err := x.top.put("list", joinLines(list))
	if err == nil {
		err = x.top.put("current", []byte(list[0]+"\n"))
	}
	x.mu.Lock()
	x.writing = false
	if err != nil {
		x.dirty = true
	}
	x.idle.Broadcast()
	return err
}

// ByWorkspace is the session last used in a workspace (its path on the host).
func (s *Store) ByWorkspace(path string) (string, error) {
	sum := sha256.Sum256([]byte(path))
	b, err := s.index.byCwd.get(hex.EncodeToString(sum[:]), node.MaxName+1)
	if err != nil {
		return "", err
	}
	name := strings.TrimSuffix(string(b), "\n")
	if !node.IsName(name) {
		return "", fault.E("read", "session/index/by-cwd", fault.IO, nil)
	}
	return name, nil
}
