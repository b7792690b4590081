// Package term is an agent's terminal as people see it: on the host side the
// screen of the agent's PTY and the clients that look at it (Hub), on the
// person's side the client of `ctx agent watch` and `attach` (Run). Spec
// section 12.
//
// Two ideas. First, the PTY's bytes are cut into whole tokens (Filter) before
// anything sees them: what could question or program the viewer's terminal is
// dropped there, the emulator answers it instead, and every boundary between two
// tokens is a place where a client can be joined to the stream by a replay of
// the screen. Second, nobody waits for a client: a queue that is full is thrown
// away, and the client gets a fresh screen when it reads again.
//
//	wire ── Hub.Output ── backlog ── Filter ──┬── Screen (emulator) ── answers ── Input
//	                                          └── client queues ── writers ── sockets
//	sockets ── readers ── client input queues ── Input (credit of the wire)
//
// Locks: Hub.mu protects screen, clients and sizes and is never held over I/O;
// below it are the leaves backlog.mu, answers.mu and typed.mu.
//
// It opens no socket and checks no peer: who may connect is the caller's to
// decide before it calls Hub.Serve.
package term
