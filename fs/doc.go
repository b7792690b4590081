// Package fs serves a vnode.FS through the kernel's FUSE, on the low-level
// connection of bazil.org/fuse. It is the only package that knows of FUSE, and
// the only place where an error of the tree becomes an errno (errno.go).
//
// Three ideas.
//
// Leader and followers. A reader goroutine reads a request and answers it
// itself: a hand-over to another goroutine costs more than most requests do. If
// it does not come back soon, another one takes its place at the device
// (crew.go). So a request that hangs never stops another one, and nothing is
// ever handed over. What may wait (all but vnode.InMemory) is in the interrupt
// table meanwhile.
//
// Interrupts are lossless. An INTERRUPT may overtake its request: for an id that
// is not in the table the answer is EAGAIN, and the kernel asks again until the
// request is there or answered.
//
// The kernel's knowledge is kept in tables of our own (table.go): which node has
// which number, how often the kernel has looked it up, which handles are open.
// Numbers are never used twice in one connection. What the tree changes behind
// the kernel's back is pushed by one goroutine per connection (notify.go), never
// from a handler: the kernel takes directory locks for a push that a handler's
// own request may hold.
//
// The connection is set up here and not by bazil's Mount (device.go): as root by
// mount(2) itself, so that no helper program is needed, else by fusermount3 at
// an absolute path; in both cases with our own INIT, which refuses file handles
// (open_by_handle_at could leave a subtree).
//
// Locks, outermost first: nothing of this package is held while the tree is
// called. Leaves, none taken inside another: nodes.mu, handles.mu, live.mu,
// locks.mu, dirUse.mu, push.mu, polls.mu.
//
// The daemon must never open, exec or chdir into its own mount: it would wait for
// itself, beyond kill -9.
package fs
