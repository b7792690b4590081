// Command cortexfs serves the tree of a store at a mount point. Called as
// mount.cortexfs it is a helper of mount(8).
package main

import (
	"os"

	"cortexfs/cmd/internal/daemon"
	"cortexfs/sandbox"
)

func main() {
	// First of all: under its helper names this program is the stage or the open
	// helper of a start and nothing else (spec section 24).
	sandbox.HelperMain()
	if daemon.IsMountHelper(os.Args[0]) {
		os.Exit(daemon.MountMain(os.Args[1:]))
	}
	os.Exit(daemon.Main(os.Args[1:]))
}
