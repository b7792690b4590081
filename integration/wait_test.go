package integration

import (
	"strings"
	"testing"
	"time"
)

// eventually waits for something that announces itself by no event: the kernel
// sends RELEASE after close has returned.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func contains(text, want string) bool { return strings.Contains(text, want) }
