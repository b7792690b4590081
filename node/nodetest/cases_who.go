package nodetest

import (
	"os"
	"syscall"
)

// home makes an agent in a user's home and gives its directory and a process of
// that user.
func (k *kit) home(uid uint32) (dir string, c Client) {
	k.Helper()
	c = k.e.As(uid, uid, Project)
	serial++
	dir = "/home/" + itoa(uid) + "/agent/case" + itoa(serial) + ".d"
	k.ok(c.Mkdir(dir, 0o755))
	k.Cleanup(func() {
		if err := k.c.Rmdir(dir); err != nil && err != syscall.ENOENT {
			k.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir, c
}

// whoCases are rule 4.8: who may write, and what a non-root owner cannot gain.
var whoCases = []testCase{
	{name: "who/strangers read and do not write", users: true, run: func(k *kit) {
		alice := k.e.As(Alice, Alice)
		if got := k.read(alice, k.p("approval")); got != "auto\n" {
			k.Errorf("reads %q", got)
		}
		for _, name := range []string{"env", "mount", "log", "system.md", "prompt.template.md", "meta.json"} {
			_, err := alice.Open(k.p(name), os.O_RDONLY, 0)
			k.fails(err, syscall.EACCES)
		}
		_, err := alice.Open(k.p("approval"), os.O_WRONLY, 0)
		k.fails(err, syscall.EACCES)
		_, err = alice.Open(k.p("mount~"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		k.fails(err, syscall.EACCES)
		k.fails(alice.Unlink(k.p("policy")), syscall.EACCES)
		k.fails(alice.Rename(k.p("policy"), k.p("policy~")), syscall.EACCES)
		k.fails(alice.Truncate(k.p("policy"), 0), syscall.EACCES)
		k.fails(alice.Rmdir(k.dir), syscall.EACCES)
		k.fails(alice.Mkdir("/agent/hers.d", 0o755), syscall.EACCES)
		_, err = alice.ReadDir(k.p("hooks"))
		k.fails(err, syscall.EACCES)
		_, err = alice.ReadDir(k.p("view"))
		k.fails(err, syscall.EACCES)
		_, err = alice.Getxattr(k.p("policy"), "user.cortexfs.error")
		k.fails(err, syscall.ENODATA)
	}},
	{name: "who/scratch is its writer's", users: true, run: func(k *kit) {
		k.make("mount~", "secret")
		bob := k.e.As(Bob, Bob)
		names, err := bob.ReadDir(k.dir)
		k.ok(err)
		if len(names) != len(agentNames) {
			k.Errorf("a stranger sees %v", names)
		}
		_, err = bob.Lstat(k.p("mount~"))
		k.fails(err, syscall.ENOENT)
		k.ok(k.c.Unlink(k.p("mount~")))
	}},
	{name: "who/a home is its uid's", users: true, run: func(k *kit) {
		dir, alice := k.home(Alice)
		k.ok(save(alice, dir+"/approval", "ask\n"))
		bob := k.e.As(Bob, Bob)
		_, err := bob.ReadDir("/home/" + itoa(uint32(Alice)))
		k.fails(err, syscall.EACCES)
		_, err = bob.Open(dir+"/approval", os.O_RDONLY, 0)
		k.fails(err, syscall.EACCES)
		_, err = bob.Lstat("/home/2999")
		k.fails(err, syscall.ENOENT)
		st, err := alice.Lstat("/home/" + itoa(uint32(Alice)))
		k.ok(err)
		if st.Mode != 0o700 || st.UID != Alice {
			k.Errorf("home %+v", st)
		}
		k.ok(save(k.c, dir+"/approval", "auto\n")) // root
	}},
	{name: "who/an owner gains no ids", users: true, run: func(k *kit) {
		dir, alice := k.home(Alice)
		for name, bad := range map[string]string{"uid": "2002\n", "gid": "2002\n", "groups": "2002\n", "owner": "2002\n"} {
			k.fails(save(alice, dir+"/"+name, bad), syscall.EPERM)
		}
		for _, zero := range []string{"uid", "gid", "groups"} {
			k.fails(save(alice, dir+"/"+zero, "0\n"), syscall.EPERM)
			k.fails(save(k.c, dir+"/"+zero, "0\n"), syscall.EPERM)
		}
		k.ok(save(alice, dir+"/groups", itoa(uint32(Project))+"\n"))
		k.ok(save(alice, dir+"/gid", itoa(uint32(Project))+"\n"))
		k.ok(save(alice, dir+"/uid", itoa(uint32(Alice))+"\n"))
		fd, err := alice.Open(dir+"/groups", os.O_WRONLY|os.O_TRUNC, 0)
		k.ok(err)
		_, err = alice.Write(fd, []byte(itoa(uint32(Project))+"\n2"))
		k.ok(err)
		_, err = alice.Write(fd, []byte("002\n"))
		k.fails(err, syscall.EPERM)
		k.fails(alice.Close(fd), syscall.EPERM)
		if got := k.read(alice, dir+"/groups"); got != itoa(uint32(Project))+"\n" {
			k.Errorf("groups reads %q", got)
		}
	}},
	{name: "who/a label type of somebody else", users: true, run: func(k *kit) {
		mine, alice := k.home(Alice)
		his, bob := k.home(Bob)
		label := k.read(alice, mine+"/label")
		k.fails(save(bob, his+"/label", label), syscall.EPERM)
		k.ok(save(bob, his+"/label", "user_u:agent_r:bobs_own_t:s0\n"))
		k.fails(save(alice, mine+"/label", "bobs_own_t\n"), syscall.EPERM)
		temp := his + "/label.tmp"
		k.ok(put(bob, temp, label, os.O_EXCL))
		k.fails(bob.Rename(temp, his+"/label"), syscall.EPERM)
		k.ok(bob.Unlink(temp))
	}},
	{name: "who/the opener judges every write", users: true, run: func(k *kit) {
		// A setuid program that gets the descriptor writes with root's ids.
		dir, alice := k.home(Alice)
		p, ok := alice.(*Proc)
		if !ok {
			k.Skip("needs a descriptor in another process")
		}
		root := k.c.(*Proc)
		fd, err := alice.Open(dir+"/uid", os.O_WRONLY|os.O_TRUNC, 0)
		k.ok(err)
		handed := root.Take(p, fd)
		_, err = root.Write(handed, []byte("2002\n"))
		k.fails(err, syscall.EPERM)
		k.fails(root.Close(handed), syscall.EPERM)
		k.fails(alice.Close(fd), syscall.EPERM)
	}},
	{name: "who/the owner changed under an open handle", users: true, run: func(k *kit) {
		dir, alice := k.home(Alice)
		fd, err := k.c.Open(k.p("policy"), os.O_WRONLY|os.O_TRUNC, 0)
		k.ok(err)
		k.write(k.c, fd, ruleA)
		k.ok(save(k.c, k.p("owner"), itoa(uint32(Alice))+"\n"))
		k.fails(k.c.Close(fd), syscall.ESTALE)
		k.ok(save(alice, k.p("policy"), ruleB)) // hers now
		k.is("policy", ruleB)
		k.ok(save(k.c, k.p("owner"), itoa(k.e.UID)+"\n"))
		_ = dir
	}},
	{name: "who/agents belong to who makes them", users: true, run: func(k *kit) {
		dir, alice := k.home(Alice)
		for name, want := range map[string]string{"owner": "2001\n", "uid": "2001\n", "gid": "2001\n", "iso": "shared\n", "abi": "sdk-envelope-v1\n"} {
			if name == "gid" && k.e.Mounted {
				continue // the machine need not know the account
			}
			if got := k.read(alice, dir+"/"+name); got != want {
				k.Errorf("%s = %q, want %q", name, got, want)
			}
		}
		st, err := alice.Lstat(dir + "/policy")
		k.ok(err)
		if st.UID != Alice {
			k.Errorf("policy belongs to %d", st.UID)
		}
		k.ok(alice.Rmdir(dir))
		_, err = alice.Lstat(dir)
		k.fails(err, syscall.ENOENT)
	}},
	{name: "who/limits of one uid", users: true, run: func(k *kit) {
		if k.e.Mounted {
			k.Skip("takes thousands of descriptors of the client")
		}
		dir, carol := k.home(Carol)
		var fds []FD
		for {
			fd, err := carol.Open(dir+"/approval", os.O_RDONLY, 0)
			if err != nil {
				k.fails(err, syscall.EMFILE)
				break
			}
			fds = append(fds, fd)
		}
		if len(fds) != 4096 {
			k.Errorf("%d handles", len(fds))
		}
		k.ok(save(k.e.As(Alice, Alice), "/home/2001/.tshrc", "")) // others are not concerned
		for _, fd := range fds {
			k.ok(carol.Close(fd))
		}
		fds = nil
		for {
			fd, err := carol.Open(dir+"/policy", os.O_WRONLY, 0)
			if err != nil {
				k.fails(err, syscall.EAGAIN)
				break
			}
			fds = append(fds, fd)
		}
		if len(fds) != 1024 {
			k.Errorf("%d drafts", len(fds))
		}
		for _, fd := range fds {
			k.ok(carol.Close(fd))
		}
		big := make([]byte, 1<<20)
		n := 0
		for ; n < 64; n++ {
			fd, err := carol.Open(dir+"/mount."+itoa(n), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			k.ok(err)
			_, err = carol.Write(fd, big)
			k.ok(carol.Close(fd))
			if err != nil {
				k.fails(err, syscall.ENOSPC)
				break
			}
		}
		if n != 16 {
			k.Errorf("%d MiB of scratch", n)
		}
	}},
}
