package control

import "strings"

// Tool is the `.d` directory of a tool (spec section 6).
var Tool = newSet(
	&Entry{
		Name: "name", Format: nameFormat, Mode: 0o644, Applies: NextCall,
		Default: func(o Object) string { return line(o.Name) },
		Doc:     "the tool's name",
		Long:    "An object name. Calls and policies use the name of the file, whatever this says.",
		Good:    []string{"fs.read\n", "x", "a+b-c_d.e\n"},
		Bad:     bad("", "\n", "a b\n", ".a\n", "-v\n", "a/b\n", "x.d\n", "x.sock\n", "a\n\n", " a\n", strings.Repeat("a", 65)+"\n", "é\n"),
	},
	&Entry{
		Name: "description", Format: textFormat, Mode: 0o644, Applies: NextCall,
		Default: empty,
		Doc:     "what the tool does, for people and models",
		Long:    "Free text. It is data: it is escaped where it is shown and grants nothing.",
		Good:    []string{"", "Reads a file.\n", "a\n\tb"},
		Bad:     bad("a\r\n", "\x1b[2J\n", "a\x00\n", "\u202e\n", "\xff\n", "\ufeffa\n"),
	},
	&Entry{
		Name: "schema", Format: schemaFormat, Mode: 0o644, Applies: NextCall,
		Default: constant(`{"type":"object"}` + "\n"),
		Doc:     "JSON Schema of the tool's input object",
		Long: "At most 64 KiB, nested at most 32 deep, $ref and $dynamicRef to #… in the same text only, no $id with a scheme. " +
			"Not at top level: " + strings.Join(authorityKeys, " ") + ".",
		Good: []string{`{"type":"object"}` + "\n", "{}", `{"type":"object","properties":{"path":{"type":"string"},"uid":{"type":["integer","null"]}},"required":["path"]}`,
			`{"$defs":{"a":{"enum":[1,2]}},"properties":{"x":{"$ref":"#/$defs/a"}}}`, `{"$id":"local","not":false,"items":[{}],"allOf":[true]}`,
			`{"properties":{"$ref":{"type":"string"}}}`},
		Bad: bad("", "\n", "true\n", "[]\n", "{", `{"policy":1}`, `{"type":"object","groups":{}}`, `{"\u0075id":0}`, `{"$ref":"file:///etc/passwd"}`,
			`{"properties":{"a":{"$ref":"http://x/"}}}`, `{"$dynamicRef":"other.json"}`, `{"$id":"https://x/y"}`, `{"type":"text"}`, `{"type":[1]}`,
			`{"properties":[]}`, `{"properties":{"a":1}}`, `{"required":"path"}`, `{"required":[1]}`, `{"enum":1}`, `{"anyOf":{}}`, `{"items":7}`,
			`{"not":`+strings.Repeat(`{"not":`, 32)+`{}`+strings.Repeat("}", 33), "{}\r\n"),
	},
	&Entry{
		Name: "cap", Format: wordsFormat, Mode: 0o644, Applies: NextCall,
		Default: empty,
		Doc:     "what the tool is able to do, one word a line",
		Long:    "Free words that grant nothing; `background` says that the tool may leave processes.",
		Good:    []string{"", "fs.read\n", "background\nnetwork"},
		Bad:     bad("\n", "a b\n", "a\na\n", "a\n\nb\n", " a\n", "a\r\n"),
	},
	&Entry{
		Name: "policy", Format: policyFormat, Mode: 0o644, Grants: true, Applies: NextCall,
		Default: empty,
		Doc:     "which agent types may execute the tool",
		Long:    "`allow TYPE tool:NAME execute` for each; the agent's own policy must say the same. Empty or invalid: nobody.",
		Good:    goodPolicies,
		Bad:     badPolicies,
	},
	&Entry{
		Name: "status", Kind: Live, Mode: 0o444, Format: wordFormat,
		Default: constant("idle\n"),
		Doc:     "one word",
		Long:    "idle while nothing of the tool runs.",
		Good:    []string{"idle\n"}, Bad: bad("a\nb\n"),
	},
	&Entry{
		Name: "log", Kind: Live, Mode: 0o600, Format: textFormat,
		Default: empty,
		Doc:     "events of the tool, one JSON object a line",
		Long:    "Capped at 16 MiB.",
		Good:    []string{""}, Bad: bad("\x1b[2J\n"),
	},
	&Entry{
		Name: "hooks", Kind: Dir, Mode: 0o700, Grants: true, Applies: NextCall,
		Doc:  "pre.d and post.d: programs run before and after a hosted call",
		Long: "As for agents. A failing pre hook refuses the call; hooks grant nothing.",
	},
	&Entry{
		Name: "mcp", Format: mcpFormat, Mode: 0o644, Optional: true, Grants: true, Applies: NextCall,
		Doc:  "the MCP server and tool behind this one",
		Long: "A JSON object: transport (stdio), config (absolute path), server, tool, and where (sandbox or host).",
		Good: []string{`{"transport":"stdio","config":"/etc/mcp.json","server":"git","tool":"log","where":"sandbox"}` + "\n",
			`{"transport":"stdio","config":"/etc/mcp.json","server":"git","tool":"log"}`},
		Bad: bad("", "{}", `{"transport":"http","config":"/a","server":"s","tool":"t"}`, `{"transport":"stdio","config":"a","server":"s","tool":"t"}`,
			`{"transport":"stdio","config":"/a","server":"s"}`, `{"transport":"stdio","config":"/a","server":"s","tool":"t","where":"x"}`,
			`{"transport":"stdio","config":"/a","server":"s","tool":"t","env":"A=1"}`),
	},
	&Entry{
		Name: "origin", Format: textFormat, Mode: 0o644, Optional: true, Applies: Never,
		Doc:  "where the tool came from, for diagnosis",
		Long: "Free text; nothing reads it.",
		Good: []string{"", "package cortexfs-tools 1.2\n"},
		Bad:  bad("a\r\n", "a\x00\n"),
	},
	&Entry{
		Name: "config", Format: tshConfigFormat, Mode: 0o644, Only: Reserved, Applies: NextRun,
		Default: constant("max_loaded_tools=64\ncache_capacity=32\nwindow_percent=1\n"),
		Doc:     "limits of tsh: KEY=NUMBER lines",
		Long:    "max_loaded_tools, cache_capacity and window_percent (1–100), each at most once; what is missing has its default.",
		Good:    []string{"", "\n", "max_loaded_tools=64\ncache_capacity=32\nwindow_percent=1\n", "window_percent=100"},
		Bad:     bad("x=1\n", "window_percent=0\n", "window_percent=101\n", "max_loaded_tools=\n", "max_loaded_tools=1\nmax_loaded_tools=2\n", "cache_capacity = 1\n", "# c\n"),
	},
)
