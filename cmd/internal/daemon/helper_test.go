package daemon

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"cortexfs/node/fault"
)

func TestMountHelperCommandLine(t *testing.T) {
	for _, c := range []struct {
		args          string
		options       string
		ro            bool
		fake, verbose bool
	}{
		{args: "/s /m"},
		{args: "/s /m -o rw,noexec", options: "rw noexec"},
		{args: "/s /m -n -v -o ro", options: "ro", ro: true, verbose: true},
		{args: "/s /m -vfo ro", options: "ro", ro: true, verbose: true, fake: true},
		{args: "/s /m -sf -o ro,nonsense=1,debug", options: "ro debug", ro: true, fake: true},
		{args: "/s /m -t fuse.cortexfs -o nofail,_netdev,x-systemd.automount,user=alice", options: "nofail _netdev x-systemd.automount user=alice"},
		{args: "-o ro /s /m", options: "ro", ro: true},
		{args: "/s /m -r", options: "ro", ro: true},
		{args: `/s /m -o agent_group=a\,b`, options: `agent_group=a\,b`},
	} {
		got, err := parseHelper(strings.Fields(c.args))
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if s := strings.Join(got.Raw, " "); s != c.options || got.Mount.ReadOnly != c.ro || got.fake != c.fake || got.verbose != c.verbose ||
			got.Store != "/s" || got.Mountpoint != "/m" {
			t.Errorf("%s: %q %+v", c.args, s, got)
		}
		if again, err := ParseMountOptions(got.Raw); err != nil || again != got.Mount {
			t.Errorf("%s: the daemon would read %+v, %v", c.args, again, err)
		}
	}
	for args, word := range map[string]string{
		"":                    "0 arguments",
		"/s":                  "1 arguments",
		"/s /m /x":            "3 arguments",
		"s /m":                "absolute",
		"/s m":                "absolute",
		"/s /m -o":            "-o needs",
		"/s /m -q":            "-q",
		"/s /m -o ro,backing": `"backing"`,
		"/s /m -N /proc/1/ns": "-N",
	} {
		if _, err := parseHelper(strings.Fields(args)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestIsMountHelper(t *testing.T) {
	for argv0, want := range map[string]bool{
		"/sbin/mount.cortexfs": true, "mount.fuse.cortexfs": true, "cortexfs": false, "/usr/bin/cortexfs": false, "mount": false,
	} {
		if IsMountHelper(argv0) != want {
			t.Errorf("%s: %v", argv0, !want)
		}
	}
}

// supervise makes this process one with a supervisor and returns what that hears.
func supervise(t *testing.T, vars map[string]string) chan string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	for k, v := range vars {
		t.Setenv(k, v)
	}
	heard := make(chan string, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			heard <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return heard
}

func TestNotify(t *testing.T) {
	heard := supervise(t, map[string]string{"WATCHDOG_USEC": "30000", "WATCHDOG_PID": ""})
	n := newNotifier()
	if _, left := os.LookupEnv("NOTIFY_SOCKET"); left || n == nil {
		t.Fatal("NOTIFY_SOCKET is left to our children, or not seen")
	}
	n.say("READY=1")
	if m := <-heard; m != "READY=1" {
		t.Errorf("heard %q", m)
	}
	beats := make(chan error)
	stop := n.watch(zap.NewNop(), func() error { return <-beats })
	for range 3 {
		beats <- nil
		if m := <-heard; m != "WATCHDOG=1" {
			t.Errorf("heard %q", m)
		}
	}
	// A tree that fails, or that never answers, feeds nothing.
	beats <- fault.Newf(fault.IO, "no")
	select {
	case beats <- nil:
	case <-time.After(10 * time.Second):
		t.Fatal("it stopped asking")
	}
	if m := <-heard; m != "WATCHDOG=1" {
		t.Errorf("heard %q", m)
	}
	stop()
}

func TestNotifyWithoutSupervisor(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n := newNotifier()
	if n != nil {
		t.Error("a supervisor where there is none")
	}
	n.say("READY=1")
	n.watch(zap.NewNop(), func() error { panic("asked") })()
}

func TestNotifyWatchdogOfAnother(t *testing.T) {
	supervise(t, map[string]string{"WATCHDOG_USEC": "30000", "WATCHDOG_PID": "1"})
	if n := newNotifier(); n == nil || n.interval != 0 {
		t.Errorf("%+v", n)
	}
}

// TestAlive: what feeds the watchdog passes on a healthy tree.
func TestAlive(t *testing.T) {
	w, _ := testWorld(t)
	if err := w.alive(); err != nil {
		t.Error(err)
	}
}
