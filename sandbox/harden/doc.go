// Package harden is what narrows a process before it becomes part of a sandbox
// (spec 10.5): the seccomp program, resource limits and descriptors.
//
// The seccomp program is our own, assembled with golang.org/x/net/bpf, because a
// deny list stands or falls with three details that ready-made builders get
// wrong: a foreign architecture and x32 numbers must kill (else int 0x80 passes
// by every rule), and arguments that the kernel reads as 32-bit must be compared
// in 32 bits (else 1<<32|TIOCSTI passes).
//
// It does not decide who may do what; it only takes away. There is no option to
// leave a rule out.
package harden
