package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sort"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/companion"
	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
)

// topEvery is how often top looks again.
const topEvery = time.Second

// topRow is one agent as top shows it.
type topRow struct {
	Ref     string  `json:"ref"`
	State   string  `json:"state"`
	PID     int     `json:"pid,omitempty"`
	CPU     float64 `json:"cpu_percent"`
	RSS     int64   `json:"rss,omitempty"`
	Procs   int     `json:"processes,omitempty"`
	Session string  `json:"session,omitempty"`
	Pending string  `json:"pending,omitempty"`
	Refused string  `json:"last_refusal,omitempty"`

	spent  time.Duration
	looked time.Time
}

func agentTopCmd(s *State) *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:   "top",
		Short: "agents, live",
		Long: "Show your agents, each second: state, pid, processor, memory, session, pending questions and the last refusal.\n" +
			"Keys: up and down choose; w watches, a attaches, s stops (asks first), o answers open questions, enter shows the\n" +
			"status, d shows dead ones too, q ends. --once, and an output that is no terminal, print one table.",
		Example: "  ctx agent top\n  ctx agent top --once -o json",
		Args:    argsN(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if once || s.json || !isTerminal(s.Out) {
				before, err := s.topRows(nil)
				if err != nil {
					return err
				}
				time.Sleep(200 * time.Millisecond) // processor use is a difference
				rows, err := s.topRows(before)
				if err != nil {
					return err
				}
				return s.print(rows, func(w io.Writer) { fmt.Fprint(w, topTable(rows, -1, 160)) })
			}
			rows, err := s.topRows(nil)
			if err != nil {
				return err
			}
			_, err = tea.NewProgram(&top{s: s, rows: rows, at: time.Now(), width: 80, height: 24}, tea.WithInput(s.In), tea.WithOutput(s.Out)).Run()
			return err
		},
	}
	c.Flags().BoolVar(&once, "once", false, "print one table and end")
	return c
}

// topRows asks the daemon who is there and /proc what they use; before gives the
// processor time that they had used then.
func (s *State) topRows(before []topRow) ([]topRow, error) {
	now := time.Now()
	var agents []ctlproto.PSItem
	t, err := s.ask(&ctlproto.PS{}, nil, collect(&agents))
	if err != nil {
		return nil, err
	}
	spent := map[string]topRow{}
	for _, r := range before {
		spent[r.Ref] = r
	}
	rows := make([]topRow, 0, len(agents))
	for _, a := range agents {
		if a.Hidden {
			continue
		}
		r := topRow{Ref: a.Ref, State: a.State, PID: a.PID, looked: now}
		if a.Init > 0 {
			u := usageOf(a.Init)
			r.RSS, r.Procs, r.spent = u.RSS, u.N, u.CPU
		}
		if a.PID > 0 {
			var st ctlproto.Described
			if _, err := s.ask(&ctlproto.Status{Agent: a.Ref}, &st, nil); err == nil {
				r.Session, r.Pending = st.Session, st.Pending
			}
			r.Refused = t.lastRefusal(a.Ref)
		}
		if was, ok := spent[r.Ref]; ok && was.PID == r.PID && r.spent >= was.spent {
			r.CPU = 100 * float64(r.spent-was.spent) / float64(max(now.Sub(was.looked), time.Millisecond))
		}
		rows = append(rows, r)
	}
	sort.SliceStable(rows, func(i, j int) bool {
		if (rows[i].PID > 0) != (rows[j].PID > 0) {
			return rows[i].PID > 0
		}
		return rows[i].Ref < rows[j].Ref
	})
	return rows, nil
}

// logTail is how much of a log is searched for the last refusal.
const logTail = 64 << 10

// lastRefusal is the last thing that the agent was refused, as its log has it.
func (t *tree) lastRefusal(ref string) string {
	f, err := t.open(ref+".d/log", unix.O_RDONLY)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, logTail)
	n, _ := f.ReadAt(text, max(0, st.Size()-logTail))
	lines := strings.Split(string(text[:n]), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		var e struct{ Type, Object, Reason string }
		if json.Unmarshal([]byte(lines[i]), &e) == nil && (e.Type == "tool.denied" || e.Type == "control.rejected") {
			return strings.TrimSpace(e.Object + " " + e.Reason)
		}
	}
	return ""
}

// topTable draws rows; the chosen one is marked. Everything is escaped, and no
// line is wider than width.
func topTable(rows []topRow, chosen, width int) string {
	var b strings.Builder
	line := func(mark, ref, state, pid, cpu, mem, procs, session, rest string) {
		text := fmt.Sprintf("%s%-24s %-9s %7s %6s %7s %5s %-12s %s", mark, ref, state, pid, cpu, mem, procs, session, rest)
		if r := []rune(text); len(r) > width {
			text = string(r[:max(0, width-1)]) + "…"
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	line("  ", "AGENT", "STATE", "PID", "CPU%", "MEM", "PROCS", "SESSION", "PENDING / LAST REFUSAL")
	for i, r := range rows {
		mark, pid, cpu, procs := "  ", "-", "-", "-"
		if i == chosen {
			mark = "> "
		}
		if r.PID > 0 {
			pid, cpu = fmt.Sprint(r.PID), fmt.Sprintf("%.1f", r.CPU)
		}
		if r.Procs > 0 {
			procs = fmt.Sprint(r.Procs)
		}
		rest := r.Pending
		if rest == "" && r.Refused != "" {
			rest = "refused: " + r.Refused
		}
		line(mark, node.Escape(r.Ref), node.Escape(r.State), pid, cpu, size(r.RSS), procs, orDash(node.Escape(r.Session)), node.Escape(rest))
	}
	return b.String()
}

// top is the full-screen view.
type top struct {
	s             *State
	rows          []topRow
	at            time.Time // when rows were looked at
	chosen        string    // ref
	all           bool      // dead ones, too
	asking        string    // ref of the agent that is to be stopped, once confirmed
	note          string
	width, height int
}

type topLook struct {
	rows []topRow
	at   time.Time
	err  error
}

type topSaid struct{ text string }

var _ tea.Model = (*top)(nil)

// Init implements tea.Model.
func (m *top) Init() tea.Cmd { return m.tick() }

func (m *top) tick() tea.Cmd {
	before := m.rows
	return tea.Tick(topEvery, func(time.Time) tea.Msg {
		rows, err := m.s.topRows(before)
		return topLook{rows, time.Now(), err}
	})
}

// Update implements tea.Model.
func (m *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case topLook:
		if msg.err != nil {
			m.note = msg.err.Error()
			return m, m.tick()
		}
		m.rows, m.at = msg.rows, msg.at
		return m, m.tick()
	case topSaid:
		m.note = msg.text
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

// shown are the rows on the screen and the index of the chosen one.
func (m *top) shown() (rows []topRow, at int) {
	for _, r := range m.rows {
		if m.all || r.PID > 0 {
			rows = append(rows, r)
		}
	}
	for i, r := range rows {
		if r.Ref == m.chosen {
			at = i
		}
	}
	return rows, at
}

func (m *top) key(k string) tea.Cmd {
	rows, at := m.shown()
	if m.asking != "" {
		ref := m.asking
		m.asking, m.note = "", ""
		if k == "y" {
			return m.run("agent", "stop", ref)
		}
		return nil
	}
	m.note = ""
	switch k {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "d":
		m.all = !m.all
		return nil
	case "o":
		return m.screen("approvals")
	}
	if len(rows) == 0 {
		return nil
	}
	m.chosen = rows[at].Ref
	switch k {
	case "up", "k":
		m.chosen = rows[max(at-1, 0)].Ref
	case "down", "j":
		m.chosen = rows[min(at+1, len(rows)-1)].Ref
	case "s":
		m.asking = m.chosen
	case "w":
		return m.screen("agent", "watch", m.chosen)
	case "a":
		return m.screen("agent", "attach", m.chosen)
	case "enter":
		return m.run("agent", "status", m.chosen)
	}
	return nil
}

func (m *top) self(args []string) *exec.Cmd {
	path, err := companion.Find("ctx")
	if err != nil {
		path = "/proc/self/exe"
	}
	return exec.Command(path, args...)
}

// screen hands the terminal over to another command for a while.
func (m *top) screen(args ...string) tea.Cmd {
	return tea.ExecProcess(m.self(args), func(err error) tea.Msg {
		if err != nil {
			return topSaid{strings.Join(args, " ") + ": " + err.Error()}
		}
		return topSaid{}
	})
}

// run runs a command beside and shows what it says.
func (m *top) run(args ...string) tea.Cmd {
	return func() tea.Msg {
		cmd := m.self(args)
		cmd.Env = os.Environ()
		out, _ := cmd.CombinedOutput()
		return topSaid{strings.TrimSpace(string(out))}
	}
}

// View implements tea.Model.
func (m *top) View() tea.View {
	v := tea.NewView(m.draw())
	v.AltScreen = true
	v.WindowTitle = "ctx agent top"
	return v
}

func (m *top) draw() string {
	rows, at := m.shown()
	running := 0
	for _, r := range m.rows {
		if r.PID > 0 {
			running++
		}
	}
	head := fmt.Sprintf("ctx agent top  %s  %d running, %d agents\n\n", m.at.Format("15:04:05"), running, len(m.rows))
	foot := "\nup/down choose · w watch · a attach · s stop · o answer questions · enter status · d dead ones · q end\n"
	if m.asking != "" {
		foot = fmt.Sprintf("\nstop %s? y/n\n", node.Escape(m.asking))
	}
	note := ""
	if m.note != "" {
		note = "\n" + node.EscapeLines(m.note) + "\n"
	}
	room := m.height - strings.Count(head+foot+note, "\n") - 2
	from := 0
	if room > 0 && len(rows) > room {
		from = min(max(0, at-room/2), len(rows)-room)
		rows = rows[from : from+room]
	}
	if len(rows) == 0 {
		return head + "  no agent runs; start one: ctx agent start NAME\n" + note + foot
	}
	return head + topTable(rows, at-from, m.width) + note + foot
}
