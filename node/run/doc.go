// Package run executes the steps and tool calls of an agent's run: the wire
// format sdk-envelope-v1 (spec section 14), the decision about every hosted call
// (section 8), approval (section 15) and hooks (section 6). It knows no FUSE, no
// sandbox and no socket: whatever has to happen outside of this process it asks
// of an interface.
//
// Ideas. What an agent's program says is judged frame by frame before anything
// comes of it (Decoder); one wrong frame ends the run. A tool call is one
// function, Caller.Call, whatever has asked for it, a step or a frame of the
// control socket; it judges rows 1–9 in their order with facts of that moment,
// executes the very file that row 8 has opened, and leaves one event. What could
// be repeated by mistake is written down first: a call is `in flight` on disk
// before it is spawned, so that a restart reports it as unknown and never does it
// again. A question is settled once, under one lock, by the first valid answer,
// its deadline, or the end of those who could answer.
//
// Who calls what: the host process takes a message with session.Store.Begin,
// makes a Loop with the run as its Recorder, waits for its turn (session.Run.Wait)
// and calls Loop.Do in a goroutine of the run. It attaches the connection that
// sent the message, and every `handle` connection, to the agent's Broker, and
// gives each frame from inside the sandbox to the run's Control. Spawner, Gate and
// HookSpawner are its own: they lead to ctxterm, to the daemon's view and to the
// hooks' directories.
//
// Locks: Broker.mu, Caller.mu and Control.mu are leaves, never held over a call
// of somebody else's function.
package run
