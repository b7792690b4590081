package fs_test

import (
	"os"
	"strings"
	"testing"
)

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
