package fs_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// kernel is the version of the running one.
func kernel(t *testing.T) (major, minor int) {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	return major, minor
}

// mountOptions is what the mount table says of a path: its options, source and
// type, or nothing.
func mountOptions(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if f[4] != path {
			continue
		}
		for i := range f {
			if f[i] == "-" {
				return f[5] + " " + f[i+2] + " " + f[i+1]
			}
		}
	}
	return ""
}
