package sandbox

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// BenchmarkStart is a whole start until the command speaks, beside the same bwrap
// command without any staging. Kill is not timed.
func BenchmarkStart(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	w := newWorld(b)
	s := w.spec()
	s.Command = []string{TermPath, "probe", "serve"}
	b.Run("cortexfs", func(b *testing.B) {
		p := w.plan(s)
		before := cpu()
		defer func() { b.ReportMetric((cpu()-before).Seconds()*1000/float64(b.N), "cpu-ms/op") }()
		for b.Loop() {
			x, err := w.run(p)
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			x.stop()
			b.StartTimer()
		}
	})
	b.Run("skeleton", func(b *testing.B) {
		p, err := s.Plan()
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := MakeSkeleton(w.skeleton, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bwrap", func(b *testing.B) {
		before := cpu()
		defer func() { b.ReportMetric((cpu()-before).Seconds()*1000/float64(b.N), "cpu-ms/op") }()
		for b.Loop() {
			cmd := exec.Command("/usr/bin/bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--as-pid-1", "--clearenv",
				"--bind", w.skeleton, "/", "--ro-bind", "/usr", "/usr", "--bind", w.home, "/home/agent",
				"--bind", w.work, "/workspace", "--ro-bind", w.self, "/run/cortexfs/empty", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/workspace", "/run/cortexfs/empty", "probe", "serve")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ownerID, Gid: ownerID}}
			in, _ := cmd.StdinPipe()
			out, _ := cmd.StdoutPipe()
			cmd.Stderr = os.Stderr
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				b.Fatal(fmt.Errorf("%q %w", line, err))
			}
			b.StopTimer()
			in.Close()
			cmd.Wait()
			b.StartTimer()
		}
	})
}

// cpu is what we and all children that were waited for have used: on a loaded
// machine the one figure that can be compared.
func cpu() time.Duration {
	total := time.Duration(0)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		syscall.Getrusage(who, &u)
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}
