package nodetest

import (
	"os"
	"testing"
)

// The suite runs in process with the tests of package tree.

// TestMounted runs the suite on the tree that is mounted at $CORTEXFS_TEST_MOUNT,
// served by another process.
func TestMounted(t *testing.T) {
	mnt := os.Getenv("CORTEXFS_TEST_MOUNT")
	if mnt == "" {
		t.Skip("CORTEXFS_TEST_MOUNT names no mounted tree")
	}
	RunTree(t, MountedEnv(mnt))
}
