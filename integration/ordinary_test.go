package integration

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestOrdinaryDirectories runs what a user does in home/<uid>/agent/<name> and
// shared/<space>/data: POSIX behaviour over the store (issue 2, item 2). Each
// script runs as a plain user in a directory of its own.
func TestOrdinaryDirectories(t *testing.T) {
	d := newDaemon(t, "")
	d.agentDir(alice, "home/2001/agent/mine.d")
	home := filepath.Join(d.mnt, "home/2001/agent/mine")
	backing := filepath.Join(d.store, "durable/home/2001/agent/mine")
	for _, c := range []struct{ name, script string }{
		{"the state directories are there", `cd "$H" && for x in root session data cache log; do [ -d $x ] || exit 1; done`},
		{"create, append, read", `echo a > f && echo b >> f && [ "$(cat f)" = "a
b" ] && [ "$(stat -c %s f)" = 4 ]`},
		{"rename over", `echo a > f; echo b > g; mv f g && [ "$(cat g)" = a ] && [ ! -e f ]`},
		{"rename a directory with content", `mkdir -p x/y && echo 1 > x/y/z && mv x w && [ "$(cat w/y/z)" = 1 ]`},
		{"hard link", `echo a > f && ln f g && [ "$(stat -c %h f)" = 2 ] && [ f -ef g ] && echo b >> f && [ "$(cat g)" = "a
b" ] && rm f && [ "$(stat -c %h g)" = 1 ]`},
		{"symlinks, also dangling", `ln -s nowhere l && [ "$(readlink l)" = nowhere ] && echo x > nowhere && [ "$(cat l)" = x ]`},
		{"truncate and sparse", `truncate -s 1M f && [ "$(stat -c %s f)" = 1048576 ] && truncate -s 3 f && [ "$(stat -c %s f)" = 3 ]`},
		{"removed but open", `echo a > f; exec 3<> f; rm f; echo b >&3; read x <&3 || true; [ ! -e f ]`},
		{"modes and umask", `umask 027; mkdir m; touch m/f; [ "$(stat -c %a m m/f)" = "750
640" ] && chmod 4711 m/f && chmod 2775 m && [ "$(stat -c %a m)" = 2775 ]`},
		{"times", `touch -d '2001-02-03 04:05:06 UTC' f && [ "$(stat -c %Y f)" = 981173106 ]`},
		{"extended attributes of users only", `touch f && setfattr -n user.x -v y f && [ "$(getfattr --only-values -n user.x f)" = y ] && ! setfattr -n trusted.x -v y f 2>/dev/null && ! setfattr -n user.cortexfs.kind -v y f 2>/dev/null && setfattr -x user.x f`},
		{"a socket in the tree", `python3 -c '
import socket
s = socket.socket(socket.AF_UNIX); s.bind("sock"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect("sock"); a, _ = s.accept(); c.sendall(b"hi"); assert a.recv(9) == b"hi"' && [ -S sock ] && rm sock`},
		{"a FIFO", `mkfifo p && (echo hi > p &) && [ "$(cat p)" = hi ]`},
		{"mmap, shared and private", `python3 -c '
import mmap
open("f", "wb").write(b"a" * 10000)
f = open("f", "r+b"); m = mmap.mmap(f.fileno(), 0); m[5000:5003] = b"xyz"; m.flush(); m.close()
assert open("f", "rb").read()[4999:5004] == b"axyza"
p = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY); p[0:1] = b"z"; p.close()
assert open("f", "rb").read(1) == b"a"'`},
		{"locks between processes", `python3 -c '
import fcntl, os, sys
f = open("f", "w"); f.write("0123456789"); f.flush(); fcntl.lockf(f, fcntl.LOCK_EX, 4, 0)
def child(what):
    pid = os.fork()
    if pid == 0:
        try: what(open("f", "r+")); os._exit(0)
        except OSError: os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert child(lambda g: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 2)) == 9, "overlap"
assert child(lambda g: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 4, 4)) == 0, "beside"
fcntl.lockf(f, fcntl.LOCK_UN)
assert child(lambda g: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB)) == 0, "unlocked"
fcntl.flock(f, fcntl.LOCK_EX)
assert child(lambda g: fcntl.flock(g, fcntl.LOCK_SH | fcntl.LOCK_NB)) == 9, "flock"'`},
		{"a waiting lock is woken, and can be interrupted", `touch f; flock f sh -c 'sleep 0.3' & sleep 0.1; flock f true && wait && flock f sleep 1 & sleep 0.1; timeout -s INT 0.2 flock f true; [ $? = 124 ]; wait`},
		{"O_APPEND from several writers loses nothing", `for i in 1 2 3 4; do (for k in $(seq 200); do echo line >> f; done) & done; wait; [ "$(wc -l < f)" = 800 ]`},
		{"sqlite-like pwrite and fsync", `python3 -c '
import os
fd = os.open("f", os.O_RDWR | os.O_CREAT); os.pwrite(fd, b"x" * 4096, 8192); os.fsync(fd); os.fdatasync(fd); assert os.pread(fd, 2, 0) == b"\0\0"
d = os.open(".", os.O_RDONLY); os.fsync(d)'`},
		{"100 MB intact", `head -c 100000000 /dev/urandom > "$E/big" && cp "$E/big" big && cmp big "$E/big" && rm big "$E/big"`},
		{"git works", `git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git fsck --strict 2>/dev/null && [ -z "$(git status --porcelain)" ]`},
		{"tar and rsync-like copies", `mkdir a && echo 1 > a/f && ln -s f a/l && tar cf - a | (mkdir b && cd b && tar xf -) && diff -r a b/a && cp -a a c && diff -r a c`},
		{"many names", `for i in $(seq 1500); do : > n$i; done; [ "$(ls | wc -l)" = 1500 ] && rm n* && [ -z "$(ls)" ]`},
		{"odd names", `touch -- "a b" $'new\nline' "日本 🚀" "-v" ".hidden" && [ "$(ls -A | wc -l)" -ge 5 ]`},
		{"names too long", `! touch "$(head -c 256 /dev/zero | tr '\0' x)" 2> err && grep -q 'too long' err`},
		{"no way out by ..", `[ "$(cd "$H/../../../../.." && pwd -P)" = "$R" ]`},
		{"border: mv copies, link does not cross", `echo x > f && ! ln f "$M/home/2001/tool/f" 2> err && grep -q 'cross-device' err && mv f "$M/home/2001/tool/f" && [ "$(cat "$M/home/2001/tool/f")" = x ] && rm "$M/home/2001/tool/f"`},
		{"statfs is the store's", `[ "$(stat -f -c %S .)" -gt 0 ] && [ "$(df --output=size . | tail -1)" = "$(df --output=size "$B" 2>/dev/null | tail -1 || df --output=size . | tail -1)" ] || [ ! -r "$B" ]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			elsewhere := t.TempDir()
			vars := []string{"H=" + home, "M=" + d.mnt, "E=" + elsewhere, "B=" + backing, "R=" + filepath.Dir(d.mnt), "HOME=" + elsewhere}
			if r := d.sh(who{}, `chown 2001:2001 "$E" "$(dirname "$E")"; chmod 755 "$(dirname "$E")"`, vars...); r.code != 0 {
				t.Fatalf("%+v", r)
			}
			r := d.sh(alice, `set -u; mkdir "$H/data/case" && cd "$H/data/case" && (`+c.script+`)`, vars...)
			if r.code != 0 {
				t.Errorf("exit %d: %s", r.code, r.out)
			}
			if r := d.sh(alice, `rm -rf "$H/data/case"`, vars...); r.code != 0 {
				t.Errorf("clean up: %+v", r)
			}
		})
	}
	if r := d.sh(who{}, `find "$S/durable" -path '*/case*'`, "S="+d.store); r.out != "" {
		t.Errorf("left in the store:\n%s", r.out)
	}
	if r := d.sh(bob, `ls "$H"`, "H="+home); r.code == 0 || !strings.Contains(r.out, "Permission denied") {
		t.Errorf("a stranger lists another's home: %+v", r)
	}
}
