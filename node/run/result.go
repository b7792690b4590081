package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"cortexfs/node/jsonl"
	"cortexfs/node/model"
)

// Limits of a tool's output, in bytes of each stream.
const CaptureLimit = 64 << 10

// refusal is the observation of a call that was not executed, or failed.
func refusal(t *ToolCall, code, text string) *Observation {
	content := "ERROR: " + code
	if text != "" {
		content += " " + text
	}
	o := &Observation{ToolCallID: t.ID, Name: t.Name, Status: "error"}
	o.set(content, false)
	return o
}

// set puts a text into the observation: valid UTF-8, at most MaxContent bytes,
// with a mark where something is missing.
func (o *Observation) set(content string, more bool) {
	content = strings.ToValidUTF8(content, "\ufffd")
	content = strings.ReplaceAll(content, "\x00", "\ufffd")
	if len(content) <= MaxContent && !more {
		o.Content = content
		return
	}
	o.Truncated = true
	of := len(content)
	content = cutText(content, MaxContent-len(mark(of, of, more)))
	o.Content = content + mark(len(content), of, more)
}

// observe makes the observation of what a tool has put out.
func observe(t *ToolCall, out *Output, timeout string) *Observation {
	o := &Observation{ToolCallID: t.ID, Name: t.Name, Status: "ok"}
	if out.Errno != "" {
		return refusal(t, out.Errno, "the tool cannot be executed")
	}
	text, sdk, failure := toolText(out.Stdout, out.Truncated)
	switch {
	case out.TimedOut:
		failure = "ETIMEDOUT after " + timeout
	case out.Code != 0 && (!sdk || failure == ""):
		failure = fmt.Sprintf("exit %d", out.Code)
	}
	if failure != "" {
		o.Status = "error"
		whole := []string{"ERROR: " + failure}
		for _, s := range []string{strings.TrimRight(string(out.Stderr), "\n"), text} {
			if s != "" {
				whole = append(whole, s)
			}
		}
		text = strings.Join(whole, "\n")
	}
	o.set(text, out.Truncated)
	return o
}

// toolText is the text of a tool's standard output: as it is, or what its frames
// say when the first line that is not blank is a start frame. failure is the
// tool's own error, or a breach of that format.
func toolText(stdout []byte, truncated bool) (text string, sdk bool, failure string) {
	head, _, _ := bytes.Cut(bytes.TrimLeft(stdout, " \t\r\n"), []byte("\n"))
	o, err := jsonl.Parse(head)
	if err != nil {
		return string(stdout), false, ""
	}
	if typ, _ := o.String("type"); typ != "start" {
		return string(stdout), false, ""
	}
	run, _ := o.String("run")
	var parts []string
	lines := bytes.Split(bytes.TrimLeft(stdout, " \t\r\n"), []byte("\n"))
	done := false
	for i, line := range lines[1:] {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		last := i == len(lines)-2
		part, end, err := toolFrame(line, run)
		switch {
		case err != nil && truncated && last: // cut within the frame
		case err != nil || done:
			return strings.Join(parts, "\n"), true, "EPROTO malformed output"
		case part.failure != "":
			failure = part.failure
		case part.text != "":
			parts = append(parts, part.text)
		}
		done = done || end
	}
	if !done && !truncated {
		failure = "EPROTO output without an end"
	}
	return strings.Join(parts, "\n"), true, failure
}

type toolPart struct{ text, failure string }

// toolFrame reads message, error and done of a tool.
func toolFrame(line []byte, run string) (p toolPart, end bool, err error) {
	o, err := jsonl.Parse(line)
	if err != nil {
		return p, false, err
	}
	if of, _ := o.String("run"); of != run {
		return p, false, fmt.Errorf("another run")
	}
	switch typ, _ := o.String("type"); typ {
	case "message":
		raw, _ := o.Get("content")
		text, _, err := model.ContentText(json.RawMessage(raw))
		return toolPart{text: text}, false, err
	case "error":
		code, _ := o.String("code")
		text, _ := o.String("message")
		return toolPart{failure: strings.TrimSpace(model.Printable(code, 64) + " " + model.Printable(text, 512))}, false, nil
	case "done":
		if status, _ := o.String("status"); status != "ok" {
			p.failure = "the tool failed"
		}
		return p, true, nil
	}
	return p, false, fmt.Errorf("unknown frame")
}
