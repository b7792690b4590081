// Package stage composes the root tree of a sandbox (spec 10.3, 24). It runs in
// processes of its own: the stage helper (root, or the user inside a user
// namespace) makes mount calls on descriptors only; the open helper, its child,
// has the ids of whoever names a source and opens it under a deadline.
//
// The idea: nothing that a user can change is ever looked up with more rights
// than that user's own, and nothing is mounted by path. A tree is cloned from an
// O_PATH descriptor, gets its flags while it is detached, and is moved to its
// place in a mount namespace that nobody else sees.
package stage
