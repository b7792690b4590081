package cli

import (
	"fmt"
	"io"
	"sort"
	"strings"
	"text/tabwriter"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
)

// The formats for people. All are pure functions of an answer, pinned by golden
// files; every value that comes from data is escaped.

// formatPS writes the forest of agents: roots by name, children below their
// parent. An agent whose parent is not in the list, or in a cycle, is a root.
func formatPS(w io.Writer, list []ctlproto.PSItem) {
	sort.SliceStable(list, func(i, j int) bool { return list[i].Ref < list[j].Ref })
	byParent := map[string][]int{}
	known := map[string]bool{}
	for _, it := range list {
		known[it.Ref] = true
	}
	for i, it := range list {
		if it.Parent != "" && known[it.Parent] {
			byParent[it.Parent] = append(byParent[it.Parent], i)
		}
	}
	shown, cycle := make([]bool, len(list)), make([]bool, len(list))
	var walk func(i int, lead, branch string)
	walk = func(i int, lead, branch string) {
		shown[i] = true
		note := ""
		if cycle[i] {
			note = " (its parents form a cycle)"
		}
		fmt.Fprintf(w, "%s%s%s%s\n", lead, branch, psLine(list[i]), note)
		switch branch {
		case "+- ":
			lead += "|  "
		case "`- ":
			lead += "   "
		}
		var kids []int
		for _, k := range byParent[list[i].Ref] {
			if !shown[k] {
				kids = append(kids, k)
			}
		}
		for n, k := range kids {
			branch := "+- "
			if n == len(kids)-1 {
				branch = "`- "
			}
			walk(k, lead, branch)
		}
	}
	for i, it := range list {
		if !shown[i] && (it.Parent == "" || !known[it.Parent]) {
			walk(i, "", "")
		}
	}
	for i := range list { // cycles
		if !shown[i] {
			cycle[i] = true
			walk(i, "", "")
		}
	}
}

func psLine(it ctlproto.PSItem) string {
	var b strings.Builder
	name := it.Name
	if strings.HasPrefix(it.Ref, "home/") {
		name = it.Ref
	}
	fmt.Fprintf(&b, "%s [%s]", node.Escape(name), node.Escape(it.State))
	opt := func(key, value, usual string) {
		if value != "" && value != usual {
			fmt.Fprintf(&b, " %s=%s", key, node.Escape(value))
		}
	}
	opt("model", it.Model, "main")
	opt("life", it.Life, "owned")
	opt("parent_session", it.Session, "")
	opt("parent_run", it.Run, "")
	opt("orphan_of", it.Orphan, "")
	if it.PID > 0 {
		fmt.Fprintf(&b, " pid=%d", it.PID)
	}
	return b.String()
}

// formatStatus writes the state on the first line, then one key a line, "-" for
// what is absent, then warnings.
func formatStatus(w io.Writer, st ctlproto.Described) {
	fmt.Fprintln(w, node.Escape(st.State))
	if st.Hidden {
		return
	}
	line := func(key, value string) { fmt.Fprintf(w, "%s=%s\n", key, orDash(node.Escape(value))) }
	num := func(key string, n uint64, known bool) {
		if !known {
			line(key, "")
			return
		}
		fmt.Fprintf(w, "%s=%d\n", key, n)
	}
	line("model", st.Model)
	line("life", st.Life)
	line("parent", st.Parent)
	line("children", strings.Join(st.Children, " "))
	num("pid", uint64(st.PID), st.PID > 0)
	num("uid", uint64(st.UID), true)
	num("gid", uint64(st.GID), true)
	line("groups", strings.Join(st.Groups, " "))
	line("label", st.Label)
	line("root", st.Root)
	line("cwd", st.CWD)
	line("session", st.Session)
	line("restart", strings.Join(st.Restart, ","))
	line("pending", st.Pending)
	if len(st.Enforced) > 0 {
		line("enforced", strings.Join(st.Enforced, " "))
	}
	for _, g := range st.Grants {
		void := ""
		if g.Void {
			void = " (void)"
		}
		fmt.Fprintf(w, "grant: %d %s %s by %s, %s: %s%s\n", g.N, node.Escape(g.Kind), node.Escape(g.Value), node.Escape(g.By), node.Escape(g.At), node.Escape(g.Reason), void)
	}
	for _, f := range st.Faults {
		fmt.Fprintf(w, "fault: %s\n", node.Escape(f))
	}
	for _, m := range st.Warnings {
		fmt.Fprintf(w, "warning: %s\n", node.Escape(m))
	}
}

// formatWhy writes every row with what decided it, then the verdict.
func formatWhy(w io.Writer, rows []ctlproto.WhyRow, v ctlproto.WhyVerdict) {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		word := "DENY"
		switch {
		case !r.Asked:
			word = "-"
		case r.OK:
			word = "ok"
		}
		place := node.Escape(r.File)
		if r.File != "" && r.Line > 0 {
			place = fmt.Sprintf("%s:%d", place, r.Line)
		}
		why := node.Escape(r.Why)
		if r.OK && r.Ancestor != "" {
			why += " (" + node.Escape(r.Ancestor) + ")"
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\n", r.Row, node.Escape(r.Name), word, orDash(place), why)
	}
	tw.Flush()
	writeTrimmed(w, table.String())
	for _, r := range rows {
		if r.Asked && !r.OK && r.Missing != "" {
			fmt.Fprintf(w, "missing in %s: %s\n", node.Escape(r.File), node.Escape(r.Missing))
		}
	}
	word := "denied"
	if v.Allowed {
		word = "allowed"
	}
	fmt.Fprintf(w, "%s: %s may%s execute %s\n", word, node.Escape(v.Ref), map[bool]string{true: "", false: " not"}[v.Allowed], node.Escape(v.Tool))
	for _, n := range v.Notes {
		fmt.Fprintf(w, "note: %s\n", node.Escape(n))
	}
}

// formatStarted writes the block that systemctl has made familiar.
func formatStarted(w io.Writer, root string, st ctlproto.Started) {
	fmt.Fprintf(w, "● cortexfs-agent@%s.service - CortexFS agent terminal\n", node.Escape(st.Name))
	line := func(label, value string) {
		if value != "" {
			fmt.Fprintf(w, "%14s: %s\n", label, node.Escape(value))
		}
	}
	line("Loaded", fmt.Sprintf("loaded (%s/%s.d)", root, st.Ref))
	active := fmt.Sprintf("active (%s)", st.State)
	if st.Since != "" {
		active += " since " + st.Since
	}
	if st.Joined {
		active += "; it ran already"
	}
	line("Active", active)
	line("Main PID", fmt.Sprint(st.PID))
	line("Agent", st.Name)
	line("Model", st.Model)
	line("Life", st.Life)
	line("Label", st.Label)
	line("UID", fmt.Sprint(st.UID))
	line("GID", fmt.Sprint(st.GID))
	groups := make([]string, len(st.Groups))
	for i, g := range st.Groups {
		groups[i] = fmt.Sprint(g)
	}
	line("Groups", orDash(strings.Join(groups, " ")))
	line("Session", st.Session)
	line("CWD", st.CWD)
	line("Workspace", st.Workspace)
	line("Runtime Socket", st.Socket)
}

// formatDryRun writes what a start would do.
func formatDryRun(w io.Writer, d ctlproto.DryRun) {
	fmt.Fprintln(w, node.EscapeLines(strings.TrimRight(d.Text, "\n")))
}

func formatView(w io.Writer, items []ctlproto.ViewItem) {
	var table strings.Builder
	tw := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, it := range items {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", it.Kind, node.Escape(it.Path), orDash(it.Mode), node.Escape(it.Text))
	}
	tw.Flush()
	writeTrimmed(w, table.String())
}

// writeTrimmed writes a table without the blanks that fill its last column.
func writeTrimmed(w io.Writer, table string) {
	for _, l := range strings.SplitAfter(table, "\n") {
		if l != "" {
			fmt.Fprintln(w, strings.TrimRight(l, " \n"))
		}
	}
}
