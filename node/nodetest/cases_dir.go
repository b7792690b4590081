package nodetest

import (
	"os"
	"slices"
	"strings"
	"syscall"
)

// dirCases are the rules of section 2: what is where, and what cannot be.
var dirCases = []testCase{
	{name: "dir/the root is fixed", run: func(k *kit) {
		names, err := k.c.ReadDir("/")
		k.ok(err)
		if want := []string{"agent", "bin", "home", "model", "shared", "status", "tool"}; !slices.Equal(names, want) {
			k.Errorf("the root holds %v", names)
		}
		for _, name := range []string{"/spawn", "/audit", "/x"} {
			_, err := k.c.Open(name, os.O_WRONLY|os.O_CREATE, 0o644)
			k.fails(err, syscall.EPERM)
			k.fails(k.c.Mkdir(name, 0o755), syscall.EPERM)
			k.fails(k.c.Symlink("status", name), syscall.EPERM)
		}
		for _, name := range names {
			k.fails(k.c.Rename("/"+name, "/other"), syscall.EPERM)
		}
		k.fails(k.c.Unlink("/status"), syscall.EPERM)
		k.fails(k.c.Rmdir("/tool"), syscall.EPERM)
		if got := k.read(k.c, "/status"); got != "ready\n" && got != "degraded\n" {
			k.Errorf("status reads %q", got)
		}
		if v, err := k.c.Getxattr("/", "user.cortexfs.runtime"); err != nil || !strings.HasPrefix(v, "/") {
			k.Errorf("runtime %q, %v", v, err)
		}
		if _, err := k.c.Getxattr("/", "user.cortexfs.version"); err != nil {
			k.Error(err)
		}
	}},
	{name: "dir/bin is the daemon's", run: func(k *kit) {
		names, err := k.c.ReadDir("/bin")
		k.ok(err)
		for _, n := range names {
			_, err := k.c.Open("/bin/"+n, os.O_WRONLY, 0)
			k.fails(err, syscall.EPERM, syscall.EACCES)
			k.fails(k.c.Unlink("/bin/"+n), syscall.EPERM)
		}
		_, err = k.c.Open("/bin/x", os.O_WRONLY|os.O_CREATE, 0o755)
		k.fails(err, syscall.EPERM)
	}},
	{name: "dir/an agent is a triple", run: func(k *kit) {
		name := strings.TrimSuffix(k.dir, ".d")
		st, err := k.c.Lstat(name)
		k.ok(err)
		if st.Type != 'f' || st.Mode != 0o755 {
			k.Errorf("%+v", st)
		}
		if text := k.read(k.c, name); int64(len(text)) != st.Size {
			k.Errorf("size %d, %d bytes read", st.Size, len(text))
		}
		_, err = k.c.Lstat(name + ".sock")
		k.fails(err, syscall.ENOENT)
		_, err = k.c.Open(name, os.O_WRONLY, 0)
		k.fails(err, syscall.EPERM)
		k.fails(k.c.Unlink(name), syscall.EPERM)
		names, err := k.c.ReadDir("/agent")
		k.ok(err)
		for _, n := range []string{name[len("/agent/"):], name[len("/agent/"):] + ".d"} {
			if !slices.Contains(names, n) {
				k.Errorf("%s is not listed", n)
			}
		}
	}},
	{name: "dir/names of agents", run: func(k *kit) {
		for name, want := range map[string]syscall.Errno{
			"/agent/.x.d": syscall.EINVAL, "/agent/-v.d": syscall.EINVAL, "/agent/a b.d": syscall.EINVAL,
			"/agent/" + strings.Repeat("n", 63) + ".d": syscall.EINVAL, "/agent/x.d.d": syscall.EINVAL, "/agent/x.sock.d": syscall.EINVAL,
			"/agent/plain": syscall.EPERM, "/agent/.d": syscall.EINVAL,
			"/agent/" + strings.Repeat("n", 254) + ".d": syscall.ENAMETOOLONG,
		} {
			k.fails(k.c.Mkdir(name, 0o755), want)
		}
		k.fails(k.c.Mkdir(k.dir, 0o755), syscall.EEXIST)
		_, err := k.c.Open("/agent/x", os.O_WRONLY|os.O_CREATE, 0o755)
		k.fails(err, syscall.EPERM)
		k.fails(k.c.Symlink("x", "/agent/x.sock"), syscall.EPERM)
	}},
	{name: "dir/rename and link stay inside", run: func(k *kit) {
		serial++
		other := "/agent/case" + itoa(serial) + ".d"
		k.ok(k.c.Mkdir(other, 0o755))
		defer k.c.Rmdir(other)
		path := k.tool(script)
		k.make("mount~", table)
		exdev, eperm := syscall.EXDEV, syscall.EPERM
		for _, c := range []struct {
			from, to string
			want     []syscall.Errno
		}{
			{k.p("mount~"), other + "/mount", []syscall.Errno{exdev}},
			{k.p("mount"), other + "/mount", []syscall.Errno{exdev}},
			{k.p("mount~"), "/tool/mount", []syscall.Errno{exdev}},
			{k.p("mount~"), "/agent/mount", []syscall.Errno{exdev}},
			{path, other + "/exec", []syscall.Errno{exdev}},
			{path, "/agent/x", []syscall.Errno{exdev}},
			{k.dir, "/agent/renamed.d", []syscall.Errno{eperm}},
			{k.dir, "/tool/renamed.d", []syscall.Errno{exdev}},
			{"/agent", "/tool/x", []syscall.Errno{exdev, eperm}},
		} {
			k.fails(k.c.Rename(c.from, c.to), c.want...)
		}
		k.fails(k.c.Link(k.p("mount"), other+"/mount~"), exdev)
		k.fails(k.c.Link(k.p("mount~"), "/tool/mount"), exdev)
		k.fails(k.c.Link(path, other+"/exec~"), exdev)
		k.ok(k.c.Unlink(k.p("mount~")))
	}},
	{name: "dir/rmdir removes the agent and its open files fail", run: func(k *kit) {
		k.set("policy", ruleA)
		k.ok(k.c.Rmdir(k.dir))
		_, err := k.c.Lstat(k.dir)
		k.fails(err, syscall.ENOENT)
		_, err = k.c.Lstat(strings.TrimSuffix(k.dir, ".d"))
		k.fails(err, syscall.ENOENT)
		k.ok(k.c.Mkdir(k.dir, 0o755))
		k.is("policy", "")
	}},
	{name: "dir/view is not listed and read-only", run: func(k *kit) {
		names, err := k.c.ReadDir(k.p("view"))
		k.ok(err)
		if want := []string{"agent", "bin", "home", "model", "shared", "status", "tool"}; !slices.Equal(names, want) {
			k.Errorf("the view holds %v", names)
		}
		self := k.p("view/agent/" + strings.TrimPrefix(k.dir, "/agent/"))
		k.set("policy", ruleA)
		if got := k.read(k.c, self+"/policy"); got != ruleA {
			k.Errorf("policy in the view reads %q", got)
		}
		k.fails(save(k.c, self+"/policy", ruleB), syscall.EROFS)
		k.fails(k.c.Unlink(self+"/policy"), syscall.EROFS)
		k.fails(k.c.Mkdir(k.p("view/agent/x.d"), 0o755), syscall.EROFS)
		_, err = k.c.Open(k.p("view/tool/x"), os.O_WRONLY|os.O_CREATE, 0o755)
		k.fails(err, syscall.EROFS)
		_, err = k.c.Open(k.p("view/status"), os.O_WRONLY, 0)
		k.fails(err, syscall.EROFS, syscall.EACCES) // EACCES: the kernel, by the mode
		for _, hidden := range []string{"view", "exec", "log"} {
			_, err := k.c.Lstat(self + "/" + hidden)
			k.fails(err, syscall.ENOENT)
		}
	}},
	{name: "dir/models", run: func(k *kit) {
		serial++
		provider := "/model/p" + itoa(serial)
		alias := "/model/alias" + itoa(serial)
		k.ok(k.c.Mkdir(provider, 0o755))
		k.ok(k.c.Mkdir(provider+"/m.d", 0o755))
		k.ok(k.c.Symlink(provider[len("/model/"):]+"/m", alias))
		if got, err := k.c.Readlink(alias); err != nil || got != provider[len("/model/"):]+"/m" {
			k.Errorf("alias %q, %v", got, err)
		}
		k.ok(save(k.c, provider+"/m.d/effort", "high\n"))
		k.fails(save(k.c, provider+"/m.d/effort", "huge\n"), syscall.EINVAL)
		k.fails(k.c.Symlink("../x", "/model/evil"), syscall.EPERM)
		k.fails(k.c.Rmdir(provider), syscall.ENOTEMPTY)
		k.ok(k.c.Unlink(alias))
		k.ok(k.c.Rmdir(provider + "/m.d"))
		k.ok(k.c.Rmdir(provider))
	}},
}

// ordinaryCases are the border to the ordinary directories; what they do inside
// is package ordinary's.
var ordinaryCases = []testCase{
	{name: "ordinary/a home", run: func(k *kit) {
		home := "/home/" + itoa(k.e.UID)
		names, err := k.c.ReadDir(home)
		k.ok(err)
		for _, n := range []string{"agent", "model", "tool"} {
			if !slices.Contains(names, n) {
				k.Errorf("%s lacks %s", home, n)
			}
		}
		for _, n := range []string{"x", ".bashrc"} {
			_, err := k.c.Open(home+"/"+n, os.O_WRONLY|os.O_CREATE, 0o644)
			k.fails(err, syscall.EPERM)
		}
		k.fails(k.c.Mkdir(home+"/dir", 0o755), syscall.EPERM)
		k.fails(k.c.Rename(home+"/agent", home+"/x"), syscall.EPERM)
		k.ok(save(k.c, home+"/.tshrc", "CTX_PATH=/ctx/tool\n"))
		temp := home + "/.tshrc.swp"
		k.ok(put(k.c, temp, "# new\n", os.O_EXCL))
		k.ok(k.c.Rename(temp, home+"/.tshrc"))
		if got := k.read(k.c, home+"/.tshrc"); got != "# new\n" {
			k.Errorf(".tshrc reads %q", got)
		}
		k.fails(k.c.Rename(home+"/.tshrc", k.p("system.md")), syscall.EXDEV)
		k.fails(k.c.Link(home+"/.tshrc", k.p("system.md~")), syscall.EXDEV)
		k.fails(k.c.Link(k.p("system.md"), home+"/.tshrc~"), syscall.EXDEV)
		k.ok(k.c.Unlink(home + "/.tshrc"))
	}},
	{name: "ordinary/an agent's own directory", run: func(k *kit) {
		base := "/home/" + itoa(k.e.UID) + "/agent/" + strings.TrimSuffix(k.dir[len("/agent/"):], ".d")
		names, err := k.c.ReadDir(base)
		k.ok(err)
		if want := []string{"cache", "data", "log", "root", "session"}; !slices.Equal(names, want) {
			k.Errorf("%s holds %v", base, names)
		}
		file := base + "/data/file"
		k.ok(save(k.c, file, "text"))
		k.ok(k.c.Link(file, file+"2"))
		k.ok(k.c.Rename(file+"2", base+"/cache/file"))
		k.fails(k.c.Rename(file, k.p("mount")), syscall.EXDEV)
		k.fails(k.c.Rename(k.p("mount"), base+"/data/mount"), syscall.EXDEV)
		k.fails(k.c.Rename(file, "/tool/file"), syscall.EXDEV)
		k.fails(k.c.Rename(base+"/data", "/agent/data"), syscall.EXDEV)
		if got := k.read(k.c, base+"/cache/file"); got != "text" {
			k.Errorf("reads %q", got)
		}
		k.ok(k.c.Unlink(file))
		k.ok(k.c.Unlink(base + "/cache/file"))
		for _, n := range names {
			k.ok(k.c.Rmdir(base + "/" + n))
		}
		k.ok(k.c.Rmdir(base))
	}},
	{name: "ordinary/a shared space", users: true, run: func(k *kit) {
		serial++
		space := "/shared/space" + itoa(serial)
		alice := k.e.As(Alice, Alice)
		k.fails(alice.Mkdir(space, 0o755), syscall.EACCES)
		k.ok(k.c.Mkdir(space, 0o755))
		names, err := alice.ReadDir(space)
		k.ok(err)
		if want := []string{"agent", "data", "tool"}; !slices.Equal(names, want) {
			k.Errorf("%s holds %v", space, names)
		}
		k.ok(save(k.c, space+"/data/f", "shared"))
		if got := k.read(alice, space+"/data/f"); got != "shared" {
			k.Errorf("reads %q", got)
		}
		_, err = alice.Open(space+"/tool/t", os.O_WRONLY|os.O_CREATE, 0o755)
		k.fails(err, syscall.EACCES)
		k.fails(k.c.Mkdir(space+"/x", 0o755), syscall.EPERM)
		k.fails(k.c.Rename(space+"/data", space+"/x"), syscall.EPERM)
		k.ok(k.c.Unlink(space + "/data/f"))
	}},
}
