// Package store keeps the controls and executables of every tier on disk and a
// mirror of the texts in memory (spec sections 4.4, 4.10 and 21). It knows
// bytes, names and generations, and nothing of formats, owners or FUSE.
//
// Layout of the directory, 0700 and the daemon's own:
//
//	format    one line, the version of this layout
//	lock      flock of the one daemon that serves the store; says who that is
//	reserve   space given up so that a small text commits on a full disk
//	tmp/      what is not in force yet; emptied at every Open
//	object/   the tree's synthetic part, same names and bytes
//	state/    records of the daemon that are no part of the tree
//	durable/  home/ and shared/: the users' own files (package ordinary)
//
// Ideas. A directory of controls is an Object; its texts are held as an immutable
// Snapshot behind an atomic pointer, so reading never waits for a disk. Every
// published change takes the next number of one counter, so that whoever derives
// something remembers the numbers it was made from and compares. A change is a
// new file in tmp/, fsync, rename onto the name, fsync of the directory, publish,
// in this order, and the call returns last: a crash leaves the old or the new
// bytes. All paths are walked from held descriptors by openat2 that follows no
// symlink and leaves neither the store nor its file system.
//
// What cannot be read as a text (a symlink, a device, a FIFO, a directory, more
// than 64 KiB) is a Value with an error and no text: who decides by it must fail
// closed. Reading one never blocks.
//
// Locks: Object.mu, Store.exec > Store.names > Store.mu, reserve.mu. Object.mu is
// held over the write of its own file, Store.exec over that of a file's attributes,
// Store.names over one rename or the first read of a directory, reserve.mu over
// work on the reserve, Store.mu over no I/O. Callbacks of Watch run without any lock.
//
// The package does not judge texts, does not know defaults, and does not serve
// durable/.
package store
