package stage

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A gitfile in the agent's home is the agent's text: no path of it is opened on
// the host, and what it covers lies in that home (notes-security 75, 103).
func TestGitfileOfTheHome(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"/home/real", "/home/a/b", "/work/src"} {
		check(t, os.MkdirAll(dir+d, 0o755))
	}
	check(t, os.Symlink(dir+"/work/src", dir+"/home/link"))
	tree, err := unix.Open(dir+"/home", unix.O_PATH|unix.O_CLOEXEC, 0)
	check(t, err)
	defer unix.Close(tree)
	for name, want := range map[string]string{
		"real": "real", "./a/b": "a/b", "/home/agent/a/b": "a/b",
		"absent": "", "link": "", "../work/src": "", ".": "", ".git": "", "/home/agent": "", "/home/agent/../etc": "",
		dir + "/work/src": "", "/proc/self/root": "",
	} {
		home := &source{Effective: Effective{Row: Row{Kind: Store, Target: "/home/agent", RW: true, Home: true}}, tree: tree}
		work := &source{Effective: Effective{Row: Row{Kind: Host, Target: "/workspace", RW: true}}}
		// Without a mount table and helpers: nothing but the home may be looked at.
		s := &stager{req: &Request{}, sources: []*source{home, work}}
		check(t, s.gitDir(home, name))
		var got []string
		for _, p := range home.spots {
			got = append(got, p.rel)
			unix.Close(p.fd)
		}
		if len(work.spots) > 0 || !slices.Equal(got, slices.DeleteFunc([]string{want}, func(s string) bool { return s == "" })) {
			t.Errorf("gitdir: %s covers %q in the home, %d places elsewhere", name, got, len(work.spots))
		}
	}
}
