package openai

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"cortexfs/node/fault"
	"cortexfs/node/jsonl"
	"cortexfs/node/model"
)

// Limits of an answer (spec section 19).
const (
	maxLine   = 256 << 10
	maxError  = 64 << 10 // bytes of an error's body that are read
	maxShown  = 512      // characters of it that are shown
	idleLimit = 60 * time.Second
)

// How long a provider that is busy is waited for.
const (
	retries   = 2
	firstWait = time.Second
	maxWait   = 20 * time.Second
)

// Driver is one model of one provider.
type Driver struct {
	provider *model.Provider
	model    string // the provider's name of it
	effort   string
	client   *http.Client
	idle     time.Duration
	warn     func(string)
}

// Options of a Driver.
type Options struct {
	Effort string        // of the model's control, where a request has none
	Idle   time.Duration // longest pause in an answer; 0: 60 s
	Warn   func(string)  // told of tools that are left out; nil: nobody
	TLS    *tls.Config   // other roots than the system's; nil for those
}

// New makes the driver of a model; name is the part behind the slash.
func New(p *model.Provider, name string, o Options) *Driver {
	d := &Driver{provider: p, model: p.ModelName(name), effort: o.Effort, idle: o.Idle, warn: o.Warn}
	if d.idle <= 0 {
		d.idle = idleLimit
	}
	if d.warn == nil {
		d.warn = func(string) {}
	}
	d.client = &http.Client{
		Transport: &http.Transport{
			Proxy:                  nil, // never the environment's
			DialContext:            dial(p.Base().Scheme == "http"),
			TLSClientConfig:        o.TLS,
			TLSHandshakeTimeout:    15 * time.Second,
			ResponseHeaderTimeout:  0, // the idle timer counts
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true, // sizes are judged as they arrive
			ForceAttemptHTTP2:      true,
			MaxIdleConnsPerHost:    4,
			IdleConnTimeout:        30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d
}

// dial connects; with loopback only to an address of this machine, whatever a
// name resolves to.
func dial(loopback bool) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 15 * time.Second}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil || !loopback {
			return conn, err
		}
		if a, ok := conn.RemoteAddr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
			conn.Close()
			return nil, errors.New("http goes to loopback only")
		}
		return conn, nil
	}
}

// Complete makes the call.
func (d *Driver) Complete(ctx context.Context, r *model.Request, emit func(model.Frame) error) error {
	limit := time.Duration(d.provider.Timeout) * time.Second
	if limit <= 0 {
		return d.complete(ctx, r, emit)
	}
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := d.complete(inner, r, emit)
	if err != nil && inner.Err() != nil && ctx.Err() == nil {
		return fault.Newf(fault.TimedOut, "no answer within %v", limit)
	}
	return err
}

func (d *Driver) complete(ctx context.Context, r *model.Request, emit func(model.Frame) error) error {
	names := make([]string, 0, len(r.Tools))
	for _, t := range r.Tools {
		names = append(names, t.Name)
	}
	for _, m := range r.Messages {
		for _, c := range m.ToolCalls {
			names = append(names, c.Name)
		}
	}
	aliases := NewAliases(names, d.provider.Names)
	for _, name := range aliases.LeftOut {
		d.warn("tool " + model.Printable(name, 64) + " has no name that the provider takes; it is left out")
	}
	body := jsonl.Marshal(d.body(r, aliases))
	wait := firstWait
	for try := 0; ; try++ {
		after, err := d.once(ctx, body, aliases, emit)
		if err == nil || after < 0 || try == retries || ctx.Err() != nil {
			return err
		}
		if after == 0 {
			after, wait = wait, wait*2
		}
		if after > maxWait {
			return err
		}
		t := time.NewTimer(after)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

type message struct {
	Role       string     `json:"role"`
	Content    *string    `json:"content"`
	ToolCalls  []sentCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type sentCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type request struct {
	Model         string          `json:"model"`
	Messages      []message       `json:"messages"`
	Stream        bool            `json:"stream"`
	StreamOptions map[string]bool `json:"stream_options"`
	Tools         []tool          `json:"tools,omitempty"`
	MaxTokens     int             `json:"max_tokens,omitempty"`
	Temperature   *float64        `json:"temperature,omitempty"`
	Stop          []string        `json:"stop,omitempty"`
	Effort        string          `json:"reasoning_effort,omitempty"`
}

type tool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters,omitempty"`
	} `json:"function"`
}

func (d *Driver) body(r *model.Request, aliases *Aliases) *request {
	q := &request{Model: d.model, Stream: true, StreamOptions: map[string]bool{"include_usage": true},
		MaxTokens: r.MaxTokens, Temperature: r.Temperature, Stop: r.Stop, Effort: r.Effort}
	if q.Effort == "" {
		q.Effort = d.effort
	}
	switch q.Effort {
	case "auto":
		q.Effort = ""
	case "xhigh":
		q.Effort = "high"
	}
	for _, m := range r.Messages {
		out := message{Role: m.Role, ToolCallID: m.ToolCallID}
		if m.Content != "" || len(m.ToolCalls) == 0 {
			out.Content = &m.Content
		}
		for _, c := range m.ToolCalls {
			alias, ok := aliases.Alias(c.Name)
			if !ok {
				alias = replaced(c.Name)
			}
			args := string(c.Arguments)
			if args == "" {
				args = "{}"
			}
			out.ToolCalls = append(out.ToolCalls, sentCall{c.ID, "function", function{alias, args}})
		}
		q.Messages = append(q.Messages, out)
	}
	for _, t := range r.Tools {
		alias, ok := aliases.Alias(t.Name)
		if !ok {
			continue
		}
		var one tool
		one.Type, one.Function.Name, one.Function.Description = "function", alias, t.Description
		one.Function.Parameters = t.Schema
		if len(t.Schema) == 0 {
			one.Function.Parameters = json.RawMessage(`{"type":"object"}`)
		}
		q.Tools = append(q.Tools, one)
	}
	return q
}

// once makes one HTTP request. after says whether it may be tried again: not
// (-1), as the provider says, or after our own pause (0).
func (d *Driver) once(ctx context.Context, body []byte, aliases *Aliases, emit func(model.Frame) error) (after time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(d.idle, func() { cancel(errIdle) })
	defer idle.Stop()
	url := strings.TrimSuffix(d.provider.Base().String(), "/") + "/chat/completions"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return -1, fault.Newf(fault.IO, "the request cannot be made")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("User-Agent", "cortexfs")
	if s := d.provider.Secret(); !s.Empty() {
		req.Header.Set("Authorization", s.Bearer())
	}
	res, err := d.client.Do(req)
	if err != nil {
		return -1, d.transport(ctx, err)
	}
	defer res.Body.Close()
	in := &bounded{r: res.Body, left: model.MaxAnswer, moved: func() { idle.Reset(d.idle) }}
	if res.StatusCode != http.StatusOK {
		return d.refused(res, in)
	}
	a := &answer{d: d, aliases: aliases, emit: func(f model.Frame) error {
		idle.Stop() // while our caller is slow the provider is not silent
		defer idle.Reset(d.idle)
		return emit(f)
	}}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		err = a.whole(in)
	} else {
		err = a.stream(in)
	}
	if err == nil {
		err = a.finish()
	}
	var own *fault.Error
	switch {
	case err == nil, a.broken != nil:
	case errors.As(err, &own) && ctx.Err() == nil:
	default:
		err = d.transport(ctx, err)
	}
	return -1, err
}

var errIdle = errors.New("idle")

// transport classifies what went wrong on the way. The texts of net/http name
// the URL, which is the user's own, and never a header.
func (d *Driver) transport(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errIdle):
		return fault.Newf(fault.TimedOut, "the provider was silent for %v", d.idle)
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fault.Newf(fault.Unavailable, "the provider does not answer: %s", d.clean(err.Error()))
}

// clean makes a text that came from outside fit to be shown.
func (d *Driver) clean(s string) string {
	s = s[:min(len(s), 8*maxShown)]
	return model.Printable(d.provider.Secret().Redact(s), maxShown)
}

// refused reduces an answer that is none.
func (d *Driver) refused(res *http.Response, in io.Reader) (time.Duration, error) {
	b, _ := io.ReadAll(io.LimitReader(in, maxError))
	text := fmt.Sprintf("status %d", res.StatusCode)
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		return -1, fault.Newf(fault.Access, "%s: redirects are refused", text)
	}
	if code, msg := errorBody(b); code != "" || msg != "" {
		for _, s := range []string{d.clean(code), d.clean(msg)} {
			if s != "" {
				text += ": " + s
			}
		}
	}
	err := fault.Newf(statusKind(res.StatusCode), "%s", text)
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if s, e := strconv.Atoi(res.Header.Get("Retry-After")); e == nil && s >= 0 {
			return max(time.Duration(s)*time.Second, time.Millisecond), err
		}
		return 0, err
	}
	return -1, err
}

func statusKind(code int) fault.Kind {
	switch code {
	case 400, 405, 409, 415, 422:
		return fault.Invalid
	case 401, 402, 403, 407, 451:
		return fault.Access
	case 404, 410:
		return fault.NotExist
	case 408, 504:
		return fault.TimedOut
	case 413:
		return fault.TooBig
	case 429:
		return fault.Again
	case 502, 503:
		return fault.Unavailable
	}
	return fault.IO
}

// errorBody finds code and message in the usual shapes of an error.
func errorBody(b []byte) (code, msg string) {
	var body struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(b, &body) != nil {
		return "", ""
	}
	var in struct {
		Message string          `json:"message"`
		Type    string          `json:"type"`
		Code    json.RawMessage `json:"code"`
	}
	var s string
	switch {
	case json.Unmarshal(body.Error, &in) == nil && (in.Message != "" || in.Type != ""):
		code = strings.Trim(string(in.Code), `"`)
		if code == "" || code == "null" {
			code = in.Type
		}
		return code, in.Message
	case json.Unmarshal(body.Error, &s) == nil && s != "":
		return "", s
	case body.Message != "":
		return "", body.Message
	case json.Unmarshal(body.Detail, &s) == nil:
		return "", s
	}
	return "", ""
}
