package tree_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"cortexfs/node/nodetest"
	"cortexfs/node/store"
)

// TestExecutablesNotInForce: what of one owner's executables is written and not in
// force takes a bounded part of the store's disk, however many files it is spread
// over; what is in force, thrown away or replaced is given back, and another owner
// does not feel it. The files here are sparse.
func TestExecutablesNotInForce(t *testing.T) {
	w := nodetest.New(t)
	if !w.Root {
		t.Skip("needs several users")
	}
	alice, bob := w.Client(nodetest.Alice, nodetest.Alice), w.Client(nodetest.Bob, nodetest.Bob)
	admin := root(w)
	for name, owner := range map[string]string{"a": "2001\n", "b": "2002\n"} {
		must(t, admin.Mkdir("/agent/"+name+".d", 0o755))
		must(t, save(admin, "/agent/"+name+".d/owner", owner))
	}
	tier := fmt.Sprintf("/home/%d/tool", nodetest.Alice)
	_, err := alice.ReadDir(tier)
	must(t, err)
	const large = store.MaxFile
	fill := func() (fds []nodetest.FD) {
		t.Helper()
		for i := range 4 {
			fd, err := alice.Open(fmt.Sprintf("%s/t%d", tier, i), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
			must(t, err)
			_, err = alice.Pwrite(fd, []byte("x"), large-1)
			must(t, err)
			fds = append(fds, fd)
		}
		return fds
	}
	for range 2 { // the second time over files in force
		fds := fill()
		fails(t, save(alice, "/agent/a.d/exec", "#!/bin/sh\n"), syscall.ENOSPC)
		fd, err := alice.Open(tier+"/one-more", os.O_WRONLY|os.O_CREATE, 0o755)
		must(t, err)
		_, err = alice.Write(fd, []byte("x"))
		fails(t, err, syscall.ENOSPC)
		fails(t, alice.Ftruncate(fd, 1), syscall.ENOSPC)
		must(t, alice.Close(fd))
		must(t, alice.Unlink(tier+"/one-more"))
		must(t, save(bob, "/agent/b.d/exec", "#!/bin/sh\n"))
		must(t, alice.Ftruncate(fds[0], 0))
		must(t, save(alice, "/agent/a.d/exec", "#!/bin/sh\n"))
		for _, fd := range fds {
			must(t, alice.Close(fd))
		}
	}
	// Replaced and removed drafts are given back.
	for range 3 {
		for i, fd := range fill() {
			must(t, alice.Close(fd))
			must(t, alice.Rename(fmt.Sprintf("%s/t%d", tier, i), tier+"/t0"))
		}
		must(t, alice.Unlink(tier+"/t0"))
	}
	must(t, save(alice, "/agent/a.d/exec", "#!/bin/sh\n"))
}

// TestHooksOfAPhase: as many as are run, by whatever way they come.
func TestHooksOfAPhase(t *testing.T) {
	w := nodetest.New(t)
	c := root(w)
	must(t, c.Mkdir("/agent/a.d", 0o755))
	dir := "/agent/a.d/hooks/pre.d/"
	for i := range 32 {
		must(t, save(c, fmt.Sprintf("%sh%d", dir, i), "#!/bin/sh\n"))
	}
	fails(t, save(c, dir+"h32", "#!/bin/sh\n"), syscall.EAGAIN)
	must(t, save(c, dir+"h31", "#!/bin/sh\nexit 1\n"))
	fd, err := c.Open(dir+".h31.new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	must(t, err)
	must(t, c.Close(fd))
	fails(t, c.Rename(dir+".h31.new", dir+"h32"), syscall.EAGAIN)
	must(t, c.Rename(dir+".h31.new", dir+"h31"))
	must(t, c.Unlink(dir+"h0"))
	must(t, save(c, dir+"h32", "#!/bin/sh\n"))
	must(t, save(c, "/agent/a.d/hooks/post.d/h", "#!/bin/sh\n"))
}
