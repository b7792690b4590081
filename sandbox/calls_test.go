package sandbox

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// rawCall makes one system call and tells the errno's name, or the result.
func rawCall(words []string) string {
	switch words[0] {
	case "getpid":
		return strconv.Itoa(unix.Getpid())
	}
	return unix.ErrnoName(unix.ENOSYS)
}
