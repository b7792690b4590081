#!/bin/bash
# build.sh BIN VERSION: a Debian package of what `make install` installs, in BIN. Needs dpkg-deb; no root.
set -euo pipefail
bin=$1
here=$(cd "$(dirname "$0")" && pwd)
# A version begins with a digit; commits count up, so that upgrades go forward.
count=$(git rev-list --count HEAD 2>/dev/null || echo 0)
version="0.$count~$(tr -c 'A-Za-z0-9.\n' . <<< "$2")"
arch=$(dpkg --print-architecture)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
umask 022
chmod 755 "$tree"
make --no-print-directory -s install DESTDIR="$tree" PREFIX=/usr BIN="$bin" VERSION="$2"
install -d "$tree/DEBIAN" "$tree/usr/share/doc/cortexfs"
find "$tree/usr/share/man" -type f -exec gzip -9n {} +
cat > "$tree/usr/share/doc/cortexfs/copyright" <<-END
	Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
	Files: *
	License: Apache-2.0
	 On Debian systems the licence is in /usr/share/common-licenses/Apache-2.0.
END
cat > "$tree/DEBIAN/control" <<-END
	Package: cortexfs
	Version: $version
	Architecture: $arch
	Maintainer: CortexFS <root@localhost>
	Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
	Depends: bubblewrap (>= 0.8.0), fuse3, mount
	Recommends: passt
	Section: admin
	Priority: optional
	Description: LLM agents as Unix processes behind a tree of files
	 Mounts /ctx through FUSE: every agent, tool and model is a file, and what an
	 agent may do is decided by the controls beside it, afresh at each call. Agents
	 run in bubblewrap sandboxes.
END
for f in postinst prerm postrm; do install -m 0755 "$here/$f" "$tree/DEBIAN/$f"; done
dpkg-deb --root-owner-group -b "$tree" "$bin/cortexfs_${version}_$arch.deb" >/dev/null
rm -f "$bin/cortexfs.deb" && ln -s "cortexfs_${version}_$arch.deb" "$bin/cortexfs.deb"
echo "$bin/cortexfs_${version}_$arch.deb"
