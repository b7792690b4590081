// Package manual writes manual pages in man(7) format from what the programs
// themselves know: the command tree and the registry of control files.
//
// The idea: no page is written by hand, so none can be wrong about an option. The
// pages are committed under docs/man and a test compares them; they carry no date
// and no version, so that they change only when what they say does.
//
// The package formats; it runs nothing and reads no files.
package manual

import (
	"fmt"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cortexfs/node/control"
)

// Page is one manual page.
type Page struct {
	Name    string // ctx-agent
	Section int    // 1
	b       strings.Builder
}

// File is the page's file name.
func (p *Page) File() string { return fmt.Sprintf("%s.%d", p.Name, p.Section) }

// Text is the whole page.
func (p *Page) Text() string { return p.b.String() }

// New begins a page with its NAME section.
func New(name string, section int, short string) *Page {
	p := &Page{Name: name, Section: section}
	fmt.Fprintf(&p.b, ".\\\" Generated; do not edit.\n.TH %s %d \"\" CortexFS \"CortexFS manual\"\n", quote(strings.ToUpper(name)), section)
	p.Head("NAME")
	p.Para(name + " - " + short)
	return p
}

// escape makes text literal for roff.
func escape(s string) string {
	s = strings.ReplaceAll(s, `\`, `\e`)
	s = strings.ReplaceAll(s, "-", `\-`)
	s = strings.ReplaceAll(s, "`", `\(ga`)
	s = strings.ReplaceAll(s, "^", `\(ha`)
	s = strings.ReplaceAll(s, "~", `\(ti`)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func quote(s string) string { return `"` + strings.ReplaceAll(escape(s), `"`, `\(dq`) + `"` }

func (p *Page) line(s string) { p.b.WriteString(s + "\n") }

// Head begins a section.
func (p *Page) Head(title string) { p.line(".SH " + quote(title)) }

// Sub begins a subsection.
func (p *Page) Sub(title string) { p.line(".SS " + quote(title)) }

// Para writes running text; blank lines part paragraphs, lines that begin with a
// blank are kept as they are.
func (p *Page) Para(text string) {
	for i, para := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		if i > 0 {
			p.line(".PP")
		}
		lines := strings.Split(para, "\n")
		for n := 0; n < len(lines); n++ {
			if !strings.HasPrefix(lines[n], " ") {
				p.line(escape(strings.TrimSpace(lines[n])))
				continue
			}
			var kept []string
			for ; n < len(lines) && strings.HasPrefix(lines[n], " "); n++ {
				kept = append(kept, lines[n])
			}
			n--
			p.Pre(strings.Join(kept, "\n"))
		}
	}
}

// Pre writes text as it is.
func (p *Page) Pre(text string) {
	p.line(".PP\n.nf\n.RS 0")
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		p.line(escape(l))
	}
	p.line(".RE\n.fi\n.PP")
}

// Item writes a tagged paragraph.
func (p *Page) Item(tag, text string) {
	p.line(".TP\n\\fB" + escape(tag) + "\\fR")
	if text == "" {
		text = "\\&"
		p.line(text)
		return
	}
	for _, l := range strings.Split(text, "\n") {
		p.line(escape(strings.TrimSpace(l)))
	}
}

// See writes the SEE ALSO section.
func (p *Page) See(pages ...string) {
	p.Head("SEE ALSO")
	var list []string
	for _, s := range pages {
		name, section, _ := strings.Cut(s, "(")
		list = append(list, fmt.Sprintf(".BR %s (%s", quote(name), section))
	}
	p.line(strings.Join(list, " ,\n"))
}

// Commands makes ctx(1) and a page for each of its commands that has commands of
// its own.
func Commands(root *cobra.Command) []*Page {
	p := New(root.Name(), 1, root.Short)
	p.synopsis(root)
	p.Head("DESCRIPTION")
	p.Para(root.Long)
	p.flags("OPTIONS", root.PersistentFlags())
	p.Head("COMMANDS")
	pages := []*Page{p}
	var groups []string
	for _, c := range shown(root) {
		if len(shown(c)) > 0 && !ownHelp(c) {
			pages = append(pages, group(c))
			name := strings.ReplaceAll(c.CommandPath(), " ", "-") + "(1)"
			groups = append(groups, name)
			p.Item(c.Name(), c.Short+"; see "+name)
			continue
		}
		p.command(c)
	}
	p.exits()
	p.Head("ENVIRONMENT")
	p.Item("CTX_ROOT", "The tree to work on; /ctx if that is one, else ~/ctx.")
	p.Item("EDITOR, VISUAL", "What ctx edit starts.")
	p.Item("NO_COLOR", "No colour, wherever it is set.")
	p.See(append(groups, "cortexfs(8)", "cortexfs-agent(5)", "cortexfs-tool(5)", "cortexfs-model(5)")...)
	return pages
}

func group(c *cobra.Command) *Page {
	p := New(strings.ReplaceAll(c.CommandPath(), " ", "-"), 1, c.Short)
	p.synopsis(c)
	p.Head("DESCRIPTION")
	p.Para(c.Long)
	p.Head("COMMANDS")
	for _, sub := range shown(c) {
		p.command(sub)
	}
	p.exits()
	p.See("ctx(1)", "cortexfs-agent(5)")
	return p
}

// ownHelp marks cobra's own commands.
func ownHelp(c *cobra.Command) bool { return c.Name() == "help" || c.Name() == "completion" }

func shown(c *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			list = append(list, sub)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name() < list[j].Name() })
	return list
}

func (p *Page) synopsis(c *cobra.Command) {
	p.Head("SYNOPSIS")
	p.line("\\fB" + escape(c.CommandPath()) + "\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...")
}

func (p *Page) command(c *cobra.Command) {
	p.Sub(strings.TrimSuffix(c.UseLine(), " [flags]"))
	p.Para(c.Long)
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { p.flag(f) })
	if subs := shown(c); ownHelp(c) && len(subs) > 0 {
		for _, s := range subs {
			p.Item(s.Name(), s.Short)
		}
		return
	}
	for _, sub := range shown(c) {
		p.command(sub)
	}
	if c.Example != "" {
		p.Pre(c.Example)
	}
}

func (p *Page) flags(title string, set *pflag.FlagSet) {
	p.Head(title)
	set.VisitAll(func(f *pflag.Flag) { p.flag(f) })
}

func (p *Page) flag(f *pflag.Flag) {
	if f.Hidden || f.Name == "help" {
		return
	}
	tag := "--" + f.Name
	if f.Shorthand != "" {
		tag = "-" + f.Shorthand + ", " + tag
	}
	if kind, usage := pflag.UnquoteUsage(f); kind != "" {
		p.Item(tag+" "+strings.ToUpper(kind), usage)
	} else {
		p.Item(tag, usage)
	}
}

func (p *Page) exits() {
	p.Head("EXIT STATUS")
	for _, e := range [][2]string{
		{"0", "ok"}, {"1", "an error"}, {"2", "wrong usage or bad input"}, {"13", "refused by policy (EACCES, EPERM)"},
		{"69", "something needed is unavailable"}, {"70", "an internal error"}, {"130", "cancelled"},
	} {
		p.Item(e[0], e[1])
	}
}

// Controls makes the page of the control files of one kind of object.
func Controls(word string, set *control.Set, dir, intro string) *Page {
	p := New("cortexfs-"+word, 5, "control files of "+map[string]string{"agent": "an agent", "tool": "a tool", "model": "a model"}[word])
	p.Head("DESCRIPTION")
	p.Para(intro)
	p.Head("FILES")
	for _, e := range set.Entries() {
		p.Sub(dir + "/" + e.Name)
		p.Para(e.Doc)
		facts := []string{"Kind " + e.Kind.String(), fmt.Sprintf("mode %04o", e.Mode)}
		if e.Format != nil {
			facts = append(facts, "format "+e.Format.Name())
		}
		if e.Required {
			facts = append(facts, "required")
		}
		if e.FinalLF {
			facts = append(facts, "final LF required")
		}
		if e.Applies != "" {
			facts = append(facts, "applies "+string(e.Applies))
		}
		if e.Only != "" {
			facts = append(facts, "of "+e.Only+" only")
		}
		p.line(".PP")
		p.Para(strings.Join(facts, "; ") + ".")
		if e.Long != "" {
			p.line(".PP")
			p.Para(e.Long)
		}
		if len(e.Good) > 0 {
			p.line(".PP")
			p.line("For example:")
			p.Pre("  " + strings.ReplaceAll(strings.TrimRight(e.Good[0], "\n"), "\n", "\n  "))
		}
	}
	p.See("ctx(1)", "ctx-file(1)", "cortexfs(8)")
	return p
}
