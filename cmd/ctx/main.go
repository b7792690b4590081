// Command ctx is people's way to a CortexFS tree.
package main

import (
	"os"

	"cortexfs/cmd/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
