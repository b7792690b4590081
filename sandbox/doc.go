// Package sandbox turns a Spec (what an agent may see and be) into a Plan
// (printable: identity, environment, mount table, the bwrap command) and a Plan
// into a running, read-back sandbox (spec 10, 24).
//
// The ideas: the whole root tree is composed by our stage helper on
// descriptors, in a private mount namespace, with real flags; bubblewrap is
// then run as the agent's own host uid and only makes the namespaces. There is
// no fall-back: what cannot be had ends the start.
//
// Not here yet: iso=userns, a network, cgroups. A Spec that asks for one
// of the first two is refused by name.
//
// Locks: the table of stuck open helpers has a mutex, a leaf. A Running has none;
// its fields do not change after Start, and Exit is written before Done closes.
//
// The package knows nothing of the tree or of agents' controls; the daemon fills
// a Spec. It does not own the terminal or the wire, it only hands the wire's
// descriptor through as fd 3 of the command.
//
// Processes: Start runs /proc/self/exe again as cortexfs-stage, which runs it as
// cortexfs-open for each set of ids it needs, and then becomes bwrap. So every
// program that calls Start must call HelperMain first thing in main.
package sandbox
