package stage

import (
	"os"
	"strings"
)

// listening reads the paths of listening local sockets of this network
// namespace: field 4 holds __SO_ACCEPTCON (unix(7), /proc/net/unix).
func listening() ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return nil, err
	}
	var list []string
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 8)
		if len(f) == 8 && f[3] == "00010000" && strings.HasPrefix(strings.TrimLeft(f[7], " 0123456789"), "/") {
			list = append(list, f[7][strings.IndexByte(f[7], '/'):])
		}
	}
	return list, nil
}
