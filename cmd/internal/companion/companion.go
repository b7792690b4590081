// Package companion finds the product's other programs: beside the one that
// runs, or in ../lib/cortexfs/. PATH is never asked, for a daemon started by
// mount(8) has none, and what it finds there would not be ours.
package companion

import (
	"os"
	"path/filepath"

	"cortexfs/node/fault"
)

// Find is the absolute path of the program called name (which may have a
// directory before it, as in tool/bash). Unavailable if it is not installed.
func Find(name string) (string, error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return "", fault.FromOS("find", name, err)
	}
	dir := filepath.Dir(self)
	for _, d := range []string{dir, filepath.Join(dir, "..", "lib", "cortexfs"), filepath.Join(dir, "..", "libexec", "cortexfs")} {
		p := filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fault.Newf(fault.Unavailable, "%s is not installed beside %s", name, self)
}
