// Command ctx is people's way to a CortexFS tree.
package main

import (
	"os"

	"cortexfs/cmd/internal/cli"
)

// The same program is what agent/NAME of a tree executes: a task for that agent.
func main() {
	if exe, err := os.Executable(); err == nil {
		if code, ok := cli.AgentMain(exe, os.Args[1:]); ok {
			os.Exit(code)
		}
	}
	os.Exit(cli.Main(os.Args[1:]))
}
