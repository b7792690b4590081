// Package tree is the tree of spec section 2 without FUSE: a vnode.FS whose
// synthetic part it serves itself and whose ordinary part it hands to package
// ordinary.
//
// Ideas. A control file is changed by drafts: every open for writing has a text
// of its own, judged at each write and committed at close, so that what others
// read is always a whole, valid, committed text (spec section 4; draft.go). Save
// sequences of editors work because each `.d` directory takes scratch files in
// memory and because rename, link and unlink of a control mean "commit", "copy"
// and "hide for a moment" (ctldir.go, scratch.go). What an agent sees is the
// same machinery over node/view: nodes that ask at every lookup and open
// (view*.go).
//
// Nodes are canonical pointers or small comparable values; the same file is the
// same node. Executables never change under a node: new bytes are a new node, and
// a handle keeps the bytes that it was opened on (execdir.go, execfile.go).
//
// Who may write is decided here a second time, below the kernel's own check of
// modes: by the ids of the OPEN, and never for a thread of another namespace.
//
// Lock order, outermost first; no lock is held over a notification or over
// waiting for a person:
//
//	draft.mu > ctlFile.commit > slot.mu > Tree.mu > ctlDir.mu > execDir.mu
//	leaves: usage.mu, openFiles.mu, agentView.mu, pollers.mu, liveHandle.mu
//
// draft.mu, ctlFile.commit and slot.mu may be held over the store's fsync: they
// guard one open, one control and one executable. All others guard memory only.
// The locks of agent, store and ordinary are taken below all of these.
//
// The package does not mount, start or authenticate anything.
package tree
