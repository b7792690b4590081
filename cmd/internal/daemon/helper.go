package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// IsMountHelper says whether the program was called as a helper of mount(8):
// mount.cortexfs for the type "cortexfs", mount.fuse.cortexfs for the type
// "fuse.cortexfs", which then needs no mount.fuse3.
func IsMountHelper(argv0 string) bool {
	switch filepath.Base(argv0) {
	case "mount.cortexfs", "mount.fuse.cortexfs":
		return true
	}
	return false
}

// helperCommand is a parsed command line of mount(8)'s helper interface.
type helperCommand struct {
	Command
	fake    bool // -f: check everything, mount nothing
	verbose bool
}

// parseHelper reads `SRC MOUNTPOINT [-sfnv] [-t TYPE] [-o OPTIONS]`, as mount(8)
// calls its helpers (mount(8), "External helpers"). With -s options that are not
// known are left out, not refused.
func parseHelper(args []string) (*helperCommand, error) {
	c := &helperCommand{Command: Command{ready: -1}}
	var pos, texts []string
	sloppy := false
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			pos = append(pos, args[i+1:]...)
			break
		}
		if len(a) < 2 || a[0] != '-' {
			pos = append(pos, a)
			continue
		}
		for j := 1; j < len(a); j++ {
			switch a[j] {
			case 's':
				sloppy = true
			case 'f':
				c.fake = true
			case 'v':
				c.verbose = true
			case 'n', 'r', 'w': // no mtab here; mount(8) says ro and rw in -o, too
				if a[j] != 'n' {
					texts = append(texts, map[byte]string{'r': "ro", 'w': "rw"}[a[j]])
				}
			case 'o', 't':
				value := a[j+1:]
				if value == "" {
					if i++; i == len(args) {
						return nil, fault.Newf(fault.Invalid, "-%c needs a value", a[j])
					}
					value = args[i]
				}
				if a[j] == 'o' {
					texts = append(texts, value)
				}
				j = len(a)
			default:
				return nil, fault.Newf(fault.Invalid, "unknown option -%c", a[j])
			}
		}
	}
	if len(pos) != 2 || pos[0] == "" || pos[1] == "" {
		return nil, fault.Newf(fault.Invalid, "expected SOURCE and MOUNTPOINT, got %d arguments", len(pos))
	}
	c.Store, c.Mountpoint = pos[0], pos[1]
	for _, text := range texts {
		for _, word := range splitOptions(text) {
			if word == "" {
				continue
			}
			if err := c.Mount.apply(word); err != nil {
				if sloppy {
					continue
				}
				return nil, err
			}
			c.Raw = append(c.Raw, strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(word))
		}
	}
	for _, p := range pos {
		if !filepath.IsAbs(p) {
			return nil, fault.Newf(fault.Invalid, "%s: source and mount point are absolute paths", p)
		}
	}
	return c, nil
}

// MountMain is mount.cortexfs. Its exit codes are mount(8)'s: 0, or 32 for a
// mount that failed for whatever reason.
func MountMain(args []string) int {
	seal()
	c, err := parseHelper(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "mount.cortexfs: %s\n", node.Escape(err.Error()))
		return exitMount
	}
	if c.verbose {
		fmt.Fprintf(os.Stderr, "mount.cortexfs: %s on %s (%s)\n", node.Escape(c.Store), node.Escape(c.Mountpoint), node.Escape(strings.Join(c.Raw, ",")))
	}
	if c.fake {
		return exitOK
	}
	return launch(&c.Command)
}
