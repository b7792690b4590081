// Command tool is one of the core tools of package toolkit; the linker sets
// which (-X main.name=fs.read), so that each tool is a file of its own bytes and
// no argv[0] can turn one tool into another.
package main

import (
	"os"

	"cortexfs/cmd/internal/toolkit"
)

var name string

func main() {
	os.Exit(toolkit.Main(name, os.Args[1:], os.Getenv("CTX_TOOL_MODE"), os.Stdin, os.Stdout, os.Stderr))
}
