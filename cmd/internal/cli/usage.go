package cli

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is what a set of processes has used and holds.
type usage struct {
	CPU time.Duration // user and system, of all that still run
	RSS int64         // bytes
	N   int           // processes
}

// clockTick is USER_HZ, 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// usageOf adds up a process and everything below it, from /proc. All processes of
// a sandbox are below its init: whoever loses its parent gets init as one.
func usageOf(init int) (u usage) {
	queue := []int{init}
	page := int64(os.Getpagesize())
	for len(queue) > 0 && u.N < 4096 {
		pid := queue[0]
		queue = queue[1:]
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		cpu, pages := parseStat(string(text))
		u.CPU += cpu
		u.RSS += pages * page
		u.N++
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		for _, t := range tasks {
			kids, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
			for _, k := range strings.Fields(string(kids)) {
				if n, err := strconv.Atoi(k); err == nil {
					queue = append(queue, n)
				}
			}
		}
	}
	return u
}

// parseStat reads proc(5)'s stat: fields 14, 15 and 24. The second field may hold
// blanks and parentheses, so the rest begins after the last one.
func parseStat(text string) (cpu time.Duration, pages int64) {
	i := strings.LastIndexByte(text, ')')
	if i < 0 {
		return 0, 0
	}
	f := strings.Fields(text[i+1:])
	if len(f) < 22 {
		return 0, 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	sys, _ := strconv.ParseInt(f[12], 10, 64)
	pages, _ = strconv.ParseInt(f[21], 10, 64)
	return time.Duration(user+sys) * clockTick, pages
}

// size writes bytes for people.
func size(n int64) string {
	switch {
	case n <= 0:
		return "-"
	case n < 10<<20:
		return fmt.Sprintf("%.1fM", float64(n)/(1<<20))
	case n < 10<<30:
		return fmt.Sprintf("%dM", n>>20)
	}
	return fmt.Sprintf("%dG", n>>30)
}
