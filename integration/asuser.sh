#!/bin/bash
# asuser.sh COMMAND…: runs a command as a plain user (uid 2001), as on a machine that lets users have FUSE and user
# namespaces: in a mount namespace of its own /dev/fuse is open to all and the uid has a name (fusermount3 wants one).
# Root only; nothing of it is left afterwards.
set -euo pipefail
dir=$(mktemp -d /run/cortexfs-user.XXXXXX)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
mkdir -m 700 "$dir/home" "$dir/runtime"
chown 2001:2001 "$dir/home" "$dir/runtime"
export dir
unshare --mount --propagation private bash -euc '
	mknod -m 666 "$dir/fuse" c 10 229
	mount --bind "$dir/fuse" /dev/fuse
	cp /etc/passwd "$dir/passwd"
	echo "ctxuser:x:2001:2001:a plain user:$dir/home:/bin/bash" >> "$dir/passwd"
	mount --bind "$dir/passwd" /etc/passwd
	cd "$dir/home"
	exec setpriv --reuid 2001 --regid 2001 --clear-groups env -i HOME="$dir/home" XDG_RUNTIME_DIR="$dir/runtime" \
		PATH="$PATH" LANG=C.UTF-8 TERM="${TERM:-dumb}" USER=ctxuser LOGNAME=ctxuser "$@"' asuser "$@"
