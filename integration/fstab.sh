#!/bin/bash
# fstab.sh BIN VARIANT ROUNDS: /etc/fstab, mount(8), umount(8) and crashes, for real; run by private.sh. VARIANT is
# fuse3 (type fuse.cortexfs through mount.fuse3), own (the same without mount.fuse3, through our helper) or cortexfs
# (type cortexfs). Prints a line that begins with FAIL for everything that is not as it should be.
set -u
bin=$1 variant=$2 rounds=$3
dir=/run/m store=/run/m/store mnt=/run/m/ctx
export CTX_ROOT=$mnt
case $variant in
fuse3) type=fuse.cortexfs; ln -s "$bin/cortexfs" $dir/sbin/cortexfs; [ -x /usr/sbin/mount.fuse3 ] || { echo "SKIP no mount.fuse3"; exit 0; } ;;
own) type=fuse.cortexfs; ln -s "$bin/cortexfs" $dir/sbin/mount.fuse.cortexfs; mknod $dir/sbin/mount.fuse c 0 0; mknod $dir/sbin/mount.fuse3 c 0 0 ;;
cortexfs) type=cortexfs; ln -s "$bin/cortexfs" $dir/sbin/mount.cortexfs; mknod $dir/sbin/mount.fuse c 0 0; mknod $dir/sbin/mount.fuse3 c 0 0 ;;
esac
mount -t overlay overlay -o "lowerdir=$dir/sbin:/usr/sbin" /usr/sbin || { echo "SKIP no overlayfs"; exit 0; }
mkdir -m 700 $store; mkdir $mnt

fail() { echo "FAIL $*"; }
# bare runs a command as a boot does: no PATH, no HOME, no terminal.
bare() { env -i "$@" < /dev/null; }
# want CODE COMMAND…
want() { local code=$1 out got; shift; out=$("$@" 2>&1); got=$?; said=$out; [ $got = "$code" ] || fail "exit $got, not $code: $*: $out"; }
says() { [[ $said == *"$1"* ]] || fail "does not say '$1': $said"; }
live() { [ "$(cat $mnt/status 2>&1)" = ready ] || fail "$1: not live: $(cat $mnt/status 2>&1)"; }
entries() { grep -c " $mnt " /proc/self/mountinfo; }
gone() { # the daemon is gone and nothing is mounted
	for _ in $(seq 400); do [ -d "/proc/$1" ] || break; sleep 0.02; done
	[ ! -d "/proc/$1" ] || fail "$2: the daemon $1 lives on"
	[ "$(entries)" = 0 ] || fail "$2: still mounted: $(grep " $mnt " /proc/self/mountinfo)"
}
pid() { "$bin/ctx" status -o json | sed -n 's/.*"daemon_pid": *\([0-9]*\).*/\1/p'; }
fstab() { echo "$store $mnt $type $1 0 0" > $dir/fstab; }

# mount -a, twice; one entry; a source that systemd does not take for a device; type fuse.cortexfs
fstab allow_other,nofail,_netdev,x-systemd.requires=dbus.service,comment=ours
want 0 bare /usr/bin/mount -a; live "mount -a"
want 0 bare /usr/bin/mount -a
[ "$(entries)" = 1 ] || fail "mount -a twice: $(entries) entries"
source=$(findmnt -no SOURCE $mnt); [ "${source#/dev/}" = "$source" ] || fail "source $source"
[ "$(findmnt -no FSTYPE $mnt)" = fuse.cortexfs ] || fail "type $(findmnt -no FSTYPE $mnt)"
[[ ",$(findmnt -no OPTIONS $mnt)," == *,nosuid,*nodev,* ]] || fail "options $(findmnt -no OPTIONS $mnt)"
d=$(pid); [ -n "$(tr -d '\0' < /proc/$d/environ)" ] && fail "the daemon has an environment: $(tr '\0' ' ' < /proc/$d/environ)"
[ "$(readlink /proc/$d/cwd)" = / ] || fail "the daemon keeps $(readlink /proc/$d/cwd)"
want 0 umount $mnt; gone "$d" "umount"

# mount MOUNTPOINT, fusermount3 -u; no output stays open
want 0 timeout 20 bash -c "env -i /usr/bin/mount -a 2>&1 | cat"; live "mount -a | cat"; d=$(pid)
want 0 fusermount3 -u $mnt; gone "$d" "fusermount3 -u"
want 0 bare /usr/bin/mount $mnt; live "mount $mnt"; d=$(pid)
# a busy tree is not torn away
( cd $mnt && want 32 umount $mnt ); live "busy"
want 0 umount $mnt; gone "$d" "umount"

# crashes: cleared and replaced, one entry however many
want 0 bare /usr/bin/mount $mnt
for _ in 1 2 3; do
	d=$(pid); kill -9 "$d"; for _ in $(seq 200); do [ -d "/proc/$d" ] || break; sleep 0.01; done
	want 1 cat $mnt/status; says "not connected"
	want 0 bare /usr/bin/mount $mnt; live "after a crash"
	[ "$(entries)" = 1 ] || fail "after a crash: $(entries) entries"
done
# mounted already: refused, nothing changes
want 32 bare "$bin/cortexfs" $store $mnt; says "mounted there already"
# two daemons on one store: the second names the first
mkdir $dir/second; want 32 bare "$bin/cortexfs" $store $dir/second; says "$(pid)"; says $mnt
rmdir $dir/second || fail "something is left on the second mount point"
d=$(pid); want 0 umount $mnt; gone "$d" "umount"

# something else mounted there is never touched
mount -t tmpfs tmpfs $mnt
want 32 bare /usr/bin/mount -t $type $store $mnt -o allow_other; says "tmpfs"
[ "$(findmnt -no FSTYPE $mnt)" = tmpfs ] || fail "a foreign mount was touched"
umount $mnt

# options: unknown ones by name, ro, noexec and user
fstab allow_other,backing=/var/lib/x
out=$(bare /usr/bin/mount $mnt 2>&1) && fail "an unknown option was taken"
[[ $out == *backing=/var/lib/x* ]] || fail "the unknown option is not named: $out"
[ "$(entries)" = 0 ] || fail "mounted with an unknown option"
fstab ro; want 0 bare /usr/bin/mount $mnt
want 1 touch $mnt/agent/x; says "Read-only"
d=$(pid); umount $mnt; gone "$d" "umount ro"
fstab user; want 0 bare /usr/bin/mount $mnt; says "user,exec"
[[ ",$(findmnt -no OPTIONS $mnt)," == *,noexec,* ]] || fail "noexec was dropped: $(findmnt -no OPTIONS $mnt)"
d=$(pid); umount $mnt; gone "$d" "umount user"
fstab user,exec; want 0 bare /usr/bin/mount $mnt; [[ $said != *noexec* ]] || fail "speaks of noexec: $said"
d=$(pid); umount $mnt; gone "$d" "umount user,exec"

# what cannot be mounted: 32, soon, with the reason
echo "/nonexistent/store $mnt $type nofail 0 0" > $dir/fstab
t=$SECONDS; want 32 bare /usr/bin/mount $mnt; says "/nonexistent/store"; [ $((SECONDS - t)) -le 5 ] || fail "took $((SECONDS - t)) s"
mkdir -m 755 $dir/open; want 32 bare "$bin/cortexfs" $dir/open $mnt; says "chmod 700 $dir/open"
mkdir -m 700 $mnt/inside; want 32 bare "$bin/cortexfs" $mnt/inside $mnt; says "inside the mount point"
want 32 bare "$bin/cortexfs" $store $store/durable; says "inside the store"; rmdir $mnt/inside
want 32 bare "$bin/cortexfs" $store $dir/nowhere; says "no such directory"

# a plain user's line: mount(8) gives up its rights before it calls us
mkdir -m 700 $dir/home/store $dir/home/ctx; chown 2001:2001 $dir/home/store $dir/home/ctx
echo "$dir/home/store $dir/home/ctx $type user,exec,noauto 0 0" > $dir/fstab
as() { setpriv --reuid 2001 --regid 2001 --clear-groups env -i "$@" < /dev/null; }
chmod 755 /run/m
want 0 as /usr/bin/mount $dir/home/ctx
want 0 as cat $dir/home/ctx/status; says ready
want 1 cat $dir/home/ctx/status # not root's to enter
want 0 as /usr/bin/fusermount3 -u $dir/home/ctx

# rounds with readers
fstab allow_other,nofail
readers() { while cat $mnt/status && ls -R $mnt; do :; done > /dev/null 2>&1; }
for i in $(seq "$rounds"); do
	want 0 bare /usr/bin/mount -a; live "round $i"; d=$(pid)
	readers & a=$!; readers & b=$!
	for _ in $(seq 200); do umount $mnt 2>/dev/null && break; sleep 0.005; done
	gone "$d" "round $i"; wait $a $b
done
echo "rounds $rounds"
[ -z "$(ls -A /run/cortexfs 2>/dev/null)" ] || fail "left in /run/cortexfs: $(ls -A /run/cortexfs)"
