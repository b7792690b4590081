package control

import (
	"strconv"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
)

func bad(texts ...string) []Example {
	var all []Example
	for _, t := range texts {
		all = append(all, Example{t, fault.Invalid})
	}
	return all
}

// Good and bad texts that several entries share (cases N06, E11).
var (
	badNumbers = bad("", "\n", "01000\n", "+1000\n", " 1000\n", "1000 \n", "1e3\n", "-1\n", "4294967295\n",
		"4294967296\n", "१०००\n", "1000\r\n", "1000\n\n", "1000\n1001\n", "0x10\n", "1000\x00\n", "\ufeff1000\n")
	badPaths = bad("", "\n", "relative\n", "/a/../b\n", "/..\n", "/a/.\n", " /a\n", "/a \n", "/a\t\n", "/a\n/b\n", "/a\r\n", "/a\u202eb\n", "/\xff\n")
)

// Agent is the `.d` directory of an agent (spec section 5).
var Agent = newSet(
	&Entry{
		Name: "owner", Format: numberFormat, Mode: 0o644, Required: true, Grants: true, Applies: NextStart,
		Default: func(o Object) string { return line(utoa(o.Owner)) },
		Doc:     "uid that owns the agent",
		Long: "The uid that owns the object: it may write the controls, start, stop, watch and attach. Only root changes it. " +
			"For an agent below home/<uid> it is that uid, whatever the file says.",
		Good: []string{"0\n", "1000\n", "1000", "4294967294\n"},
		Bad:  badNumbers,
	},
	&Entry{
		Name: "uid", Format: numberFormat, Mode: 0o644, Grants: true, Applies: NextStart,
		Default: func(o Object) string { return line(utoa(o.Owner)) },
		Doc:     "uid that the agent runs as",
		Long: "Default: the owner. An owner writes their own uid only. For agents of owner 0 an unused uid is written when " +
			"the agent is made; no agent ever runs as host uid 0.",
		Good: []string{"1000\n", "1879048192\n", "1000"},
		Bad:  badNumbers,
	},
	&Entry{
		Name: "gid", Format: numberFormat, Mode: 0o644, Grants: true, Applies: NextStart,
		Default: func(o Object) string { return line(utoa(o.OwnerGID)) },
		Doc:     "gid that the agent runs with",
		Long:    "Default: the owner's primary group. An owner writes one of their own groups only.",
		Good:    []string{"1000\n", "100"},
		Bad:     badNumbers,
	},
	&Entry{
		Name: "groups", Format: groupsFormat, Mode: 0o644, Grants: true, Applies: NextStart,
		Default: func(o Object) string {
			var b strings.Builder
			for _, g := range o.Groups {
				b.WriteString(line(utoa(g)))
			}
			return b.String()
		},
		Doc: "supplementary groups, one gid a line",
		Long: "Under a root daemon exactly these; a user's daemon cannot drop a group that it holds, and a list that leaves " +
			"one out ends the start. Taking a group away stops a running agent.",
		Good: []string{"", "4999\n", "100\n4999\n", "100\n4999"},
		Bad:  bad("\n", "100\n100\n", "100\n\n101\n", " 100\n", "wheel\n", "0100\n", "100 101\n", "4294967295\n", "100\r\n"),
	},
	&Entry{
		Name: "label", Format: labelFormat, Mode: 0o644, Required: true, Grants: true, Applies: NextCall,
		Default: func(o Object) string { return line("user_u:agent_r:" + DefaultType(o) + ":s0") },
		Doc:     "security label user:role:type:level, or a bare type",
		Long: "The type is the subject that policies name. A type belongs to one owner: one that an agent of another uid " +
			"uses, or that the policy of another's tool names, is written by root only. Agents with one type are one subject.",
		Good: []string{"user_u:agent_r:coder_t:s0\n", "coder_t\n", "u1000.coder_t"},
		Bad: bad("", "\n", "a:b\n", "a:b:c\n", "a:b:c:d:e\n", "a::c:d\n", "a b\n", " coder_t\n", "coder_t \n", "_t\n",
			"x.d\n", "x.sock\n", strings.Repeat("a", 65)+"\n", "coder_t\r\n", "coder_t\ncoder_t\n"),
	},
	&Entry{
		Name: "iso", Format: one("isolation", oneOf("shared", "uid", "userns")), Mode: 0o644, Grants: true, Applies: NextStart,
		Default: func(o Object) string {
			if o.Owner == 0 {
				return "uid\n"
			}
			return "shared\n"
		},
		Doc: "whose ids the agent has: shared, uid or userns",
		Long: "shared: the owner's ids. uid: ids of the agent's own, given by a root daemon. userns: ids as written inside a " +
			"user namespace, the owner's or a private range outside. What cannot be had ends the start.",
		Good: []string{"shared\n", "uid\n", "userns\n", "shared"},
		Bad:  bad("", "\n", "none\n", "Shared\n", "shared\n\n", "shared uid\n", "user\n", "shared\r\n"),
	},
	&Entry{
		Name: "parent", Format: parentFormat, Mode: 0o644, Grants: true, Applies: AtOnce,
		Default: empty,
		Doc:     "agent:<name> [session:<name>] [run:<id>], or empty",
		Long: "Written when the agent is made; afterwards root alone changes it, never to the agent itself, a descendant or " +
			"an agent that does not exist. What a child may do lies inside what its parent may do.",
		Good: []string{"", "agent:architect\n", "agent:a session:s\n", "agent:a run:r1\n", "agent:a session:s run:r1"},
		Bad: bad("architect\n", "agent:\n", "session:s\n", "agent:a  session:s\n", "agent:a run:r session:s\n",
			"agent:a agent:b\n", "agent:a session:index\n", "agent:a \n", " agent:a\n", "agent:a\nagent:b\n", "agent:a run:r x\n"),
	},
	&Entry{
		Name: "life", Format: one("life", oneOf("owned", "temp")), Mode: 0o644, Grants: true, Applies: AtOnce,
		Default: constant("owned\n"),
		Doc:     "owned, or temp: removed when it ends",
		Long:    "A temp agent's object is removed when its parent stops or dies; its sessions stay.",
		Good:    []string{"owned\n", "temp\n", "temp"},
		Bad:     bad("", "\n", "detached\n", "temp\n\n", " temp\n", "TEMP\n"),
	},
	&Entry{
		Name: "root", Format: absPathFormat, Mode: 0o644, Grants: true, Applies: NextStart,
		Default: func(o Object) string { return line(homePath(o) + "/agent/" + o.Name + "/root") },
		Doc:     "directory whose entries appear in the sandbox's /",
		Long: "An absolute path. Its entries appear read-only in the sandbox's root directory, except where the runtime or " +
			"the mount table has that name; / means no entries of its own.",
		Good: []string{"/ctx/home/1000/agent/coder/root\n", "/\n", "/a b\n", "/项目/x", "/a/..b/c.\n"},
		Bad:  badPaths,
	},
	&Entry{
		Name: "cwd", Format: absPathFormat, Mode: 0o644, Grants: true, Applies: NextStart,
		Default: constant("/workspace\n"),
		Doc:     "working directory inside the sandbox",
		Long:    "An absolute path that exists inside; a missing one ends the start.",
		Good:    []string{"/workspace\n", "/", "/home/agent\n"},
		Bad:     badPaths,
	},
	&Entry{
		Name: "env", Format: newEnvFormat("CTX_ROOT=" + node.Root), Mode: 0o600, Grants: true, Applies: NextStart,
		Default: empty,
		Doc:     "KEY=VALUE lines added to the agent's environment",
		Long: "A line is cut at its first =; the value is taken as it is, without quoting, expansion or comments. Blank lines " +
			"are allowed. Refused: a repeated key, CTX_* (save CTX_AGENT_STEPS=1…255 and lines that repeat what the runtime sets), " +
			strings.Join(reservedKeys, " ") + " and " + strings.Join(reservedPrefixes, "* ") + "*. PATH has absolute " +
			"components. Secrets belong into files that the mount table hands over.",
		Good: []string{"", "\n", "A=1\n", "A=\n", "A=b=c # d\n\n_x9='q'\n", "CTX_AGENT_STEPS=255\n", "CTX_ROOT=/ctx\n",
			"PATH=/usr/bin:/opt/bin\nTERM=dumb\nLC_ALL=C", "LDFLAGS=-s\nENVIRON=1\nHOMEPAGE=x\n"},
		Bad: bad("A\n", "=1\n", "1A=1\n", "A B=1\n", " A=1\n", "A=1\nA=2\n", "CTX_X=1\n", "CTX_ROOT=/\n", "CTX_AGENT_STEPS=0\n",
			"CTX_AGENT_STEPS=256\n", "CTX_AGENT_STEPS=064\n", "CTX_AGENT_STEPS=\n", "HOME=/x\n", "USER=x\n", "LOGNAME=x\n", "SHELL=/bin/sh\n",
			"LD_PRELOAD=/x.so\n", "BASH_ENV=/x\n", "ENV=/x\n", "MALLOC_CHECK_=3\n", "GLIBC_TUNABLES=x\n", "PERL5OPT=-d\n", "NODE_OPTIONS=x\n",
			"GIT_SSH_COMMAND=x\n", "PATH=bin\n", "PATH=/bin:\n", "PATH=\n", "A=1\r\n", "A=\x00\n", "A=\xff\n", "A=\tx\n", "A=\u009b\n", "# c\n"),
	},
	&Entry{
		Name: "path", Format: pathFormat, Mode: 0o644, Grants: true, Applies: NextCall,
		Default: empty,
		Doc:     "directories in which tools are searched, in order",
		Long: "Absolute directories, one a line or joined by colons; no repeats; empty components are dropped. A hit counts " +
			"in a tool tier only. Empty: /ctx/tool, then the owner's own tools. A non-empty path also puts CTX_PATH into the environment.",
		Good: []string{"", "\n", "/ctx/tool\n", "/ctx/tool:/ctx/home/1000/tool\n", "/ctx/home/1000/tool\n/ctx/tool", ":/ctx/tool::\n"},
		Bad: bad("tool\n", "/ctx/tool:tool\n", "/ctx/tool\n/ctx/tool\n", "/ctx/tool:/ctx/tool\n", "/ctx/tool/:/ctx/tool\n",
			"/ctx/../etc\n", " /ctx/tool\n", "/ctx/tool \n", "/ctx/tool\r\n"),
	},
	&Entry{
		Name: "mount", Format: mountFormat, Mode: 0o600, Grants: true, Applies: NextStart,
		Default: func(o Object) string {
			home := homePath(o) + "/agent/" + o.Name
			return "/ctx\t/ctx\tro\trbind,nosuid,nodev\n" + home + "\t/home/agent\trw\trbind,nosuid,nodev\n"
		},
		Doc: "bind mounts: source TAB target TAB ro|rw TAB options",
		Long: "One mount a line, blank lines allowed, no comments. source and target are absolute, without . .. and empty " +
			"components; targets do not repeat. options: - alone, or some of " + strings.Join(mountOptions, " ") + " joined by commas, " +
			"each once; bind and rbind exclude each other. Not a target: /, anything below /ctx, and at or below " +
			strings.Join(closedTargets, " ") + "; /ctx takes the source /ctx only. What is never handed over is judged at start.",
		Good: []string{"", "\n", "/ctx\t/ctx\tro\trbind,nosuid,nodev\n", "/a\t/b\trw\t-\n\n/c\t/d\tro\tbind,noexec",
			"/home/me/my project\t/work\trw\trbind\n", "/\t/host\tro\trbind\n", "/tmp\t/tmp\trw\trbind,nosuid,nodev\n",
			"/ctx/shared/p\t/shared/p\trw\t-\n", "/a\t/processed\tro\t-\n/b\t/etc/profiles\tro\t-\n"},
		Bad: bad("/a /b ro bind\n", "/a\t/b\tro\n", "/a\t/b\tro\tbind\tx\n", "/a\t/b\trx\tbind\n", "/a\t/b\tro\t\n", "/a\t/b\tro\texec\n",
			"/a\t/b\tro\tbind,rbind\n", "/a\t/b\tro\trbind,bind\n", "/a\t/b\tro\tnodev,nodev\n", "/a\t/b\tro\t-,bind\n", "/a\t/b\tro\tbind,-\n",
			"/a\t/b\tro\tbind,\n", "/a\t/b\tro\t-\n/c\t/b\tro\t-\n", "a\t/b\tro\t-\n", "/a\tb\tro\t-\n", "/a/../b\t/b\tro\t-\n", "/a\t/b/..\tro\t-\n",
			"/a/\t/b\tro\t-\n", "/a\t/b//c\tro\t-\n", "/a\t/\tro\t-\n", "/a\t/ctx\tro\t-\n", "/ctx\t/ctx/tool\tro\t-\n", "/a\t/proc\tro\t-\n",
			"/a\t/proc/1\tro\t-\n", "/a\t/dev/shm\tro\t-\n", "/a\t/sys\tro\t-\n", "/a\t/usr/bin\tro\t-\n", "/a\t/run/cortexfs\tro\t-\n",
			"/a\t/etc/profile\tro\t-\n", "/a\t/etc/profile.d/x\tro\t-\n", "/a\t/etc/bash.bashrc\tro\t-\n", "# comment\n", "/a\t/b\tro\tbind\r\n",
			"/a\t/b\tro\tbind \n", "/a\t/b\t\tro\tbind\n", "/a\x00\t/b\tro\t-\n", "/\xc3\t/b\tro\t-\n"),
	},
	&Entry{
		Name: "model", Format: modelFormat, Mode: 0o644, Grants: true, Applies: NextRun,
		Default: constant("main\n"),
		Doc:     "the model: provider/model or an alias",
		Long:    "What the agent asks by default. It needs `allow <type> model:<this> use` in the policy.",
		Good:    []string{"main\n", "debug/echo\n", "openai/gpt-4.1", "main"},
		Bad:     bad("", "\n", "a/b/c\n", "/b\n", "a/\n", " main\n", "main \n", "main\n\n", "a b\n", "x.d\n", "main\r\n"),
	},
	&Entry{
		Name: "tools", Format: toolsFormat, Mode: 0o644, Grants: true, FinalLF: true, Applies: NextCall,
		Default: empty,
		Doc:     "tools that runs may call, one name a line, last newline required",
		Long: "A tool that is not declared here is refused in hosted calls. Declaring grants nothing: the policies do. A lone " +
			"newline is the empty list; blank lines, padding, repeats and the reserved tsh are refused.",
		Good: []string{"", "\n", "fs.read\n", "fs.read\nfs.list\nshell.exec\n"},
		Bad: bad("fs.read", "fs.read\nfs.list", "tsh\n", "fs.read\nfs.read\n", "\n\n", "\nfs.read\n", "fs.read\n\n", "fs.read\n\nfs.list\n", " fs.read\n",
			"fs.read \n", "fs.read\r\n", "fs/read\n", ".read\n", "x.d\n", "x.sock\n", "# c\n", "fs.read\x00\n", strings.Repeat("a", 65)+"\n"),
	},
	&Entry{
		Name: "abi", Format: one("launch ABI", oneOf(ABI)), Mode: 0o644, Required: true, Grants: true, Applies: NextStart,
		Doc:  "launch ABI of the agent's program: sdk-envelope-v1",
		Long: "Required and never inferred from anything else: without it the agent does not start.",
		Good: []string{"sdk-envelope-v1\n", "sdk-envelope-v1"},
		Bad:  bad("", "\n", "v1\n", "sdk-envelope-v2\n", "sdk-envelope-v1\n\n", "sdk-envelope-v1 \n", "sdk-envelope-v1\r\n"),
	},
	&Entry{
		Name: "approval", Format: one("approval", oneOf("auto", "ask")), Mode: 0o644, Grants: true, Applies: NextCall,
		Default: constant("auto\n"),
		Doc:     "auto, or ask a person before each hosted call",
		Long: "ask is one more gate on hosted calls, not a cover of everything: with bash, shell.exec or tsh an agent starts an " +
			"allowed tool itself, unasked.",
		Good: []string{"auto\n", "ask\n", "ask"},
		Bad:  bad("", "\n", "maybe\n", "ask\n\n", " ask\n", "ask \n", "Ask\n", "ask\r\n", "\ufeffask\n", "ask\x00\n", "auto\nask\n"),
	},
	&Entry{
		Name: "system.md", Format: promptFormat, Mode: 0o600, Applies: NextRun,
		Default: empty,
		Doc:     "the agent's instructions, free text",
		Long:    "The value of {{agent_instructions}}. It carries no authority.",
		Good:    []string{"", "You write Go.\n", "a\n\n\tb\n", "\u202e\u009b fine here"},
		Bad:     bad("a\r\n", "\x1b[31m\n", "a\x00", "\ufeffhello\n", "\xff\n", "\x7f\n"),
	},
	&Entry{
		Name: "prompt.template.md", Format: promptFormat, Mode: 0o600, Applies: NextRun,
		Default: constant(defaultTemplate),
		Doc:     "template of the first system message",
		Long: "Rendered once: {{agent}} {{current_time_unix}} {{agent_instructions}} {{rules}} {{skills}} {{tool_injection}} " +
			"{{history_messages}} {{runtime_contract}}. Other {{…}} stay as text; a missing {{runtime_contract}} is appended. It carries no authority.",
		Good: []string{"", "{{agent}}\n{{runtime_contract}}\n", defaultTemplate},
		Bad:  bad("a\r\n", "a\x00\n", "\ufeffa\n", "\xc3"),
	},
	&Entry{
		Name: "policy", Format: policyFormat, Mode: 0o644, Grants: true, Applies: NextCall,
		Default: empty,
		Doc:     "what the agent's type may do: allow SUBJECT CLASS:NAME PERMISSION",
		Long: "One rule a line, blanks between the four words, none before or after; blank lines and lines that begin with # are " +
			"allowed. Classes and permissions: " + grammarText() + ". Everything that no rule allows is denied; one bad line voids the whole text.",
		Good: goodPolicies,
		Bad:  badPolicies,
	},
	&Entry{
		Name: "meta.json", Format: objectFormat, Mode: 0o600, Applies: Never,
		Default: constant("{}\n"),
		Doc:     "a JSON object for notes of people and programs",
		Long:    "No decision may read it. A repeated key is accepted, the last one counts.",
		Good:    []string{"{}\n", "{}", `{"a":[1,-0.5e+3,true,null,"\u00e9\n"],"b":{"c":""}}`, " \n\t{ \"a\" : 1 }\n", `{"a":1,"a":2}`},
		Bad: bad("", "\n", "[]\n", "1\n", "null\n", "{\n", `{"a"}`, `{"a":}`, `{a:1}`, `{"a":01}`, `{"a":1,}`, `{"a":1}}`, `{"a":1} x`, `{"a":"`+"\n"+`"}`,
			`{"a":tru}`, `{"a":"\x"}`, `{"a":1.}`, "{}\r\n", "\ufeff{}\n", "{\"a\":\"\xff\"}", "{\"a\":\"\u202e\"}", "{'a':1}", `{"a":1`),
	},
	&Entry{
		Name: "exec", Kind: Exec, Mode: 0o700, Grants: true, Applies: NextRun,
		Doc: "the program that runs inside the sandbox",
		Long: "A regular file up to 64 MiB, in force when its last writer closes it. Absent: the reference loop. Nothing of it is ever " +
			"executed on the host.",
	},
	&Entry{
		Name: "status", Kind: Live, Mode: 0o444, Format: one("state", oneOf(states...)),
		Default: constant("dead\n"),
		Doc:     "the agent's state, one word",
		Long:    strings.Join(states, " ") + ". Derived from the live process at every read; it can be polled.",
		Good:    []string{"dead\n", "busy\n"}, Bad: bad("", "gone\n"),
	},
	&Entry{
		Name: "pid", Kind: Live, Mode: 0o444, Format: oneOrNone("pid", number),
		Default: empty,
		Doc:     "host pid of the agent's host process, or nothing",
		Long:    "SIGTERM to it is a stop.",
		Good:    []string{"", "4711\n"}, Bad: bad("x\n"),
	},
	&Entry{
		Name: "log", Kind: Live, Mode: 0o600, Format: textFormat,
		Default: empty,
		Doc:     "events of the agent, one JSON object a line",
		Long:    "Follow it with tail -F. Capped at 16 MiB; the older generation is log.1.",
		Good:    []string{"", `{"seq":1,"type":"agent.start"}` + "\n"}, Bad: bad("\x1b[2J\n"),
	},
	&Entry{
		Name: "hooks", Kind: Dir, Mode: 0o700, Grants: true, Applies: NextCall,
		Doc: "pre.d and post.d: programs run before and after a step",
		Long: "At most 32 executables of 1 MiB in each, named like objects, run in byte order inside the sandbox. A failing pre hook " +
			"refuses the step; hooks grant nothing.",
	},
	&Entry{
		Name: "view", Kind: ViewDir, Mode: 0o700,
		Doc:  "what the agent sees at its /ctx, read-only",
		Long: "Not listed, entered by name; for the owner and root.",
	},
)

// states are the words of `status` in the order of the life cycle.
var states = []string{string(node.Start), string(node.Ready), string(node.Busy), string(node.Idle), string(node.Stopping), string(node.Dead)}

func line(s string) string                  { return s + "\n" }
func utoa(n uint32) string                  { return strconv.FormatUint(uint64(n), 10) }
func empty(Object) string                   { return "" }
func constant(s string) func(Object) string { return func(Object) string { return s } }

// homePath is the owner's home in the tree.
func homePath(o Object) string { return node.Root + "/home/" + utoa(o.Owner) }
