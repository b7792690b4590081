package tree

import (
	"sort"
	"strconv"
	"strings"

	"cortexfs/node/fault"
)

const xattrPrefix = "user.cortexfs."

// xattrs are the attributes of one node (spec section 2); empty ones do not
// exist.
type xattrs struct {
	kind, origin string
	size         uint64
	hasSize      bool // regular file: token_estimate
	gen          uint64
	err          string
	runtime      string
	version      string
}

func (x xattrs) all() map[string]string {
	m := map[string]string{"kind": x.kind, "origin": x.origin, "error": x.err, "runtime": x.runtime, "version": x.version}
	if x.hasSize || x.size > 0 {
		m["token_estimate"] = strconv.FormatUint((x.size+3)/4, 10)
	}
	if x.gen > 0 {
		m["generation"] = strconv.FormatUint(x.gen, 10)
	}
	for k, v := range m {
		if v == "" {
			delete(m, k)
		}
	}
	return m
}

func (x xattrs) get(name string) ([]byte, error) {
	key, ours := strings.CutPrefix(name, xattrPrefix)
	if !ours {
		if strings.HasPrefix(name, "system.posix_acl_") {
			return nil, fault.Newf(fault.NotSupported, "no ACLs here")
		}
		return nil, fault.Newf(fault.NoData, "no such attribute")
	}
	if v, ok := x.all()[key]; ok {
		return []byte(v), nil
	}
	return nil, fault.Newf(fault.NoData, "no such attribute")
}

func (x xattrs) list() []string {
	var names []string
	for k := range x.all() {
		names = append(names, xattrPrefix+k)
	}
	sort.Strings(names)
	return names
}

func refuseXattr(name string) error {
	if strings.HasPrefix(name, xattrPrefix) {
		return perm("%s is made by the daemon", name)
	}
	return fault.Newf(fault.NotSupported, "no such attributes here")
}
