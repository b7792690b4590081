#!/bin/bash
# boot.sh BIN: boots Debian's own systemd as pid 1, in namespaces, in an overlay over a debootstrap tree, with the package
# BIN/cortexfs.deb installed: /ctx from fstab, as the service with an agent declared for boot, and with a broken store. The
# tree is made once, in $CTX_BOOT_CACHE (default /var/tmp/cortexfs-boot). Needs root. Exit 77: this machine cannot do it.
set -euo pipefail
bin=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
cache=${CTX_BOOT_CACHE:-/var/tmp/cortexfs-boot}
cannot() { echo "boot: not run: $*" >&2; exit 77; }
[ "$(id -u)" = 0 ] || cannot "it needs root"
[ -c /dev/fuse ] || cannot "no /dev/fuse"
grep -qw overlay /proc/filesystems || cannot "no overlayfs"
grep -qw cgroup2 /proc/filesystems || cannot "no cgroup2"

if [ ! -e "$cache/done" ]; then
	command -v debootstrap >/dev/null || cannot "no debootstrap"
	. /etc/os-release
	mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Origin: Debian' | awk -v r="$VERSION_CODENAME" '$2 == r { print $1; exit }')
	rm -rf "$cache/tree"; mkdir -p "$cache"
	debootstrap --variant=minbase --include=systemd,systemd-sysv,fuse3,bubblewrap,procps,dbus "$VERSION_CODENAME" "$cache/tree" "$mirror" > "$cache/log" 2>&1 ||
		cannot "debootstrap failed, see $cache/log"
	touch "$cache/done"
fi

work=$(mktemp -d /var/tmp/cortexfs-boot-run.XXXXXX)
cg=
finish() {
	code=$?
	[ -z "$cg" ] || { for _ in $(seq 100); do find "$cg" -depth -type d -exec rmdir {} + 2>/dev/null && break; sleep 0.1; done; }
	rm -rf "$work"
	exit $code
}
trap finish EXIT
mkdir "$work/upper" "$work/w" "$work/root"
# A cgroup of its own, so that the booted system's root is not this machine's.
v2=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$v2" ] || cannot "cgroup2 is not mounted"
cg=$v2/cortexfs-boot.$$
mkdir "$cg" || cannot "no cgroup of its own can be made in $v2"

# boot SCENARIO: boots, and runs the scenario's script when multi-user.target is reached.
boot() {
	printf '== boot: %s\n' "$1"
	rm -f "$work/upper/var/result"
	export work cache bin here scenario=$1 cg
	timeout --kill-after=5 180 unshare --mount --propagation private --pid --fork --kill-child --ipc --uts --net bash -euc '
		echo $$ > "$cg/cgroup.procs" # this shell, seen from outside by its own number
		exec unshare --cgroup bash -euc "$0"' '
			r=$work/root
			mount -t overlay overlay -o "lowerdir=$cache/tree,upperdir=$work/upper,workdir=$work/w" "$r"
			# A mount over a part of /proc would keep user namespaces from having a /proc; so nothing may write sysctls.
			mount -t proc proc "$r/proc"
			for u in systemd-sysctl systemd-binfmt systemd-udevd systemd-modules-load; do ln -sf /dev/null "$r/etc/systemd/system/$u.service"; done
			mount -t sysfs -o ro sysfs "$r/sys"
			mount -t cgroup2 cgroup2 "$r/sys/fs/cgroup"
			mount -t tmpfs -o mode=755 tmpfs "$r/run"; mount -t tmpfs -o mode=1777 tmpfs "$r/tmp"
			mount -t tmpfs -o mode=755 tmpfs "$r/dev"
			mkdir "$r/dev/pts" "$r/dev/shm"; mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$r/dev/pts"; ln -s pts/ptmx "$r/dev/ptmx"
			mount -t tmpfs -o mode=1777 tmpfs "$r/dev/shm"
			for n in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "fuse 10 229"; do set -- $n; mknod -m 666 "$r/dev/$1" c "$2" "$3"; done
			ln -s /proc/self/fd "$r/dev/fd"; ln -s fd/0 "$r/dev/stdin"; ln -s fd/1 "$r/dev/stdout"; ln -s fd/2 "$r/dev/stderr"
			mknod -m 600 "$r/dev/console" c 1 3 # systemd changes its mode: no bind of /dev/null
			printf "%s\n" "[Unit]" Requires=multi-user.target After=multi-user.target Wants=probe.service AllowIsolate=yes > "$r/etc/systemd/system/probe.target"
			printf "%s\n" "[Unit]" After=multi-user.target "[Service]" Type=oneshot TimeoutStartSec=150 "ExecStart=/bin/bash /var/lib/bootprobe.sh $scenario" > "$r/etc/systemd/system/probe.service"
			cp "$here/bootprobe.sh" "$bin/cortexfs.deb" "$r/var/lib/"
			hostname boot
			cd "$r"; mkdir -p old; pivot_root . old; umount -l /old
			bash /var/lib/bootprobe.sh "before-$scenario" > /var/result 2>&1 || { echo "FAIL before-$scenario" >> /var/result; exit 1; }
			exec env -i container=cortexfs-boot PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=probe.target --log-target=journal
		' > "$work/out" 2>&1 < /dev/null || true
	cat "$work/out"
	cat "$work/upper/var/result" 2>/dev/null || true
	if ! grep -qx "PASS $1" "$work/upper/var/result" || grep -q '^FAIL' "$work/upper/var/result"; then
		echo "boot: $1 failed"; return 1
	fi
}
boot fstab
boot service
boot broken
boot removed
echo "boot: ok"
