package stage

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// The account files are read here and not through os/user: a static program has
// no NSS, and what counts is what the system's own files say.
var ( // variables for the tests
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
	loginDefs  = "/etc/login.defs"
)

type user struct {
	Name     string
	UID, GID uint32
	Home     string
}

func readPasswd() ([]user, error) {
	var list []user
	err := eachLine(passwdFile, func(f []string) {
		if len(f) < 6 {
			return
		}
		uid, err1 := strconv.ParseUint(f[2], 10, 32)
		gid, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 == nil && err2 == nil {
			list = append(list, user{f[0], uint32(uid), uint32(gid), f[5]})
		}
	})
	return list, err
}

// LookupAccount is the full set of ids of a uid: primary group from passwd,
// supplementary groups from group, as initgroups(3) would have it. ok is false
// for a uid without an entry.
func LookupAccount(uid uint32) (a Account, ok bool, err error) {
	users, err := readPasswd()
	if err != nil {
		return a, false, err
	}
	for _, u := range users {
		if u.UID != uid {
			continue
		}
		a = Account{UID: uid, GID: u.GID}
		err := eachLine(groupFile, func(f []string) {
			if len(f) < 4 {
				return
			}
			gid, err := strconv.ParseUint(f[2], 10, 32)
			if err != nil || uint32(gid) == a.GID {
				return
			}
			for _, name := range strings.Split(f[3], ",") {
				if name == u.Name {
					a.Groups = append(a.Groups, uint32(gid))
					return
				}
			}
		})
		return a, true, err
	}
	return a, false, nil
}

// uidMin is where people's accounts begin on this host.
func uidMin() uint32 {
	text, err := os.ReadFile(loginDefs)
	if err != nil {
		return 1000
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "UID_MIN" {
			if n, err := strconv.ParseUint(f[1], 10, 32); err == nil {
				return uint32(n)
			}
		}
	}
	return 1000
}

func eachLine(file string, f func(fields []string)) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if line := lines.Text(); line != "" && line[0] != '#' {
			f(strings.Split(line, ":"))
		}
	}
	return lines.Err()
}
