package agentd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"cortexfs/node"
	"cortexfs/node/fault"
)

// Limits of what the daemon hands over and of the ctl protocol.
const (
	maxParams = 64 << 10 // bytes of the JSON parameters
	maxLine   = 8 << 20  // bytes of one line on ctl.sock: what a run is told has prompts and schemas

	// DefaultGrace is how long a stop waits between SIGTERM and SIGKILL
	// (spec section 11).
	DefaultGrace = time.Second
	// MaxGrace bounds what a stop may ask for.
	MaxGrace = 10 * time.Minute
	// StartTimeout bounds the time from the start of the host process to the
	// guest's word that the session program runs.
	StartTimeout = 30 * time.Second
	// DefaultProgram is the session program, opened inside through the view.
	DefaultProgram = node.Root + "/tool/tsh"
)

// Params is everything the daemon tells a host process. It arrives as one JSON
// object on an inherited memfd; unknown fields end the process. That clients are
// processes of the host is judged by the process's own namespaces, which are the
// daemon's.
type Params struct {
	Agent     string   `json:"agent"`             // object name
	Key       string   `json:"key"`               // runtime key, e.g. system.0.coder
	Session   string   `json:"session"`           // session name
	Owner     uint32   `json:"owner"`             // uid that may watch and attach, besides root
	DaemonUID uint32   `json:"daemon_uid"`        // only uid that may use ctl.sock
	Program   string   `json:"program,omitempty"` // absolute path inside; empty: DefaultProgram
	Args      []string `json:"args,omitempty"`    // arguments after argv[0]
	Rows      uint16   `json:"rows,omitempty"`    // first size of the terminal; 0: 24
	Cols      uint16   `json:"cols,omitempty"`    // 0: 80
	Dir       string   `json:"dir,omitempty"`     // its .d in the tree
	Runs      bool     `json:"runs,omitempty"`    // set by Start: the descriptors of runs are there
}

// Encode is the text that DecodeParams reads.
func (p *Params) Encode() ([]byte, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode parameters of %s: %w", p.Key, err)
	}
	if len(b) > maxParams {
		return nil, fault.Newf(fault.TooBig, "parameters of %s: %d bytes", p.Key, len(b))
	}
	return b, nil
}

// DecodeParams reads the parameters strictly: one object, known fields only.
func DecodeParams(r io.Reader) (*Params, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxParams+1))
	if err != nil {
		return nil, fmt.Errorf("read parameters: %w", err)
	}
	if len(b) > maxParams {
		return nil, fault.Newf(fault.TooBig, "parameters over %d bytes", maxParams)
	}
	p := new(Params)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, fault.Newf(fault.Invalid, "parameters: %v", err)
	}
	if d.More() {
		return nil, fault.Newf(fault.Invalid, "parameters: more than one object")
	}
	if p.Agent == "" || p.Key == "" {
		return nil, fault.Newf(fault.Invalid, "parameters name no agent")
	}
	if p.Program == "" {
		p.Program = DefaultProgram
	}
	return p, nil
}
