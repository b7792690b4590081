package control

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"cortexfs/node"
	"cortexfs/policy"
)

// ABI is the only launch ABI there is. It is written when an agent is made and
// never a default: an agent without the control does not start.
const ABI = "sdk-envelope-v1"

// DefaultType is the label type that an agent gets when it is made: `<name>_t`
// for a system agent, `u<uid>.<name>_t` for one of home/<uid>, so that two users
// never get the same one by default (spec section 7). A name that would make it
// longer than an object name is cut, and a digest of the name keeps it apart.
func DefaultType(o Object) string {
	const end = "_t"
	if !o.Home {
		return o.Name + end
	}
	t := "u" + utoa(o.Owner) + "." + o.Name + end
	if len(t) <= node.MaxName {
		return t
	}
	sum := sha256.Sum256([]byte(o.Name))
	digest := "-" + hex.EncodeToString(sum[:4])
	return t[:node.MaxName-len(digest)-len(end)] + digest + end
}

// defaultTemplate is the prompt template of spec section 16.
const defaultTemplate = `You are the agent {{agent}}. The time is {{current_time_unix}} (Unix seconds).

## Runtime contract

{{runtime_contract}}

## Instructions

{{agent_instructions}}

## Project rules

{{rules}}

## Skills

{{skills}}

## Tools

{{tool_injection}}

## History

{{history_messages}}
`

// grammarText is the table of policy classes in one line, for help texts.
func grammarText() string {
	var all []string
	for _, c := range policy.Classes() {
		var perms []string
		for _, p := range policy.Permissions(c) {
			perms = append(perms, string(p))
		}
		all = append(all, string(c)+" ("+strings.Join(perms, " ")+")")
	}
	return strings.Join(all, ", ")
}

var (
	goodPolicies = []string{
		"", "\n", "# nothing yet\n", "allow coder_t tool:fs.read execute\n", "allow coder_t tool:fs.read execute",
		"allow coder_t \t tool:tsh\texecute\n\n#c\nallow coder_t model:main use\nallow coder_t model:debug/echo use\n",
		"allow a_t shared:p write\nallow a_t session:s resume\nallow a_t mount:work read\nallow a_t agent:b create\nallow a_t network:default connect\n",
	}
	badPolicies = bad("allow\n", "allow coder_t tool:fs.read\n", "allow coder_t tool:fs.read execute x\n", "deny coder_t tool:fs.read execute\n",
		"allow coder_t tool:* execute\n", "allow coder_t tool:fs.read write\n", "allow coder_t net:default connect\n", "allow coder_t network:all connect\n",
		" allow coder_t tool:fs.read execute\n", "allow coder_t tool:fs.read execute \n", " # c\n", " \n", "allow coder_t tool: execute\n",
		"allow coder_t tool execute\n", "allow coder_t tool:x.d execute\n", "allow * tool:fs.read execute\n", "allow coder_t model:a/b/c use\n",
		"allow coder_t tool:fs.read execute # c\n", "Allow coder_t tool:fs.read execute\n", "allow coder_t tool:fs.read execute\r\n", "#\x00\n", "#\u202e\n",
		"\ufeff# c\n", "#\xff\n", "allow coder_t tool:fs.read executeallow coder_t tool:fs.list execute\n")
)
