// Command ctxterm is the terminal of an agent. Inside a sandbox, started without
// arguments with its wire on descriptor 3, it owns the PTY and the processes of
// the session (package guest). For people it is the client of a terminal socket:
//
//	ctxterm watch|attach SOCKET
//
// It is also the program of agents that have none of their own, and reads their
// rules and skills (package loop): what has to be inside is one file.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"cortexfs/cmd/internal/loop"
	"cortexfs/node/fault"
	"cortexfs/node/run"
	"cortexfs/sandbox/guest"
	"cortexfs/sandbox/term"
)

const usage = `usage: ctxterm watch|attach SOCKET
inside a sandbox: ctxterm, with its wire on descriptor 3`

func main() { os.Exit(start(os.Args[1:])) }

func start(args []string) int {
	switch {
	case len(args) == 0:
		return guest.Main()
	case len(args) == 1 && args[0] == run.LaunchFlag:
		return told(loop.Main(os.Stdin, os.Stdout))
	case len(args) == 3 && args[0] == "prompt-files":
		window, err := strconv.Atoi(args[2])
		if err != nil {
			return 2
		}
		return told(loop.PromptFiles(os.Stdout, args[1], window))
	case len(args) == 1 && (args[0] == "-h" || args[0] == "--help"):
		fmt.Println(usage)
		return 0
	case len(args) != 2 || (args[0] != "watch" && args[0] != "attach"):
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	_, err := term.Run(context.Background(), args[1], term.ClientOptions{
		Attach: args[0] == "attach",
		In:     os.Stdin,
		Out:    os.Stdout,
		Notice: func(s string) { fmt.Fprintf(os.Stderr, "\r\n%s\n", s) },
	})
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "ctxterm:", err)
	switch fault.KindOf(err) {
	case fault.Access, fault.Perm:
		return 13
	case fault.Invalid:
		return 2
	}
	return 69
}

// told says what went wrong.
func told(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
