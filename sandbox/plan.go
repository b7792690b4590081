package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
	"cortexfs/sandbox/bwrap"
	"cortexfs/sandbox/stage"
)

// Plan is a Spec that was checked, with everything that will be done spelt out.
type Plan struct {
	Spec    Spec
	Rows    []Row    // the rows as they will be asked for
	Argv    []string // the exact bwrap command; descriptors have the numbers that they will have
	TmpSize int64    // bytes of the private /tmp; 0: a row provides /tmp
}

const (
	maxTmp = 1 << 30
	maxShm = 256 << 20
)

// Plan checks the Spec and spells out what will be done; it opens nothing but
// asks where bubblewrap is.
func (s Spec) Plan() (*Plan, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	path, err := bwrap.Locate(s.Bwrap)
	if err != nil {
		return nil, stage.Fail(stage.StepNamespace, "", 0, fault.KindOf(err), "", "%v", err)
	}
	p := &Plan{Spec: s, Rows: slices.Clone(s.Rows), TmpSize: s.TmpSize}
	if p.TmpSize <= 0 {
		p.TmpSize = defaultTmp()
	}
	shm := min(p.TmpSize, maxShm)
	if err := p.planTmp(); err != nil {
		return nil, err
	}
	if len(p.Spec.Command) == 0 {
		p.Spec.Command = []string{TermPath}
	}
	p.Argv = append([]string{path}, bwrap.Options{
		Root: stage.StagedRoot, Hostname: s.Agent, Env: s.Env, Cwd: s.Cwd, TmpSize: p.TmpSize, ShmSize: shm,
		Seccomp: stage.FDSeccomp, Status: stage.FDStatus, Command: p.Spec.Command,
	}.Args()...)
	return p, nil
}

// planTmp decides what /tmp is: bwrap's tmpfs; for a line "/tmp /tmp" a private
// directory of the agent's home, never the host's; what another line says; and a
// tmpfs of the stage where lines go below /tmp (bwrap's would hide them).
func (p *Plan) planTmp() error {
	inside := false
	for i := range p.Rows {
		r := &p.Rows[i]
		if r.Target != "/tmp" {
			inside = inside || under(r.Target, "/tmp")
			continue
		}
		p.TmpSize, inside = 0, false
		if r.Kind != Host || r.Source != "/tmp" {
			return nil
		}
		home := slices.IndexFunc(p.Rows, func(r Row) bool { return r.Home && r.Kind == Store })
		if home < 0 {
			return stage.Fail(stage.StepMount, r.Control(), r.Line, fault.Invalid, "add the line of /home/agent", "/tmp /tmp is served by the agent's home, and no line shows that")
		}
		r.Kind, r.Store, r.Sub, r.Handover = Store, p.Rows[home].Store, "tmp", p.Rows[home].Handover
		return nil
	}
	if inside {
		p.Rows = append(p.Rows, Row{Kind: stage.Temp, Source: "tmpfs", Target: "/tmp", RW: true, Origin: "base", Size: p.TmpSize})
		p.TmpSize = 0
	}
	return nil
}

// defaultTmp is 25 % of memory, at most 1 GiB (spec 10.3).
func defaultTmp() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return maxTmp / 4
	}
	return int64(min(uint64(info.Totalram)*uint64(info.Unit)/4, maxTmp))
}

// String is what --dry-run prints without having opened anything: identity,
// environment, mount table, command.
func (p *Plan) String() string {
	table := make([]Effective, len(p.Rows))
	for i, r := range p.Rows {
		table[i] = Effective{Row: r, NoSuid: true, NoDev: true}
	}
	return p.Print(table, nil)
}

// Print is String with the table and the warnings that Check returned.
func (p *Plan) Print(table []Effective, warnings []string) string {
	var b strings.Builder
	s := &p.Spec
	fmt.Fprintf(&b, "identity: iso=%s uid=%d gid=%d groups=%s owner=%d\n", s.Iso, s.UID, s.GID, numbers(s.Groups), s.Owner)
	b.WriteString("environment:\n")
	for _, kv := range s.Env {
		fmt.Fprintf(&b, "  %s\n", kv)
	}
	b.WriteString("mounts:\n")
	tw := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "  LINE\tSOURCE\tTARGET\tMODE\tOPTIONS\tFROM")
	for i := range table {
		e := &table[i]
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s\n", lineName(e), sourceName(e), e.Target, mode(e), options(e), e.Resolved)
	}
	tw.Flush()
	for _, w := range warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	fmt.Fprintf(&b, "command:\n  %s\n", bwrap.Quote(p.Argv))
	return b.String()
}

func lineName(e *Effective) string {
	switch {
	case e.Made != "":
		return e.Made
	case e.Line > 0:
		return fmt.Sprint(e.Line)
	}
	return e.Control()
}

func sourceName(e *Effective) string {
	if e.Source == "" {
		return "-"
	}
	return e.Source
}

func mode(e *Effective) string {
	if e.RW {
		return "rw"
	}
	return "ro"
}

func options(e *Effective) string {
	o := []string{"bind", "nosuid", "nodev"}
	if e.Recursive {
		o[0] = "rbind"
	}
	if e.NoExec {
		o = append(o, "noexec")
	}
	if e.IDMapped {
		o = append(o, "idmap")
	}
	return strings.Join(o, ",")
}

func numbers(list []uint32) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ","), "[]")
}
