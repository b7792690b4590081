// Command cortexfs serves the tree of a store at a mount point.
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
	os.Exit(daemon.Main(os.Args[1:]))
}
