package session

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"cortexfs/node"
	"cortexfs/node/beneath"
	"cortexfs/node/fault"
)

// Scope says where a session lies.
type Scope string

// The scopes of spec section 13.
const (
	Private Scope = "private" // the agent's session/ directory
	Shared  Scope = "shared"  // shared/<space>/agent/<agent>/session/
	Temp    Scope = "temp"    // memory
)

// Key names a session of the agent. Space is the shared space, for Shared only.
type Key struct {
	Scope Scope  `json:"scope"`
	Space string `json:"space,omitempty"`
	Name  string `json:"session"`
}

func (k Key) String() string {
	if k.Space != "" {
		return k.Space + "/" + k.Name
	}
	return k.Name
}

// Check says whether k names a session: an object name, index being reserved.
func (k Key) Check() error {
	if err := node.CheckName(k.Name); err != nil {
		return fault.Newf(fault.Invalid, "session: %w", err)
	}
	if k.Name == indexDir {
		return fault.Newf(fault.Invalid, "session name %s is reserved", indexDir)
	}
	switch k.Scope {
	case Private, Temp:
		if k.Space != "" {
			return fault.Newf(fault.Invalid, "scope %s has no space", k.Scope)
		}
	case Shared:
		if err := node.CheckName(k.Space); err != nil {
			return fault.Newf(fault.Invalid, "shared space: %w", err)
		}
	default:
		return fault.Newf(fault.Invalid, "scope is private, shared or temp")
	}
	return nil
}

// Note is something that the agent's log is told.
type Note struct {
	Type    string // session.torn, session.interrupted
	Session string
	Run     string
	Object  string // the tool, where it is about one
	Status  string
	Reason  string
}

// Options say where a Store keeps things. The descriptors stay the caller's.
type Options struct {
	Sessions *os.File // the agent's own session/ directory
	Records  *os.File // what decides: a directory that no sandbox has mounted
	// Shared opens shared/<space>/agent/<agent>/session. Nil: no shared sessions.
	Shared func(space string) (*os.File, error)
	Note   func(Note)       // nil: nobody is told
	Now    func() time.Time // nil: time.Now
}

// idleSessions is how many sessions stay open that nobody uses, for the next
// send; each has three descriptors.
const idleSessions = 16

// Store is all sessions of one agent. It belongs to one process at a time: the
// caller holds the agent's lock.
type Store struct {
	o       Options
	own     *dir
	records *dir
	sends   *sends
	runs    *runLog
	index   *index

	// mu protects the fields below.
	mu       sync.Mutex
	sessions map[Key]*Session
	active   map[string]*Run
	idle     []*Session // without users, oldest first
	closed   bool
}

// Open opens the sessions of an agent, and ends the runs that an earlier process
// has left unfinished.
func Open(o Options) (*Store, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Note == nil {
		o.Note = func(Note) {}
	}
	s := &Store{o: o, own: &dir{o.Sessions, "session"}, records: &dir{o.Records, "records"},
		sessions: map[Key]*Session{}, active: map[string]*Run{}}
	var err error
	if s.sends, err = openSends(s.records); err != nil {
		return nil, err
	}
	if s.index, err = openIndex(s.own); err != nil {
		s.sends.close()
		return nil, err
	}
	if s.runs, err = openRunLog(s.records); err != nil {
		s.index.close()
		s.sends.close()
		return nil, err
	}
	if err := s.recover(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close closes every file. Runs that have not finished are ended by the next
// Open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	all := s.sessions
	s.sessions, s.idle = map[Key]*Session{}, nil
	s.mu.Unlock()
	for _, one := range all {
		one.closeFiles()
	}
	s.sends.close()
	s.index.close()
	s.runs.close()
	return nil
}

// Get opens a session; with create it is made where it is missing. The caller
// releases it.
func (s *Store) Get(k Key, create bool) (*Session, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fault.Newf(fault.Unavailable, "the session store is closed")
	}
	if one := s.sessions[k]; one != nil {
		if !one.gone() {
			s.useLocked(one)
			return one, nil
		}
		s.dropLocked(one) // its directory was removed, or a file of it failed
	}
	one, err := s.openSession(k, create)
	if err != nil {
		return nil, err
	}
	s.sessions[k] = one
	one.users++
	return one, nil
}

func (s *Store) useLocked(one *Session) {
	if one.users == 0 {
		for i, x := range s.idle {
			if x == one {
				s.idle = append(s.idle[:i], s.idle[i+1:]...)
				break
			}
		}
	}
	one.users++
}

func (s *Store) dropLocked(one *Session) {
	delete(s.sessions, one.key)
	for i, x := range s.idle {
		if x == one {
			s.idle = append(s.idle[:i], s.idle[i+1:]...)
			break
		}
	}
	if one.key.Scope == Temp {
		s.sends.forgetTemp(one.key)
	}
	if one.users > 0 {
		one.detached = true
		return
	}
	one.closeFiles()
}

// Release gives back what Get or Begin has opened.
func (s *Session) Release() {
	st := s.st
	st.mu.Lock()
	defer st.mu.Unlock()
	switch s.users--; {
	case s.users > 0 || st.closed:
		return
	case s.detached:
		s.closeFiles()
		return
	}
	st.idle = append(st.idle, s)
	if len(st.idle) > idleSessions {
		st.dropLocked(st.idle[0])
	}
}

// base is the directory in which sessions of k lie.
func (s *Store) base(k Key) (*dir, func(), error) {
	if k.Scope == Private {
		return s.own, func() {}, nil
	}
	if s.o.Shared == nil {
		return nil, nil, fault.Newf(fault.Access, "shared space %s is not open to this agent", k.Space)
	}
	f, err := s.o.Shared(k.Space)
	if err != nil {
		return nil, nil, fault.At("open", "shared/"+k.Space, err)
	}
	d := &dir{f, "shared/" + k.Space + "/session"}
	return d, d.close, nil
}

// openSession opens the files of a session. Store.mu is held: two openers of one
// session must end up with one.
func (s *Store) openSession(k Key, create bool) (*Session, error) {
	one := &Session{st: s, key: k, derived: map[string][]byte{}}
	one.feed.init()
	one.turn.init()
	if k.Scope == Temp {
		if !create {
			return nil, fault.E("open", "session "+k.Name, fault.NotExist, nil)
		}
		one.messages, one.events = &memLines{}, &memLines{}
		return one, nil
	}
	base, done, err := s.base(k)
	if err != nil {
		return nil, err
	}
	defer done()
	if one.dir, err = base.sub(k.Name, create); err != nil {
		return nil, err
	}
	if err := one.openFiles(create); err != nil {
		one.closeFiles()
		return nil, err
	}
	return one, nil
}

// List is the names of the agent's private sessions, sorted as index/list is:
// the one used last is first.
func (s *Store) List() []string { return s.index.names() }

// Active is the run of that id that is under way, or nil.
func (s *Store) Active(run string) *Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[run]
}

// ActiveRuns counts the runs under way.
func (s *Store) ActiveRuns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.active)
}

// sessionNames are the directories that can be sessions.
func sessionNames(d *dir) ([]string, error) {
	// A descriptor of our own: the position in the directory is shared otherwise.
	again, err := d.sub(".", false)
	if err != nil {
		return nil, err
	}
	defer again.close()
	entries, err := beneath.ReadDir(int(again.f.Fd()))
	if err != nil {
		return nil, fault.FromOS("read", d.path, err)
	}
	var names []string
	for _, e := range entries {
		if e.Type == dtDir && e.Name != indexDir && node.IsName(e.Name) {
			names = append(names, e.Name)
		}
	}
	return names, nil
}

const dtDir = 4 // DT_DIR of getdents64(2)

func joinLines(names []string) []byte {
	if len(names) == 0 {
		return nil
	}
	return []byte(strings.Join(names, "\n") + "\n")
}

func unix10(t time.Time) []byte { return fmt.Appendf(nil, "%d\n", t.Unix()) }
