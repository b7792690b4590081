package attenuate

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTaken: each kind of loss, and what is none.
func TestTaken(t *testing.T) {
	base := func() *Agent {
		return &Agent{
			Name: "coder", UID: 1000, GID: 1000, Groups: []uint32{100, 27}, Iso: "uid",
			Mounts: []Mount{
				{Source: "/ctx", Target: "/ctx", RW: true, Recursive: true, Line: 1},
				{Source: "/srv/a", Target: "/a", RW: true, Recursive: true, Line: 2},
				{Source: "/srv/b", Target: "/b", Line: 4},
			},
		}
	}
	for name, c := range map[string]struct {
		change func(now *Agent)
		want   []string
	}{
		"nothing":             {func(*Agent) {}, nil},
		"another order":       {func(n *Agent) { slices.Reverse(n.Mounts); slices.Reverse(n.Groups) }, nil},
		"another line":        {func(n *Agent) { n.Mounts = append(n.Mounts, Mount{Source: "/srv/c", Target: "/c", RW: true}) }, nil},
		"another group":       {func(n *Agent) { n.Groups = append(n.Groups, 5) }, nil},
		"wider":               {func(n *Agent) { n.Mounts[2].RW, n.Mounts[2].Recursive = true, true }, nil},
		"nosuid,nodev":        {func(n *Agent) { n.Mounts[1].NoSuid, n.Mounts[1].NoDev = true, true }, nil},
		"the view as ro":      {func(n *Agent) { n.Mounts[0].RW = false }, nil},
		"less isolated":       {func(n *Agent) { n.Iso = "shared" }, nil},
		"a line":              {func(n *Agent) { n.Mounts = n.Mounts[:2] }, []string{`mount, line 4: the line "/srv/b /b ro" was taken away`}},
		"all lines":           {func(n *Agent) { n.Mounts = n.Mounts[:1] }, []string{`mount, line 2: the line "/srv/a /a rw" was taken away`, `mount, line 4: the line "/srv/b /b ro" was taken away`}},
		"another source":      {func(n *Agent) { n.Mounts[2].Source = "/srv/c" }, []string{`mount, line 4: the line "/srv/b /b ro" was taken away`}},
		"another target":      {func(n *Agent) { n.Mounts[2].Target = "/c" }, []string{`mount, line 4: the line "/srv/b /b ro" was taken away`}},
		"rw to ro":            {func(n *Agent) { n.Mounts[1].RW = false }, []string{`mount, line 2: the line "/srv/a /a rw" is ro now`}},
		"rbind to bind":       {func(n *Agent) { n.Mounts[1].Recursive = false }, []string{`mount, line 2: the line "/srv/a /a rw" is bind, not rbind, now`}},
		"noexec":              {func(n *Agent) { n.Mounts[2].NoExec = true }, []string{`mount, line 4: the line "/srv/b /b ro" is noexec now`}},
		"the second group":    {func(n *Agent) { n.Groups = n.Groups[:1] }, []string{"groups, line 2: group 27 was taken away"}},
		"uid":                 {func(n *Agent) { n.UID = 1001 }, []string{"uid, line 1: it runs as 1000, which is 1001 now"}},
		"an unreadable gid":   {func(n *Agent) { n.GID = 1<<32 - 1 }, []string{"gid, line 1: it runs with 1000, which is unknown now"}},
		"other isolation":     {func(n *Agent) { n.Iso = "userns" }, []string{"iso, line 1: it runs with uid, which is userns now"}},
		"unreadable iso":      {func(n *Agent) { n.Iso = "" }, []string{"iso, line 1: it runs with uid, which is unreadable now"}},
		"one for the other":   {func(n *Agent) { n.Groups = []uint32{100, 5} }, []string{"groups, line 2: group 27 was taken away"}},
		"shifted down a line": {func(n *Agent) { n.Mounts[2].Line = 9 }, nil},
	} {
		now := base()
		c.change(now)
		var got []string
		for _, l := range Taken(base(), now) {
			got = append(got, l.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTakenIsMonotonic: of random tables, what is added never takes, what is left
// out always does, and exactly that.
func TestTakenIsMonotonic(t *testing.T) {
	for range 2000 {
		var was Agent
		for i := range rand.IntN(6) {
			was.Mounts = append(was.Mounts, Mount{Source: "/src/" + string(rune('a'+i)), Target: "/" + string(rune('a'+i)), RW: rand.IntN(2) == 0, NoExec: rand.IntN(2) == 0, Line: i + 1})
			was.Groups = append(was.Groups, uint32(i+1))
		}
		now := was
		now.Mounts, now.Groups = slices.Clone(was.Mounts), slices.Clone(was.Groups)
		rand.Shuffle(len(now.Mounts), func(i, j int) { now.Mounts[i], now.Mounts[j] = now.Mounts[j], now.Mounts[i] })
		if l := Taken(&was, &now); len(l) > 0 {
			t.Fatalf("%+v of an equal table", l)
		}
		if len(now.Mounts) == 0 {
			continue
		}
		cut := rand.IntN(len(now.Mounts))
		gone := now.Mounts[cut]
		now.Mounts = slices.Delete(now.Mounts, cut, cut+1)
		if l := Taken(&was, &now); len(l) != 1 || l[0].Line != gone.Line {
			t.Fatalf("%+v, want the line %d", l, gone.Line)
		}
		if l := Taken(&now, &was); len(l) > 0 {
			t.Fatalf("%+v of a longer table", l)
		}
	}
}
