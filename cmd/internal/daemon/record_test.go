package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cortexfs/sandbox"
)

// plant writes a state.json for key.
func plant(t *testing.T, w *world, key string, rec any, mode os.FileMode) string {
	t.Helper()
	dir := w.run.agent(key)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(rec)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "state.json")
	if err := os.WriteFile(file, b, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPlantedRecords (notes-security 93): whatever a planted state.json says, no
// process is signalled, nothing is adopted, and the directory is cleared.
func TestPlantedRecords(t *testing.T) {
	w, m := testWorld(t)
	o := newAgent(t, w, "a", w.uid, nil)
	k := o.Key()
	victim, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = victim.Kill(); _, _ = victim.Wait() }()
	held, err := holdProcess(victim.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.close()
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := exeID("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	good := record{
		Schema: recordSchema, Key: k.RuntimeKey(), Ref: k.String(), Boot: boot, Owner: w.uid,
		Host: sandbox.Process{PID: victim.Pid, Start: held.Start}, HostUID: w.uid, HostExe: exe, Since: time.Now(),
		Place: place{Session: "default"},
	}
	change := func(f func(*record)) record { r := good; f(&r); return r }
	w.run.shared = true
	for name, rec := range map[string]any{
		"another executable, no lock": good,
		"another boot":                change(func(r *record) { r.Boot = "x" }),
		"another start time":          change(func(r *record) { r.Host.Start++ }),
		"another uid":                 change(func(r *record) { r.HostUID++ }),
		"another key":                 change(func(r *record) { r.Key = "system.0.b" }),
		"no such agent":               change(func(r *record) { r.Ref = "agent/none" }),
		"another owner":               change(func(r *record) { r.Owner = w.uid + 1 }),
		"another schema":              change(func(r *record) { r.Schema++ }),
		"unknown field":               map[string]any{"schema": recordSchema, "x": 1},
		"no record":                   "x",
	} {
		dir := plant(t, w, k.RuntimeKey(), rec, 0o600)
		m.adoptAll()
		if !held.alive() {
			t.Fatalf("%s: the process was killed", name)
		}
		if exists(dir) {
			t.Errorf("%s: the directory is still there", name)
		}
		if r := m.unit(k).current(); r != nil {
			t.Errorf("%s: adopted", name)
		}
	}
	dir := plant(t, w, k.RuntimeKey(), good, 0o644)
	if _, err := readRecord(dir); err == nil {
		t.Error("a record that others can read or write is believed")
	}
	if err := os.Remove(filepath.Join(dir, "state.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/status", filepath.Join(dir, "state.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := readRecord(dir); err == nil {
		t.Error("a link is believed")
	}
	m.adoptAll()
}

func TestLockIsProofOfLife(t *testing.T) {
	w, _ := testWorld(t)
	const key = "system.0.a"
	if err := os.Mkdir(w.run.agent(key), 0o700); err != nil {
		t.Fatal(err)
	}
	if w.run.locked(key) {
		t.Error("nobody holds it")
	}
	f, err := w.run.lock(key)
	if err != nil {
		t.Fatal(err)
	}
	if !w.run.locked(key) {
		t.Error("we hold it")
	}
	st, err := os.Stat(filepath.Join(w.run.agent(key), "lock"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("a lock that others can open can be taken by them: %v %v", st.Mode(), err)
	}
	f.Close()
	if w.run.locked(key) {
		t.Error("it was given back")
	}
}

func TestRunDirStaysWithAgents(t *testing.T) {
	w, _ := testWorld(t)
	if err := os.Mkdir(w.run.agent("system.0.a"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.run.remove()
	if !exists(w.run.agent("system.0.a")) || !exists(w.run.sockDir()) {
		t.Error("what an agent needs was removed")
	}
	if err := w.run.clear("system.0.a"); err != nil {
		t.Fatal(err)
	}
	w.run.remove()
	if exists(w.run.path) {
		t.Error("an empty runtime directory stays")
	}
}
