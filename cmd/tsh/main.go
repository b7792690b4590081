// Command tsh is the tool shell of an agent's terminal; see package tsh.
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/tsh"
)

func main() {
	// Tools run beside it with the same uid: none of them reads its memory or takes
	// its descriptors (spec 10.5).
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "tsh: set not dumpable:", err)
		os.Exit(70)
	}
	os.Exit(tsh.New().Main(os.Args[1:]))
}
