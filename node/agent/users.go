package agent

import (
	"bufio"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cortexfs/node"
)

// UserDB answers questions about accounts. The answers may change between calls;
// whoever needs those of this moment asks again (spec 4.8: at every start).
type UserDB interface {
	// User says whether an account has this uid, and its primary gid.
	User(uid uint32) (gid uint32, ok bool)
	// Group says whether a group has this gid.
	Group(gid uint32) bool
	// Groups lists the gids of an account, the primary one first; nil for an
	// unknown uid.
	Groups(uid uint32) []uint32
}

// SystemUsers reads /etc/passwd and /etc/group, again whenever one of them has
// changed on disk. Accounts that only a name service knows are not seen: a
// static binary has none to ask.
func SystemUsers() UserDB { return UserFiles("/etc/passwd", "/etc/group") }

// UserFiles is SystemUsers with other files.
func UserFiles(passwd, group string) UserDB { return &userFiles{passwd: passwd, group: group} }

type userFiles struct {
	passwd, group string

	mu      sync.Mutex
	stamp   [2]fileStamp
	primary map[uint32]uint32   // uid → gid
	names   map[uint32]string   // uid → login name
	gids    map[uint32][]string // gid → members
}

type fileStamp struct {
	mod  time.Time
	size int64
}

func stampOf(path string) fileStamp {
	fi, err := os.Stat(path)
	if err != nil {
		return fileStamp{}
	}
	return fileStamp{fi.ModTime(), fi.Size()}
}

// loadLocked reads the files if they changed. Files that cannot be read know
// nobody, which refuses rather than allows.
func (u *userFiles) loadLocked() {
	now := [2]fileStamp{stampOf(u.passwd), stampOf(u.group)}
	if u.primary != nil && now == u.stamp {
		return
	}
	u.stamp = now
	u.primary, u.names, u.gids = map[uint32]uint32{}, map[uint32]string{}, map[uint32][]string{}
	eachRecord(u.passwd, 4, func(f []string) {
		uid, err1 := node.ParseUint(f[2])
		gid, err2 := node.ParseUint(f[3])
		if _, seen := u.primary[uid]; err1 == nil && err2 == nil && !seen {
			u.primary[uid], u.names[uid] = gid, f[0]
		}
	})
	eachRecord(u.group, 3, func(f []string) {
		gid, err := node.ParseUint(f[2])
		if err != nil {
			return
		}
		var members []string
		if len(f) > 3 && f[3] != "" {
			members = strings.Split(f[3], ",")
		}
		u.gids[gid] = append(u.gids[gid], members...)
	})
}

func eachRecord(path string, fields int, do func([]string)) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		if rec := strings.Split(sc.Text(), ":"); len(rec) >= fields {
			do(rec)
		}
	}
}

func (u *userFiles) User(uid uint32) (uint32, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.loadLocked()
	gid, ok := u.primary[uid]
	return gid, ok
}

func (u *userFiles) Group(gid uint32) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.loadLocked()
	_, ok := u.gids[gid]
	return ok
}

func (u *userFiles) Groups(uid uint32) []uint32 {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.loadLocked()
	primary, ok := u.primary[uid]
	if !ok {
		return nil
	}
	var more []uint32
	for gid, members := range u.gids {
		if gid != primary && slices.Contains(members, u.names[uid]) {
			more = append(more, gid)
		}
	}
	slices.Sort(more)
	return append([]uint32{primary}, more...)
}
