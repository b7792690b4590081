package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The child of TestKillNine: writes numbered values for ever and says each one
// that was acknowledged.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("STORE_CRASH_CHILD") != "":
		crashChild(os.Getenv("STORE_CRASH_CHILD"))
	case os.Getenv("STORE_FULL_CHILD") != "":
		os.Exit(fullChild())
	}
	os.Exit(m.Run())
}

var crashNames = []string{"policy", "tools", "mount", "env"}

// crashText is recognisable whole: its number, then filler that depends on it.
func crashText(n int) []byte {
	return append(fmt.Appendf(nil, "%d\n", n), bytes.Repeat([]byte{'a' + byte(n%26)}, n%3000)...)
}

func crashChild(path string) {
	s, err := Open(path, Options{})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	o, err := s.Ensure("agent/a.d")
	for n := 1; err == nil; n++ {
		name := crashNames[n%len(crashNames)]
		if err = o.Put(name, crashText(n)); err == nil {
			fmt.Println("put", name, n)
		}
		if err == nil && n%5 == 0 {
			var d *Draft
			if d, err = s.NewFile("agent/a.d"); err == nil {
				_, _ = d.WriteAt(crashText(n), 0)
				var f *File
				if f, err = d.Commit("agent/a.d/exec", FileAttr{UID: 7, GID: 7, Mode: 0o755}); err == nil {
					f.Close()
					fmt.Println("put exec", n)
				}
			}
		}
		if err == nil && n%7 == 0 {
			dir := fmt.Sprintf("agent/b%d.d", n)
			if _, err = s.Create(dir, map[string][]byte{"label": []byte("b_t\n"), "owner": []byte("1\n")}); err == nil {
				fmt.Println("made", dir)
			}
		}
	}
	fmt.Println("error", err)
	os.Exit(1)
}

// TestKillNine (cases R02): the writer is killed at any point; each value is then
// the last acknowledged one or the one that was being written, whole, and nothing
// half done is left.
func TestKillNine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s, err := Open(path, Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	enough := 500
	if testing.Short() {
		enough = 50
	}
	writes, round := 0, 0
	acked := map[string]int{}
	var made []string
	for ; writes < enough && round < 60; round++ {
		// The numbers of one round begin again: what is on disk from before is
		// acknowledged by its being there.
		s := openStore(t, path)
		for name := range acked {
			acked[name] = valueOf(t, s, name)
		}
		s.Close()
		out := runAndKill(t, path, time.Duration(rand.IntN(120))*time.Millisecond)
		before := map[string]int{}
		for k, v := range acked {
			before[k] = v
		}
		last := 0
		for line := range strings.SplitSeq(out, "\n") {
			f := strings.Fields(line)
			switch {
			case len(f) == 3 && f[0] == "put":
				n, _ := strconv.Atoi(f[2])
				acked[f[1]], last = n, n
				writes++
			case len(f) == 2 && f[0] == "made":
				made = append(made, f[1])
			case len(f) > 0 && f[0] == "error":
				t.Fatalf("round %d: %s", round, line)
			}
		}
		s = openStore(t, path)
		for name, want := range acked {
			got := valueOf(t, s, name)
			// The write that was under way when the blow fell is the next number.
			if got != want && got != last+1 && got != last {
				t.Errorf("round %d: %s holds %d; acknowledged %d, last write %d, before %d", round, name, got, want, last, before[name])
			}
		}
		if names := tmpNames(t, s); len(names) > 0 {
			t.Errorf("round %d: left in tmp/: %q", round, names)
		}
		checkMade(t, s, made)
		for _, dir := range made {
			if err := s.Remove(dir); err != nil {
				t.Fatal(err)
			}
		}
		made = nil
		list, err := s.List("agent")
		if err != nil {
			list = nil // killed before the first object
		}
		for _, e := range list {
			if e.Name == "a.d" {
				continue
			}
			// Made, but killed before it said so: whole all the same.
			checkMade(t, s, []string{"agent/" + e.Name})
			if err := s.Remove("agent/" + e.Name); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
	}
	t.Logf("%d acknowledged writes, %d kills", writes, round)
}

func checkMade(t *testing.T, s *Store, dirs []string) {
	t.Helper()
	for _, dir := range dirs {
		o, err := s.Object(dir)
		if err != nil || text(o, "label") != "b_t\n" || text(o, "owner") != "1\n" {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func runAndKill(t *testing.T, path string, after time.Duration) string {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "STORE_CRASH_CHILD="+path)
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20*time.Millisecond + after) // the moment is to be random
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return out.String()
}

// valueOf checks that the value is whole and returns its number; 0 when absent.
func valueOf(t *testing.T, s *Store, name string) int {
	t.Helper()
	var got []byte
	if name == "exec" {
		f, err := s.OpenFile("agent/a.d/exec")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if a := f.Info().Attr; a != (FileAttr{7, 7, 0o755}) {
			t.Errorf("exec has attributes %+v", a)
		}
		got = make([]byte, f.Info().Size)
		if _, err := f.ReadAt(got, 0); err != nil && len(got) > 0 {
			t.Fatal(err)
		}
	} else {
		o, err := s.Object("agent/a.d")
		if err != nil {
			t.Fatal(err)
		}
		v, there := o.Snapshot().Values[name]
		if !there {
			return 0
		}
		if v.Err != nil {
			t.Fatal(v.Err)
		}
		got = v.Text
	}
	num, _, _ := bytes.Cut(got, []byte("\n"))
	n, err := strconv.Atoi(string(num))
	if err != nil || !bytes.Equal(got, crashText(n)) {
		t.Fatalf("%s is a mixture: %.40q", name, got)
	}
	return n
}
