package sandbox

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBoundSources is case C07: what a line of a child leads to, when it is opened,
// is where the line of its parent shows it, or the start ends.
func TestBoundSources(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	for _, dir := range []string{"/seen/sub/deep", "/seen/hidden", "/seen/mounted", "/other"} {
		check(t, os.MkdirAll(w.base+dir, 0o755))
	}
	for from, to := range map[string]string{"/seen/out": "/other", "/seen/across": "/seen/hidden", "/spelt": "/seen", "/seen/sub/up": ".."} {
		if to[0] == '/' {
			to = w.base + to
		}
		check(t, os.Symlink(to, w.base+from))
	}
	bind := func(from, to string) {
		t.Helper()
		check(t, unix.Mount(w.base+from, w.base+to, "", unix.MS_BIND, ""))
		t.Cleanup(func() { unix.Unmount(w.base+to, unix.MNT_DETACH) })
	}
	bind("/other", "/seen/mounted")
	check(t, os.Mkdir(w.base+"/twin", 0o755))
	bind("/seen", "/twin")
	for name, c := range map[string]struct {
		source    string
		recursive bool
		parent    string
		rbind     bool
		words     string
	}{
		"the same":             {"/seen", true, "/seen", true, ""},
		"below":                {"/seen/sub", true, "/seen", true, ""},
		"below, bind":          {"/seen/sub/deep", false, "/seen", false, ""},
		"a mount below":        {"/seen/mounted", true, "/seen", true, ""},
		"through its own link": {"/spelt/sub", true, "/spelt", true, ""},
		"a link out":           {"/seen/out", true, "/seen", true, "leads out of what agent boss sees"},
		"a link across":        {"/seen/across", true, "/seen", true, "leads out of what agent boss sees"},
		"a link up":            {"/seen/sub/up", true, "/seen", true, "leads out of what agent boss sees"},
		"another spelling":     {"/spelt/sub", true, "/seen", true, "does not lie in what agent boss sees"},
		"a bind elsewhere":     {"/twin/sub", true, "/seen", true, "does not lie in what agent boss sees"},
		"a hidden mount":       {"/seen/mounted", false, "/seen", false, "lies on a mount that agent boss does not see"},
		"what a mount hides":   {"/seen", false, "/seen", true, "hide something from agent boss"},
		"a missing parent":     {"/gone/x", true, "/gone", true, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			s := w.spec()
			s.Rows = append(s.Rows[:1:1], Row{
				Line: 5, Kind: Host, Source: w.base + c.source, Target: "/x", Recursive: c.recursive,
				Within: []Within{{Agent: "boss", Source: w.base + c.parent, Recursive: c.rbind}},
			})
			_, _, err := w.checkOnly(s)
			switch {
			case c.words == "":
				check(t, err)
			case name == "a missing parent":
				wantFault(t, err, 1, "mount", c.words)
			default:
				wantFault(t, err, 13, "mount", c.words)
				if e := faults(err); len(e) == 1 && e[0].Line != 5 {
					t.Errorf("line %d", e[0].Line)
				}
			}
		})
	}
}
