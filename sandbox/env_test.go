package sandbox

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestEnvironment(t *testing.T) {
	got := Environment("coder", "s1", 1000, []string{"/ctx/tool", "/ctx/home/1000/tool"}, []string{"A=b=c", "LANG=de_DE.UTF-8", "PATH=/opt/bin", "EMPTY="})
	want := []string{"CTX_ROOT=/ctx", "CTX_HOME=/ctx/home/1000", "HOME=/home/agent", "PATH=/opt/bin", "USER=coder", "LOGNAME=coder", "SHELL=/usr/bin/bash",
		"TERM=xterm-256color", "LANG=de_DE.UTF-8", "CTX_PATH=/ctx/tool:/ctx/home/1000/tool", "CTX_AGENT=coder", "CTX_SESSION=s1", "A=b=c", "EMPTY="}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for _, kv := range Environment("coder", "s1", 1000, nil, nil) {
		if strings.HasPrefix(kv, "CTX_PATH=") {
			t.Error("CTX_PATH without a path")
		}
	}
}

// The command gets exactly the plan's environment (and bubblewrap's PWD); nothing
// of ours is in /proc/1/environ either, which is read as root here.
func TestEnvironExact(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "do-not-tell")
	t.Setenv("LD_PRELOAD", "")
	w := newWorld(t)
	s := w.spec()
	s.Env = append(s.Env, "ODD=a b\"c'$x\\")
	b := w.start(s)
	want := append(slices.Clone(s.Env), "PWD=/workspace")
	slices.Sort(want)
	for what, text := range map[string]string{
		"/proc/1/environ":    b.do("read", "/proc/1/environ"),
		"/proc/self/environ": b.sh("cat /proc/$PPID/environ"),
	} {
		got := strings.Split(strings.TrimSuffix(text, "\x00"), "\x00")
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", what, got)
		}
	}
	// bwrap outside has none at all: what the agent's env control says is not for it.
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", b.PID))
	check(t, err)
	if strings.Contains(string(text), "=") && !strings.HasPrefix(string(text), "PWD=") {
		t.Errorf("bwrap's environment: %q", text)
	}
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", b.PID))
	check(t, err)
	if strings.Contains(string(text), w.base) || strings.Contains(string(text), "CTX_") {
		t.Errorf("bwrap's command line: %q", text)
	}
	// Start-up files of the host set nothing again.
	if out := b.sh("env -i /usr/bin/bash -lc env"); strings.Contains(out, "LEAK") || strings.Count(out, "\n") > 4 {
		t.Errorf("a login shell: %q", out)
	}
}

// No descriptor of ours or of whoever started us is inside.
func TestDescriptors(t *testing.T) {
	dir, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0) // inheritable on purpose
	check(t, err)
	defer unix.Close(dir)
	low, err := unix.FcntlInt(uintptr(dir), unix.F_DUPFD, 50)
	check(t, err)
	defer unix.Close(low)
	w := newWorld(t)
	b := w.start(w.spec())
	for _, fd := range strings.Split(strings.TrimSpace(b.do("descriptors")), "\n") {
		n, target, _ := strings.Cut(fd, "=")
		if len(n) > 1 || n > "2" && !strings.HasPrefix(target, "anon_inode:[event") {
			t.Errorf("descriptor %s is %s", n, target)
		}
	}
	// With a wire there is exactly one more.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(t, err)
	wire := os.NewFile(uintptr(pair[0]), "wire")
	defer wire.Close()
	defer unix.Close(pair[1])
	w2 := newWorld(t)
	w2.wire = wire
	b = w2.start(w2.spec())
	if out := b.sh("readlink /proc/1/fd/3"); !strings.HasPrefix(out, "socket:") {
		t.Errorf("the wire inside is %q", out)
	}
}

// What the small /etc is for: ordinary programs work in it.
func TestPrograms(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.spec())
	for line, want := range map[string]string{
		"echo a b | awk '{print $2}'": "b\n",
		"bash -c 'echo $((1+2))'":     "3\n",
		"python3 -c 'import os,pwd,ssl,multiprocessing as m; m.Queue(); print(pwd.getpwuid(os.getuid()).pw_name)'": "coder\n",
		"perl -e 'print getpwuid($<) . qq(\\n)'":     "coder\n",
		"whoami":                                     "coder\n",
		"getent hosts localhost | awk '{print $2}'":  "localhost\n",
		"getent services ssh/tcp | awk '{print $2}'": "22/tcp\n",
		"git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one && git log --format=%s": "one\n",
		"cat /etc/passwd | wc -l": "1\n",
		"date +%Z":                "",
		"ls /etc/shadow /root /var /home/agent/../root 2>&1 | grep -c 'No such'": "4\n",
	} {
		if name, _, _ := strings.Cut(line, " "); name == "python3" || name == "git" || name == "perl" {
			if _, err := os.Stat("/usr/bin/" + name); err != nil {
				continue
			}
		}
		out := b.sh(line)
		if want != "" && out != want || want == "" && (out == "" || strings.Contains(out, "rror")) {
			t.Errorf("%s: %q", line, out)
		}
	}
}

func TestProgramsUser(t *testing.T) {
	if asUser(t) {
		TestPrograms(t)
	}
}
