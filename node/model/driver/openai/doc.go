// Package openai speaks the OpenAI-compatible chat-completions API with
// streaming and tool calls to any base URL: llama.cpp, vLLM, Ollama, a proxy
// (spec section 19).
//
// Ideas. One Driver is one model of one provider; it makes one HTTP request per
// call, and a few more where the provider asks for patience (429, 503). The
// secret goes into the header of requests to the provider's own origin and
// nowhere else: redirects are refused, no proxy of the environment is used, TLS
// is verified, http dials loopback addresses only, whatever a name resolves to.
// What comes back is bounded (a line, the whole, the pauses), and an error is
// reduced to its status, its code and 512 printable characters without the
// secret.
//
// Tool names that the provider would refuse travel under an alias (Aliases); the
// names that frames carry are always the real ones.
//
// The package takes no locks: a Driver is immutable and safe for concurrent use.
package openai
