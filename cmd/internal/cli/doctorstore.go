package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cortexfs/node"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	storepkg "cortexfs/node/store"
)

// maxFindings is how many lines doctor spends on one store.
const maxFindings = 200

// storeDir is where the store is that a person most likely means: "" if none.
func (s *State) storeDir() string {
	dir := "/var/lib/cortexfs"
	if s.UID != 0 {
		base := s.Getenv("XDG_DATA_HOME")
		if !filepath.IsAbs(base) {
			home, err := s.homeDir()
			if err != nil {
				return ""
			}
			base = filepath.Join(home, ".local", "share")
		}
		dir = filepath.Join(base, "cortexfs")
	}
	if _, err := os.Lstat(dir); err != nil {
		return ""
	}
	return dir
}

// checkStore looks at every entry of a store, served or not, and changes nothing.
func (s *State) checkStore(dir string) []finding {
	if dir == "" {
		if dir = s.storeDir(); dir == "" {
			return nil
		}
	}
	what := "store " + dir
	names, err := os.ReadDir(dir)
	if err == nil && len(names) == 0 {
		return []finding{ok(what, "empty; the first mount fills it")}
	}
	// Opened as a daemon opens it, but for the lock: mode, owner, file system,
	// format.
	st, err := storepkg.Open(dir, storepkg.Options{ReadOnly: true})
	if err != nil {
		cure := ""
		if _, c, found := strings.Cut(err.Error(), "repair: "); found {
			cure = c
		}
		return []finding{invalid(what, err.Error(), cure)}
	}
	st.Close()
	w := &storeWalk{root: os.DirFS(filepath.Join(dir, "object")), dir: filepath.Join(dir, "object"), uid: uint32(os.Geteuid())}
	w.walk()
	list := []finding{ok(what, fmt.Sprintf("%d objects, %d entries", w.objects, w.entries))}
	var fsys unix.Statfs_t
	if unix.Statfs(dir, &fsys) == nil {
		list = append(list, spaceOf(what, &fsys))
	}
	if st, err := os.Stat(filepath.Join(dir, "reserve")); err != nil || st.Size() < 16<<20 {
		list = append(list, missing("reserve", errors.New("the 16 MiB are not there with which a revocation is saved on a full disk"), "restart the daemon"))
	}
	return append(list, w.found...)
}

// storeWalk goes through object/. What it reports is never followed, opened or
// repaired.
type storeWalk struct {
	root    fs.FS
	dir     string
	uid     uint32
	objects int
	entries int
	found   []finding
	more    int
}

// tableOf is the set of controls of a directory of object/, nil for one that
// holds none.
func tableOf(p string) *control.Set {
	if !strings.HasSuffix(p, ".d") {
		return nil
	}
	words := strings.Split(p, "/")
	switch n := len(words); {
	case n >= 2 && words[n-2] == "agent":
		return control.Agent
	case n >= 2 && words[n-2] == "tool":
		return control.Tool
	case n >= 3 && words[n-3] == "model":
		return control.Model
	}
	return nil
}

func (w *storeWalk) say(f finding) {
	if len(w.found) < maxFindings {
		w.found = append(w.found, f)
		return
	}
	w.more++
}

func (w *storeWalk) walk() {
	_ = fs.WalkDir(w.root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			w.say(invalid(p, err.Error(), "a real fault of the disk? fsck it"))
			return nil
		}
		w.entries++
		info, err := d.Info()
		if err != nil {
			return nil // gone meanwhile
		}
		if !w.healthy(p, info) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if set := tableOf(p); d.IsDir() && set != nil {
			w.object(p, set)
		}
		return nil
	})
	if w.more > 0 {
		w.found = append(w.found, invalid("store", fmt.Sprintf("%d more lines", w.more), "repair these first"))
	}
}

// healthy judges what an entry is, not what it says.
func (w *storeWalk) healthy(p string, info fs.FileInfo) bool {
	full := filepath.Join(w.dir, p)
	var sys unix.Stat_t
	if err := unix.Lstat(full, &sys); err != nil {
		return false
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if path.Dir(p) == "model" || strings.HasSuffix(path.Dir(p), "/model") {
			return true // an alias
		}
		w.say(invalid(p, "a symlink: it is not followed", "rm "+shellQuote(full)))
	case !info.Mode().IsRegular() && !info.IsDir():
		w.say(invalid(p, "neither a file nor a directory: it is ignored", "rm "+shellQuote(full)))
	case sys.Uid != w.uid:
		w.say(invalid(p, fmt.Sprintf("belongs to uid %d, not to the daemon's", sys.Uid), fmt.Sprintf("chown %d %s", w.uid, shellQuote(full))))
	case sys.Mode&0o022 != 0 && info.IsDir():
		w.say(invalid(p, "others can write it", "chmod go-w "+shellQuote(full)))
	default:
		return true
	}
	return false
}

// object judges the texts of one .d directory.
func (w *storeWalk) object(p string, set *control.Set) {
	w.objects++
	entries, err := fs.ReadDir(w.root, p)
	if err != nil {
		return
	}
	have := map[string]bool{}
	for _, d := range entries {
		name := d.Name()
		e := set.Lookup(name)
		have[name] = true
		switch {
		case strings.HasPrefix(name, "."): // the store's own
		case e == nil && !strings.HasPrefix(name, "hooks"):
			w.say(invalid(path.Join(p, name), "no control has this name: it is ignored", "rm "+shellQuote(filepath.Join(w.dir, p, name))))
		case e != nil && e.Kind == control.Durable && d.Type().IsRegular():
			w.text(path.Join(p, name), e)
		}
	}
	for _, e := range set.Entries() {
		if e.Kind == control.Durable && e.Required && !have[e.Name] {
			w.say(missing(path.Join(p, e.Name), errors.New("required and not there: the object cannot be used"), "ctx set "+path.Join(p, e.Name)+" VALUE"))
		}
	}
}

func (w *storeWalk) text(p string, e *control.Entry) {
	f, err := w.root.Open(p)
	if err != nil {
		w.say(invalid(p, err.Error(), ""))
		return
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64<<10+1))
	if err != nil {
		w.say(invalid(p, err.Error(), "a real fault of the disk? fsck it"))
		return
	}
	err = e.Judge(text)
	if err == nil {
		return
	}
	var fe *fault.Error
	place := p
	if errors.As(err, &fe) && fe.Line > 0 {
		place = fmt.Sprintf("%s:%d", p, fe.Line)
	}
	w.say(invalid(place, err.Error(), "ctx edit "+node.Escape(p)))
}
