// Package prompt makes the first system message of a run (spec section 16): the
// agent's template with rules, skills, tools and history filled in.
//
// Ideas. Everything that goes in is data: a template is read once from left to
// right and no value is read again, so that a `{{…}}` in a file stays a text; what
// comes from files is escaped or fenced and says where it is from; the contract
// is ours and always there. Nothing in a prompt grants anything. Every budget is
// exact and deterministic: the same files give the same bytes, and a report says
// what was read, cut and left out.
//
// Files are read through FS, which shows what the agent sees and nothing else:
// Dir does so for a held root directory, with openat2 and never by a path of the
// host.
//
// Who calls what: the host process reads rules and skills in the agent's view
// (ReadRules, ReadSkills), takes the tools that the view allows (Tools) and the
// end of messages.jsonl (History), and renders (Render). `ctx agent prompt` does
// the same, so the two cannot differ. Report texts go into the session as
// AGENTS.md and SKILLS.md.
//
// Sizes of rules, tools and history are bytes; the budget of skills is
// characters (runes), as the section says. The package takes no locks.
package prompt
