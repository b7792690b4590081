// Package agent knows the agents of a store: which there are, what their
// controls say, who may write what into them, who descends from whom, and what
// happened to them (spec sections 4.8, 5, 11, 17, 20).
//
// Ideas. An agent's Config is derived from one snapshot of its texts, typed,
// complete with defaults and immutable. It remembers the snapshot that it was
// made from; Object.Config compares and rebuilds, so nobody has to be told of a
// change. A text that cannot be read as its control is a fault in the Config and
// grants nothing: the fields that it would fill stay empty, its policy is nil.
//
// What one owner may not take from another (spec 4.8) is one function,
// Object.Check, asked at every write, at commit and, for the values as they are,
// at every start.
//
// Beside the objects the package keeps three records below STORE/state: the
// agents' logs, the high-water mark of uids given out, and which label type
// belongs to whom. They are written only by Create, Commit, Remove and events,
// never by reading.
//
// Locks: Table.commit > Table.mu > Log.mu. Table.commit makes label, parent and
// creation decisions one after another and is held over the store's write; the
// others are leaves and held over no I/O but the log's own.
//
// The package starts nothing and knows no process: what is alive it is told
// through Runtime.
package agent
