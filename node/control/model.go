package control

import (
	"strings"

	"cortexfs/node"
	"cortexfs/node/text"
)

// modelCaps are the words of a model's `cap`.
var modelCaps = []string{"chat", "stream", "session", "vision", "audio_input", "audio_output", "json_schema",
	"tool_call_syntax", "reasoning", "embedding", "rerank"}

// modelName is exactly provider/model.
func modelName(s string, done bool) (int, string) {
	provider, model, cut := strings.Cut(s, "/")
	if !cut {
		if done {
			return len(s) + 1, "not provider/model"
		}
		return text.BadNamePrefix(s, node.MaxName)
	}
	if col, why := text.BadName(provider, node.MaxName); why != "" {
		return col, why
	}
	col, why := objectName(model, done)
	return len(provider) + 1 + col, why
}

// Model is the `.d` directory of a model (spec section 19). Object.Name is
// `provider/model`.
var Model = newSet(
	&Entry{
		Name: "id", Format: one("model name", modelName), Mode: 0o644, Applies: NextRun,
		Default: func(o Object) string { return line(o.Name) },
		Doc:     "provider/model",
		Long:    "The name of the model; the file's place in the tree decides, whatever this says.",
		Good:    []string{"debug/echo\n", "a/b"},
		Bad:     bad("", "echo\n", "a/b/c\n", "a/\n", "/b\n", " a/b\n"),
	},
	&Entry{
		Name: "driver", Format: nameFormat, Mode: 0o644, Applies: NextRun,
		Default: constant("debug\n"),
		Doc:     "which driver speaks to the model",
		Long:    "debug, or openai for any endpoint of that API.",
		Good:    []string{"debug\n", "openai\n"},
		Bad:     bad("", "\n", "a b\n", "../x\n"),
	},
	&Entry{
		Name: "cap", Format: capFormat, Mode: 0o644, Applies: NextRun,
		Default: constant("chat\nstream\n"),
		Doc:     "what the model can do, one word a line",
		Long:    strings.Join(modelCaps, " ") + ".",
		Good:    []string{"", "chat\nstream\n"},
		Bad:     bad("chat\nchat\n", "gpt\n", "chat stream\n", "\n"),
	},
	&Entry{
		Name: "effort", Format: one("effort", oneOf("auto", "low", "medium", "high", "xhigh")), Mode: 0o644, Applies: NextRun,
		Default: constant("auto\n"),
		Doc:     "how much the model is to think",
		Long:    "auto low medium high xhigh.",
		Good:    []string{"auto\n", "low\n", "medium\n", "high\n", "xhigh"},
		Bad:     bad("", "none\n", "low\n\n"),
	},
	&Entry{
		Name: "default", Format: oneOrNone("alias", objectName), Mode: 0o644, Applies: NextRun,
		Default: empty,
		Doc:     "alias that this model is meant for, or nothing",
		Long:    "A hint for tools that make aliases; the symlink decides.",
		Good:    []string{"", "main\n"},
		Bad:     bad("a/b\n", "a b\n"),
	},
	&Entry{
		Name: "fallback", Format: fallbackFormat, Mode: 0o644, Grants: true, Applies: NextRun,
		Default: empty,
		Doc:     "models to try when this one fails, one a line",
		Long:    "Blank lines and lines that begin with # are allowed. Each one needs its own rule in the agent's policy.",
		Good:    []string{"", "# none\n", "debug/echo\n\nopenai/x\n"},
		Bad:     bad("main\n", "a/b\na/b\n", " a/b\n", "a/b \n"),
	},
	&Entry{
		Name: "limit", Kind: Live, Mode: 0o444, Format: one("limit", modelLimit),
		Default: constant("unknown\n"),
		Doc:     "context window in tokens, or unknown",
		Long:    "What the provider says.",
		Good:    []string{"unknown\n", "128000\n"}, Bad: bad("", "0\n", "many\n"),
	},
	&Entry{
		Name: "session", Format: one("session", oneOf("none", "socket")), Mode: 0o644, Applies: NextRun,
		Default: constant("none\n"),
		Doc:     "none, or socket: the model keeps a session",
		Long:    "none: each call is one-shot.",
		Good:    []string{"none\n", "socket\n"},
		Bad:     bad("", "yes\n"),
	},
	&Entry{
		Name: "policy", Format: policyFormat, Mode: 0o644, Grants: true, Applies: NextCall,
		Default: empty,
		Doc:     "which agent types may use the model",
		Long:    "`allow TYPE model:NAME use` for each. Missing: agents of the owner only; invalid: nobody.",
		Good:    goodPolicies,
		Bad:     badPolicies,
	},
	&Entry{
		Name: "status", Kind: Live, Mode: 0o444, Format: wordFormat,
		Default: constant("idle\n"),
		Doc:     "one word",
		Long:    "idle while no call is under way.",
		Good:    []string{"idle\n"}, Bad: bad("a\nb\n"),
	},
	&Entry{
		Name: "log", Kind: Live, Mode: 0o600, Format: textFormat,
		Default: empty,
		Doc:     "events of the model, one JSON object a line",
		Long:    "Capped at 16 MiB.",
		Good:    []string{""}, Bad: bad("\x1b[2J\n"),
	},
)

var (
	capFormat = &lineFormat{name: "capability list", new: func() judge {
		return &wordsJudge{value: oneOf(modelCaps...), closed: modelCaps}
	}}
	fallbackFormat = &lineFormat{name: "model list", new: func() judge {
		return &wordsJudge{value: modelName, comments: true}
	}}
)

// modelLimit is `unknown` or a number above 0.
func modelLimit(s string, done bool) (int, string) {
	if col, why := oneOf("unknown")(s, done); why == "" {
		return col, why
	}
	if s == "0" {
		return 1, "number is not above 0"
	}
	return number(s, done)
}
