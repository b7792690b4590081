package store

import (
	"errors"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

const (
	// maxWatches bounds what the kernel must hold for us (about 1 KiB each).
	maxWatches = 64 << 10
	// quiet is how long nothing must happen before changes are read, so that a
	// text written in pieces is not read in pieces; busy bounds the wait.
	quiet = 50 * time.Millisecond
	busy  = time.Second
	// pollEvery is the pace without inotify (spec section 4.10: within 2 s), and
	// pollRest the multiple of a round's own time that is left between rounds.
	pollEvery = time.Second
	pollRest  = 10
)

// watcher notices what others change below object/. One goroutine reads the
// events, gathers the names of each directory, and refreshes. What we changed
// ourselves is recognised by the state it left (own, or an object's stamps).
type watcher struct {
	store *Store
	fn    func(string)
	fs    *fsnotify.Watcher // nil: polling only
	root  string            // /proc/self/fd/N of object/: a name that stays when the store is moved

	reload chan chan struct{}
	quit   chan struct{}
	done   chan struct{}

	mu  sync.Mutex
	own map[string]stamp // path → what our last change left there; zero: nothing

	// For the goroutine alone.
	watched map[string]bool
	polled  map[string]stamp // directories, while polling; nil: inotify sees all
}

// Watch calls fn(dir) after something below object/dir was changed by somebody
// else and the new state is published: for a change inside an object the object's
// directory ("agent/coder.d", also for its hooks), else the directory that holds
// the changed name ("tool"). Our own changes are not reported. Calls come one
// after another, without any lock held. One watcher per store.
//
// Where the kernel's inotify limits do not suffice it says so in the log and
// looks every second, or less often when looking takes long; our own changes of a
// tier are then reported too.
func (s *Store) Watch(fn func(dir string)) error {
	w := &watcher{
		store: s, fn: fn, root: beneath.FDPath(int(s.object.Fd())),
		reload: make(chan chan struct{}), quit: make(chan struct{}), done: make(chan struct{}),
		own: map[string]stamp{}, watched: map[string]bool{},
	}
	s.mu.Lock()
	refused := s.watch != nil || s.closed
	if !refused {
		s.watch = w
	}
	s.mu.Unlock()
	if refused {
		return fault.E("watch store", s.path, fault.Busy, nil)
	}
	var err error
	if w.fs, err = newWatcher(); err != nil {
		w.fs = nil
		w.startPolling(err)
	}
	ready := make(chan struct{})
	go w.run(ready)
	<-ready
	return nil
}

// Reload reads again everything that is held, and returns when the new state is
// published and the calls of Watch have returned. Directories that are listed but
// not held are reported whether or not they changed.
func (s *Store) Reload() error {
	s.mu.Lock()
	w := s.watch
	s.mu.Unlock()
	if w == nil {
		for _, o := range s.loaded() {
			o.refresh()
		}
		return nil
	}
	answer := make(chan struct{})
	select {
	case w.reload <- answer:
		<-answer
		return nil
	case <-w.done:
		return fault.E("reload", s.path, fault.Unavailable, errors.New("the store is closed"))
	}
}

// newWatcher is a variable for the test of a system without inotify.
var newWatcher = fsnotify.NewWatcher

func (s *Store) loaded() []*Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Object, 0, len(s.objects))
	for _, o := range s.objects {
		all = append(all, o)
	}
	return all
}

// own notes the state in which we leave p, so that the watcher does not report
// it. With s.names held, right after the change.
func (s *Store) own(dirfd int, p, base string) {
	s.bump(p)
	s.mu.Lock()
	w := s.watch
	s.mu.Unlock()
	if w == nil {
		return
	}
	var st unix.Stat_t
	var now stamp
	if unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		now = stampOf(&st)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.own) > maxWatches {
		clear(w.own) // an event still on its way may echo, no more
	}
	w.own[p] = now
}

// ours says whether p is as we left it.
func (w *watcher) ours(p string) bool {
	// names keeps a change of ours from being half noted.
	w.store.names.RLock()
	defer w.store.names.RUnlock()
	now := w.stat(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	left, known := w.own[p]
	return known && left == now
}

func (w *watcher) stat(p string) stamp {
	dirfd, base, err := w.store.split(p)
	if err != nil {
		return stamp{}
	}
	defer unix.Close(dirfd)
	var st unix.Stat_t
	if unix.Fstatat(dirfd, base, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return stamp{}
	}
	return stampOf(&st)
}

func (w *watcher) stop() {
	close(w.quit)
	<-w.done
}

func (w *watcher) run(ready chan struct{}) {
	defer close(w.done)
	var events chan fsnotify.Event
	var faults chan error
	if w.fs != nil {
		defer w.fs.Close()
		events, faults = w.fs.Events, w.fs.Errors
		w.add("")
	}
	close(ready)
	changes := map[string]map[string]bool{} // directory → names
	settle := time.NewTimer(busy)
	settle.Stop()
	var first time.Time
	poll := time.NewTimer(pollEvery)
	defer poll.Stop()
	for {
		select {
		case <-w.quit:
			return
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			if !w.note(e, changes) {
				continue
			}
			if first.IsZero() {
				first = time.Now()
			}
			settle.Reset(min(quiet, max(0, busy-time.Since(first))))
		case err := <-faults:
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				w.rescan()
			} else if err != nil {
				w.store.say("store watch: %v", err)
			} else {
				faults = nil
			}
		case <-settle.C:
			first = time.Time{}
			w.apply(changes)
			clear(changes)
		case answer := <-w.reload:
			w.apply(changes)
			clear(changes)
			w.rescan()
			close(answer)
		case <-poll.C:
			began := time.Now()
			if w.polled != nil {
				w.pollAll()
			}
			poll.Reset(max(pollEvery, pollRest*time.Since(began)))
		}
	}
}

// note adds the event to changes; false for events that say nothing.
func (w *watcher) note(e fsnotify.Event, changes map[string]map[string]bool) bool {
	p, below := strings.CutPrefix(e.Name, w.root+"/")
	if !below {
		return false
	}
	dir, base := path.Split(p)
	dir = strings.TrimSuffix(dir, "/")
	if changes[dir] == nil {
		changes[dir] = map[string]bool{}
	}
	changes[dir][base] = true
	return true
}
