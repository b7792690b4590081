package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cortexfs/cmd/internal/ctlproto"
	"cortexfs/node"
	"cortexfs/node/fault"
)

// pollLog is how often `log -f` looks for more: FUSE files have no inotify for
// changes that the daemon makes.
const pollLog = 250 * time.Millisecond

func agentLogCmd(s *State) *cobra.Command {
	var follow bool
	var lines int
	c := &cobra.Command{
		Use:     "log NAME",
		Short:   "the events of an agent",
		Long:    "Print the agent's log: one JSON event a line. -f goes on until interrupted.",
		Example: "  ctx agent log coder\n  ctx agent log coder -n 20 -f",
		Args:    argsN(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			var st ctlproto.Described
			t, err := s.ask(&ctlproto.Status{Agent: args[0]}, &st, nil)
			if err != nil {
				return err
			}
			return s.showLog(t, path.Join(st.Ref+".d", "log"), lines, follow)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is added")
	c.Flags().IntVarP(&lines, "lines", "n", 0, "only the last lines (0: all)")
	return c
}

func (s *State) showLog(t *tree, rel string, lines int, follow bool) error {
	f, err := t.open(rel, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	text, err := io.ReadAll(f)
	if err != nil {
		return fault.FromOS("read", rel, err)
	}
	if err := s.logLines(lastLines(text, lines)); err != nil || !follow {
		return err
	}
	off := int64(len(text))
	for {
		time.Sleep(pollLog)
		if off, f, err = s.more(t, rel, f, off); err != nil {
			return err
		}
	}
}

// more prints what was added since off. A log that became shorter was rotated:
// it is opened again and read from its beginning.
func (s *State) more(t *tree, rel string, f *os.File, off int64) (int64, *os.File, error) {
	next, err := t.open(rel, unix.O_RDONLY)
	if err != nil {
		return off, f, err
	}
	st, err := next.Stat()
	if err != nil {
		next.Close()
		return off, f, fault.FromOS("stat", rel, err)
	}
	f.Close()
	if st.Size() < off {
		off = 0
	}
	if _, err := next.Seek(off, io.SeekStart); err != nil {
		return off, next, fault.FromOS("seek", rel, err)
	}
	text, err := io.ReadAll(next)
	if err != nil {
		return off, next, fault.FromOS("read", rel, err)
	}
	// An unfinished line waits for its end.
	end := bytes.LastIndexByte(text, '\n') + 1
	return off + int64(end), next, s.logLines(text[:end])
}

func lastLines(text []byte, n int) []byte {
	if n <= 0 {
		return text
	}
	parts := bytes.SplitAfter(text, []byte("\n"))
	if len(parts) > 0 && len(parts[len(parts)-1]) == 0 {
		parts = parts[:len(parts)-1]
	}
	if len(parts) > n {
		parts = parts[len(parts)-n:]
	}
	return bytes.Join(parts, nil)
}

func (s *State) logLines(text []byte) error {
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := sc.Text()
		if !s.json {
			line = node.Escape(line)
		}
		if _, err := fmt.Fprintln(s.Out, line); err != nil {
			if errors.Is(err, unix.EPIPE) {
				return exitError(ctlproto.ExitOK)
			}
			return err
		}
	}
	if err := sc.Err(); err != nil && !strings.Contains(err.Error(), "too long") {
		return err
	}
	return nil
}
