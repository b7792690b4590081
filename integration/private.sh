#!/bin/bash
# private.sh COMMAND…: runs a command as root in mount and pid namespaces of its own, with an empty /run, /etc/fstab and
# /usr/sbin that can be changed without anybody else seeing it, and /dev/fuse open to users. When the command ends,
# everything that it mounted and started is gone.
set -euo pipefail
exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc bash -euc '
	mount -t tmpfs -o mode=755 tmpfs /run
	mkdir -m 755 /run/m /run/m/sbin /run/m/upper
	mknod -m 666 /run/m/fuse c 10 229
	mount --bind /run/m/fuse /dev/fuse
	: > /run/m/fstab
	mount --bind /run/m/fstab /etc/fstab
	cp /etc/passwd /run/m/passwd
	echo "ctxuser:x:2001:2001:a plain user:/run/m/home:/bin/bash" >> /run/m/passwd
	echo "ctxother:x:2002:2002:another one:/run/m/home2:/bin/bash" >> /run/m/passwd
	mount --bind /run/m/passwd /etc/passwd
	for n in 1 2; do h=/run/m/home; [ $n = 1 ] || h=/run/m/home2
		mkdir -m 700 $h; chown 200$n:200$n $h; mkdir -p -m 755 /run/user; mkdir -m 700 /run/user/200$n; chown 200$n:200$n /run/user/200$n; done
	# Not executed in place: a shell stays as init, to reap what is left to it.
	"$@" && exit 0 || exit $?' private "$@"
