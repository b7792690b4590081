// Package model knows the models of a store and makes one-shot calls to them
// (spec section 19, interop A14).
//
// Ideas. A model is pure inference: a call takes messages and gives frames, and
// no frame of it ever executes anything; what a `tool_call` leads to its caller
// decides. A reference is `provider/model` or an alias; Catalog.Plan turns it
// into the model and its fallbacks, each judged by Model.Use. Call tries them in
// order as long as nothing was emitted: once a caller has seen a word, no other
// model takes over. Drivers (node/model/driver/...) speak to one kind of
// endpoint and know nothing of agents, policies or fallbacks.
//
// Secrets are held in Secret, which does not print, and come from a reader or a
// held directory, never from an environment, an argument or a path that somebody
// else chose. A provider of one tier gets secrets of that tier only.
//
// Who calls what: the daemon resolves and judges (Catalog, Use), because the
// controls are its; ctxbroker loads the providers and secrets (LoadProviders),
// makes the drivers and runs Call; the host process and the model executables
// pass a Request in and the frames out.
//
// The package takes no locks; values are immutable after they are made. It
// opens no network itself: only the drivers do.
package model
