package sandbox

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Operations of the FUSE protocol (linux/fuse.h) that the stand-in knows.
const (
	opLookup  = 1
	opForget  = 2
	opGetattr = 3
	opInit    = 26
	opIntr    = 36
	opForgets = 42
)

// mountFuse mounts a file system with an empty root directory whose server hangs
// in every look-up of the name "hang": what a user can do to whoever goes there.
// It returns the number of look-ups that hang.
func mountFuse(t testing.TB, dir, kind string, uid int) *atomic.Int32 {
	t.Helper()
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	need(t, "fuse", err)
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", dev.Fd(), uid, uid)
	if err := unix.Mount(strings.TrimPrefix(kind, "fuse."), dir, kind, unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		dev.Close()
		need(t, "fuse", err)
	}
	hanging := &atomic.Int32{}
	ended := make(chan struct{})
	wake, stop, err := os.Pipe()
	check(t, err)
	fd := int(dev.Fd())
	t.Cleanup(func() {
		// Detached first; the last close of the device then ends what hangs.
		unix.Unmount(dir, unix.MNT_DETACH)
		stop.Close()
		<-ended
		wake.Close()
		dev.Close()
	})
	go func() {
		defer close(ended)
		serveFuse(fd, int(wake.Fd()), uint32(uid), hanging)
	}()
	return hanging
}

func serveFuse(dev, wake int, uid uint32, hanging *atomic.Int32) {
	le := binary.LittleEndian
	buf := make([]byte, 1<<17)
	for {
		p := []unix.PollFd{{Fd: int32(dev), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && err != unix.EINTR || p[1].Revents != 0 {
			return
		}
		if p[0].Revents == 0 {
			continue
		}
		n, err := unix.Read(dev, buf)
		if err == unix.EINTR || err == unix.ENOENT || err == unix.EAGAIN {
			continue
		}
		if err != nil || n < 40 {
			return
		}
		op, unique := le.Uint32(buf[4:]), le.Uint64(buf[8:])
		var body []byte
		num := 0
		switch op {
		case opForget, opForgets, opIntr:
			continue
		case opInit:
			body = make([]byte, 64)
			le.PutUint32(body[0:], 7)
			le.PutUint32(body[4:], 31)
			le.PutUint32(body[20:], 4096)
		case opGetattr:
			body = make([]byte, 104)
			le.PutUint64(body[16:], 1)
			le.PutUint32(body[16+60:], unix.S_IFDIR|0o755)
			le.PutUint32(body[16+64:], 2)
			le.PutUint32(body[16+68:], uid)
			le.PutUint32(body[16+72:], uid)
		case opLookup:
			if string(buf[40:n-1]) == "hang" {
				hanging.Add(1)
				continue
			}
			num = -int(unix.ENOENT)
		default:
			num = -int(unix.ENOSYS)
		}
		out := make([]byte, 16, 16+len(body))
		le.PutUint32(out[0:], uint32(16+len(body)))
		le.PutUint32(out[4:], uint32(int32(num)))
		le.PutUint64(out[8:], unique)
		unix.Write(dev, append(out, body...))
	}
}

// A source in a file system whose server hangs ends the start by its deadline,
// with its line; helpers that cannot be killed are counted, and from the fourth
// on that owner's starts are refused at once. Others' go on.
func TestHangingSource(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	dir := w.dir("fuse")
	hanging := mountFuse(t, dir, "fuse.test", ownerID)
	s := w.spec()
	s.OpenDeadline = time.Second
	s.Rows = append(s.Rows, Row{Line: 3, Kind: Host, Source: dir + "/hang", Target: "/x", Recursive: true})
	for i := range maxStuck {
		start := time.Now()
		_, err := w.tryStart(s)
		wantFault(t, err, 1, "mount", "no answer within")
		if e := faults(err); len(e) == 1 && e[0].Line != 3 {
			t.Errorf("line %d", e[0].Line)
		}
		t.Logf("%v, %d hang, %d are counted", time.Since(start), hanging.Load(), stuck.count(ownerID))
		if n := stuck.count(ownerID); n != i+1 {
			t.Fatalf("%d are counted after %d starts", n, i+1)
		}
	}
	_, err := w.tryStart(s)
	wantFault(t, err, 1, "", "still hang")
	_, err = w.tryStart(w.spec())
	wantFault(t, err, 1, "", "still hang")
	other := agentOfRoot(w, w.spec())
	b := w.start(other)
	b.want("another owner's agent", b.sh("echo $USER"), "coder\n")
}

// A mount of a user's whose server hangs can lie below a source: mount calls do
// not ask it.
func TestHangingBelowSource(t *testing.T) {
	needRoot(t)
	w := newWorld(t)
	check(t, os.Mkdir(w.work+"/fuse", 0o755))
	mountFuse(t, w.work+"/fuse", "fuse.test", ownerID)
	b := w.start(w.spec())
	check(t, b.Verify(b.plan))
	b.want("beside it", b.do("write", "/workspace/new"), "ok")
}
