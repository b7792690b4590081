package prompt

import (
	"encoding/json"
	"fmt"
	"strings"

	"cortexfs/node/jsonl"
)

// Limits of the tools' text, in bytes.
const (
	MaxTools       = 48 << 10
	maxDescription = 1 << 10
)

// Tool is a tool that the agent may run now.
type Tool struct {
	Name        string
	Description string
	Schema      []byte // JSON Schema of the input; shown with Full
	Full        bool   // declared, or loaded in tsh
}

// Tools is the value of {{tool_injection}} and of an envelope's tool_context: the
// tools in their order, whole ones, in at most max bytes (0: MaxTools), and how
// many more there are.
func Tools(tools []Tool, max int) string {
	if max <= 0 {
		max = MaxTools
	}
	var b strings.Builder
	for i := range tools {
		text := tools[i].text()
		// The line with the number is there unless all the others fit too.
		room := max - b.Len() - len(text)
		if rest := len(tools) - i - 1; room < 0 || rest > 0 && room < len(more(rest)) && !fits(tools[i+1:], room) {
			left := more(len(tools) - i)
			if b.Len()+len(left) <= max {
				b.WriteString(left)
			}
			break
		}
		b.WriteString(text)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func fits(tools []Tool, room int) bool {
	for i := range tools {
		if room -= len(tools[i].text()); room < 0 {
			return false
		}
	}
	return true
}

func more(n int) string { return fmt.Sprintf("(%d more tools are not shown)\n", n) }

func (t *Tool) text() string {
	s := "- " + t.Name
	d := oneLine(t.Description)
	if short := cut(d, maxDescription); short != d {
		d = short + "…"
	}
	if d != "" {
		s += ": " + d
	}
	s += "\n"
	if t.Full {
		s += "  input: " + compact(t.Schema) + "\n"
	}
	return s
}

// compact is the schema on one line. What is no JSON is shown as no schema.
func compact(schema []byte) string {
	var v any
	d := json.NewDecoder(strings.NewReader(string(schema)))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return `{"type":"object"}`
	}
	return string(jsonl.Marshal(v))
}
