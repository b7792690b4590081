package agent

import (
	"strconv"
	"time"
	"unicode/utf8"

	"cortexfs/node"
)

// maxField bounds one field of an event, so that no line grows without end.
const maxField = 1024

// Event is one line of an agent's log (spec section 20). Type and Status are
// always written, the other fields where they are not empty. Facts only: no
// secrets, no prompt text, no refused text.
type Event struct {
	Type    string // agent.start, tool.denied, …
	Session string
	Run     string
	Object  string // the control, tool, child … that it is about
	Status  string // ok, error, denied …
	Reason  string
	By      string // who or what decided: a rule's place, uid N, timeout
}

// kind is what repeats are counted by.
type kind struct{ typ, session, run, object, status string }

func (e *Event) kind() kind { return kind{e.Type, e.Session, e.Run, e.Object, e.Status} }

// single says whether each event of this type has a line of its own: those of a
// life, of a decision of a person, and of a grant. Each tells something else, and
// none can be made at a stranger's rate.
func (e *Event) single() bool {
	switch e.Type {
	case "agent.start", "agent.stop", "agent.exit", "approval.request", "approval.result",
		"child.create", "child.cancel", "grant", "agent.revoke":
		return true
	}
	return false
}

// appendLine appends the event as one line of JSON. count is how many equal ones
// it stands for.
func (e *Event) appendLine(b []byte, ts time.Time, seq uint64, agent string, count int) []byte {
	b = append(b, `{"ts":"`...)
	b = ts.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","seq":`...)
	b = strconv.AppendUint(b, seq, 10)
	for _, f := range [...]struct{ key, value string }{
		{"type", e.Type}, {"agent", agent}, {"session", e.Session}, {"run", e.Run},
		{"object", e.Object}, {"status", e.Status}, {"reason", e.Reason}, {"by", e.By},
	} {
		if f.value == "" && f.key != "status" {
			continue
		}
		b = append(b, `,"`...)
		b = append(b, f.key...)
		b = append(b, `":"`...)
		b = appendEscaped(b, f.value)
		b = append(b, '"')
	}
	if count > 1 {
		b = append(b, `,"count":`...)
		b = strconv.AppendInt(b, int64(count), 10)
	}
	return append(b, "}\n"...)
}

// appendEscaped appends s as the inside of a JSON string. Beyond what JSON
// demands, everything that a terminal would obey or that would make the line
// read as another one is escaped; bytes that are not UTF-8 become U+FFFD.
func appendEscaped(b []byte, s string) []byte {
	cut := len(s) > maxField
	if cut {
		s = s[:maxField]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1] // not within a character
		}
		if len(s) > 0 && s[len(s)-1] >= utf8.RuneSelf {
			s = s[:len(s)-1]
		}
	}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20 || r == 0x7f || r == utf8.RuneError || node.Deceptive(r):
			b = append(b, `\u`...)
			for shift := 12; shift >= 0; shift -= 4 {
				b = append(b, "0123456789abcdef"[r>>shift&15])
			}
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	if cut {
		b = append(b, "…"...)
	}
	return b
}
