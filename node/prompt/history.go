package prompt

import (
	"encoding/json"
	"fmt"
	"strings"

	"cortexfs/node"
)

// MaxHistory bounds the history, in bytes (spec section 14).
const MaxHistory = 64 << 10

// History is the value of {{history_messages}} and of an envelope's
// history_messages: the lines of messages.jsonl, oldest first, without those of
// one run, in at most max bytes (0: MaxHistory). The newest are kept.
func History(lines [][]byte, without string, max int) string {
	if max <= 0 {
		max = MaxHistory
	}
	const mark = "[earlier messages are left out]\n"
	var all []string
	size := 0
	for _, l := range lines {
		if text, ok := message(l, without); ok {
			all = append(all, text)
			size += len(text)
		}
	}
	if size <= max {
		return strings.TrimSuffix(strings.Join(all, ""), "\n")
	}
	room := max - len(mark)
	first := len(all)
	for first > 0 && len(all[first-1]) <= room {
		first--
		room -= len(all[first])
	}
	var b strings.Builder
	if len(mark) <= max {
		b.WriteString(mark)
	}
	if first == len(all) { // the newest alone is too long: its end
		b.WriteString(tail(all[first-1], room))
	}
	for _, text := range all[first:] {
		b.WriteString(text)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// message is one line as a paragraph: its role, and its text with every further
// line indented, so that no text can look like the next message.
func message(line []byte, without string) (string, bool) {
	var m struct {
		Role, Run, Name string
		Content         json.RawMessage
	}
	if json.Unmarshal(line, &m) != nil || without != "" && m.Run == without {
		return "", false
	}
	who := m.Role
	switch m.Role {
	case "user", "assistant":
	case "tool":
		if m.Name != "" {
			who += " " + node.Escape(m.Name)
		}
	default:
		return "", false
	}
	text := strings.TrimSpace(content(m.Content))
	if text == "" {
		return "", false
	}
	return fmt.Sprintf("%s: %s\n", who, strings.ReplaceAll(text, "\n", "\n  ")), true
}

// content accepts a string and parts (spec section 13: readers accept both).
func content(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var parts []struct{ Text, Content string }
	if json.Unmarshal(raw, &parts) != nil {
		return ""
	}
	var all []string
	for _, p := range parts {
		if p.Text+p.Content != "" {
			all = append(all, p.Text+p.Content)
		}
	}
	return strings.Join(all, "\n")
}
