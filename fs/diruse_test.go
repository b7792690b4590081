package fs

import (
	"testing"

	"cortexfs/node/fault"
)

// One uid's open directories, and the listings that they hold, are bounded: who
// fills a directory and opens it a thousand times does not fill the daemon
// (notes-security 98).
func TestOpenDirectoriesAreBounded(t *testing.T) {
	const alice, bob, root = 2001, 2002, 0
	var u dirUse
	var held []*handle
	for range maxDirs {
		if err := u.open(alice); err != nil {
			t.Fatal(err)
		}
		held = append(held, &handle{uid: alice})
	}
	if err := u.open(alice); !fault.Is(err, fault.TooMany) {
		t.Errorf("one too many: %v", err)
	}
	for _, uid := range []uint32{bob, root} {
		if err := u.open(uid); err != nil {
			t.Errorf("uid %d pays for another: %v", uid, err)
		}
	}
	if err := u.list(held[0], 2*maxListed); err != nil {
		t.Errorf("a single long listing: %v", err)
	}
	if err := u.list(held[1], 1); !fault.Is(err, fault.NoSpace) {
		t.Errorf("more beside it: %v", err)
	}
	if err := u.list(held[0], maxListed-1); err != nil { // read again, shorter
		t.Error(err)
	}
	if err := u.list(held[1], 1); err != nil {
		t.Error(err)
	}
	if err := u.list(held[2], 1); !fault.Is(err, fault.NoSpace) {
		t.Errorf("over the bound: %v", err)
	}
	if err := u.list(&handle{uid: bob}, maxListed); err != nil {
		t.Errorf("another uid: %v", err)
	}
	for _, h := range held {
		u.close(h)
	}
	if u.byUID[alice] != nil {
		t.Errorf("left: %+v", u.byUID[alice])
	}
	if err := u.list(held[0], 1); !fault.Is(err, fault.BadHandle) {
		t.Errorf("after the close: %v", err)
	}
}
