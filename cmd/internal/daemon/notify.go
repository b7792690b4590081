package daemon

import (
	"net"
	"os"
	"strconv"
	"time"

	"go.uber.org/zap"

	"cortexfs/node/vnode"
)

// notifier speaks sd_notify(3) to whoever supervises a foreground daemon. A nil
// notifier says nothing, so that callers need not know whether there is one.
type notifier struct {
	socket   string
	interval time.Duration // of the watchdog; 0: none is wanted
}

// newNotifier reads the supervisor's variables and removes them, so that no
// process that we start speaks in our name. nil if nobody supervises.
func newNotifier() *notifier {
	n := &notifier{socket: os.Getenv("NOTIFY_SOCKET")}
	usec, _ := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.interval = time.Duration(usec) * time.Microsecond / 3
	}
	for _, k := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(k)
	}
	if n.socket == "" {
		return nil
	}
	return n
}

// say sends one message; a name that begins with @ is an abstract socket's.
func (n *notifier) say(message string) {
	if n == nil {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte(message))
}

// watch feeds the supervisor's watchdog as long as alive answers in time, until
// the returned function is called.
func (n *notifier) watch(log *zap.Logger, alive func() error) (stop func()) {
	if n == nil || n.interval <= 0 {
		return func() {}
	}
	end := make(chan struct{})
	go func() {
		tick := time.NewTicker(n.interval)
		defer tick.Stop()
		for {
			answer := make(chan error, 1)
			go func() { answer <- alive() }()
			select {
			case err := <-answer:
				if err == nil {
					n.say("WATCHDOG=1")
				} else {
					log.Error("the tree does not answer", zap.Error(err))
				}
			case <-end:
				return
			}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func() { close(end) }
}

// alive walks through the tree's own locks as a request does. It asks the tree in
// process: a daemon that touched its own mount would wait for itself.
func (w *world) alive() error {
	r := &vnode.Req{UID: w.uid, GID: w.gid}
	root := w.tree.Root()
	for _, name := range []string{"status", "agent", "tool"} {
		e, err := root.(vnode.Lookuper).Lookup(r, name)
		if err != nil {
			return err
		}
		if l, ok := e.Node.(vnode.Lister); ok {
			if _, err := l.ReadDir(r); err != nil {
				return err
			}
		}
		if u, ok := e.Node.(vnode.Refcounted); ok {
			u.Unref()
		}
	}
	return nil
}
