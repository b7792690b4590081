package integration

import (
	"testing"

	"cortexfs/node/nodetest"
)

// TestTreeSuiteMounted runs the cases that node/tree passes in process on a real
// mount: the daemon is another process, this one is the client.
func TestTreeSuiteMounted(t *testing.T) {
	d := newDaemon(t, "")
	nodetest.RunTree(t, nodetest.MountedEnv(d.mnt))
}
