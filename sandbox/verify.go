package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"cortexfs/node/fault"
	"cortexfs/sandbox/stage"
)

// spaces are the namespaces that are always the sandbox's own.
var spaces = []string{"user", "mnt", "pid", "ipc", "uts", "cgroup", "net"}

// Verify reads identity, namespaces and mount flags back from the running init
// and compares them with the plan; every difference is in the error. Call it
// after the command has said hello: before that bwrap still works on them.
func (r *Running) Verify(p *Plan) error {
	var all []error
	add := func(step int, control, format string, args ...any) {
		all = append(all, stage.Fail(step, control, 0, fault.Perm, "", "read back: "+format, args...))
	}
	r.verifyStatus(p, add)
	r.verifySpaces(add)
	r.verifyMounts(p, add)
	select { // all of this was about that process, if it is still there
	case <-r.init.gone:
		return stage.Fail(stage.StepExec, "", 0, fault.NoProcess, "", "the sandbox has ended")
	default:
	}
	return errors.Join(all...)
}

type difference func(step int, control, format string, args ...any)

func (r *Running) verifyStatus(p *Plan, add difference) {
	st, err := readStatus(r.Init)
	if err != nil {
		add(stage.StepIdentity, "", "%v", err)
		return
	}
	same := func(control, field string, want string) {
		if have := strings.Join(strings.Fields(st[field]), " "); have != want {
			add(stage.StepIdentity, control, "%s is %q, not %q", field, have, want)
		}
	}
	four := func(n uint32) string { return strings.TrimSpace(strings.Repeat(fmt.Sprint(n)+" ", 4)) }
	same("uid", "Uid", four(p.Spec.UID))
	same("gid", "Gid", four(p.Spec.GID))
	// The kernel keeps them sorted; a repeated primary group is no difference.
	have, err := numberList(st["Groups"])
	want := slices.Clone(p.Spec.Groups)
	if !p.Spec.Root {
		// A user's processes may hold their primary group among the others as well.
		have = slices.DeleteFunc(have, func(g uint32) bool { return g == p.Spec.GID })
		want = slices.DeleteFunc(want, func(g uint32) bool { return g == p.Spec.GID })
	}
	slices.Sort(have)
	slices.Sort(want)
	if err != nil || !slices.Equal(have, want) {
		add(stage.StepIdentity, "groups", "groups are %s, not %s", numbers(have), numbers(want))
	}
	for _, c := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		same("", c, "0000000000000000")
	}
	same("", "NoNewPrivs", "1")
	same("", "Seccomp", "2")
	if f := strings.Fields(st["NSpid"]); len(f) < 2 || f[len(f)-1] != "1" {
		add(stage.StepNamespace, "", "process %d is not the first of a pid namespace", r.Init)
	}
}

// verifySpaces compares namespaces with our own. A user may look at those of a
// process that made itself non-dumpable, because its user namespace is theirs.
func (r *Running) verifySpaces(add difference) {
	for _, ns := range spaces {
		own, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			add(stage.StepNamespace, "", "own %s namespace: %v", ns, err)
			continue
		}
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", r.Init, ns))
		if err != nil {
			add(stage.StepNamespace, "", "%s namespace: %v", ns, err)
			continue
		}
		if own == theirs {
			add(stage.StepNamespace, "", "the %s namespace is the host's", ns)
		}
	}
}

// verifyMounts compares every row, and everything mounted below it that is not a
// row of its own, with the mount table of init.
func (r *Running) verifyMounts(p *Plan, add difference) {
	if len(r.Table) == 0 {
		return // adopted: the table is not known
	}
	mounts, err := stage.ReadMounts(fmt.Sprintf("/proc/%d/mountinfo", r.Init))
	if err != nil {
		add(stage.StepMount, "", "%v", err)
		return
	}
	rows := map[string]*Effective{}
	for i := range r.Table {
		rows[r.Table[i].Target] = &r.Table[i]
	}
	top := map[string]*stage.Mount{} // the last at a point is what shows
	for i := range mounts {
		top[mounts[i].Point] = &mounts[i]
	}
	for target, row := range rows {
		if top[target] == nil {
			add(stage.StepMount, row.Control(), "line %d: nothing is mounted at %s", row.Line, target)
		}
	}
	for point, m := range top {
		verifyMount(p, rows, point, m, add)
	}
}

func verifyMount(p *Plan, rows map[string]*Effective, point string, m *stage.Mount, add difference) {
	if hasTag(m, "shared:") {
		add(stage.StepMount, "", "the mount at %s is shared", point)
	}
	want := []string{"nosuid", "nodev"}
	control, line := "", 0
	switch row := governing(rows, point); {
	case under(point, "/dev"): // bwrap's: single devices, devpts, shm
		want = []string{"nosuid"}
	case point == "/proc":
		want = []string{"nosuid", "nodev", "noexec"}
	case point == "/tmp" && p.TmpSize > 0:
	case row == nil || point == "/":
		want = append(want, "ro")
	default:
		control, line = row.Control(), row.Line
		if !row.RW {
			want = append(want, "ro")
		}
		if row.NoExec {
			want = append(want, "noexec")
		}
	}
	if point == "/dev" || under(point, "/ctx") {
		want = append(want, "ro")
	}
	for _, flag := range want {
		if !m.Options[flag] {
			add(stage.StepMount, control, "line %d: the mount at %s is not %s", line, point, flag)
		}
	}
}

// governing is the row with the deepest target that holds point.
func governing(rows map[string]*Effective, point string) *Effective {
	for p := point; ; {
		if row := rows[p]; row != nil {
			return row
		}
		i := strings.LastIndexByte(p, '/')
		if i <= 0 {
			return nil
		}
		p = p[:i]
	}
}

func readStatus(pid int) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	st := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		st[key] = strings.TrimSpace(value)
	}
	return st, nil
}

func numberList(s string) ([]uint32, error) {
	var list []uint32
	for _, f := range strings.Fields(s) {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, err
		}
		list = append(list, uint32(n))
	}
	return list, nil
}
