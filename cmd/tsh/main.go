// Command tsh is the tool shell of an agent's terminal; see package tsh.
package main

import (
	"os"

	"cortexfs/cmd/internal/tsh"
)

func main() { os.Exit(tsh.New().Main(os.Args[1:])) }
