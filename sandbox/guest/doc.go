// Package guest is what ctxterm does inside a sandbox: it owns the PTY of the
// agent's session, executes the session program and what the host asks for, and
// reaps. It is the init of the sandbox's pid namespace, or the only child of it.
//
// It decides nothing. The session program is opened through the agent's view,
// without following links, and executed by that descriptor, so the daemon's
// lookup and open are the gate; a refusal is reported as an errno. It is not
// dumpable: another process of the same uid inside can neither read its memory
// nor take the wire (notes-security X20).
//
// Its life is the wire's: when that closes, everything inside ends at once.
//
// Goroutines: the wire's reader (never waits for a program), one writer and one
// reader of the PTY, one per command. Lock order: guest.mu, then reaper.mu.
package guest
