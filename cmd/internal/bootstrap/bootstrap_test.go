package bootstrap

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cortexfs/node/agent"
	"cortexfs/node/control"
	"cortexfs/node/fault"
	"cortexfs/node/store"
	"cortexfs/node/view"
	"cortexfs/policy"
)

// open opens a scratch store whose programs are all one small file.
func open(t *testing.T, dir string) *Offline {
	t.Helper()
	o, err := OpenStore(filepath.Join(dir, "store"), os.Geteuid() == 0)
	if err != nil {
		t.Fatal(err)
	}
	prog := filepath.Join(dir, "program")
	if err := os.WriteFile(prog, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.Find = func(string) (string, error) { return prog, nil }
	return o
}

func run(t *testing.T, o *Offline, dry bool) ([]string, bool) {
	t.Helper()
	lines, changed, err := o.Run(Options{Owner: uint32(os.Geteuid()), DryRun: dry})
	if err != nil {
		t.Fatal(err)
	}
	return lines, changed
}

// files lists every file of the object tree with its bytes.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.Walk(filepath.Join(dir, "store", "object"), func(p string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			b, rerr := os.ReadFile(p)
			m[p], err = string(b), rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestFromNothingAndAgain(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir)
	defer o.Close()
	before := files(t, dir)
	lines, changed := run(t, o, true)
	if !changed || !slices.Contains(lines, "tree_version=none->1") || !slices.Contains(lines, "migrations=none") ||
		!slices.Contains(lines, "would_ensure agent/coder") || lines[len(lines)-1] != "would_write "+StateFile {
		t.Errorf("dry run: %q", lines)
	}
	if after := files(t, dir); len(after) != len(before) {
		t.Error("a dry run wrote something")
	}
	if _, changed := run(t, o, false); !changed {
		t.Error("nothing was made")
	}
	made := files(t, dir)
	for _, dry := range []bool{true, false} {
		if lines, changed := run(t, o, dry); changed || !slices.Contains(lines, "tree_version=1->1") {
			t.Errorf("a second run changes something: %q", lines)
		}
	}
	if again := files(t, dir); !mapsEqual(made, again) {
		t.Error("a second run wrote something")
	}
	f, err := o.Store.OpenFile(StateFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil || s.Schema != 1 || s.TreeVersion != 1 || !slices.Equal(s.ManagedAgents, []string{"architect", "coder", "reviewer"}) ||
		s.AppliedMigrations == nil || b[len(b)-1] != '\n' {
		t.Errorf("state %s: %v", b, err)
	}
}

func mapsEqual(a, b map[string]string) bool {
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return len(a) == len(b)
}

// TestReferenceAuthority: who may execute what, decided by the rows themselves;
// and a child never has more than its parent.
func TestReferenceAuthority(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir)
	defer o.Close()
	run(t, o, false)
	views := view.New(o.Agents, o.tools)
	all := append([]string{"tsh", "bash", "shell.exec"}, append(slices.Clone(readTools), "fs.write", "fs.replace")...)
	want := map[string][]string{
		"architect": all,
		"coder":     all,
		"reviewer":  append([]string{"tsh"}, readTools...),
	}
	for name, tools := range want {
		obj, err := o.Agents.Lookup(agent.System(name))
		if err != nil {
			t.Fatal(err)
		}
		if faults := obj.Config().Faults; len(faults) > 0 {
			t.Errorf("%s: %v", name, faults)
		}
		for _, tool := range all {
			_, got := views.For(obj).Explain(tool, true)
			if got != slices.Contains(tools, tool) {
				t.Errorf("%s %s: allowed=%v", name, tool, got)
			}
		}
	}
	parent := rules(t, o, "architect")
	for _, child := range []string{"coder", "reviewer"} {
		for r := range rules(t, o, child) {
			if !parent[r] {
				t.Errorf("%s has %s, the architect has not", child, r)
			}
		}
		if c := config(t, o, child); c.Parent.Agent != "architect" || c.UID != config(t, o, "architect").UID {
			t.Errorf("%s: parent %v uid %d", child, c.Parent, c.UID)
		}
	}
}

func config(t *testing.T, o *Offline, name string) *agent.Config {
	t.Helper()
	obj, err := o.Agents.Lookup(agent.System(name))
	if err != nil {
		t.Fatal(err)
	}
	return obj.Config()
}

// rules are the agent's rules without their subject.
func rules(t *testing.T, o *Offline, name string) map[string]bool {
	t.Helper()
	m := map[string]bool{}
	for _, r := range config(t, o, name).Policy.Rules() {
		m[strings.TrimPrefix(r.String(), "allow "+name+"_t ")] = true
	}
	return m
}

func TestEditsStay(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir)
	defer o.Close()
	run(t, o, false)
	obj, err := o.Store.Object("agent/coder.d")
	if err != nil {
		t.Fatal(err)
	}
	if err := obj.Put("policy", []byte("# mine\n")); err != nil {
		t.Fatal(err)
	}
	tool, err := o.Store.Object("tool/bash.d")
	if err != nil {
		t.Fatal(err)
	}
	if err := tool.Put("policy", nil); err != nil {
		t.Fatal(err)
	}
	if _, changed := run(t, o, false); changed {
		t.Error("an edit is to be repaired")
	}
	if got := string(obj.Snapshot().Values["policy"].Text); got != "# mine\n" {
		t.Errorf("policy %q", got)
	}
	// A tool that was removed comes back, its edited controls stay.
	if err := o.Store.RemoveFile("tool/bash"); err != nil {
		t.Fatal(err)
	}
	if lines, changed := run(t, o, false); !changed || !slices.Contains(lines, "ensured tool/bash") {
		t.Errorf("%q", lines)
	}
	if got := string(tool.Snapshot().Values["policy"].Text); got != "" {
		t.Errorf("tool policy %q", got)
	}
}

func TestNewerTreeIsRejected(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir)
	defer o.Close()
	r := &session{World: &o.World}
	if err := r.putFile(StateFile, strings.NewReader(`{"schema":1,"tree_version":9,"managed_agents":[],"applied_migrations":[]}`), store.FileAttr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	lines, changed, err := o.Run(Options{})
	if err == nil || changed || !slices.Contains(lines, "reject tree_version=9 newer_than_target=1") {
		t.Errorf("%q %v %v", lines, changed, err)
	}
	if _, err := o.Agents.Lookup(agent.System("coder")); !fault.Is(err, fault.NotExist) {
		t.Errorf("something was made: %v", err)
	}
	if err := r.putFile(StateFile, strings.NewReader(`{"schema":2}`), store.FileAttr{Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := o.Run(Options{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("another schema: %v", err)
	}
}

func TestRetiredBaseIsKept(t *testing.T) {
	for _, name := range []string{"base.d", "base", "base.sock"} {
		dir := t.TempDir()
		o := open(t, dir)
		p := filepath.Join(dir, "store", "object", "agent", name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(p, nil, 0o600)
		if name == "base.d" {
			os.Remove(p)
			err = os.Mkdir(p, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		lines, _ := run(t, o, false)
		found := slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "would_skip agent/base (") })
		if !found {
			t.Errorf("%s: %q", name, lines)
		}
		if _, err := os.Lstat(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		o.Close()
	}
}

// TestReferenceTexts: every text that is written is one that the registry takes.
func TestReferenceTexts(t *testing.T) {
	for _, a := range referenceAgents() {
		for name, text := range map[string]string{"policy": a.policyText(), "tools": strings.Join(a.tools, "\n") + "\n", "system.md": a.prompt} {
			if err := control.Agent.Lookup(name).Judge([]byte(text)); err != nil {
				t.Errorf("%s %s: %v", a.name, name, err)
			}
		}
	}
	for _, r := range referenceTools() {
		for name, text := range map[string]string{"policy": r.policyText(), "description": r.description, "schema": r.schema} {
			if err := control.Tool.Lookup(name).Judge([]byte(text)); err != nil {
				t.Errorf("%s %s: %v", r.name, name, err)
			}
		}
		if _, err := policy.Parse([]byte(r.policyText())); err != nil {
			t.Error(err)
		}
	}
}

func TestSecondDaemonIsRefused(t *testing.T) {
	dir := t.TempDir()
	o := open(t, dir)
	defer o.Close()
	if o2, err := OpenStore(filepath.Join(dir, "store"), os.Geteuid() == 0); err == nil {
		o2.Close()
		t.Error("a store that is served was opened")
	}
}

// TestAnyOwner: the reference agents of root, of an account and of a uid that no
// account has can all be started, as far as their controls say; twice in a row
// nothing changes.
func TestAnyOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes agents for others")
	}
	for _, owner := range []uint32{0, 1, 4242424} {
		dir := t.TempDir()
		o := open(t, dir)
		for i, want := range []bool{true, false} {
			lines, changed, err := o.Run(Options{Owner: owner})
			if err != nil || changed != want {
				t.Errorf("uid %d, run %d: %v %v %q", owner, i, changed, err, lines)
			}
		}
		for _, name := range []string{"architect", "coder", "reviewer"} {
			obj, err := o.Agents.Lookup(agent.System(name))
			if err != nil {
				t.Fatal(err)
			}
			c := obj.Config()
			if c.Owner != owner || c.UID == 0 || c.GID == 0 || c.UID != config(t, o, "architect").UID || c.GID != config(t, o, "architect").GID {
				t.Errorf("uid %d: %s has owner %d uid %d gid %d", owner, name, c.Owner, c.UID, c.GID)
			}
			for _, f := range obj.StartFaults() {
				// An account that is not there is in no group, not even its own.
				if owner != 4242424 || !strings.HasSuffix(f.Path, "/gid") {
					t.Errorf("uid %d: %s: %v", owner, name, f)
				}
			}
		}
		o.Close()
	}
}

// TestCrashInTheMiddle: whatever the run that was killed had made, the next one
// makes the rest, overwrites nothing, and the state file is last.
func TestCrashInTheMiddle(t *testing.T) {
	whole := t.TempDir()
	o := open(t, whole)
	run(t, o, false)
	o.Close()
	want := files(t, whole)
	for stop := 1; ; stop++ {
		dir := t.TempDir()
		o := open(t, dir)
		n := 0
		find := o.Find
		o.Find = func(name string) (string, error) {
			if n++; n == stop {
				return "", errors.New("killed")
			}
			return find(name)
		}
		_, _, err := o.Run(Options{Owner: uint32(os.Geteuid())})
		made := files(t, dir)
		if err == nil {
			o.Close()
			return // it never came that far: all steps were tried
		}
		if _, err := o.Store.StatFile(StateFile); !fault.Is(err, fault.NotExist) {
			t.Errorf("stopped at %d: the state file is there: %v", stop, err)
		}
		o.Find = find
		if _, changed := run(t, o, false); !changed {
			t.Errorf("stopped at %d: nothing left to do", stop)
		}
		again := files(t, dir)
		for p, text := range made {
			if again[p] != text {
				t.Errorf("stopped at %d: %s was written again", stop, p)
			}
		}
		if len(again) != len(want) {
			t.Errorf("stopped at %d: %d files, a run in one has %d", stop, len(again), len(want))
		}
		o.Close()
	}
}
