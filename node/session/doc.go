// Package session keeps the sessions of one agent: what was said to it, what it
// did, and which sends it has taken already (spec section 13, interop A9).
//
// A session is a directory of plain files that people read: messages.jsonl and
// events.jsonl, which only grow and are durable before anything is acknowledged,
// and small files derived from them. A temp session has the same methods and no
// files.
//
// Ideas. Everything is opened from a held directory descriptor, beneath it,
// without following a link, and must be a regular file of ours with one name
// (notes-security X9, X10): whatever else lies there is EIO. What decides lies
// below a second descriptor that the agent cannot reach: which id was sent with
// which payload (send/XX.jsonl), which runs and calls are under way (runs.jsonl).
// The derived files can be rebuilt and decide nothing.
//
// A send is taken in this order, each step durable before the next: the run is
// begun in runs.jsonl, its id is bound to the payload in send/, the message is in
// messages.jsonl, the start event is in events.jsonl. Only then is it
// acknowledged. Open finds runs that were begun and not ended, and ends them: one
// with a start event is reported as interrupted, one without never began and its
// id is free again. A call that was in flight is reported `unknown, not
// repeated`, a pending question as denied.
//
// Several writers of one file share an fsync. Events are numbered under
// Session.mu in the order in which they stand in the file; followers read the
// file itself up to what is durable, and keep a position in it, so that a slow
// one costs no memory. Live frames (deltas) are not stored: they wait in a
// bounded ring, with the place in the file after which they come.
//
// Who calls what: the host process opens one Store per agent (Open), takes each
// `send` with Store.Begin, answers it with Session.Stream, hands the Run to
// node/run as its recorder, and answers `resume` with Session.Follow.
//
// Locks: Store.mu, bucket.mu and Session.mu are never held together with each
// other, save bucket.mu > Store.mu and bucket.mu > fileLines.mu; Session.mu >
// fileLines.mu, which is a leaf as Session.feed.mu is. Session.mu is held over
// the write of one line, not over its fsync; bucket.mu over both, because two
// sends of one id must see each other.
//
// The package starts no process, opens no socket and knows no model.
package session
