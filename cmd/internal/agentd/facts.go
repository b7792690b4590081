package agentd

import (
	"strings"

	"cortexfs/node/fault"
	"cortexfs/policy"
)

// Facts is a policy.Request on its way from the daemon, which has the texts, to
// the host process, which judges the rows of a hosted call. Policies travel as
// their rules, each on its line, so that a verdict names the right one.
type Facts struct {
	Request policy.Request `json:"request"` // without policies and functions
	Agent   *string        `json:"agent"`   // policy texts; null: missing or invalid
	Tool    *string        `json:"tool"`
	Above   []Ancestor     `json:"above,omitempty"`
}

// Ancestor is a policy.Ancestor, and what it says about the one tool.
type Ancestor struct {
	policy.Ancestor
	Declares bool    `json:"Declares"` // in the place of the function
	Line     int     `json:"line"`
	Policy   *string `json:"Policy"` // in the place of the set
}

// NewFacts takes a request apart.
func NewFacts(q *policy.Request) *Facts {
	f := &Facts{Request: *q, Agent: rulesOf(q.AgentPolicy), Tool: rulesOf(q.ToolPolicy)}
	f.Request.AgentPolicy, f.Request.ToolPolicy, f.Request.Above = nil, nil, nil
	for _, a := range q.Above {
		one := Ancestor{Ancestor: a, Policy: rulesOf(a.Policy)}
		if a.Declares != nil {
			one.Line, one.Declares = a.Declares(q.Tool)
		}
		one.Ancestor.Declares, one.Ancestor.Policy = nil, nil
		f.Above = append(f.Above, one)
	}
	return f
}

// Join is the request again.
func (f *Facts) Join() (*policy.Request, error) {
	q := f.Request
	var err error
	if q.AgentPolicy, err = setOf(f.Agent); err != nil {
		return nil, err
	}
	if q.ToolPolicy, err = setOf(f.Tool); err != nil {
		return nil, err
	}
	q.Above = nil
	for _, a := range f.Above {
		one := a.Ancestor
		if one.Policy, err = setOf(a.Policy); err != nil {
			return nil, err
		}
		tool, line, declares := q.Tool, a.Line, a.Declares
		one.Declares = func(name string) (int, bool) {
			if name != tool {
				return 0, false
			}
			return line, declares
		}
		q.Above = append(q.Above, one)
	}
	return &q, nil
}

// rulesOf is the text of a set: every rule on its own line.
func rulesOf(s *policy.Set) *string {
	if s == nil {
		return nil
	}
	var b strings.Builder
	line := 1
	for _, r := range s.Rules() {
		for ; line < r.Line; line++ {
			b.WriteByte('\n')
		}
		b.WriteString(r.String() + "\n")
		line++
	}
	text := b.String()
	return &text
}

func setOf(text *string) (*policy.Set, error) {
	if text == nil {
		return nil, nil
	}
	s, err := policy.Parse([]byte(*text))
	if err != nil {
		return nil, fault.At("read the daemon's answer", "policy", err)
	}
	return s, nil
}

// What the host process asks; the ops are their names.
type (
	// AskBrief asks for what a run is told (op brief).
	AskBrief struct {
		Run string `json:"run,omitempty"`
	}
	// AskGate asks for the facts of rows 1–7 of a hosted call (op gate).
	AskGate struct {
		Tool string `json:"tool"`
	}
	// Gate answers it.
	Gate struct {
		Facts  *Facts `json:"facts"`
		Schema string `json:"schema,omitempty"`
	}
	// AskDigest asks for the file that the daemon serves as a tool (op digest).
	AskDigest struct {
		Path string `json:"path"` // of the tool in the tree
	}
	// Digest answers it.
	Digest struct {
		SHA256 string `json:"sha256"` // hex
		Size   int64  `json:"size"`
	}
	// AskHooks asks for the names of hooks (op hooks).
	AskHooks struct {
		Dir   string `json:"dir"`   // the object's .d in the tree
		Phase string `json:"phase"` // pre.d, post.d
	}
	// AskModel asks who may answer a call to a model (op model).
	AskModel struct {
		Ref string `json:"ref"`
	}
	// Model is one of those that may.
	Model struct {
		Name   string `json:"name"` // provider/model
		Driver string `json:"driver"`
		Effort string `json:"effort,omitempty"`
		Script []byte `json:"script,omitempty"` // of debug/script
	}
)

// Brief is what a run is told besides its input.
type Brief struct {
	Model    string     `json:"model"` // reference, as written
	Steps    int        `json:"steps"` // largest step number
	System   string     `json:"system"`
	Template string     `json:"template"`
	Tools    []ToolText `json:"tools"` // that the agent may run now
	Window   int        `json:"window"`
	Cwd      string     `json:"cwd"`
}

// ToolText is what is told of a tool.
type ToolText struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Schema      string `json:"schema,omitempty"` // of a declared one
	Declared    bool   `json:"declared"`
}
