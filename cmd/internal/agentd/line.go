package agentd

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"

	"cortexfs/node/fault"
)

// readLine reads one line of at most maxLine bytes, without its LF.
func readLine(in *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, fault.Newf(fault.TooBig, "line over %d bytes", maxLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return line[:len(line)-1], nil
	}
}

// strict decodes one JSON object with known fields only and nothing after it.
func strict(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return errors.New("data after the object")
	}
	return nil
}

// errnoOf is the number behind an errno's name; 0 for an unknown one.
func errnoOf(name string) syscall.Errno {
	for n := syscall.Errno(1); n < 134; n++ {
		if unix.ErrnoName(n) == name {
			return n
		}
	}
	return syscall.EIO
}
