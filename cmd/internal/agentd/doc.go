// Package agentd is the host process of one running agent (ctxagent), and the
// daemon's side of talking to it.
//
// The host process owns the wire to ctxterm, the terminal hub and the state of
// its agent; the daemon made all its sockets and hands them over (Start). It
// outlives the daemon: ctl.sock keeps listening, and a new daemon dials it again.
//
//	daemon ── ctl.sock (JSONL) ── ctxagent ── wire (frames) ── ctxterm (inside)
//	people ── terminal socket ──────┘
//
// One goroutine (the loop of agent.run) decides the state; everything else
// sends to it. Lock order: agent.mu, then term.Hub's; neither is held over
// I/O that a peer can delay.
//
// It executes nothing on the host, opens no path, and believes nothing that
// comes from the wire.
package agentd
