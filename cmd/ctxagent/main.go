// Command ctxagent is the host process of one running agent: ctxagent NAME,
// started by the daemon with its parameters and sockets as descriptors (package
// agentd). It is of no use by hand.
package main

import (
	"fmt"
	"os"

	"cortexfs/cmd/internal/agentd"
)

func main() {
	if err := agentd.Main(); err != nil {
		fmt.Fprintln(os.Stderr, "ctxagent:", err)
		os.Exit(1)
	}
}
