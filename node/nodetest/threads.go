package nodetest

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"unsafe"
)

// setgroups is the raw call: glibc and the syscall package would change every
// thread of the process.
func setgroups(n int, list *uint32) error {
	_, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(list)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// threads gives numbers of threads of this process that live as long as it does:
// Proc clients name them as the thread that asks.
var threads struct {
	once sync.Once
	mu   sync.Mutex
	ids  []uint32
	next int
}

func threadID() uint32 {
	threads.once.Do(func() {
		for range 4 {
			made := make(chan uint32)
			go func() {
				runtime.LockOSThread()
				made <- uint32(syscall.Gettid())
				select {} // keeps the thread
			}()
			threads.ids = append(threads.ids, <-made)
		}
		threads.ids = append(threads.ids, uint32(os.Getpid()))
	})
	threads.mu.Lock()
	defer threads.mu.Unlock()
	threads.next++
	return threads.ids[threads.next%len(threads.ids)]
}

func itoa[N ~int | ~uint32](n N) string { return strconv.Itoa(int(n)) }
