package guest

import (
	"bytes"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// reaper collects every child: the ones that we started, for whoever waits, and
// orphans of the sandbox. Nothing else in the process may wait for a child.
type reaper struct {
	chld chan os.Signal

	// mu protects the fields below.
	mu       sync.Mutex
	waiting  map[int]chan syscall.WaitStatus
	starting int                        // forks whose pid is not registered yet
	early    map[int]syscall.WaitStatus // ends seen while starting > 0
	alone    chan struct{}              // closed while there are no children
}

func newReaper() *reaper {
	r := &reaper{
		chld:    make(chan os.Signal, 1),
		waiting: map[int]chan syscall.WaitStatus{},
		early:   map[int]syscall.WaitStatus{},
		alone:   make(chan struct{}),
	}
	close(r.alone)
	signal.Notify(r.chld, syscall.SIGCHLD)
	go r.run()
	return r
}

func (r *reaper) run() {
	for range r.chld {
		for r.collect() {
		}
	}
}

// collect reaps one child; false when none has ended.
func (r *reaper) collect() bool {
	var ws syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == syscall.EINTR:
		return true
	case err == syscall.ECHILD:
		if r.starting == 0 {
			select {
			case <-r.alone:
			default:
				close(r.alone)
			}
		}
		return false
	case err != nil || pid <= 0:
		return false
	}
	if ch, ok := r.waiting[pid]; ok {
		delete(r.waiting, pid)
		ch <- ws
	} else if r.starting > 0 {
		r.early[pid] = ws
	}
	return true
}

// start forks and executes; the channel gets the end.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	r.starting++
	select {
	case <-r.alone:
		r.alone = make(chan struct{})
	default:
	}
	r.mu.Unlock()

	pid, err := syscall.ForkExec(path, argv, attr)

	ch := make(chan syscall.WaitStatus, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starting--
	if err == nil {
		if ws, ok := r.early[pid]; ok {
			ch <- ws
		} else {
			r.waiting[pid] = ch
		}
	}
	if r.starting == 0 {
		clear(r.early)
		select { // look again: a fork that failed may have been the only child
		case r.chld <- syscall.SIGCHLD:
		default:
		}
	}
	return pid, ch, err
}

// childless is closed while nothing runs inside but us.
func (r *reaper) childless() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alone
}

// signalAll signals every process of the sandbox but us. As its init that is
// kill(-1); otherwise, where that would reach the whole host in a test, all our
// descendants.
func signalAll(sig syscall.Signal) {
	if os.Getpid() == 1 {
		syscall.Kill(-1, sig)
		return
	}
	for _, pid := range descendants(os.Getpid()) {
		syscall.Kill(pid, sig)
	}
}

// descendants lists all processes below root, nearest first.
func descendants(root int) []int {
	dir, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range dir {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name may hold anything; the fields begin after its last bracket.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		if ppid, err := strconv.Atoi(string(fields[1])); err == nil {
			children[ppid] = append(children[ppid], pid)
		}
	}
	var all []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return all
}

// killAll ends everything but us, for certain: forks of the dying are caught by
// the next round.
func (r *reaper) killAll(limit time.Duration) {
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		signalAll(syscall.SIGKILL)
		select {
		case <-r.childless():
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func exitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
