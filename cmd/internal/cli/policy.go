package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
	"cortexfs/policy"
)

func policyCmd(s *State) *cobra.Command {
	return group("policy", "policies of agents and tools", "Look at policies.", "  ctx policy check coder",
		policyCheckCmd(s))
}

// ruleInfo is a rule of a checked policy.
type ruleInfo struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Rule string `json:"rule,omitempty"`
	OK   bool   `json:"ok"`
	Warn string `json:"warning,omitempty"`
}

func policyCheckCmd(s *State) *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE|AGENT|-...",
		Short: "check policies and warn of rules that grant nothing",
		Long: "Check policy texts: a file, standard input, or the policy of an agent of the tree. For an agent, rules\n" +
			"whose subject is not the agent's own label type are valid and grant nothing; they are named.",
		Example: "  ctx policy check coder\n  ctx policy check ./policy",
		Args:    argsN(1, -1),
		RunE: func(_ *cobra.Command, args []string) error {
			var list []ruleInfo
			bad := false
			for _, a := range args {
				rules, err := s.policyCheck(a)
				if err != nil {
					return err
				}
				list = append(list, rules...)
			}
			for _, r := range list {
				bad = bad || !r.OK
			}
			err := s.print(list, func(w io.Writer) { writeRules(w, list) })
			if err == nil && bad {
				return exitError(ctlproto.ExitUsage)
			}
			return err
		},
	}
}

func (s *State) policyCheck(arg string) ([]ruleInfo, error) {
	file, text, subject, err := s.policyText(arg)
	if err != nil {
		return nil, err
	}
	set, err := policy.Parse(text)
	if err != nil {
		r := ruleInfo{File: file, Warn: err.Error()}
		var fe *fault.Error
		if errors.As(err, &fe) {
			r.Line, r.Warn = fe.Line, fe.Place()
		}
		return []ruleInfo{r}, nil
	}
	list := []ruleInfo{}
	for _, rule := range set.Rules() {
		r := ruleInfo{File: file, Line: rule.Line, Rule: rule.String(), OK: true}
		if subject != "" && rule.Subject != subject {
			r.Warn = fmt.Sprintf("grants nothing: the agent's subject is %s", subject)
		}
		list = append(list, r)
	}
	return list, nil
}

// policyText finds what to check: a file of the host, standard input, or an
// agent's policy with its subject.
func (s *State) policyText(arg string) (file string, text []byte, subject string, err error) {
	if arg == "-" {
		text, err = io.ReadAll(io.LimitReader(s.In, node.MaxText+2))
		return "-", text, "", err
	}
	if text, err = os.ReadFile(arg); err == nil {
		return arg, text, "", nil
	}
	t, terr := s.tree()
	if terr != nil {
		return "", nil, "", fault.FromOS("read", arg, err)
	}
	refs := []string{arg}
	if !strings.Contains(arg, "/") {
		refs = []string{fmt.Sprintf("home/%d/agent/%s", s.UID, arg), "agent/" + arg}
	}
	for _, ref := range refs {
		rel, text, err := t.read(path.Join(ref+".d", "policy"))
		if fault.Is(err, fault.NotExist) {
			continue
		}
		if err != nil {
			return "", nil, "", err
		}
		if _, label, err := t.read(path.Join(ref+".d", "label")); err == nil {
			if l, err := policy.ParseLabel(strings.TrimSuffix(string(label), "\n")); err == nil {
				subject = l.Type
			}
		}
		return rel, text, subject, nil
	}
	return "", nil, "", fault.Newf(fault.NotExist, "%s is neither a file nor an agent", arg)
}

func writeRules(w io.Writer, list []ruleInfo) {
	for _, r := range list {
		switch {
		case !r.OK:
			fmt.Fprintf(w, "%s: %s\n", node.Escape(r.File), node.Escape(r.Warn))
		case r.Warn != "":
			fmt.Fprintf(w, "%s:%d: warning: %s: %s\n", node.Escape(r.File), r.Line, node.Escape(r.Rule), node.Escape(r.Warn))
		default:
			fmt.Fprintf(w, "%s:%d: %s\n", node.Escape(r.File), r.Line, node.Escape(r.Rule))
		}
	}
	if len(list) == 0 {
		fmt.Fprintln(w, "no rules: everything is denied")
	}
}
