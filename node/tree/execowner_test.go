package tree_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"cortexfs/node/nodetest"
)

// A handle on an executable from before its object changed hands, or went away,
// commits nothing (spec section 4.8; notes-security 94): what an agent runs is its
// owner's to say.
func TestExecutableAfterAnotherOwner(t *testing.T) {
	const old, mine = "#!/bin/sh\necho old\n", "#!/bin/sh\necho mine\n"
	for _, path := range []string{"/agent/a.d/exec", "/agent/a.d/hooks/pre.d/check"} {
		w := nodetest.New(t)
		if !w.Root {
			t.Skip("needs several users")
		}
		admin := root(w)
		alice, bob := w.Client(nodetest.Alice, nodetest.Alice), w.Client(nodetest.Bob, nodetest.Bob)
		must(t, admin.Mkdir("/agent/a.d", 0o755))
		must(t, save(admin, "/agent/a.d/owner", "2001\n"))

		// Written, not yet closed, when the owner changes.
		fd, err := alice.Open(path, os.O_WRONLY|os.O_CREATE, 0o755)
		must(t, err)
		_, err = alice.Write(fd, []byte(old))
		must(t, err)
		must(t, save(admin, "/agent/a.d/owner", "2002\n"))
		_, err = alice.Write(fd, []byte("more"))
		fails(t, err, syscall.ESTALE)
		if path != "/agent/a.d/exec" {
			must(t, bob.Unlink(path)) // the file itself is still hers
		}
		must(t, save(bob, path, mine)) // not held up by who held it before
		if got, err := read(bob, path); err != nil || got != mine {
			t.Errorf("%s reads %q, %v", path, got, err)
		}
		fails(t, alice.Close(fd), syscall.ESTALE)
		if got, err := read(bob, path); err != nil || got != mine {
			t.Errorf("%s after the old handle's close: %q, %v", path, got, err)
		}

		// The object goes and another one of its name comes.
		fd, err = bob.Open(path, os.O_WRONLY, 0)
		must(t, err)
		must(t, admin.Rmdir("/agent/a.d"))
		must(t, admin.Mkdir("/agent/a.d", 0o755))
		_, err = bob.Write(fd, []byte(old))
		fails(t, err, syscall.ESTALE)
		_ = bob.Close(fd)
		if got, err := read(admin, path); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s of the new object reads %q, %v", path, got, err)
		}
	}
}
