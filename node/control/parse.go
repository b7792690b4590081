package control

import (
	"strings"

	"cortexfs/node"
	"cortexfs/policy"
)

// The functions below read what a valid text says. On an invalid one they return
// the error that Check does.

// ParseUint32 reads `owner`, `uid`, `gid`.
func ParseUint32(b []byte) (uint32, error) {
	s, err := value(numberFormat, b)
	if err != nil {
		return 0, err
	}
	return node.ParseUint(s)
}

// ParseWord reads the one value of a control whose format is one line (iso,
// life, abi, approval, model, root, cwd, status …). It does not judge the word:
// Check of the entry does.
func ParseWord(b []byte) (string, error) {
	return value(wordFormat, b)
}

var wordFormat = oneOrNone("word", func(string, bool) (int, string) { return 0, "" })

// ParseGroups reads `groups`, in the order of the lines.
func ParseGroups(b []byte) ([]uint32, error) {
	var j groupsJudge
	if err := groupsFormat.run(&j, b); err != nil {
		return nil, err
	}
	return j.out, nil
}

// Parent is the text of `parent`; all empty for a top-level agent.
type Parent struct{ Agent, Session, Run string }

// String is the text, without LF.
func (p Parent) String() string {
	if p.Agent == "" {
		return ""
	}
	s := "agent:" + p.Agent
	if p.Session != "" {
		s += " session:" + p.Session
	}
	if p.Run != "" {
		s += " run:" + p.Run
	}
	return s
}

// ParseParent reads `parent`.
func ParseParent(b []byte) (Parent, error) {
	s, err := value(parentFormat, b)
	if err != nil || s == "" {
		return Parent{}, err
	}
	var p Parent
	for _, w := range strings.Split(s, " ") {
		key, val, _ := strings.Cut(w, ":")
		switch key {
		case "agent":
			p.Agent = val
		case "session":
			p.Session = val
		case "run":
			p.Run = val
		}
	}
	return p, nil
}

// ParseEnv reads `env`. repeats are the CTX_ lines that the runtime sets anyway
// and that the text may repeat (Repeats; at start also CTX_PATH and CTX_SESSION).
func ParseEnv(b []byte, repeats ...string) ([]EnvVar, error) {
	j := envJudge{repeats: repeats}
	if err := newEnvFormat().run(&j, b); err != nil {
		return nil, err
	}
	return j.out, nil
}

// ParsePath reads `path`: the directories in order, cleaned, empty ones dropped.
func ParsePath(b []byte) ([]string, error) {
	var j pathJudge
	if err := pathFormat.run(&j, b); err != nil {
		return nil, err
	}
	return j.out, nil
}

// ParseMount reads the mount table, in the order of the lines.
func ParseMount(b []byte) ([]MountLine, error) {
	var j mountJudge
	if err := mountFormat.run(&j, b); err != nil {
		return nil, err
	}
	return j.out, nil
}

// Tools is what `tools` declares: names in order, and the line of each.
type Tools struct {
	Names []string
	lines map[string]int
}

// Line is the line (from 1) that declares the tool, 0 for none.
func (t Tools) Line(name string) int { return t.lines[name] }

// ParseTools reads `tools`.
func ParseTools(b []byte) (Tools, error) {
	var j toolsJudge
	if err := toolsFormat.run(&j, b); err != nil {
		return Tools{}, err
	}
	return Tools{Names: j.out, lines: j.seen}, nil
}

// ModelRef is a reference to a model: provider and model, or an alias.
type ModelRef struct{ Provider, Model, Alias string }

// String is the text of the reference, as policies name it.
func (r ModelRef) String() string {
	if r.Alias != "" {
		return r.Alias
	}
	return r.Provider + "/" + r.Model
}

// ParseModelRef reads `model`.
func ParseModelRef(b []byte) (ModelRef, error) {
	s, err := value(modelFormat, b)
	if err != nil {
		return ModelRef{}, err
	}
	if p, m, cut := strings.Cut(s, "/"); cut {
		return ModelRef{Provider: p, Model: m}, nil
	}
	return ModelRef{Alias: s}, nil
}

// ParseLabel reads `label`.
func ParseLabel(b []byte) (policy.Label, error) {
	s, err := value(labelFormat, b)
	if err != nil {
		return policy.Label{}, err
	}
	return policy.ParseLabel(s)
}
