package tree

import (
	"os"
	"slices"
	"testing"
)

// Groups count for who has them: not for a request that came with other ids than
// its thread's.
func TestGroupsOfTheCallerOnly(t *testing.T) {
	tid, uid := uint32(os.Getpid()), uint32(os.Geteuid())
	want, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	var groups []int
	for _, g := range groupsOf(tid, uid) {
		groups = append(groups, int(g))
	}
	slices.Sort(groups)
	slices.Sort(want)
	if !slices.Equal(groups, want) {
		t.Errorf("own groups %v, want %v", groups, want)
	}
	if got := groupsOf(tid, uid+1); got != nil {
		t.Errorf("another uid gets %v", got)
	}
	if got := groupsOf(0, uid); got != nil {
		t.Errorf("nobody gets %v", got)
	}
}
