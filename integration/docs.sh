#!/bin/bash
# docs.sh BIN WHO SCRIPT: runs SCRIPT, the blocks of a document, as root or as a plain user on a private copy of this
# machine with the programs of BIN installed; run by private.sh.
set -euo pipefail
bin=$1 as=$2 script=$3
root=/run/m/root
mkdir $root /run/m/u /run/m/w /run/m/up
mount -t tmpfs -o mode=755 tmpfs /run/m/up && mkdir /run/m/up/u /run/m/up/w
mount -t overlay overlay -o lowerdir=/,upperdir=/run/m/up/u,workdir=/run/m/up/w $root || { echo "SKIP no overlayfs"; exit 0; }
for d in proc dev sys run tmp; do mount --rbind /$d $root/$d; done
for f in /etc/passwd /etc/fstab; do cp $f $root$f; done
install -m 755 "$bin"/{cortexfs,ctx,ctxagent,ctxterm,tsh} $root/usr/bin/
mkdir -p $root/usr/lib/cortexfs/tool && install -m 755 "$bin"/tool/* $root/usr/lib/cortexfs/tool/
ln -sf /usr/bin/cortexfs $root/usr/sbin/mount.fuse.cortexfs
cp "$script" $root/run/m/script
cd $root && mkdir -p old && pivot_root . old && umount -l /old
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
case $as in
root) env -i HOME=/root PATH=$PATH LANG=C.UTF-8 bash -xeuo pipefail /run/m/script < /dev/null ;;
user) chmod 755 /run/m; setpriv --reuid 2001 --regid 2001 --clear-groups env -i HOME=/run/m/home XDG_RUNTIME_DIR=/run/user/2001 PATH=$PATH LANG=C.UTF-8 bash -xeuo pipefail /run/m/script < /dev/null ;;
esac
grep -E ' (/ctx|/run/m/[^ ]*/ctx) .* fuse.cortexfs ' /proc/self/mountinfo && { echo "FAIL mounted at the end of the document"; exit 1; }
echo "document done"
