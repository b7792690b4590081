package store

import (
	"errors"
	"path"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
)

// add watches dir and all below it and returns what was not watched before.
func (w *watcher) add(dir string) []string {
	if w.fs == nil || w.watched[dir] {
		return nil
	}
	if len(w.watched) >= maxWatches {
		w.startPolling(unix.ENOSPC)
		return nil
	}
	if err := w.fs.Add(path.Join(w.root, dir)); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil // gone again
		}
		w.startPolling(err)
		return nil
	}
	w.watched[dir] = true
	added := []string{dir}
	fd, err := w.store.openDir(dir)
	if err != nil {
		return added
	}
	list, err := beneath.ReadDir(fd)
	unix.Close(fd)
	if err != nil {
		return added
	}
	for _, d := range list {
		if d.Type == unix.DT_DIR && d.Name[0] != '.' {
			added = append(added, w.add(path.Join(dir, d.Name))...)
		}
	}
	return added
}

// drop forgets the watches at and below dir, which was removed or moved.
func (w *watcher) drop(dir string) {
	if !w.watched[dir] {
		return
	}
	for d := range w.watched {
		if d == dir || strings.HasPrefix(d, dir+"/") {
			delete(w.watched, d)
			// It may be gone with its directory already.
			_ = w.fs.Remove(path.Join(w.root, d))
		}
	}
}

func (w *watcher) startPolling(why error) {
	if w.polled != nil {
		return
	}
	w.polled = map[string]stamp{}
	w.store.say("store watch: %v: changes behind the daemon's back are looked for every %v instead "+
		"(raise fs.inotify.max_user_watches)", why, pollEvery)
}

// apply reads what changed and reports it.
func (w *watcher) apply(changes map[string]map[string]bool) {
	report := map[string]bool{}
	for dir, names := range changes {
		for name := range names {
			w.look(dir, name, report)
		}
	}
	w.tell(report)
}

// look handles one changed name.
func (w *watcher) look(dir, name string, report map[string]bool) {
	p := path.Join(dir, name)
	if w.isDir(p) {
		if !w.watched[p] {
			// What was made in it before the watch came is found by looking now.
			for _, d := range w.add(p) {
				if w.refresh(d) || !w.ours(d) {
					report[object(d)] = true
				}
			}
		}
	} else {
		w.drop(p)
	}
	switch {
	case name[0] != '.' && w.held(dir) && isText(name):
		if w.refresh(dir) {
			report[object(dir)] = true
		}
	case !w.ours(p) && !w.goneByUs(dir):
		report[object(dir)] = true
		w.refresh(p) // an object that somebody removed
	}
}

// goneByUs says whether dir or a directory above it was removed by ourselves.
func (w *watcher) goneByUs(dir string) bool {
	for ; dir != "" && dir != "."; dir = path.Dir(dir) {
		if w.stat(dir) == (stamp{}) && w.ours(dir) {
			return true
		}
	}
	return false
}

func (w *watcher) isDir(p string) bool {
	fd, err := w.store.openDir(p)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

func (w *watcher) held(dir string) bool {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return w.store.objects[dir] != nil
}

func (w *watcher) refresh(dir string) bool {
	w.store.mu.Lock()
	o := w.store.objects[dir]
	w.store.mu.Unlock()
	return o != nil && o.refresh()
}

// object is the object that dir belongs to, or dir.
func object(dir string) string {
	at := 0
	for part := range strings.SplitSeq(dir, "/") {
		at += len(part)
		if strings.HasSuffix(part, ".d") {
			return dir[:at]
		}
		at++
	}
	return dir
}

// rescan is Reload: every held object, every tier.
func (w *watcher) rescan() {
	report := map[string]bool{}
	for _, o := range w.store.loaded() {
		if o.refresh() {
			report[object(o.dir)] = true
		}
	}
	clear(w.watched)
	w.add("")
	for _, dir := range w.tiers() {
		report[dir] = true
	}
	w.tell(report)
}

// tiers are the directories that hold objects and are none.
func (w *watcher) tiers() []string {
	var all []string
	var walk func(dir string)
	walk = func(dir string) {
		list, err := w.store.List(dir)
		if err != nil {
			return
		}
		if dir != "" {
			all = append(all, dir)
		}
		for _, e := range list {
			if e.Type.IsDir() && !strings.HasSuffix(e.Name, ".d") {
				walk(path.Join(dir, e.Name))
			}
		}
	}
	walk("")
	return all
}

// pollAll looks at what inotify does not cover: every held object, and the change
// times of the tiers.
func (w *watcher) pollAll() {
	report := map[string]bool{}
	for _, o := range w.store.loaded() {
		if o.refresh() {
			report[object(o.dir)] = true
		}
	}
	for _, dir := range w.tiers() {
		fd, err := w.store.openDir(dir)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		now := stamp{ino: st.Ino, mtime: st.Mtim.Nano()}
		if was, known := w.polled[dir]; err == nil && was != now {
			w.polled[dir] = now
			if known {
				report[dir] = true
			}
		}
	}
	w.tell(report)
}

func (w *watcher) tell(report map[string]bool) {
	dirs := make([]string, 0, len(report))
	for dir := range report {
		dirs = append(dirs, dir)
	}
	sort.Strings(dirs)
	for _, dir := range dirs {
		w.store.bump(dir)
		w.fn(dir)
	}
}
