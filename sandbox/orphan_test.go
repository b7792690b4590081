package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// daemonMain is a daemon that makes one start after the other until it is killed.
// It says a word before each and after each.
func daemonMain(text string) {
	var p Plan
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	home, err := os.OpenFile(os.Getenv("TEST_HOME"), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for {
		// The command ends with its standard input, as ctxterm does with its wire.
		in, hold, err := os.Pipe()
		if err != nil {
			os.Exit(1)
		}
		fmt.Println("start")
		r, err := Start(context.Background(), &p, StartFiles{Store: map[string]*os.File{"home": home}, Stdin: in})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("started")
		in.Close()
		r.Kill(context.Background())
		<-r.Done()
		hold.Close()
	}
}

// kill -9 of the daemon at any moment of a start leaves no process and no mount:
// the stage helper goes on alone, and what it starts ends with its wire.
func TestDaemonDies(t *testing.T) {
	w := newWorld(t)
	s := w.spec()
	s.Command = []string{TermPath, "probe", "serve"}
	p := w.plan(s)
	text, err := json.Marshal(p)
	check(t, err)
	var length time.Duration
	for i := range 24 {
		cmd := exec.Command(plain, "probe", "daemon", string(text))
		cmd.Env = append(os.Environ(), "TEST_HOME="+w.home)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		lines := bufio.NewScanner(out)
		say := func(want string) {
			if !lines.Scan() || lines.Text() != want {
				t.Fatalf("the daemon said %q", lines.Text())
			}
		}
		say("start")
		begin := time.Now()
		if length == 0 { // the first one only measures
			say("started")
			length = time.Since(begin)
		} else {
			timer := time.NewTimer(length * time.Duration(i) / 20)
			<-timer.C
		}
		check(t, cmd.Process.Kill())
		cmd.Wait()
		w.nobody()
	}
}

// nobody waits until no process has a mount of this world any more.
func (w *world) nobody() {
	w.t.Helper()
	limit := time.Now().Add(20 * time.Second)
	for {
		left := processesWith(w.t, w.base)
		if len(left) == 0 {
			return
		}
		if time.Now().After(limit) {
			for _, pid := range left {
				cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				w.t.Errorf("process %d is left: %q", pid, cmdline)
				if h, err := hold(pid); err == nil { // ours: it has our mounts
					h.kill()
				}
			}
			return
		}
		if h, err := hold(left[0]); err == nil {
			select {
			case <-h.gone:
			case <-time.After(time.Until(limit)):
			}
		}
	}
}

func TestDaemonDiesUser(t *testing.T) {
	if asUser(t) {
		TestDaemonDies(t)
	}
}

// What ctxterm does first thing. The read-back still works, for a user's daemon
// too, whose user namespace it is.
func TestVerifyNotDumpable(t *testing.T) {
	w := newWorld(t)
	b := w.start(w.spec())
	b.want("prctl", b.do("nodump"), "ok")
	check(t, b.Verify(b.plan))
	// And nothing of it can be taken by its siblings (X20).
	out := b.sh("cat /proc/1/environ; ls /proc/1/fd; head -c1 /proc/1/mem")
	if strings.Count(out, "denied") != 3 || strings.Contains(out, "CTX_") {
		t.Errorf("a sibling reads: %q", out)
	}
}

func TestVerifyNotDumpableUser(t *testing.T) {
	if asUser(t) {
		TestVerifyNotDumpable(t)
	}
}
