package model

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
)

// Limits of a request.
const (
	MaxRequest  = 4 << 20 // bytes of JSON
	maxMessages = 4096
	maxTools    = 1024
	maxStop     = 16
)

// Request is what a model is asked. Its JSON form is read tolerantly: our own
// frames and those of the usual chat APIs are both accepted as messages.
type Request struct {
	Messages    []Message `json:"messages"`
	Tools       []Tool    `json:"tools,omitempty"`
	MaxTokens   int       `json:"max_tokens,omitempty"`
	Temperature *float64  `json:"temperature,omitempty"`
	Stop        []string  `json:"stop,omitempty"`
	Effort      string    `json:"effort,omitempty"` // auto low medium high xhigh

	// Turn is how many calls the run has made before, where the host knows it:
	// an agent that starts anew at each step may not show them in its messages.
	Turn int `json:"-"`
}

// Message is one message. Content is plain text; of a list of parts the text is
// taken.
type Message struct {
	Role       string     `json:"role"` // system user assistant tool
	Content    string     `json:"content"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`   // of an assistant
	ToolCallID string     `json:"tool_call_id,omitempty"` // of a tool
	Name       string     `json:"name,omitempty"`
}

// ToolCall is what a model asks for. Arguments is a JSON object, or a string of
// shell words.
type ToolCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// Tool is what a model is told of a tool.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
}

// ParseInput reads what a model executable is given: a text, or an object with
// messages. The whole text is one user message unless it is such an object.
func ParseInput(b []byte) (*Request, error) {
	if len(b) > MaxRequest {
		return nil, fault.Newf(fault.TooBig, "request of %d bytes", len(b))
	}
	if !utf8.Valid(b) {
		return nil, fault.Newf(fault.Invalid, "request is not UTF-8")
	}
	if o, err := jsonl.Parse(b); err == nil {
		if _, ok := o.Get("messages"); ok {
			return ParseRequest(b)
		}
	}
	text := strings.TrimSuffix(string(b), "\n")
	return &Request{Messages: []Message{{Role: "user", Content: text}}}, nil
}

// ParseRequest reads the JSON form. Unknown keys are ignored.
func ParseRequest(b []byte) (*Request, error) {
	if len(b) > MaxRequest {
		return nil, fault.Newf(fault.TooBig, "request of %d bytes", len(b))
	}
	var r Request
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fault.Newf(fault.Invalid, "not a request: %w", plain(err))
	}
	return &r, r.Check()
}

// plain keeps the request's text out of the message.
func plain(err error) error {
	var f *fault.Error
	switch e := err.(type) {
	case *json.UnmarshalTypeError:
		return fault.Newf(fault.Invalid, "%s has the wrong type", e.Field)
	case *json.SyntaxError:
		return fault.Newf(fault.Invalid, "no JSON at byte %d", e.Offset)
	case *fault.Error:
		f = e
		return f
	}
	return fault.Newf(fault.Invalid, "malformed")
}

// Check judges the sizes and roles.
func (r *Request) Check() error {
	switch {
	case len(r.Messages) == 0:
		return fault.Newf(fault.Invalid, "a request has at least one message")
	case len(r.Messages) > maxMessages, len(r.Tools) > maxTools, len(r.Stop) > maxStop:
		return fault.Newf(fault.TooBig, "request with too many messages, tools or stop words")
	case r.MaxTokens < 0:
		return fault.Newf(fault.Invalid, "max_tokens is negative")
	case r.Temperature != nil && (*r.Temperature < 0 || *r.Temperature > 2):
		return fault.Newf(fault.Invalid, "temperature is not within 0 and 2")
	}
	for _, m := range r.Messages {
		switch m.Role {
		case "system", "user", "assistant":
		case "tool":
			if m.ToolCallID == "" {
				return fault.Newf(fault.Invalid, "a message of a tool has a tool_call_id")
			}
		default:
			return fault.Newf(fault.Invalid, "role is system, user, assistant or tool")
		}
	}
	switch r.Effort {
	case "", "auto", "low", "medium", "high", "xhigh":
	default:
		return fault.Newf(fault.Invalid, "effort is auto, low, medium, high or xhigh")
	}
	return nil
}

// UnmarshalJSON accepts content as a string, as parts, as null; the result parts
// of our own tool messages; and tool calls in both shapes.
func (m *Message) UnmarshalJSON(b []byte) error {
	var raw struct {
		Role       string          `json:"role"`
		Content    json.RawMessage `json:"content"`
		ToolCalls  []ToolCall      `json:"tool_calls"`
		ToolCallID string          `json:"tool_call_id"`
		Name       string          `json:"name"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*m = Message{Role: raw.Role, ToolCalls: raw.ToolCalls, ToolCallID: raw.ToolCallID, Name: raw.Name}
	var id string
	var err error
	if m.Content, id, err = ContentText(raw.Content); err != nil {
		return err
	}
	if m.ToolCallID == "" {
		m.ToolCallID = id
	}
	return nil
}

// ContentText is the text of a message's content: a string, or parts of type text
// or tool_result. toolCall is the id in the first result part.
func ContentText(raw json.RawMessage) (text, toolCall string, err error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", "", nil
	}
	if raw[0] == '"' {
		err = json.Unmarshal(raw, &text)
		return text, "", err
	}
	var parts []struct {
		Type       string          `json:"type"`
		Text       string          `json:"text"`
		ToolCallID string          `json:"tool_call_id"`
		Content    json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", "", fault.Newf(fault.Invalid, "content is a string or a list of parts")
	}
	var texts []string
	for _, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text":
			texts = append(texts, p.Text)
		case "tool_result":
			inner, _, err := ContentText(p.Content)
			if err != nil {
				return "", "", err
			}
			texts = append(texts, inner)
			if toolCall == "" {
				toolCall = p.ToolCallID
			}
		default:
			return "", "", fault.Newf(fault.Invalid, "content part of type %.32q", p.Type)
		}
	}
	return strings.Join(texts, "\n"), toolCall, nil
}

// UnmarshalJSON accepts {id,name,arguments} and {id,type,function:{name,arguments}}
// with arguments as JSON in a string.
func (c *ToolCall) UnmarshalJSON(b []byte) error {
	var raw struct {
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Function  *struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*c = ToolCall{ID: raw.ID, Name: raw.Name, Arguments: raw.Arguments}
	if raw.Function != nil {
		c.Name, c.Arguments = raw.Function.Name, json.RawMessage(raw.Function.Arguments)
		if !json.Valid(c.Arguments) {
			c.Arguments = jsonl.Marshal(raw.Function.Arguments)
		}
	}
	return nil
}

// UnmarshalJSON accepts {name,description,schema} and {type,function:{name,
// description,parameters}}.
func (t *Tool) UnmarshalJSON(b []byte) error {
	var raw struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Function    *struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		} `json:"function"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*t = Tool{Name: raw.Name, Description: raw.Description, Schema: raw.Schema}
	if f := raw.Function; f != nil {
		*t = Tool{Name: f.Name, Description: f.Description, Schema: f.Parameters}
	}
	return nil
}
