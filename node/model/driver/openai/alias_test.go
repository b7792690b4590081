package openai

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"cortexfs/node/model"
)

func TestAliases(t *testing.T) {
	long := strings.Repeat("a.", 32)[:63] + "b"
	a := NewAliases([]string{"fs.read", "fs_read", "bash", "fs+read", long, "bash"}, model.NamesOpenAI)
	for name, want := range map[string]string{"fs_read": "fs_read", "bash": "bash"} {
		if got, ok := a.Alias(name); got != want || !ok {
			t.Errorf("%s: %s", name, got)
		}
	}
	// The real name keeps its place; the others get a digest and stay apart.
	x, _ := a.Alias("fs.read")
	y, _ := a.Alias("fs+read")
	if x == y || !strings.HasPrefix(x, "fs_read_") || a.Name(x) != "fs.read" || a.Name(y) != "fs+read" {
		t.Error(x, y)
	}
	if len(a.LeftOut) != 0 || a.Name("unknown") != "unknown" {
		t.Error(a.LeftOut)
	}
	if got, _ := NewAliases([]string{"fs.read"}, model.NamesAny).Alias("fs.read"); got != "fs.read" {
		t.Error(got)
	}
}

// TestCollisionIsRefused: a name whose every alias is taken is left out, and no
// other tool answers in its place.
func TestCollisionIsRefused(t *testing.T) {
	a := NewAliases([]string{"fs.read", "fs_read", digested("fs.read")}, model.NamesOpenAI)
	if alias, ok := a.Alias("fs.read"); ok || !slices.Equal(a.LeftOut, []string{"fs.read"}) {
		t.Error(alias, a.LeftOut)
	}
	if a.Name("fs_read") != "fs_read" {
		t.Error(a.Name("fs_read"))
	}
}

func TestAliasesAreOneToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfN(rapid.StringMatching(`[a-c][a-c._+\-]{0,6}|[a-c][a-c.]{60,63}`), 0, 60).Draw(t, "names")
		a := NewAliases(names, model.NamesOpenAI)
		seen := map[string]string{}
		for _, name := range names {
			alias, ok := a.Alias(name)
			if !ok {
				continue
			}
			if !accepted(alias) || a.Name(alias) != name || seen[alias] != "" && seen[alias] != name {
				t.Fatalf("%s: %s, back %s", name, alias, a.Name(alias))
			}
			seen[alias] = name
		}
		shuffled := slices.Clone(names)
		slices.Reverse(shuffled)
		b := NewAliases(shuffled, model.NamesOpenAI)
		for _, name := range names {
			x, _ := a.Alias(name)
			if y, _ := b.Alias(name); x != y {
				t.Fatalf("%s: %s or %s, by order", name, x, y)
			}
		}
	})
}
