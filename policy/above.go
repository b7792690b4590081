package policy

import (
	"slices"

	"cortexfs/node/fault"
)

// What the agents above the caller have to say (spec section 17): a child has at
// most what each of its ancestors has at this moment, save what root has granted
// it.

// refuse makes the verdict of a row the one of an ancestor.
func (v *Verdict) refuse(a *Ancestor, kind fault.Kind, file string, line int, why, missing string) {
	v.OK, v.Kind, v.Ancestor = false, kind, a.Name
	v.File, v.Line, v.Why, v.Missing = file, line, why, missing
}

// declaredAbove: a hosted call takes a tool that every ancestor declares.
func (q *Request) declaredAbove(v *Verdict) {
	if q.GrantedTool {
		return
	}
	for i := range q.Above {
		a := &q.Above[i]
		if a.Declares == nil {
			continue
		}
		if _, ok := a.Declares(q.Tool); !ok {
			v.refuse(a, fault.Access, a.ToolsFile, 0, "not declared by "+a.Name+", above it", q.Tool)
			return
		}
	}
}

// searchedAbove: the hit lies where every ancestor searches.
func (q *Request) searchedAbove(v *Verdict) {
	for i := range q.Above {
		a := &q.Above[i]
		if !slices.Contains(a.Searched, q.HitDir) {
			v.refuse(a, fault.NotExist, a.SearchFile, 0, "found in "+q.HitDir+", where "+a.Name+", above it, does not search", "")
			return
		}
	}
}

// mountedAbove: what the agent executes, every ancestor could.
func (q *Request) mountedAbove(v *Verdict) {
	for i := range q.Above {
		switch a := &q.Above[i]; {
		case a.Mount == nil:
			v.refuse(a, fault.Access, a.MountFile, 0, "no line of "+a.Name+", above it, exposes it", "")
			return
		case a.Mount.NoExec:
			v.refuse(a, fault.Access, a.MountFile, a.Mount.Line, "mounted noexec in "+a.Name+", above it", "")
			return
		}
	}
}

// allowedAbove is row 6 of every ancestor, with its own subject.
func (q *Request) allowedAbove(v *Verdict) {
	if q.Lineage != "" {
		v.OK, v.File, v.Line, v.Why = false, q.LineageFile, 0, q.Lineage
		return
	}
	if q.GrantedRule {
		return
	}
	for i := range q.Above {
		a := &q.Above[i]
		if _, ok := a.Policy.Allows(a.Subject, Tool, q.Tool, Execute); ok {
			continue
		}
		why := "no rule allows it to " + a.Name + ", above it"
		missing := ""
		switch {
		case a.Policy == nil:
			why = "the policy of " + a.Name + ", above it, is missing or invalid"
		case a.Subject == "":
			why = a.Name + ", above it, has no label type"
		}
		if a.Subject != "" {
			missing = Rule{Subject: a.Subject, Class: Tool, Name: q.Tool, Perm: Execute}.String()
		}
		v.refuse(a, fault.Access, a.PolicyFile, 0, why, missing)
		return
	}
}

// bornOf: row 7 holds for an agent that was created by a parent for whom it holds
// now, however many generations up.
func (q *Request) bornOf(v *Verdict) bool {
	for i := range q.Above {
		a := &q.Above[i]
		if !a.Born || q.Lineage != "" {
			return false
		}
		if line, ok := q.ToolPolicy.Allows(a.Subject, Tool, q.Tool, Execute); ok {
			v.OK, v.File, v.Line, v.Ancestor = true, q.ToolPolicyFile, line, a.Name
			v.Why = "by the right of its creator"
			return true
		}
	}
	return false
}
