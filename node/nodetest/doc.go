// Package nodetest builds a tree over a temporary store and holds the suite of
// cases that every way of serving that tree must pass: in process (Proc, no
// kernel) and through a real mount (Syscalls, from a child process). Test only.
//
// Ideas. A case speaks in system calls (Client) and sees errnos, as a program
// would; it does not know what serves it. RunTree makes an agent for each case and
// removes it again, so the suite can run on any tree, also on one that people use.
//
// Proc plays the kernel's part: it walks paths, checks modes as default_permissions
// does, keeps descriptors with their positions, sends a truncating open as OPEN and
// a SETATTR without handle, and a FLUSH for every close of a descriptor.
//
// The package does not know FUSE and starts no process.
package nodetest
